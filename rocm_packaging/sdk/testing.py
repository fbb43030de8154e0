"""Installing ROCm's packages as a user would, and running `rocm-sdk test` on them."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files, process
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
from rocm_packaging.sdk import reports, unittest_output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.cli.options import Common
    from core.env.installer import Backend
    from core.env.interpreters import Interpreter
    from rocm_packaging.packages.layouts import Layout
    from rocm_packaging.sdk.sources import RocmSource

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
    report = reports.read(content)
    reports.show(report)
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
        unittest_output.parse_unittest(said.stdout, said.stderr),
        properties={"rocm": version, "families": ";".join(families), "packages": ";".join(names)},
    )
    failure = None
    if said.returncode != 0:
        failure = ProcessError(f"It ended with status {said.returncode}.", returncode=said.returncode)
    return reports.write(report), failure


def _require_asked(request: TestRequest, report: reports.Report, layout: Layout) -> None:
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
