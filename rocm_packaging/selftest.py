"""Installing ROCm's packages as a user would, and running `rocm-sdk test` on them."""

from __future__ import annotations

import hashlib
import re
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files, junit, junit_reading, process
from core.env import environments, installer
from core.env.interpreters import require
from core.env.target_locks import locked_call
from core.errors import CheckError, MissingInputError, ProcessError
from core.families import group_families
from core.run import records, stage
from core.run.outputs import group_name
from core.run.records import Cell
from core.run.stage import Made, Stage
from rocm_packaging.packages.layouts import LIBRARIES, device_package, layout_of, sdk_target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.cli.options import Common
    from core.env.installer import Backend
    from core.env.interpreters import Interpreter
    from rocm_packaging.packages.layouts import Layout
    from rocm_packaging.rocm_sources import RocmSource


# what the sdist of `rocm` is built with
_BUILD_REQUIREMENTS = ("setuptools",)
# Variables that would let programs find another ROCm than the one installed.
_OTHER_ROCM = (
    *("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME"),
    *("ROCM_PATH", "ROCM_HOME", "HIP_PATH", "HIP_CLANG_PATH", "HIP_DEVICE_LIB_PATH", "DEVICE_LIB_PATH"),
)


_INSTALLED = (
    "import importlib.metadata as found, re; "
    "print(*sorted({re.sub('[-_.]+', '-', one.name).lower() for one in found.distributions()}))"
)


@dataclass(frozen=True, kw_only=True)
class TestRequest:
    """What to test."""

    __test__ = False  # pytest takes the name for a test's

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

    def cell(self, python: str) -> Cell:
        """Return what a test under a Python runs on."""
        family = ";".join(self.families)
        own = group_families(self.artifact_group) in {"", family}
        return Cell(python=python, gpu_family=family, group="" if own else self.group)


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
    cell = request.cell(target.tag)
    run = Stage(
        name="test_rocm",
        # what an address serves, or somebody has installed, may be another thing each time
        common=common if inputs["packages"] else replace(common, force=True),
        artifact_group=request.artifact_group,
        cell=cell,
    )

    def work() -> Made:
        if source is None:
            return Made(files=(), details=_tested(request, target, _installed_layout(target)))
        locks = common.cache / "locks"
        with source.opened_call(locks, request.families[0], request.targets) as rocm:
            calls = (locked_call(common, target, only=_BUILD_REQUIREMENTS), rocm)
            with environments.prepared(
                target,
                calls,
                digest=environments.digest_of_calls(target, calls, salt=inputs),
                backend=request.backend,
                cache_dir=request.cache_dir,
                force=run.common.force,
            ):
                installer.require_complete(target)
                return Made(files=(), details=_tested(request, target, source.layout))

    stage.perform(run, inputs, work)
    _copy_report(request, target)


def _installed_layout(target: Interpreter) -> Layout:
    names = process.capture([target.executable, "-c", _INSTALLED]).stdout.split()
    return layout_of(names, where=str(target.prefix)) or "unsplit"


def _tested(request: TestRequest, target: Interpreter, layout: Layout) -> Mapping[str, Any]:
    """Run `rocm-sdk test`, file its report, print the table."""
    env = process.inherited(
        **dict.fromkeys(_OTHER_ROCM),
        ROCM_SDK_TARGET_FAMILY=sdk_target(layout, request.families[0], request.targets) or None,
        VIRTUAL_ENV=str(target.prefix),
        PYTHONDONTWRITEBYTECODE="1",
    )
    with tempfile.TemporaryDirectory() as folder:
        content, failure = _report(request, target, Path(folder), env)
    key = _report_key(request, target)
    request.common.open_store().put_bytes(key, content)
    report = read(content)
    show(report)
    _copy_report(request, target)
    what = ""
    if report.failed:
        what = f"{len(report.failed)} of {report.total} checks failed"
    elif not report.passed:
        what = "no check passed"
    elif failure is not None:
        what = "it failed, and its report names no check"
    if what:
        raise CheckError(
            f"rocm-sdk test: {what}.", hint=f"Again, by hand: {target.executable} -m rocm_sdk test"
        ) from failure
    _require_asked(request, report, layout)
    # the digest, because whoever promotes by this record reads the report again
    filed = {"key": key, "sha256": hashlib.sha256(content).hexdigest()}
    return {"checks": report.counts, "report": filed, **report.properties}


def _report(
    request: TestRequest, target: Interpreter, folder: Path, env: Mapping[str, str]
) -> tuple[bytes, ProcessError | None]:
    """Run `rocm-sdk test`."""
    command: list[str | Path] = [target.executable, "-m", "rocm_sdk", "test"]
    known = process.capture([*command, "--help"], cwd=folder, env=env, check=False)
    if "--junit" not in known.stdout:
        return _report_of_others(request, command, folder, env)
    failure, junit = None, folder / "junit.xml"
    try:
        process.run([*command, "--junit", junit], cwd=folder, env=env)
    except ProcessError as problem:
        failure = problem
    if not junit.is_file():
        raise CheckError(
            "rocm-sdk test ended without a report, so no result is known.",
            hint="Its own words stand above.",
        ) from failure
    return junit.read_bytes(), failure


