"""`test-torch`: upstream's own unit tests on a run's wheels, or on wheels from sources that are named.

With ``--skip-rules``: which of these tests are skipped and why, and which rules are stale.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from core import console, process
from core.cli.options import GROUP_OPTIONS, RUN_OPTIONS, Once, add_group, common_from, environment
from core.data import read_text
from core.env import Interpreter, require
from core.env.installer import InstallerCall
from core.env.locks import TORCH_TESTS, locked_call, parse_lock
from core.errors import MissingInputError, UsageError
from core.families import CPU
from core.modes import declared_options, refuse_options
from core.packages.options import options_of_tested_source
from core.run import Platform, this_platform
from core.status import Pending, Status, UpToDate
from pytorch_build.build import container
from pytorch_build.build.container import ContainerSession
from pytorch_build.context import (
    Context,
    add_git_mirror_option,
    find_context,
    find_context_of_wheels,
    mirrors_from,
)
from pytorch_build.lock.stored import stored_lock
from pytorch_build.sdk import RocmOptions, add_tested_source_options, rocm_options_from
from pytorch_build.test import container_run, installation, skip_questions, upstream_tests
from pytorch_build.test.container_run import Devices
from pytorch_build.test.gpus import Assignment, assign_gpus
from pytorch_build.test.shards import parse_shard
from pytorch_build.test.skip_questions import QUESTIONS, SkipRequest
from pytorch_build.test.tested_packages import TestedPackages, find_tested_packages
from pytorch_build.test.torch_run import (
    Bench,
    TorchTestRequest,
    find_recorded_torch,
    look_at_tests,
    perform_tests,
)
from pytorch_build.test.upstream_tests import LimitsTable
from rocm_packaging.origin import named_source, staged_source

PASSES_REST = True
CONFIGS = ("default", "distributed", "inductor")

COMMON_OPTIONS = ("torch-ref", *GROUP_OPTIONS, *RUN_OPTIONS, "python", "force", "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_group(parser)
    _add_options_of_choice(parser)
    add_tested_source_options(parser)
    _add_options_of_runs(parser)
    add_git_mirror_option(parser)
    _add_skip_options(parser)
    parser.epilog = "Unknown options go to pytest."


def _add_options_of_choice(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose among upstream's tests."""
    variables = environment()
    add = parser.add_argument_group("which tests").add_argument
    add(
        "--config",
        default=variables.get("TORCH_TESTS") or "default",
        choices=CONFIGS,
        action=Once,
        help="what to test (default: $TORCH_TESTS, else default)",
    )
    add(
        "-k",
        dest="expression",
        default="",
        metavar="EXPR",
        help="pytest's expression",
    )
    # Several may follow the option, as upstream's run_test.py has it.
    add(
        "--include",
        action="extend",
        nargs="+",
        default=[],
        metavar="MODULE",
        help="run these test files of upstream's (test_nn, dynamo/test_misc) instead of the configuration's; "
        "repeatable",
    )
    add(
        "--exclude",
        action="extend",
        nargs="+",
        default=[],
        metavar="MODULE",
        help="leave these out; repeatable",
    )
    add(
        "--shard",
        default=variables.get("TORCH_TESTS_PART") or "1/1",
        action=Once,
        metavar="K/N",
        help="part of the tests (default: $TORCH_TESTS_PART, else 1/1)",
    )
    add(
        "--skips",
        action="append",
        default=[],
        type=Path,
        metavar="FILE|DIR",
        help="more skip rules, of your own; repeatable",
    )
    add(
        "--pytorch-dir",
        type=Path,
        metavar="DIR",
        help="take the tests of this source tree",
    )
    add(
        "--allow-version-mismatch",
        action="store_true",
        help="run tests of another version than torch's",
    )


def _add_options_of_runs(parser: argparse.ArgumentParser) -> None:
    """Add the options on how tests are run: in parts, on which GPUs, with which limits."""
    add = parser.add_argument_group("how tests run").add_argument
    add(
        "--gpus",
        choices=("unique", "all"),
        help="GPUs of a process (default: by --config)",
    )
    add(
        "--allow-no-gpu",
        action="store_true",
        help="run even without a GPU of the family",
    )
    add(
        "--other-gpu",
        action="store_true",
        help="run on NVIDIA's GPUs, with a torch made for them",
    )
    add(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="tests side by side (default: 1)",
    )
    add(
        "--test-timeout",
        type=float,
        metavar="SECONDS",
        help="limit of a test",
    )
    add(
        "--file-timeout",
        type=float,
        metavar="SECONDS",
        help="limit of a test file",
    )
    add(
        "--container",
        action="store_true",
        help="run in the image that GPU machines test in",
    )
    add(
        "--image",
        default=container_run.IMAGE,
        metavar="NAME",
        help="another image for --container",
    )


