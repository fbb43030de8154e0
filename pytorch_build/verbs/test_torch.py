"""`test-torch`: upstream's own unit tests on a run's wheels, or on wheels from sources that are named.

With ``--skip-rules``: which of these tests are skipped and why, and which rules are stale.
"""

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from core import console, files, process
from core.cli.options import Once, add_group, common_from, environment
from core.data import read_text
from core.env import Interpreter, engines, require
from core.env.installer import Install
from core.env.locks import TORCH_TESTS, locked_call, parse_lock
from core.errors import MissingInputError, UsageError
from core.modes import declared_options, refuse_options
from core.packages.options import options_of_tested_source
from core.run import Platform, this_platform
from core.status import Pending, Status
from pytorch_build.build import container
from pytorch_build.context import Context, add_source_options, context, mirrors_from
from pytorch_build.lock.stored import stored_lock
from pytorch_build.sdk import RocmOptions, add_tested_sources, rocm_options_from
from pytorch_build.test import installation, skip_questions, upstream_tests
from pytorch_build.test.gpus import HIDING, Assignment, assign_gpus
from pytorch_build.test.shards import parse_shard
from pytorch_build.test.skip_questions import QUESTIONS, SkipRequest
from pytorch_build.test.tested_packages import TestedPackages, find_tested_packages
from pytorch_build.test.torch_run import Bench, TorchTests, look_at_tests, perform_tests
from rocm_packaging.origin import named_source, staged_source

IMAGE = "ghcr.io/rocm/no_rocm_image_ubuntu24_04:latest"
DEVICES = (Path("/dev/kfd"), Path("/dev/dri"))
_HOME = "/tmp/home"  # noqa: S108 - the container's own
_GROUPS = ("video", "render", "110")
# what users set for the tool, and what chooses among GPUs; none that names a file of the machine
_PASSED = re.compile(
    r"AWS_(?!\w*(?:_FILE|CA_BUNDLE)$)\w+|(?:PIP|UV)_(?:\w*INDEX\w*|FIND_LINKS|NO_\w+)|\w+_(?:proxy|PROXY)"
    r"|SOURCE_LOCK|RELEASE_TYPE|CI|GITHUB_(?:ACTIONS|REPOSITORY|RUN_ID|RUN_ATTEMPT|SHA|REF|SERVER_URL)"
)
PASSES_REST = True
_AS_GIVEN = ("config", "expression", "allow_version_mismatch", "other_gpu", "workers")
CONFIGS = ("default", "distributed", "inductor")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_group(parser)
    many: dict[str, Any] = {"action": "append", "default": []}
    add, env = parser.add_argument_group("which tests").add_argument, environment()
    config, shard = env.get("TORCH_TESTS") or "default", env.get("TORCH_TESTS_PART") or "1/1"
    what = "what to test (default: $TORCH_TESTS, else default)"
    add("--config", default=config, choices=CONFIGS, action=Once, help=what)
    add("-k", dest="expression", default="", metavar="EXPR", help="pytest's expression")
    # Several may follow the option, as upstream's run_test.py has it.
    what = "run these test files of upstream's (test_nn, dynamo/test_misc) instead of the configuration's"
    modules: dict[str, Any] = {"action": "extend", "nargs": "+", "default": [], "metavar": "MODULE"}
    add("--include", **modules, help=f"{what}; repeatable")
    add("--exclude", **modules, help="leave these out; repeatable")
    what = "part of the tests (default: $TORCH_TESTS_PART, else 1/1)"
    add("--shard", default=shard, action=Once, metavar="K/N", help=what)
    add("--skips", **many, type=Path, metavar="FILE|DIR", help="more skip rules, of your own; repeatable")
    add("--pytorch-dir", type=Path, metavar="DIR", help="take the tests of this source tree")
    add("--allow-version-mismatch", action="store_true", help="run tests of another version than torch's")
    add_tested_sources(parser)
    add = parser.add_argument_group("how tests run").add_argument
    add("--gpus", choices=("unique", "all"), help="GPUs of a process (default: by --config)")
    add("--allow-no-gpu", action="store_true", help="run even without a GPU of the family")
    what = "run on NVIDIA's GPUs, with a torch made for them"
    add("--other-gpu", action="store_true", help=what)
    add("--workers", type=int, default=1, metavar="N", help="tests side by side (default: 1)")
    add("--test-timeout", type=float, metavar="SECONDS", help="limit of a test")
    add("--file-timeout", type=float, metavar="SECONDS", help="limit of a test file")
    add("--container", action="store_true", help="run in the image that GPU machines test in")
    add("--image", default=IMAGE, metavar="NAME", help="another image for --container")
    add_source_options(parser)
    _add_skip_options(parser)
    parser.epilog = "Unknown options go to pytest."


