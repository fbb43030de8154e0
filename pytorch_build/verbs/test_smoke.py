"""`test-smoke`: wheels of a run, page, index or folder into a clean environment, imported and used."""

import argparse
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from core import console
from core.cli.options import GROUP_OPTIONS, RUN_OPTIONS, add_group, common_from, environment
from core.env import require
from core.env.locks import locked_call
from core.packages.options import SourceOptions, options_of_tested_source
from core.run import stage
from core.status import Status
from pytorch_build.context import Context, find_context, find_context_of_wheels
from pytorch_build.sdk import RocmOptions, add_tested_source_options, rocm_options_from
from pytorch_build.test import installation, smoke_run
from pytorch_build.test.gpus import Assignment, assign_gpus
from pytorch_build.test.record_validity import force_if_incomplete
from pytorch_build.test.smoke_run import SmokeTests
from pytorch_build.test.tested_packages import find_tested_packages, packages_of_run

PASSES_REST = True

COMMON_OPTIONS = ("torch-ref", *GROUP_OPTIONS, *RUN_OPTIONS, "python", "force", "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_group(parser)
    add_tested_source_options(parser)
    parser.add_argument(
        "--allow-no-gpu",
        action="store_true",
        help="test a GPU family's wheels on a machine without a GPU, too",
    )
    parser.add_argument(
        "--other-gpu", action="store_true", help="test on NVIDIA's GPUs, with a torch made for them"
    )
    parser.epilog = "Unknown options go to pytest."


@dataclass(frozen=True, kw_only=True)
class SmokeOptions:
    """What the user chose for smoke tests: installation, GPUs, package sources, pytest's arguments."""

    install: bool = True
    allow_no_gpu: bool = False
    other_gpu: bool = False
    source: SourceOptions = field(default_factory=SourceOptions)
    rocm: RocmOptions = field(default_factory=RocmOptions)
    pytest_arguments: tuple[str, ...] = ()


def smoke_options_from(arguments: argparse.Namespace) -> SmokeOptions:
    """Return what parsed arguments choose for smoke tests."""
    return SmokeOptions(
        install=not arguments.no_install,
        allow_no_gpu=arguments.allow_no_gpu,
        other_gpu=arguments.other_gpu,
        source=options_of_tested_source(arguments),
        rocm=rocm_options_from(arguments, environment()),
        pytest_arguments=tuple(arguments.rest),
    )


def run(arguments: argparse.Namespace) -> None:
    """Install the wheels to test, and run the smoke tests on them, unless nothing has changed."""
    options = smoke_options_from(arguments)
    context = _find_context(arguments, options)
    perform_smoke_tests(context, options)


def look(arguments: argparse.Namespace) -> Status:
    """Return whether the run's wheels have to be tested. Nothing is changed."""
    options = smoke_options_from(arguments)
    context = _find_context(arguments, options)
    smoke_tests = _plan_smoke_tests(context, options)
    return stage.look(smoke_tests.stage, smoke_tests.inputs)


def _find_context(arguments: argparse.Namespace, options: SmokeOptions) -> Context:
    """Return the torch ref and family that are tested: those of the run's wheels, unless others are named."""
    find = find_context if options.source.named else find_context_of_wheels
    return find(common_from(arguments), group=arguments.artifact_group)


def perform_smoke_tests(context: Context, options: SmokeOptions) -> None:
    """Test the run's wheels of one ref, family and Python, unless nothing has changed."""
    smoke_tests = _plan_smoke_tests(context, options)
    target = smoke_tests.target

    def test_packages() -> stage.StageResult:
        """Install the wheels to test, unless they are installed already, and run the smoke tests."""
        with ExitStack() as stack:
            if options.install:
                environment = installation.prepared_environment(
                    context,
                    target,
                    smoke_tests.packages,
                    tools=smoke_tests.tools,
                    cache_dir=options.rocm.pip_cache_dir,
                )
                stack.enter_context(environment)
            else:
                installation.require_device_code(target, installation.amd_targets([smoke_tests.gpu]))
            return stage.StageResult(
                files=(),
                details=smoke_run.run_smoke_tests(smoke_tests),
            )

    stage.perform(smoke_tests.stage, smoke_tests.inputs, test_packages)


def _plan_smoke_tests(context: Context, options: SmokeOptions) -> SmokeTests:
    """Return what would be tested, on which GPU, with which tools. Nothing is installed."""
    common = context.common
    target = require(common.python)
    gpu = _choose_gpu(context, options)
    # setuptools builds the sdist of `rocm`.
    tools = [locked_call(common, target, only=("pytest", "setuptools"))] if options.install else []
    if options.install:
        packages = find_tested_packages(context, target, options.source, options.rocm)
        inputs = installation.recorded_inputs(packages, target, tools)
    else:
        packages = packages_of_run(context, target)
        inputs = {**packages.inputs, "installed": False}

    smoke_stage = stage.Stage(
        name="test_smoke",
        # An environment that this stage did not fill may have changed.
        common=common if options.install else replace(common, force=True),
        artifact_group=context.artifact_group,
        cell=context.cell(target.tag),
    )
    return SmokeTests(
        context=context,
        target=target,
        packages=packages,
        gpu=gpu,
        pytest_arguments=options.pytest_arguments,
        stage=force_if_incomplete(smoke_stage),
        inputs={
            **inputs,
            "tests": smoke_run.digests_of_smoke_tests(),
            "selection": list(options.pytest_arguments),
            "gpu": gpu.target,
        },
        tools=tools,
    )


def _choose_gpu(context: Context, options: SmokeOptions) -> Assignment:
    """Return the first GPU that the wheels fit; warn of those that are not tested."""
    assignment, *untested = assign_gpus(
        context, environment(), allow_no_gpu=options.allow_no_gpu, other_gpu=options.other_gpu
    )
    if assignment.devices:
        console.say(f"Smoke tests on {assignment.description}.")
    if untested:
        untested_gpus = ", ".join(other_assignment.description for other_assignment in untested)
        console.warn(
            f"{untested_gpus} are not tested: hide the first GPU to test them (HIP_VISIBLE_DEVICES)."
        )
    return assignment