def _add_skip_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that ask about skip rules; note which options have no effect then."""
    title = "skip rules, instead of a test run (of this machine, and the environment's or the ref's torch)"
    add = parser.add_argument_group(title).add_argument
    add(
        "--skip-rules",
        choices=QUESTIONS,
        metavar="|".join(QUESTIONS),
        help="list what is skipped and why, explain the tests that follow, or check that no rule has expired",
    )
    add(
        "--os",
        choices=get_args(Platform),
        help="another operating system",
    )
    add(
        "--python-version",
        metavar="VERSION",
        help="another version of Python",
    )
    add(
        "--all",
        action="store_true",
        help="list: also rules that do not apply, and why not",
    )
    tests = (
        "-k",
        "--include",
        "--exclude",
        "--shard",
        "--gpus",
        "--allow-no-gpu",
        "--other-gpu",
        "--workers",
    )
    limits = ("--test-timeout", "--file-timeout", "--container", "--image", "--artifact-group")
    sources = (
        "--find-links",
        "--index-url",
        "--index-name",
        "--index-subdir",
        "--no-install",
        "--git-mirror",
        "--pytorch-dir",
        "--allow-version-mismatch",
    )
    rocm_places = ("--rocm-find-links", "--rocm-index-url", "--rocm-index-name", "--rocm-index-subdir")
    rocm_run = (
        "--rocm-run-id",
        "--rocm-store",
        "--rocm-artifact-group",
        "--rocm-version",
        "--rocm-no-install",
    )
    installation = ("--rocm-extras", "--pip-cache-dir")
    questions = ("--os", "--python-version", "--all")
    parser.set_defaults(
        run_options=declared_options(
            parser, *tests, *limits, *sources, *rocm_places, *rocm_run, *installation
        ),
        question_options=declared_options(parser, *questions),
    )


def run(arguments: argparse.Namespace) -> None:
    """Install torch and run upstream's tests on it, or answer a question about skip rules."""
    if arguments.skip_rules is not None:
        refuse_options(arguments, arguments.run_options, mode="with --skip-rules")
        request = SkipRequest(
            question=arguments.skip_rules,
            common=common_from(arguments),
            # What would go to pytest are the tests to explain, before and after options.
            tests=tuple(arguments.rest),
            skips=tuple(arguments.skips),
            os=arguments.os or this_platform(),
            python_version=arguments.python_version,
            torch_version=arguments.version or None,
            config=arguments.config,
            lists_all_rules=arguments.all,
        )
        skip_questions.print_answer(request)
        return

    refuse_options(arguments, arguments.question_options, mode="without --skip-rules")
    if arguments.container:
        _run_in_container(arguments)
        return
    _install_and_test(arguments)


def _install_and_test(arguments: argparse.Namespace) -> None:
    """Install torch and run upstream's tests on it, unless a record says that they have passed."""
    request = _request_from(arguments)
    context = _find_context(arguments)
    target = require(context.common.python)
    # What is impossible is refused before gigabytes are fetched.
    gpus = _assign_gpus(context, arguments, request)
    if context.common.dry_run:
        source = _describe_source(context, arguments)
        console.say(f"Would test {source} on {_describe_gpus(gpus)}.")
        return

    packages = None
    if not arguments.no_install:
        packages = _find_packages(context, target, arguments)
    tests = _check_out_tests(context, request)
    if packages is not None and not context.common.force:
        status = _look_at_record(context, target, packages, gpus, tests, request)
        if isinstance(status, UpToDate):
            return

    rocm = rocm_options_from(arguments, environment())
    with _prepared_environment(context, target, packages, rocm, gpus, tests) as inputs:
        torch = _installed_torch(target)
        upstream_tests.require_tools(target)
        console.say(f"torch {torch.version} on {_describe_gpus(gpus)}, tests of {tests.tree}")
        # An environment that this stage did not fill may have changed.
        force = context.common.force or not inputs["installed"]
        common = replace(context.common, force=force)
        bench = Bench(
            context=replace(context, common=common),
            target=target,
            tests=tests,
            torch=torch,
            assignments=gpus,
        )
        perform_tests(bench, request, inputs)


