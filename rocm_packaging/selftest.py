"""`rocm-sdk test` on ROCm's packages, installed as a user would: its report, read, filed and shown."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files, process, temporary
from core.cell import GroupCell, python_of_tag
from core.env import Interpreter, installed, installer, require
from core.env.locks import locked_call
from core.errors import CheckError, MissingInputError, ProcessError
from core.families import group_families
from core.packages.groups import StagedGroup
from core.run import group_name, records, stage
from rocm_packaging.packages.layouts import (
    LIBRARIES,
    TEMPLATES,
    Layout,
    device_package,
    layout_of,
    sdk_target,
)
from rocm_packaging.sdk_report import (
    SdkReport,
    count_outcomes,
    junit_of,
    read_report,
)

if TYPE_CHECKING:
    from core.cli.options import Common
    from rocm_packaging.origin import RocmSource

# Variables that would let programs find another ROCm than the one installed.
_OTHER_ROCM = (
    "LD_LIBRARY_PATH",
    "ROCM_PATH",
    "ROCM_HOME",
    "HIP_PATH",
    "HIP_CLANG_PATH",
    "HIP_DEVICE_LIB_PATH",
    "DEVICE_LIB_PATH",
)
_UNITTEST_RUNNER = Path(__file__).with_name("recorded_unittest.py")
REPORT_MODULE = TEMPLATES / "rocm" / "src" / "rocm_sdk" / "tests" / "report.py"


@dataclass(frozen=True, kw_only=True)
class TestRequest:
    """What to test."""

    common: Common
    families: tuple[str, ...]
    targets: tuple[str, ...]
    source: RocmSource | None = None
    version: str = ""
    extras: tuple[str, ...] = ("libraries", "devel")
    cache_dir: Path | None = None
    junit: Path | None = None
    group: str = ""

    @property
    def artifact_group(self) -> str:
        """The group whose packages are taken, and that the report is filed under."""
        return self.group or group_name(";".join(self.families), self.common.build_variant)

    @property
    def wanted_version(self) -> str:
        """The version that must have been tested; "" for any."""
        return self.source.version if self.source is not None else self.version

    def cell(self, python_tag: str) -> GroupCell:
        """Return what a test under a Python runs on."""
        gpu_family = ";".join(self.families)
        is_own_group = group_families(self.artifact_group) in {"", gpu_family}
        return GroupCell(
            python=python_of_tag(python_tag),
            gpu_family=gpu_family,
            artifact_group=None if is_own_group else self.group or None,
        )

    def inputs(self) -> dict[str, Any]:
        """Return what the result follows from, for the record."""
        inputs = {
            "packages": dict(self.source.digests) if self.source is not None else None,
            "version": self.wanted_version,
            "families": list(self.families),
            "targets": list(self.targets),
            "extras": list(self.extras),
            "installed": self.source is not None,
        }
        if self.source is not None and isinstance(self.source.packages, StagedGroup):
            inputs["source"] = self.source.origin
        return inputs


def run_tests(request: TestRequest) -> None:
    """Install the packages into the target environment, and test them there."""
    common = request.common
    interpreter = require(common.python)
    inputs = request.inputs()
    test_stage = stage.Stage(
        name="test_rocm",
        # an address may serve something else each time, and an environment may have been changed by hand
        common=common if inputs["packages"] else replace(common, force=True),
        artifact_group=request.artifact_group,
        cell=request.cell(interpreter.tag),
    )

    def work() -> stage.StageResult:
        if request.source is None:
            names = [distribution.name for distribution in installed(interpreter)]
            layout = layout_of(names, where=str(interpreter.prefix)) or "unsplit"
            return stage.StageResult(files=(), details=_test(request, interpreter, layout))
        return _install_and_test(
            request, interpreter, request.source, inputs, is_forced=test_stage.common.force
        )

    stage.perform(test_stage, inputs, work)
    _copy_report(request, interpreter)


def _install_and_test(
    request: TestRequest,
    interpreter: Interpreter,
    source: RocmSource,
    inputs: Mapping[str, Any],
    *,
    is_forced: bool,
) -> stage.StageResult:
    common = request.common
    with source.opened_call(common.cache / "locks", request.families[0], request.targets) as rocm_call:
        # ROCm's sdist is built with setuptools.
        calls = (locked_call(common, interpreter, only=("setuptools",)), rocm_call)
        with installer.prepared(
            interpreter,
            calls,
            digest=installer.digest_of_calls(interpreter, calls, salt=inputs),
            cache_dir=request.cache_dir,
            force=is_forced,
        ):
            installer.require_complete(interpreter)
            return stage.StageResult(files=(), details=_test(request, interpreter, source.layout))


def _test(request: TestRequest, interpreter: Interpreter, layout: Layout) -> Mapping[str, Any]:
    """Run `rocm-sdk test`, file its report, print the table; return details for the record."""
    other_rocm = dict.fromkeys(_OTHER_ROCM)
    path = process.handed_on().get("PATH", "")
    env = process.handed_on(
        **other_rocm,
        ROCM_SDK_TARGET_FAMILY=sdk_target(layout, request.families[0], request.targets) or None,
        PATH=f"{interpreter.scripts}{os.pathsep}{path}",
        VIRTUAL_ENV=str(interpreter.prefix),
        PYTHONDONTWRITEBYTECODE="1",
    )
    command = [str(interpreter.executable), "-m", "rocm_sdk", "test"]
    with temporary.folder("selftest") as folder:
        usage = process.capture([*command, "--help"], cwd=folder, env=env, check=False).stdout
        report_path = folder / "report.json"
        if "--json" in usage:
            test_command = [*command, "--json", str(report_path)]
        else:
            test_command = _command_for_unittest(interpreter, report_path)
        failure = _run_command(test_command, folder, env)
        if not report_path.is_file():
            raise CheckError(
                "rocm-sdk test ended without a report, so the result is unknown.",
                hint="Read its output in the log.",
            ) from failure
        report = _with_families(read_report(report_path.read_bytes()), request, interpreter)

    key = _report_key(request, interpreter)
    content = junit_of(report)
    request.common.open_store().put_bytes(key, content)
    _print_report(report)
    _copy_report(request, interpreter)
    _require_success(report, failure, command)
    _require_tested(request, report.facts, layout)

    # the digest, because promotion by this record reads the report again
    filed_report = {"key": key, "sha256": hashlib.sha256(content).hexdigest()}
    return {
        "checks": count_outcomes(report.checks),
        "report": filed_report,
        **report.facts,
    }


def _run_command(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> ProcessError | None:
    """Run the tests; return how they failed, as their report has to say why."""
    try:
        process.run(command, cwd=folder, env=env)
    except ProcessError as failure:
        return failure
    return None


def _command_for_unittest(interpreter: Interpreter, report_path: Path) -> list[str]:
    """Return the command that tests packages of others, whose `rocm-sdk test` writes no report."""
    # Unbuffered, so that what its children print does not land within a line of its own.
    python = [str(interpreter.executable), "-I", "-B", "-u"]
    return [*python, str(_UNITTEST_RUNNER), str(REPORT_MODULE), str(report_path)]


def _with_families(report: SdkReport, request: TestRequest, interpreter: Interpreter) -> SdkReport:
    """Return the report with the GPU families of what is installed, where it does not name them."""
    if "families" in report.facts:
        return report
    names = {distribution.name for distribution in installed(interpreter)}
    families = [
        name
        for name in dict.fromkeys((*request.families, *request.targets))
        if f"{LIBRARIES}-{name.lower()}" in names or device_package(name) in names
    ]
    facts = {
        **report.facts,
        "families": ";".join(families),
        "packages": ";".join(sorted(names)),
    }
    return report.model_copy(update={"facts": facts})


def _require_success(report: SdkReport, failure: ProcessError | None, command: Sequence[str]) -> None:
    """Refuse a report with a failed check or without a passed one, and one that hides a failure."""
    counts = count_outcomes(report.checks)
    if counts["failed"]:
        problem = f"{counts['failed']} of {len(report.checks)} checks failed"
    elif not counts["passed"]:
        problem = "no check passed"
    elif failure is not None:
        problem = "it failed, and its report names no failed check"
    else:
        return
    raise CheckError(f"rocm-sdk test: {problem}.", hint=f"Again, by hand: {' '.join(command)}") from failure


def _require_tested(request: TestRequest, facts: Mapping[str, str], layout: Layout) -> None:
    """Refuse the report of another version, or without the families or targets that were to be tested."""
    version = request.wanted_version
    if version and facts.get("rocm") != version:
        raise CheckError(f"ROCm {facts.get('rocm')} was tested instead of {version}.")

    tested_families = facts.get("families", "").split(";")
    wanted_families = request.targets if layout == "split" else request.families
    missing_families = [name for name in wanted_families if name not in tested_families]
    if missing_families and request.source is not None and "libraries" in request.extras:
        raise CheckError(
            f"The libraries of {', '.join(missing_families)} were not installed, and so not tested."
        )


def _report_key(request: TestRequest, interpreter: Interpreter) -> str:
    name = records.record_name("rocm", request.cell(interpreter.tag))
    return f"{request.common.outputs.reports_prefix(request.artifact_group)}/{name}.xml"


def _copy_report(request: TestRequest, interpreter: Interpreter) -> None:
    """Write the JUnit report to `request.junit`; an unchanged stage copies that of its last run."""
    if request.junit is None:
        return
    store = request.common.open_store()
    key = _report_key(request, interpreter)
    if store.find(key) is not None:
        files.write_text(request.junit, store.read(key).decode())
    elif not request.common.dry_run:
        raise MissingInputError(f"{store.url}/{key} does not exist.", hint="Test again: add --force.")


def _print_report(report: SdkReport) -> None:
    """Print one row a group, then what failed."""
    rows: list[tuple[str, ...]] = []
    for group, checks in report.groups.items():
        counts = count_outcomes(checks)
        seconds = sum(check.seconds for check in checks)
        rows.append((group, *map(str, counts.values()), f"{seconds:.1f}"))
    console.table(("rocm-sdk test", "passed", "failed", "skipped", "seconds"), rows)

    failures = [(f"{check.group}: {check.name}", check.reason) for check in report.failed_checks]
    console.table(("failed", "why"), failures)
