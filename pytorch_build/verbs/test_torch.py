"""`test-torch`: upstream's own unit tests on a run's wheels, or on wheels from sources that are named."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files, process
from core.cli.options import Once, add_group, common_from, environment
from core.env import engines, environments, installer
from core.env.interpreters import require
from core.env.target_locks import TORCH_TESTS, locked_call
from core.errors import MissingInputError, UsageError
from core.packages.options import source_options
from pytorch_build.containers.running import this_user
from pytorch_build.context import context
from pytorch_build.lock.stored import stored_lock
from pytorch_build.rocm.options import rocm_options_from
from pytorch_build.test import configurations, container, devices, installation, upstream_tests
from pytorch_build.test.sharding import parse_shard
from pytorch_build.test.torch_request import Bench, TorchTests, assignments
from pytorch_build.test.torch_run import perform_tests
from pytorch_build.verbs.shared import add_source_options, add_tested_sources, mirrors_from
from rocm_packaging.rocm_sources import named_source

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from core.env.interpreters import Interpreter
    from pytorch_build.context import Context
    from pytorch_build.rocm.options import RocmOptions
    from pytorch_build.test.installation import Tested
    from pytorch_build.test.upstream_tests import Tests

PASSES_REST = True
CONFIGS = ("default", "distributed", "inductor")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_group(parser)
    which = parser.add_argument_group("which tests")
    which.add_argument(
        "--config",
        default=environment().get("TORCH_TESTS") or "default",
        choices=CONFIGS,
        action=Once,
        help="what to test (default: $TORCH_TESTS, else default)",
    )
    which.add_argument("-k", dest="expression", default="", metavar="EXPR", help="pytest's expression")
    which.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="MODULE",
        help="run this test file of upstream's (test_nn, dynamo/test_misc) in the place of the "
        "configuration's; repeatable",
    )
    which.add_argument(
        "--exclude", action="append", default=[], metavar="MODULE", help="leave this one out; repeatable"
    )
    which.add_argument(
        "--shard",
        default=environment().get("TORCH_TESTS_PART") or "1/1",
        action=Once,
        metavar="K/N",
        help="part of the tests (default: $TORCH_TESTS_PART, else 1/1)",
    )
    which.add_argument("--durations", type=Path, metavar="FILE", help="how long tests take, for shards")
    which.add_argument(
        "--skips", action="append", default=[], type=Path, metavar="FILE", help="more skip rules; repeatable"
    )
    which.add_argument("--pytorch-dir", type=Path, metavar="DIR", help="take the tests of this source tree")
    which.add_argument(
        "--allow-version-mismatch", action="store_true", help="run tests of another version than torch's"
    )
    add_tested_sources(parser)
    _add_running(parser)
    add_source_options(parser)
    parser.epilog = "Options that are not known here go to pytest."


def _add_running(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how tests run")
    group.add_argument("--gpus", choices=("unique", "all"), help="GPUs of a process (default: by --config)")
    group.add_argument(
        "--allow-no-gpu", action="store_true", help="run without a GPU where the family has none here"
    )
    group.add_argument(
        "--other-gpu", action="store_true", help="run on NVIDIA's GPUs, with a torch that is made for them"
    )
    group.add_argument("--workers", type=int, default=1, metavar="N", help="tests side by side (default: 1)")
    group.add_argument("--test-timeout", type=float, metavar="SECONDS", help="limit of a test")
    group.add_argument("--file-timeout", type=float, metavar="SECONDS", help="limit of a test file")
    group.add_argument("--container", action="store_true", help="run in the image that GPU machines test in")
    group.add_argument(
        "--image", default=container.IMAGE, metavar="NAME", help="another image for --container"
    )


def run(arguments: argparse.Namespace) -> None:
    """Install, choose GPUs and tests, run them."""
    if arguments.container:
        _in_container(arguments)
        return
    asked = _asked(arguments)
    chosen = context(common_from(arguments), group=arguments.artifact_group)
    target = require(chosen.common.python)
    # what cannot be done is said before gigabytes are fetched
    gpus = assignments(chosen, asked, environment())
    options, rocm = source_options(arguments), rocm_options_from(arguments, environment())
    if chosen.common.dry_run:
        named = named_source(options, chosen.common, chosen.gpu_family)
        said = f"torch from {named.words}" if named else f"the wheels of run {chosen.common.run_id}"
        said = "what the environment holds" if arguments.no_install else said
        console.say(f"Would test {said} on {'; '.join(one.words for one in gpus)}.")
        return
    what = None if arguments.no_install else installation.tested(chosen, target, options, rocm)
    tests = _tests(chosen, asked)
    with _installed(chosen, target, what, rocm) as inputs:
        if arguments.no_install:
            devices.require_device_code(target, devices.amd_targets(gpus))
        torch = upstream_tests.installed_torch(target, _plain(target))
        upstream_tests.require_tools(target, torch, workers=asked.workers)
        console.say(f"torch {torch.version} on {'; '.join(one.words for one in gpus)}, tests of {tests.tree}")
        # nobody knows what has happened to an environment that this stage did not fill
        if not inputs["installed"]:
            chosen = replace(chosen, common=replace(chosen.common, force=True))
        bench = Bench(context=chosen, target=target, tests=tests, torch=torch, assignments=gpus)
        perform_tests(bench, asked, inputs)


def _asked(arguments: argparse.Namespace) -> TorchTests:
    limits = configurations.load().limits
    given = {"test_seconds": arguments.test_timeout, "file_seconds": arguments.file_timeout}
    for name, value in given.items():
        if value is not None and value <= 0:
            raise UsageError(f"--{name.replace('_seconds', '-timeout')} {value:g} is no limit.")
    if arguments.workers < 1:
        raise UsageError(f"--workers {arguments.workers}: at least one test runs at a time.")
    return TorchTests(
        config=arguments.config,
        shard=parse_shard(arguments.shard),
        include=tuple(arguments.include),
        exclude=tuple(arguments.exclude),
        expression=arguments.expression,
        pytest_arguments=tuple(arguments.rest),
        tree=arguments.pytorch_dir,
        allow_version_mismatch=arguments.allow_version_mismatch,
        allow_no_gpu=arguments.allow_no_gpu,
        other_gpu=arguments.other_gpu,
        gpus=arguments.gpus,
        workers=arguments.workers,
        skips=tuple(path.resolve() for path in arguments.skips),
        durations=arguments.durations,
        limits=limits.model_copy(update={name: value for name, value in given.items() if value}),
        mirrors=mirrors_from(arguments),
    )


def _tests(chosen: Context, asked: TorchTests) -> Tests:
    if asked.tree:
        return upstream_tests.own_tree(asked.tree)
    lock = stored_lock(chosen)
    if lock is None:
        raise MissingInputError(
            f"Run {chosen.common.run_id} has no source lock of {chosen.ref.name}, so nobody knows the commit "
            "of the tests.",
            hint="Give a source tree with --pytorch-dir, or the lock: nox -s resolve (same --torch-ref).",
        )
    return upstream_tests.checked_out(chosen, lock, asked.mirrors)


@contextmanager
def _installed(
    chosen: Context, target: Interpreter, what: Tested | None, options: RocmOptions
) -> Iterator[Mapping[str, Any]]:
    """Make the environment hold what is tested, and keep it while it is tested; give what it holds."""
    if what is None:
        yield {"files": {}, "installed": False}
        return
    inputs = {**what.inputs, "installed": True}
    tools = locked_call(chosen.common, target, lock=TORCH_TESTS)
    with installation.planned(chosen, target, what, tools=tools) as (calls, known):
        digest = files.digest_of({"inputs": inputs, "python": target.version, "calls": known})
        with environments.prepared(
            target,
            calls,
            digest=digest,
            backend=options.installer,
            cache_dir=options.pip_cache_dir,
            force=chosen.common.force,
        ):
            installer.require_complete(target)
            devices.require_device_code(target, what.targets)
            yield inputs


def _plain(target: Interpreter) -> Mapping[str, str]:
    return process.inherited(PYTHONPATH=None, PYTHONHOME=None, VIRTUAL_ENV=str(target.prefix))


def _in_container(arguments: argparse.Namespace) -> None:
    """Run the same session in the image, with what it reads mounted."""
    if arguments.other_gpu:
        raise UsageError(
            "--container hands AMD's devices on, and --other-gpu wants others.", hint="Give one of them."
        )
    common = common_from(arguments)
    devices, groups = container.devices_here() if common.gpu_family != "cpu" else ((), ())
    folders = [arguments.pytorch_dir, arguments.durations, *arguments.skips]
    folders += [Path(link) for link in arguments.find_links if "://" not in link]
    folders += [Path(common.store)] if "://" not in common.store else []
    outside = [path.resolve() for path in folders if path is not None]
    series = require(common.python).series if common.python else ""
    made = container.Container(
        engine=engines.find_engine(*engines.RUNNERS, otherwise="Or leave --container out."),
        image=arguments.image,
        root=common.root,
        folders=tuple(path for path in outside if not path.is_relative_to(common.root)),
        user=this_user(),
        devices=devices,
        groups=groups,
        variables=container.passed_on(environment()),
    )
    words = container.inside(arguments.words, flags=("--container",), options=("--python", "--image"))
    for folder in container.caches(common.root).values():
        files.made(Path(folder))
    process.run(container.command(made, words, python=series))