def look(arguments: argparse.Namespace) -> Status:
    """Return whether the tests have to be run. Nothing is changed."""
    common = common_from(arguments)
    if arguments.container or arguments.no_install or common.force:
        return Pending(reasons=("its options ask for it",))

    request = _request_from(arguments)
    context = _find_context(arguments)
    target = require(common.python)
    gpus = _assign_gpus(context, arguments, request)
    tests = _find_tests(context, request)
    if tests is None:
        return Pending(reasons=("the tree of its tests is not checked out",))

    packages = _find_packages(context, target, arguments)
    return _look_at_record(context, target, packages, gpus, tests, request)


def _look_at_record(
    context: Context,
    target: Interpreter,
    packages: TestedPackages,
    gpus: Sequence[Assignment],
    tests: upstream_tests.UpstreamTests,
    request: TorchTestRequest,
) -> Status:
    """Return whether the tests have to be run, as the records say, without the environment.

    It is decided without the environment, which may hold what another run tests: gigabytes of ROCm are
    installed only to be used.
    """
    inputs = installation.recorded_inputs(packages, target, _plan_tools(context, target, tests))
    torch = find_recorded_torch(context, target, request, inputs)
    if torch is None:
        return Pending(reasons=("what it installs was not tested yet",))

    bench = Bench(context=context, target=target, tests=tests, torch=torch, assignments=gpus)
    return look_at_tests(bench, request, inputs)


# What was asked for


def _request_from(arguments: argparse.Namespace) -> TorchTestRequest:
    """Return which of upstream's tests arguments choose, and how they are run."""
    if arguments.workers < 1:
        raise UsageError(f"--workers {arguments.workers}: at least one test runs at a time.")
    return TorchTestRequest(
        config=arguments.config,
        shard=parse_shard(arguments.shard),
        include=tuple(arguments.include),
        exclude=tuple(arguments.exclude),
        expression=arguments.expression,
        pytest_arguments=tuple(arguments.rest),
        tree=arguments.pytorch_dir,
        allow_version_mismatch=arguments.allow_version_mismatch,
        other_gpu=arguments.other_gpu,
        workers=arguments.workers,
        skips=tuple(path.resolve() for path in arguments.skips),
        limits=_limits_from(arguments),
        mirrors=mirrors_from(arguments),
    )


def _limits_from(arguments: argparse.Namespace) -> LimitsTable:
    """Return the time limits of tests: the project's, and those of arguments in their places."""
    limit_options = {
        "--test-timeout": ("test_seconds", arguments.test_timeout),
        "--file-timeout": ("file_seconds", arguments.file_timeout),
    }
    changes: dict[str, float] = {}
    for option, (field, seconds) in limit_options.items():
        if seconds is None:
            continue
        if seconds <= 0:
            raise UsageError(f"{option} {seconds:g} is not a limit.")
        changes[field] = seconds
    return upstream_tests.load_configurations().limits.model_copy(update=changes)


def _assign_gpus(
    context: Context, arguments: argparse.Namespace, request: TorchTestRequest
) -> Sequence[Assignment]:
    """Return the GPUs that the tests run on, one assignment for each kind."""
    return assign_gpus(
        context,
        environment(),
        policy=arguments.gpus or upstream_tests.find_configuration(request.config).gpus,
        allow_no_gpu=arguments.allow_no_gpu,
        other_gpu=request.other_gpu,
    )


def _describe_gpus(gpus: Sequence[Assignment]) -> str:
    """Return the descriptions of GPUs as one text."""
    return "; ".join(assignment.description for assignment in gpus)


def _describe_source(context: Context, arguments: argparse.Namespace) -> str:
    """Return in words where the tested wheels come from."""
    if arguments.no_install:
        return "what the environment holds"
    common = context.common
    options = options_of_tested_source(arguments)
    if options.staged:
        source = staged_source(options, common, context.artifact_group)
        return f"the wheels of run {common.run_id} from {source.description}"
    named = named_source(options, common, context.gpu_family)
    if named is not None:
        return f"torch from {named.description}"
    return f"the wheels of run {common.run_id}"


# What is tested, with which tests and tools