def _add_skip_options(parser: argparse.ArgumentParser) -> None:
    """Declare the questions about skip rules, and which options have no effect on which mode."""
    title = "skip rules, instead of a test run (of this machine, and the environment's or the ref's torch)"
    add = parser.add_argument_group(title).add_argument
    what = "list what is skipped and why, explain the tests that follow, or check that no rule has expired"
    add("--skip-rules", choices=QUESTIONS, metavar="|".join(QUESTIONS), help=what)
    add("--os", choices=get_args(Platform), help="another operating system")
    add("--python-version", metavar="VERSION", help="another version of Python")
    add("--all", action="store_true", help="list: also rules that do not apply, and why not")
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
    """Install, choose GPUs and tests, run them; or answer a question about skip rules."""
    if arguments.skip_rules is not None:
        refuse_options(arguments, arguments.run_options, mode="with --skip-rules")
        skip_questions.answer(_skip_request(arguments))
        return

    refuse_options(arguments, arguments.question_options, mode="without --skip-rules")
    if arguments.container:
        _in_container(arguments)
        return
    request = _request(arguments)
    chosen = context(common_from(arguments), group=arguments.artifact_group)
    target = require(chosen.common.python)
    # What is impossible is refused before gigabytes are fetched.
    gpus = _gpus(chosen, arguments, request)
    words = "; ".join(one.description for one in gpus)
    options = options_of_tested_source(arguments)
    rocm = rocm_options_from(arguments, environment())
    if chosen.common.dry_run:
        named = named_source(options, chosen.common, chosen.gpu_family)
        what = f"the wheels of run {chosen.common.run_id}"
        if arguments.no_install:
            what = "what the environment holds"
        elif options.staged:
            what = f"{what} from {staged_source(options, chosen.common, chosen.artifact_group).description}"
        elif named:
            what = f"torch from {named.description}"
        console.say(f"Would test {what} on {words}.")
        return
    tested = None if arguments.no_install else find_tested_packages(chosen, target, options, rocm)
    tests = _tests(chosen, request)
    with _installed(chosen, target, tested, rocm, gpus, tests) as inputs:
        env = process.handed_on(VIRTUAL_ENV=str(target.prefix))
        torch = upstream_tests.installed_torch(target, env)
        upstream_tests.require_tools(target, workers=request.workers)
        console.say(f"torch {torch.version} on {words}, tests of {tests.tree}")
        # an environment that this stage did not fill may have changed
        force = chosen.common.force or not inputs["installed"]
        chosen = replace(chosen, common=replace(chosen.common, force=force))
        bench = Bench(context=chosen, target=target, tests=tests, torch=torch, assignments=gpus)
        perform_tests(bench, request, inputs)


def look(arguments: argparse.Namespace) -> Status:
    """Return whether the tests have to be run. Nothing is changed."""
    common = common_from(arguments)
    if arguments.container or arguments.no_install or common.force:
        return Pending(reasons=("its options ask for it",))

    request = _request(arguments)
    chosen = context(common, group=arguments.artifact_group)
    target = require(common.python)
    gpus = _gpus(chosen, arguments, request)
    tests = _tests_there(chosen, request)
    if tests is None:
        return Pending(reasons=("the tree of its tests is not checked out",))

    rocm = rocm_options_from(arguments, environment())
    tested = find_tested_packages(chosen, target, options_of_tested_source(arguments), rocm)
    tools = _tools(chosen, target, tests)
    inputs = installation.recorded_inputs(tested, target, tools)
    if not installation.is_prepared(chosen, target, tested, tools=tools):
        return Pending(reasons=("its environment does not hold what is tested",))

    env = process.handed_on(VIRTUAL_ENV=str(target.prefix))
    torch = upstream_tests.installed_torch(target, env)
    bench = Bench(context=chosen, target=target, tests=tests, torch=torch, assignments=gpus)
    return look_at_tests(bench, request, inputs)


