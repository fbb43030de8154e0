"""Installing a run's wheels as a user would, and running the smoke tests on them."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files, junit_reading, process
from core.cli.options import environment
from core.env import environments, installer
from core.env.interpreters import installed_version, require
from core.env.target_locks import locked_call
from core.errors import CheckError, ProcessError
from core.packages.options import SourceOptions
from core.run import records, stage
from core.run.stage import Made, Stage
from pytorch_build.rocm.options import RocmOptions
from pytorch_build.test import devices, installation, recording
from pytorch_build.test.torch_request import TorchTests, assignments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.env.interpreters import Interpreter
    from pytorch_build.context import Context
    from pytorch_build.test.gpu_selection import Assignment
    from pytorch_build.test.installation import Tested

# the tests, and what builds the rocm sdist
SMOKE_REQUIREMENTS = ("pytest", "setuptools")
SMOKE_TESTS = Path(__file__).parent / "smoke"


@dataclass(frozen=True, kw_only=True)
class SmokeOptions:
    """How to test."""

    install: bool = True
    allow_no_gpu: bool = False
    other_gpu: bool = False
    source: SourceOptions = field(default_factory=SourceOptions)
    rocm: RocmOptions = field(default_factory=RocmOptions)
    junit: Path | None = None
    pytest_arguments: tuple[str, ...] = ()


def test_run(context: Context, options: SmokeOptions) -> None:
    """Test the run's wheels of one ref, family and Python."""
    target = require(context.common.python)
    gpu = _gpu(context, options)
    what = (
        installation.tested(context, target, options.source, options.rocm)
        if options.install
        else installation.installed(context, target)
    )
    inputs = {
        **what.inputs,
        "tests": {path.name: files.sha256(path) for path in sorted(SMOKE_TESTS.glob("*.py"))},
        "arguments": [*options.pytest_arguments, options.rocm.installer],
        "gpu": gpu.target,
        "installed": options.install,
    }
    cell = context.cell(target.tag)
    # nobody knows what has happened to an environment that this stage did not fill
    common = context.common if options.install else replace(context.common, force=True)
    run = Stage(name="test_smoke", common=common, artifact_group=context.artifact_group, cell=cell)

    def work() -> Made:
        if not options.install:
            devices.require_device_code(target, devices.amd_targets([gpu]))
            return Made(files=(), details=_pytest(context, target, what, options, gpu))
        tools = locked_call(context.common, target, only=SMOKE_REQUIREMENTS)
        with installation.planned(context, target, what, tools=tools) as (calls, known):
            digest = files.digest_of({"inputs": inputs, "python": target.version, "calls": known})
            with environments.prepared(
                target,
                calls,
                digest=digest,
                backend=options.rocm.installer,
                cache_dir=options.rocm.pip_cache_dir,
                force=context.common.force,
            ):
                installer.require_complete(target)
                devices.require_device_code(target, what.targets)
                return Made(files=(), details=_pytest(context, target, what, options, gpu))

    stage.perform(run, inputs, work)
    _copy_report(context, target, options)


def _gpu(context: Context, options: SmokeOptions) -> Assignment:
    """Choose the GPU to test on: the first of the family, as `test_torch` does."""
    asked = TorchTests(allow_no_gpu=options.allow_no_gpu, other_gpu=options.other_gpu)
    first, *others = assignments(context, asked, environment())
    if first.devices:
        console.say(f"Smoke tests on {first.words}.")
    if others:
        listed = ", ".join(one.words for one in others)
        console.warn(f"{listed} are not tested: hide the first GPU to test them (HIP_VISIBLE_DEVICES).")
    return first


def _pytest(
    context: Context,
    target: Interpreter,
    what: Tested,
    options: SmokeOptions,
    gpu: Assignment,
) -> Mapping[str, Any]:
    expect = {one.distribution: one.version for one in what.files if not one.distribution.startswith("rocm-")}
    for name in installation.prebuilt_names(what):
        expect[name] = installed_version(target, name)
    # the environment's own programs, and nothing of the tool's interpreter
    changes: dict[str, str | None] = {
        **(gpu.env if gpu.devices else {}),
        "SMOKE_EXPECT": json.dumps(expect),
        # the sample's torch is a miniature that sees none
        "SMOKE_GPU": (not context.ref.local_label and gpu.target) or None,
        "PYTHONPATH": None,
        "PYTHONHOME": None,
        "VIRTUAL_ENV": str(target.prefix),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    env = process.inherited(**changes)
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        argv: list[str | Path] = [
            target.executable,
            "-m",
            "pytest",
            "-c",
            SMOKE_TESTS / "pytest.ini",
            "--rootdir",
            SMOKE_TESTS,
        ]
        argv += ["-p", "no:cacheprovider", f"--junitxml={junit}", *options.pytest_arguments, SMOKE_TESTS]
        failure: ProcessError | None = None
        try:
            process.run(argv, cwd=Path(folder), env=env)
        except ProcessError as problem:
            failure = problem
        totals, report = _totals(junit, failure), junit.read_bytes()
    key = _report_key(context, target)
    context.common.open_store().put_bytes(key, report)
    if failure is not None or totals["tests"] == totals["skipped"]:
        _copy_report(context, target, options)
        failed = totals["failures"] + totals["errors"]
        how = f"{failed} of {totals['tests']} failed" if failure else f"all {totals['tests']} were skipped"
        raise CheckError(
            f"Smoke tests: {how}.",
            hint="Again, with pytest's arguments at the end: nox -s test_smoke -- "
            f"--torch-ref {context.ref.name} --gpu-family {context.gpu_family} -k EXPR",
        ) from failure
    # the digest, because whoever promotes by this record reads the report again
    return {"tests": totals, "report": {"key": key, "sha256": hashlib.sha256(report).hexdigest()}}


def _totals(junit: Path, failure: ProcessError | None) -> dict[str, int]:
    """Read the totals of a JUnit report; pytest that could not even write one is a failure of its own."""
    if not junit.is_file():
        raise CheckError("pytest ended without a report, so no test result is known.") from failure
    document = junit_reading.read_file(junit)
    if not document.cases:
        raise CheckError("No smoke test ran.", hint="See the arguments that went to pytest.") from failure
    if document.problems:
        raise CheckError(f"The report of the smoke tests is none: {document.problems[0]}.") from failure
    return dict(recording.totals(document.cases)["tests"])


def _report_key(context: Context, target: Interpreter) -> str:
    name = records.record_name("smoke", context.cell(target.tag))
    return f"{context.common.outputs.reports_prefix(context.artifact_group)}/{name}.xml"


def _copy_report(context: Context, target: Interpreter, options: SmokeOptions) -> None:
    """Give the JUnit report where it was asked for; an unchanged stage gives that of its last run."""
    store, key = context.common.open_store(), _report_key(context, target)
    if options.junit is not None and store.find(key) is not None:
        files.write_text(options.junit, store.read(key).decode())
