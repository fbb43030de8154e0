"""`test-smoke`: wheels of a run, page, index or folder into a clean environment, imported and used."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from core import console, files, junit, process
from core.cli.options import add_group, common_from, environment
from core.env import installed_version, require
from core.env.locks import locked_call
from core.errors import CheckError, ProcessError
from core.packages.sources import SourceOptions, source_options
from core.run import records, stage
from core.run.stage import Made, Stage
from pytorch_build.context import context
from pytorch_build.sdk import RocmOptions, add_tested_sources, rocm_options_from
from pytorch_build.test import installation, reports
from pytorch_build.test.gpus import assignments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from core.env import Interpreter
    from pytorch_build.context import Context
    from pytorch_build.test.gpus import Assignment
    from pytorch_build.test.installation import Tested

PASSES_REST = True
# the tests, and what builds the rocm sdist
SMOKE_REQUIREMENTS = ("pytest", "setuptools")
SMOKE_TESTS = Path(__file__).parents[1] / "test" / "smoke"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_group(parser)
    add_tested_sources(parser)
    what = "do not fail where a GPU family's wheels are tested on a machine without a GPU"
    parser.add_argument("--allow-no-gpu", action="store_true", help=what)
    what = "test on NVIDIA's GPUs, with a torch that is made for them"
    parser.add_argument("--other-gpu", action="store_true", help=what)
    parser.add_argument("--junit", type=Path, metavar="FILE", help="also write the JUnit report there")
    parser.epilog = "Options that are not known here go to pytest."


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


def run(arguments: argparse.Namespace) -> None:
    """Install and test."""
    options = SmokeOptions(
        install=not arguments.no_install,
        source=source_options(arguments),
        rocm=rocm_options_from(arguments, environment()),
        allow_no_gpu=arguments.allow_no_gpu,
        other_gpu=arguments.other_gpu,
        junit=arguments.junit,
        pytest_arguments=tuple(arguments.rest),
    )
    test_run(context(common_from(arguments), group=arguments.artifact_group), options)


def test_run(context: Context, options: SmokeOptions) -> None:
    """Test the run's wheels of one ref, family and Python."""
    target, common = require(context.common.python), context.common
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

    def work() -> Made:
        if not options.install:
            installation.require_device_code(target, installation.amd_targets([gpu]))
            return Made(files=(), details=_pytest(context, target, what, options, gpu))
        tools = locked_call(common, target, only=SMOKE_REQUIREMENTS)
        with installation.prepared(context, target, what, tools=tools, inputs=inputs, rocm=options.rocm):
            return Made(files=(), details=_pytest(context, target, what, options, gpu))

    made = Stage(
        name="test_smoke",
        # an environment that this stage did not fill may have changed
        common=common if options.install else replace(common, force=True),
        artifact_group=context.artifact_group,
        cell=context.cell(target.tag),
    )
    stage.perform(made, inputs, work)
    _copy_report(context, target, options)


def _gpu(context: Context, options: SmokeOptions) -> Assignment:
    first, *others = assignments(
        context, environment(), allow_no_gpu=options.allow_no_gpu, other_gpu=options.other_gpu
    )
    if first.devices:
        console.say(f"Smoke tests on {first.words}.")
    if others:
        listed = ", ".join(one.words for one in others)
        console.warn(f"{listed} are not tested: hide the first GPU to test them (HIP_VISIBLE_DEVICES).")
    return first


def _pytest(
    context: Context, target: Interpreter, what: Tested, options: SmokeOptions, gpu: Assignment
) -> Mapping[str, Any]:
    expect = {one.distribution: one.version for one in what.files if not one.distribution.startswith("rocm-")}
    for name in (Requirement(one).name for one in what.prebuilt):
        expect[name] = installed_version(target, name)
    # the environment's own programs, and nothing of the tool's interpreter
    changes: dict[str, str | None] = {
        **(gpu.env if gpu.devices else {}),
        "SMOKE_EXPECT": json.dumps(expect),
        # the sample's torch is a miniature that sees none
        "SMOKE_GPU": (not context.ref.local_label and gpu.target) or None,
        "VIRTUAL_ENV": str(target.prefix),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    failure: ProcessError | None = None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "junit.xml"
        argv: list[str | Path] = [target.executable, "-m", "pytest", "-c", SMOKE_TESTS / "pytest.ini"]
        argv += ["--rootdir", SMOKE_TESTS, "-p", "no:cacheprovider", f"--junitxml={path}"]
        try:
            process.run(
                [*argv, *options.pytest_arguments, SMOKE_TESTS],
                cwd=Path(folder),
                env=process.handed_on(**changes),
            )
        except ProcessError as problem:
            failure = problem
        totals, report = _totals(path, failure), path.read_bytes()
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
    # the digest, because a promotion by this record reads the report again
    return {"tests": totals, "report": {"key": key, "sha256": hashlib.sha256(report).hexdigest()}}


def _totals(path: Path, failure: ProcessError | None) -> dict[str, int]:
    """Read the totals of a JUnit report; pytest that could not even write one is a failure of its own."""
    if not path.is_file():
        raise CheckError("pytest ended without a report, so no test result is known.") from failure
    document = junit.read_file(path)
    if not document.cases:
        raise CheckError("No smoke test ran.", hint="See the arguments that went to pytest.") from failure
    if document.problems:
        raise CheckError(f"The report of the smoke tests is invalid: {document.problems[0]}.") from failure
    return dict(reports.totals(document.cases)["tests"])


def _report_key(context: Context, target: Interpreter) -> str:
    name = records.record_name("smoke", context.cell(target.tag))
    return f"{context.common.outputs.reports_prefix(context.artifact_group)}/{name}.xml"


def _copy_report(context: Context, target: Interpreter, options: SmokeOptions) -> None:
    """Copy the JUnit report to ``--junit``; an unchanged stage has that of its last run."""
    store, key = context.common.open_store(), _report_key(context, target)
    if options.junit is not None and store.find(key) is not None:
        files.write_text(options.junit, store.read(key).decode())