def _report_of_others(
    request: TestRequest, command: Sequence[str | Path], folder: Path, env: Mapping[str, str]
) -> tuple[bytes, ProcessError | None]:
    """Run the tests of packages that others built, which write no report: their words are read instead."""
    # unbuffered, so that what its children print does not land within a line of its own
    said = process.capture(command, cwd=folder, env={**env, "PYTHONUNBUFFERED": "1"}, check=False)
    console.say(f"{said.stdout}{said.stderr}")
    version = process.capture([*command[:-1], "version"], cwd=folder, env=env).stdout.strip()
    names = process.capture([command[0], "-c", _INSTALLED], cwd=folder, env=env).stdout.split()
    asked = dict.fromkeys((*request.families, *request.targets))
    families = [one for one in asked if f"{LIBRARIES}-{one.lower()}" in names or device_package(one) in names]
    report = replace(
        parse_unittest(said.stdout, said.stderr),
        properties={"rocm": version, "families": ";".join(families), "packages": ";".join(names)},
    )
    failure = None
    if said.returncode != 0:
        failure = ProcessError(f"It ended with status {said.returncode}.", returncode=said.returncode)
    return write(report), failure


def _require_asked(request: TestRequest, report: Report, layout: Layout) -> None:
    """Refuse the report of another version, or without the families or targets that were to be tested."""
    version = request.source.version if request.source else request.version
    if version and report.properties.get("rocm") != version:
        raise CheckError(f"ROCm {report.properties.get('rocm')} was tested instead of {version}.")
    tested = report.properties.get("families", "").split(";")
    asked = request.targets if layout == "split" else request.families
    wanted = asked if request.source and "libraries" in request.extras else ()
    absent = [family for family in wanted if family not in tested]
    if absent:
        raise CheckError(f"The libraries of {', '.join(absent)} were not installed, and so not tested.")


def _report_key(request: TestRequest, target: Interpreter) -> str:
    name = records.record_name("rocm", request.cell(target.tag))
    return f"{request.common.outputs.reports_prefix(request.artifact_group)}/{name}.xml"


def _copy_report(request: TestRequest, target: Interpreter) -> None:
    """Give the JUnit report where it was asked for; an unchanged stage gives that of its last run."""
    if request.junit is None:
        return
    store, key = request.common.open_store(), _report_key(request, target)
    if store.find(key) is None:
        if request.common.dry_run:
            return
        raise MissingInputError(f"{store.url}/{key} is not there.", hint="Test again: add --force.")
    files.write_text(request.junit, store.read(key).decode())


_PREFIX = "rocm_sdk."