def _gpus(chosen: Context, arguments: argparse.Namespace, request: TorchTests) -> Sequence[Assignment]:
    return assign_gpus(
        chosen,
        environment(),
        policy=arguments.gpus or upstream_tests.configuration(request.config).gpus,
        allow_no_gpu=arguments.allow_no_gpu,
        other_gpu=request.other_gpu,
    )


def _skip_request(arguments: argparse.Namespace) -> SkipRequest:
    return SkipRequest(
        question=arguments.skip_rules,
        common=common_from(arguments),
        # What would go to pytest are the tests to explain, before and after options.
        tests=tuple(arguments.rest),
        skips=tuple(arguments.skips),
        os=arguments.os or this_platform(),
        python_version=arguments.python_version,
        torch_version=arguments.version or None,
        config=arguments.config,
        is_complete=arguments.all,
    )


def _request(arguments: argparse.Namespace) -> TorchTests:
    given = {"test_seconds": arguments.test_timeout, "file_seconds": arguments.file_timeout}
    for name, value in given.items():
        if value is not None and value <= 0:
            raise UsageError(f"--{name.replace('_seconds', '-timeout')} {value:g} is not a limit.")
    if arguments.workers < 1:
        raise UsageError(f"--workers {arguments.workers}: at least one test runs at a time.")
    limits = upstream_tests.load().limits
    return TorchTests(
        **{name: getattr(arguments, name) for name in _AS_GIVEN},
        shard=parse_shard(arguments.shard),
        include=tuple(arguments.include),
        exclude=tuple(arguments.exclude),
        pytest_arguments=tuple(arguments.rest),
        tree=arguments.pytorch_dir,
        skips=tuple(path.resolve() for path in arguments.skips),
        limits=limits.model_copy(update={name: value for name, value in given.items() if value}),
        mirrors=mirrors_from(arguments),
    )


def _tests(chosen: Context, request: TorchTests) -> upstream_tests.Tests:
    if request.tree:
        return upstream_tests.tests_of_tree(request.tree)
    lock = stored_lock(chosen)
    if lock is None:
        raise MissingInputError(
            f"Run {chosen.common.run_id} has no source lock of {chosen.ref.name}, so the commit of the "
            "tests is unknown.",
            hint="Give a source tree with --pytorch-dir, or the lock: nox -s resolve (same --torch-ref).",
        )
    return upstream_tests.check_out_tests(chosen, lock, request.mirrors)


def _tests_there(chosen: Context, request: TorchTests) -> upstream_tests.Tests | None:
    """Return the tests as they lie there; None where they have to be checked out first."""
    if request.tree:
        return upstream_tests.tests_of_tree(request.tree)
    lock = stored_lock(chosen)
    if lock is None:
        return None
    return upstream_tests.find_checked_out_tests(chosen, lock, request.mirrors)


@contextmanager
def _installed(
    chosen: Context,
    target: Interpreter,
    what: TestedPackages | None,
    rocm: RocmOptions,
    gpus: Sequence[Assignment],
    tests: upstream_tests.Tests,
) -> Iterator[Mapping[str, Any]]:
    if what is None:
        installation.require_device_code(target, installation.amd_targets(gpus))
        yield {"files": {}, "installed": False}
        return
    tools = _tools(chosen, target, tests)
    if len(tools) > 1:
        console.say(f"As the tree's own CI, not as the lock: {', '.join(tools[1].requirements)}")
    with installation.prepared_environment(chosen, target, what, tools=tools, cache_dir=rocm.pip_cache_dir):
        yield installation.recorded_inputs(what, target, tools)


