"""`rocm-sdk test` on ROCm's packages, installed as a user would: its report, read, filed and shown."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files, junit, process
from core.cell import GroupCell, python_of_tag
from core.env import Interpreter, installed, installer, require
from core.env.installer import Backend, locked_call
from core.errors import CheckError, MissingInputError, ProcessError
from core.families import group_families
from core.run import group_name, records, stage
from rocm_packaging.packages.layouts import LIBRARIES, Layout, device_package, layout_of, sdk_target

if TYPE_CHECKING:
    from core.cli.options import Common
    from core.junit import Case, Document, Outcome
    from rocm_packaging.origin import RocmSource

# Variables that would let programs find another ROCm than the one installed.
_OTHER_ROCM = (
    *("LD_LIBRARY_PATH", "ROCM_PATH", "ROCM_HOME"),
    *("HIP_PATH", "HIP_CLANG_PATH", "HIP_DEVICE_LIB_PATH", "DEVICE_LIB_PATH"),
)
_PREFIX = "rocm_sdk."

# What `unittest.TextTestRunner` prints with verbosity 2 or 3: a line a test with its result, perhaps with
# other output in between; a traceback a failure; "Ran N tests in S"; the sum.
_TEST = re.compile(r"^(?P<name>\w+) \((?P<id>[\w.]+)\)", re.MULTILINE)
_SKIPPED = re.compile(r"\.\.\. (?:.*\n)*?skipped (['\"])(?P<reason>.*)\1$", re.MULTILINE)
_PASSED = ("ok", "expected failure")  # what a test has printed may stand right before it
_SET_UP = ("setUp", "tearDown")  # of a class or module: not a test, and listed only when it fails
_RULE, _LINE = "=" * 70, "-" * 70
_SECTION = re.compile(rf"^{_RULE}\n(?:FAIL|ERROR): (?P<what>.*)\n(?:.*\n)*?{_LINE}\n", re.MULTILINE)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$", re.MULTILINE)
_RAN = re.compile(r"^Ran (?P<count>\d+) tests? in (?P<seconds>[\d.]+)s$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class TestRequest:
    """What to test."""

    common: Common
    families: tuple[str, ...]
    targets: tuple[str, ...]
    source: RocmSource | None = None
    version: str = ""
    extras: tuple[str, ...] = ("libraries", "devel")
    backend: Backend = "uv"
    cache_dir: Path | None = None
    junit: Path | None = None
    group: str = ""

    @property
    def artifact_group(self) -> str:
        """The group whose packages are taken, and that the report is filed under."""
        return self.group or group_name(";".join(self.families), self.common.build_variant)

    def cell(self, python_tag: str) -> GroupCell:
        """Return what a test under a Python runs on."""
        gpu_family = ";".join(self.families)
        is_own_group = group_families(self.artifact_group) in {"", gpu_family}
        return GroupCell(
            python=python_of_tag(python_tag),
            gpu_family=gpu_family,
            artifact_group=None if is_own_group else self.group or None,
        )


def run_tests(request: TestRequest) -> None:
    """Install the packages into the target environment, and test them there."""
    common, target, source = request.common, require(request.common.python), request.source
    inputs = {
        "packages": dict(source.digests) if source else None,
        "version": source.version if source else request.version,
        "families": list(request.families),
        "targets": list(request.targets),
        "extras": list(request.extras),
        "backend": request.backend,
        "installed": source is not None,
    }
    if source is not None and source.packages.staged is not None:
        inputs["source"] = source.origin
    run = stage.Stage(
        name="test_rocm",
        # an address may serve something else each time, and an environment may have been changed by hand
        common=common if inputs["packages"] else replace(common, force=True),
        artifact_group=request.artifact_group,
        cell=request.cell(target.tag),
    )

    def work() -> stage.StageResult:
        if source is None:
            names = [one.name for one in installed(target)]
            layout = layout_of(names, where=str(target.prefix)) or "unsplit"
            return stage.StageResult(files=(), details=_tested(request, target, layout))
        with source.opened_call(common.cache / "locks", request.families[0], request.targets) as rocm:
            calls = (locked_call(common, target, only=("setuptools",)), rocm)  # what its sdist is built with
            with installer.prepared(
                target,
                calls,
                digest=installer.digest_of_calls(target, calls, salt=inputs),
                backend=request.backend,
                cache_dir=request.cache_dir,
                force=run.common.force,
            ):
                installer.require_complete(target)
                return stage.StageResult(files=(), details=_tested(request, target, source.layout))

    stage.perform(run, inputs, work)
    _copy_report(request, target)


def _tested(request: TestRequest, target: Interpreter, layout: Layout) -> Mapping[str, Any]:
    """Run `rocm-sdk test`, file its report, print the table."""
    env = process.handed_on(
        **dict.fromkeys(_OTHER_ROCM),
        ROCM_SDK_TARGET_FAMILY=sdk_target(layout, request.families[0], request.targets) or None,
        VIRTUAL_ENV=str(target.prefix),
        PYTHONDONTWRITEBYTECODE="1",
    )
    command = [str(target.executable), "-m", "rocm_sdk", "test"]
    with tempfile.TemporaryDirectory() as folder:
        known = process.capture([*command, "--help"], cwd=Path(folder), env=env, check=False)
        own = _report if "--junit" in known.stdout else _unittest_report
        content, failure = own(request, command, Path(folder), env)
    key = _report_key(request, target)
    request.common.open_store().put_bytes(key, content)
    report = read(content)
    counts = results(report.cases)
    _show(report)
    _copy_report(request, target)
    problem = ""
    if counts["failed"]:
        problem = f"{counts['failed']} of {len(report.cases)} checks failed"
    elif not counts["passed"]:
        problem = "no check passed"
    elif failure is not None:
        problem = "it failed, and its report names no failed check"
    if problem:
        raise CheckError(
            f"rocm-sdk test: {problem}.", hint=f"Again, by hand: {target.executable} -m rocm_sdk test"
        ) from failure
    _require_tested(request, report.properties, layout)
    # the digest, because promotion by this record reads the report again
    filed = {"key": key, "sha256": hashlib.sha256(content).hexdigest()}
    return {"checks": counts, "report": filed, **report.properties}


def _report(
    _: TestRequest, command: list[str], folder: Path, env: Mapping[str, str]
) -> tuple[bytes, ProcessError | None]:
    """Run `rocm-sdk test --junit`."""
    failure, report = None, folder / "junit.xml"
    try:
        process.run([*command, "--junit", report], cwd=folder, env=env)
    except ProcessError as problem:
        failure = problem
    if not report.is_file():
        raise CheckError(
            "rocm-sdk test ended without a report, so the result is unknown.",
            hint="Read its output in the log.",
        ) from failure
    return report.read_bytes(), failure


def _unittest_report(
    request: TestRequest, command: list[str], folder: Path, env: Mapping[str, str]
) -> tuple[bytes, ProcessError | None]:
    """Run the tests of packages that others built, which write no report: their output is parsed instead."""
    # unbuffered, so that what its children print does not land within a line of its own
    done = process.capture(command, cwd=folder, env={**env, "PYTHONUNBUFFERED": "1"}, check=False)
    console.say(f"{done.stdout}{done.stderr}")
    version = process.capture([*command[:-1], "version"], cwd=folder, env=env).stdout.strip()
    names = sorted({one.name for one in installed(require(request.common.python))})
    wanted = dict.fromkeys((*request.families, *request.targets))
    families = [one for one in wanted if {f"{LIBRARIES}-{one.lower()}", device_package(one)} & set(names)]
    document = junit.Document(
        cases=parse_unittest(done.stdout, done.stderr),
        properties={"rocm": version, "families": ";".join(families), "packages": ";".join(names)},
    )
    failure = ProcessError(f"It ended with status {done.returncode}.", returncode=done.returncode)
    return junit.write(document), failure if done.returncode else None


def _require_tested(request: TestRequest, properties: Mapping[str, str], layout: Layout) -> None:
    """Refuse the report of another version, or without the families or targets that were to be tested."""
    version = request.source.version if request.source else request.version
    if version and properties.get("rocm") != version:
        raise CheckError(f"ROCm {properties.get('rocm')} was tested instead of {version}.")
    tested = properties.get("families", "").split(";")
    wanted = request.targets if layout == "split" else request.families
    absent = [one for one in wanted if one not in tested]
    if absent and request.source and "libraries" in request.extras:
        raise CheckError(f"The libraries of {', '.join(absent)} were not installed, and so not tested.")


def _report_key(request: TestRequest, target: Interpreter) -> str:
    name = records.record_name("rocm", request.cell(target.tag))
    return f"{request.common.outputs.reports_prefix(request.artifact_group)}/{name}.xml"


def _copy_report(request: TestRequest, target: Interpreter) -> None:
    """Write the JUnit report to `request.junit`; an unchanged stage copies that of its last run."""
    if request.junit is None:
        return
    store, key = request.common.open_store(), _report_key(request, target)
    if store.find(key) is not None:
        files.write_text(request.junit, store.read(key).decode())
    elif not request.common.dry_run:
        raise MissingInputError(f"{store.url}/{key} does not exist.", hint="Test again: add --force.")


def read(content: bytes) -> Document:
    """Read a JUnit document of `rocm-sdk test`."""
    document = junit.read(content)
    if document.problems == (junit.NO_TEST,):
        raise CheckError("The report of rocm-sdk test holds no check.")
    if document.problems:
        raise CheckError(f"The report of rocm-sdk test cannot be read: {document.problems[0]}.")
    return document


def results(cases: Iterable[Case]) -> dict[str, int]:
    """Count checks that passed, failed and were skipped."""
    counts = junit.counts(cases)
    failed = sum(counts[outcome] for outcome in junit.FAILING)
    skipped = counts["skipped"] + counts["xfailed"]
    return {"passed": sum(counts.values()) - failed - skipped, "failed": failed, "skipped": skipped}


def _show(report: Document) -> None:
    """Print one row a group, then what failed."""
    groups: dict[str, list[Case]] = {}
    for case in report.cases:
        groups.setdefault(_group(case), []).append(case)
    rows = [
        (group, *map(str, results(cases).values()), f"{sum(case.seconds for case in cases):.1f}")
        for group, cases in groups.items()
    ]
    console.table(("rocm-sdk test", "passed", "failed", "skipped", "seconds"), rows)
    failed = [
        (f"{_group(case)}: {case.test.rpartition('::')[2]}", case.text.partition("\n")[0])
        for case in report.failing
    ]
    console.table(("failed", "why"), failed)


def _group(case: Case) -> str:
    return case.test.rpartition("::")[0].removeprefix(_PREFIX)


def parse_unittest(*streams: str) -> tuple[Case, ...]:
    """Read the results of one run out of what `unittest` printed to one of the streams."""
    text = next((one for one in streams if _RAN.search(one)), "")
    ran = list(_RAN.finditer(text))
    if len(ran) != 1:
        raise CheckError(
            f"The tests ended without one total of the tests run (found {len(ran)}), "
            "so the result is unknown.",
            hint="Read their output above.",
        )
    listed, _, told = text[: ran[0].start()].removesuffix(f"{_LINE}\n").partition(f"\n{_RULE}\n")
    why = _reasons(f"{_RULE}\n{told}") if told else {}
    cases = tuple(_unittest_case(start, output, why) for start, output in _parts(_TEST, listed))
    tests = [case for case in cases if not case.test.rpartition("::")[2].startswith(_SET_UP)]
    # Python 3.12.1 did not count skipped tests; those before and after it do
    counts = (len(tests), sum(case.outcome != "skipped" for case in tests))
    if not tests or int(ran[0]["count"]) not in counts:
        raise CheckError(
            f"The tests report that {ran[0]['count']} ran, and list {len(tests)}, so the result is unknown.",
            hint="Read their output above.",
        )
    return cases


def _parts(pattern: re.Pattern[str], text: str) -> list[tuple[re.Match[str], str]]:
    """Return each match with the text up to the next one."""
    found = list(pattern.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]
    return [(match, text[match.end() : end]) for match, end in zip(found, ends, strict=False)]


def _unittest_case(start: re.Match[str], output: str, why: Mapping[str, str]) -> Case:
    # sub-tests have sections of their own, whose names go on
    reasons = [reason for what, reason in why.items() if what.startswith(start[0])]
    skipped = _SKIPPED.search(output)
    outcome: Outcome
    if reasons:
        outcome, text = "failed", reasons[0]
    elif skipped:
        outcome, text = "skipped", skipped["reason"]
    elif output.rstrip().endswith(_PASSED):
        outcome, text = "passed", ""
    else:
        outcome, text = "failed", output.strip().rpartition("\n")[2] or "it ended without a result"
    # a group is a module: rocm_sdk.tests.core_test.Core.test_x is of core
    group = re.search(r"(\w+?)_test\b", start["id"])
    return junit.Case(
        test=f"{_PREFIX}{group[1] if group else 'base'}::{start['name']}",
        outcome=outcome,
        line=text,
        text=text,
    )


def _reasons(tracebacks: str) -> dict[str, str]:
    """Return the line of each traceback that names the exception, by the test's own line."""
    found = {section["what"]: _EXCEPTION.findall(text) for section, text in _parts(_SECTION, tracebacks)}
    return {what: lines[-1] if lines else "it failed" for what, lines in found.items()}