def _find_context(arguments: argparse.Namespace) -> Context:
    """Return the torch ref and family that are tested: those of the run's wheels, unless others are named."""
    is_source_named = options_of_tested_source(arguments).named
    find = find_context if is_source_named else find_context_of_wheels
    return find(common_from(arguments), group=arguments.artifact_group)


def _find_packages(context: Context, target: Interpreter, arguments: argparse.Namespace) -> TestedPackages:
    """Return the wheels to test, from the package source that arguments name, else of the run."""
    rocm = rocm_options_from(arguments, environment())
    return find_tested_packages(context, target, options_of_tested_source(arguments), rocm)


def _check_out_tests(context: Context, request: TorchTestRequest) -> upstream_tests.UpstreamTests:
    """Return upstream's tests in the tree that was named, or else checked out now at the run's lock."""
    if request.tree is not None:
        return upstream_tests.tests_of_tree(request.tree)
    lock = stored_lock(context)
    if lock is None:
        raise MissingInputError(
            f"Run {context.common.run_id} has no source lock of {context.ref.name}, so the commit of "
            "the tests is unknown.",
            hint="Give a source tree with --pytorch-dir, or the lock: nox -s resolve (same --torch-ref).",
        )
    return upstream_tests.check_out_tests(context, lock, request.mirrors)


def _find_tests(context: Context, request: TorchTestRequest) -> upstream_tests.UpstreamTests | None:
    """Return upstream's tests if they are checked out already; else None."""
    if request.tree is not None:
        return upstream_tests.tests_of_tree(request.tree)
    lock = stored_lock(context)
    if lock is None:
        return None
    return upstream_tests.find_checked_out_tests(context, lock, request.mirrors)


@contextmanager
def _prepared_environment(
    context: Context,
    target: Interpreter,
    packages: TestedPackages | None,
    rocm: RocmOptions,
    gpus: Sequence[Assignment],
    tests: upstream_tests.UpstreamTests,
) -> Iterator[Mapping[str, Any]]:
    """Install the wheels to test for the block, if asked for; give what the record has as inputs."""
    if packages is None:
        installation.require_device_code(target, installation.amd_targets(gpus))
        yield {"files": {}, "installed": False}
        return

    tools = _plan_tools(context, target, tests)
    if len(tools) > 1:
        requirements = ", ".join(tools[1].requirements)
        console.say(f"As the tree's own CI, not as the lock: {requirements}")
    with installation.prepared_environment(
        context, target, packages, tools=tools, cache_dir=rocm.pip_cache_dir
    ):
        yield installation.recorded_inputs(packages, target, tools)


def _plan_tools(
    context: Context,
    target: Interpreter,
    tests: upstream_tests.UpstreamTests,
) -> Sequence[InstallerCall]:
    """Return the installer's calls for what tests need: the lock, and what the tree's own CI pins."""
    locked = locked_call(context.common, target, lock=TORCH_TESTS)
    names_in_test_lock: set[str] = set()
    for path in locked.files:
        names_in_test_lock.update(pin.name for pin in parse_lock(read_text(path)))
    requirements = upstream_tests.requirements_of_tree(tests.tree, target, names_in_test_lock)
    if not requirements:
        return [locked]

    unpinned = locked_call(
        context.common,
        target,
        lock=TORCH_TESTS,
        replaced=requirements,
    )
    return [unpinned, InstallerCall(requirements=requirements)]


def _installed_torch(target: Interpreter) -> upstream_tests.InstalledTorch:
    """Return what an environment's torch says of itself."""
    return upstream_tests.query_torch(target, process.handed_on(VIRTUAL_ENV=str(target.prefix)))


def _run_in_container(arguments: argparse.Namespace) -> None:
    """Run the same session in the image that GPU machines test in."""
    if arguments.other_gpu:
        raise UsageError(
            "--container passes on AMD's devices, but --other-gpu needs others.", hint="Give one of them."
        )
    common = common_from(arguments)
    outside_parser = container.parser_of_options_outside()
    outside_parser.add_argument("--container", action="store_true")
    outside_parser.add_argument("--image")
    session = ContainerSession(
        name="test_torch",
        python=require(common.python).series if common.python else "",
        arguments=container.arguments_inside(arguments.words, outside_parser),
        root=common.root,
    )
    devices = Devices()
    if common.gpu_family != CPU:
        devices = container_run.find_devices()
    container_run.run_in_container(
        session,
        image=arguments.image,
        devices=devices,
    )