@dataclass(frozen=True, kw_only=True)
class Case:
    """One check."""

    group: str
    name: str
    outcome: str
    text: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """All checks of one run, and facts about what was checked."""

    cases: tuple[Case, ...]
    properties: Mapping[str, str]

    @property
    def total(self) -> int:
        """How many checks there are."""
        return len(self.cases)

    @property
    def failed(self) -> tuple[Case, ...]:
        """The checks that failed."""
        return tuple(case for case in self.cases if case.outcome == "failed")

    @property
    def passed(self) -> tuple[Case, ...]:
        """The checks that passed."""
        return tuple(case for case in self.cases if case.outcome == "passed")

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each outcome."""
        outcomes = [case.outcome for case in self.cases]
        return {outcome: outcomes.count(outcome) for outcome in ("passed", "failed", "skipped")}


def read(content: bytes) -> Report:
    """Read a JUnit document of `rocm-sdk test`."""
    document = junit_reading.read(content)
    if document.problems == (junit_reading.NO_TEST,):
        raise CheckError("The report of rocm-sdk test holds no check.")
    if document.problems:
        raise CheckError(f"The report of rocm-sdk test cannot be read: {document.problems[0]}.")
    return Report(cases=tuple(map(_case, document.cases)), properties=document.properties)


def write(report: Report) -> bytes:
    """Write a report as JUnit, as `read` takes it."""
    suite = ET.Element("testsuite", name="rocm-sdk test", tests=str(report.total))
    suite.set("failures", str(report.counts["failed"]))
    suite.set("skipped", str(report.counts["skipped"]))
    properties = ET.SubElement(suite, "properties")
    for name, value in sorted(report.properties.items()):
        ET.SubElement(properties, "property", name=name, value=value)
    for case in report.cases:
        element = ET.SubElement(
            suite, "testcase", classname=f"{_PREFIX}{case.group}", name=case.name, time=str(case.seconds)
        )
        if case.outcome == "failed":
            ET.SubElement(element, "failure", message=case.text.partition("\n")[0]).text = case.text
        elif case.outcome == "skipped":
            ET.SubElement(element, "skipped", message=case.text)
    root = ET.Element("testsuites")
    root.append(suite)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _case(case: junit.Case) -> Case:
    group, _, name = case.test.rpartition("::")
    outcome = "failed" if case.failing else "skipped" if case.outcome in {"skipped", "xfailed"} else "passed"
    return Case(
        group=group.removeprefix(_PREFIX),
        name=name,
        outcome=outcome,
        text="" if outcome == "passed" else case.text,
        seconds=case.seconds,
    )


def show(report: Report) -> None:
    """Print one row a group, then what failed."""
    rows = []
    for group in dict.fromkeys(case.group for case in report.cases):
        cases = tuple(case for case in report.cases if case.group == group)
        counts = Report(cases=cases, properties={}).counts
        seconds = sum(case.seconds for case in cases)
        rows.append((group, *(str(number) for number in counts.values()), f"{seconds:.1f}"))
    console.table(("rocm-sdk test", "passed", "failed", "skipped", "seconds"), rows)
    failed = [(f"{case.group}: {case.name}", case.text.partition("\n")[0]) for case in report.failed]
    console.table(("failed", "why"), failed)


_TEST = re.compile(r"^(?P<name>\w+) \((?P<id>[\w.]+)\)", re.MULTILINE)
_SKIPPED = re.compile(r"\.\.\. (?:.*\n)*?skipped (['\"])(?P<reason>.*)\1$", re.MULTILINE)
_PASSED = ("ok", "expected failure")  # what a test has printed may stand right before it
_SET_UP = ("setUp", "tearDown")  # of a class or module: no test, and listed only when it fails
_RULE = "=" * 70
_LINE = "-" * 70
_SECTION = re.compile(rf"^{_RULE}\n(?:FAIL|ERROR): (?P<what>.*)\n(?:.*\n)*?{_LINE}\n", re.MULTILINE)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$", re.MULTILINE)
_RAN = re.compile(r"^Ran (?P<count>\d+) tests? in (?P<seconds>[\d.]+)s$", re.MULTILINE)


def parse_unittest(*streams: str) -> Report:
    """Read the output of one run."""
    text = next((one for one in streams if _RAN.search(one)), "")
    ran = list(_RAN.finditer(text))
    if len(ran) != 1:
        raise CheckError(
            f"The tests ended without saying how many ran ({len(ran)} sums instead of one), "
            "so no result is known.",
            hint="Their own words stand above.",
        )
    listed, _, told = text[: ran[0].start()].removesuffix(f"{_LINE}\n").partition(f"\n{_RULE}\n")
    why = _reasons(f"{_RULE}\n{told}") if told else {}
    cases = _unittest_cases(listed, why)
    tests = [case for case in cases if not case.name.startswith(_SET_UP)]
    count = len(tests)
    # Python 3.12.1 counted no skipped tests; those before and after it do
    counts = (count, sum(case.outcome != "skipped" for case in tests))
    if not count or int(ran[0]["count"]) not in counts:
        raise CheckError(
            f"The tests say that {ran[0]['count']} ran, and list {count}, so no result is known.",
            hint="Their own words stand above.",
        )
    return Report(cases=tuple(cases), properties={})


def _unittest_cases(listed: str, why: dict[str, str]) -> list[Case]:
    starts = list(_TEST.finditer(listed))
    ends = [*(start.start() for start in starts[1:]), len(listed)]
    return [
        _unittest_case(start, listed[start.end() : end], why)
        for start, end in zip(starts, ends, strict=False)
    ]


def _unittest_case(start: re.Match[str], said: str, why: dict[str, str]) -> Case:
    # sub-tests have sections of their own, whose names go on
    reasons = [reason for what, reason in why.items() if what.startswith(start[0])]
    skipped = _SKIPPED.search(said)
    if reasons:
        outcome, text = "failed", reasons[0]
    elif skipped:
        outcome, text = "skipped", skipped["reason"]
    elif said.rstrip().endswith(_PASSED):
        outcome, text = "passed", ""
    else:
        outcome, text = "failed", said.strip().rpartition("\n")[2] or "it ended without a result"
    return Case(group=_group(start["id"]), name=start["name"], outcome=outcome, text=text, seconds=0)


def _group(test_id: str) -> str:
    """Name what a test is about, by its module: ``rocm_sdk.tests.core_test.Core.test_x`` -> ``core``."""
    found = re.search(r"(\w+?)_test\b", test_id)
    return found[1] if found else "base"


def _reasons(told: str) -> dict[str, str]:
    """Give the line of each traceback that names the exception, by the test's own line."""
    sections = list(_SECTION.finditer(told))
    ends = [*(section.start() for section in sections[1:]), len(told)]
    reasons = {}
    for section, end in zip(sections, ends, strict=False):
        lines = _EXCEPTION.findall(told[section.end() : end])
        reasons[section["what"]] = lines[-1] if lines else "it failed"
    return reasons