def _tools(chosen: Context, target: Interpreter, tests: upstream_tests.Tests) -> Sequence[Install]:
    """Return the calls that install what tests need: the lock, and what the tree's own CI has otherwise."""
    locked = locked_call(chosen.common, target, lock=TORCH_TESTS)
    locked_names = {pin.name for path in locked.files for pin in parse_lock(read_text(path))}
    requirements = upstream_tests.requirements_of_tree(tests.tree, target, locked_names)
    if not requirements:
        return [locked]

    replaced = locked_call(chosen.common, target, lock=TORCH_TESTS, replaced=requirements)
    return [replaced, Install(requirements=requirements)]


# The same tests in the image that GPU machines test in. It has no ROCm, so that all of it comes from the
# wheels. What the machine's driver needs is passed on: /dev/kfd and /dev/dri, the groups that may open them
# (110 is render's number on machines whose image does not know it), and the machine's shared memory.
def _in_container(arguments: argparse.Namespace) -> None:
    if arguments.other_gpu:
        raise UsageError(
            "--container passes on AMD's devices, but --other-gpu needs others.", hint="Give one of them."
        )
    common = common_from(arguments)
    devices, groups = devices_here() if common.gpu_family != "cpu" else ((), ())
    outer = container.outer_parser()
    outer.add_argument("--container", action="store_true")
    outer.add_argument("--image")
    made = container.ContainerSession(
        name="test_torch",
        python=require(common.python).series if common.python else "",
        arguments=container.inner_arguments(arguments.words, outer),
        root=common.root,
    )
    for folder in _caches(common.root).values():
        files.made(Path(folder))
    engine = engines.find_engine(*engines.RUNNERS, otherwise="Or leave --container out.")
    words = command(engine, made, image=arguments.image, devices=devices, groups=groups)
    process.run(words, env=process.inherited())


def _caches(root: Path) -> Mapping[str, str]:
    """Return the caches that outlive the container: wheels of ROCm are gigabytes."""
    return {f"{name.upper()}_CACHE_DIR": f"{root / container.CACHE}/{name}" for name in ("pip", "uv")}


def devices_here(devices: Sequence[Path] = DEVICES) -> tuple[tuple[Path, ...], tuple[int, ...]]:
    """Find this machine's devices, and the numbers of the groups that may open them.

    An engine refuses to start with a device that does not exist; inside, the stage reports what is missing.
    """
    there = tuple(one for one in devices if one.exists())
    nodes = [node for one in there for node in (one, *sorted(one.glob("render*"))) if not node.is_dir()]
    return there, tuple(dict.fromkeys(node.stat().st_gid for node in nodes))


def command(
    engine: engines.Engine,
    job: container.ContainerSession,
    *,
    image: str = IMAGE,
    devices: Sequence[Path] = DEVICES,
    groups: Sequence[int] = (),
) -> tuple[str, ...]:
    """Write the command line that runs a session of this project in the container."""
    options = ["--ipc=host", *(f"--device={device}" for device in devices)]
    if devices:
        given = ("keep-groups",) if job.keeps_user(engine) else dict.fromkeys((*_GROUPS, *map(str, groups)))
        options += [*(f"--group-add={group}" for group in given), "--security-opt=seccomp=unconfined"]
    # a number that the image does not know has no home and no name
    own = {"HOME": _HOME, "USER": "tests", **_caches(job.root)}
    passed = (name for name in job.present if _PASSED.fullmatch(name) or name in HIDING)
    # The machine's own environments are made for its own libraries.
    session = ["nox", "--envdir", "/tmp/nox", "-s", job.name]  # noqa: S108 - the container's own
    if job.python:
        session += ["-P", job.python]
    session += ["--", *job.arguments]
    script = (
        f"mkdir -p {_HOME}",
        # the tool's environment, outside of the checkout
        "python3 -m venv /tmp/tool",
        ". /tmp/tool/bin/activate",
        "pip install --quiet --require-hashes -r requirements.txt",
        f"exec {shlex.join(session)}",
    )
    words = container.engine_command(engine, job, own, passed, *options)
    return (*words, image, "bash", "-euc", "; ".join(script))
