"""`build`: one project's wheel, from the source lock or a developer's own tree."""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from core import console, process
from core.cli.options import GROUP_OPTIONS, RUN_OPTIONS, Common, add_platform, common_from, environment
from core.env import Interpreter, engines, require
from core.errors import EnvironmentSetupError, UsageError, nearest
from core.run import stage, this_platform
from core.run.job_files import set_outputs
from core.status import Pending, Status
from pytorch_build.build import machine
from pytorch_build.build.build import Assumptions, Work, build_wheel, find_work
from pytorch_build.build.cache import KINDS, CompilerCache, require_usable_store
from pytorch_build.build.request import BuildRequest
from pytorch_build.components import COMPONENTS, find_component
from pytorch_build.context import Context, add_git_mirror_option, find_context, mirrors_from
from pytorch_build.lock.stored import usable_lock, with_components
from pytorch_build.sdk import add_rocm_options, rocm_options_from
from pytorch_build.sources.snapshots import require_checkout

COMMON_OPTIONS = ("torch-ref", *GROUP_OPTIONS, *RUN_OPTIONS, "python", "force", "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument("project", help=f"what to build: {', '.join(COMPONENTS)}")
    parser.add_argument(
        "--container",
        nargs="?",
        const="any",
        choices=("any", *engines.RUNNERS),
        help="run in the manylinux image, by docker or podman (default: whichever is there)",
    )
    trees = parser.add_argument_group("a developer's own trees, built as they are and never changed")
    for component in COMPONENTS.values():
        trees.add_argument(
            component.tree_option,
            type=Path,
            metavar="DIR",
            dest=f"own_{component.name}",
            help=f"tree of {component.name}",
        )
    env = environment()
    add = parser.add_argument_group("how to build").add_argument
    add("--update", action="store_true", help="resolve the ref anew, to its newest commits")
    add("--output-dir", type=Path, metavar="DIR", help="also put the wheel there")
    add("--policy", type=Path, metavar="FILE", help="your own limits, over those of the checks")
    add("--clean", action="store_true", help="remove the build folder first")
    add(
        "--compiler-cache",
        choices=KINDS,
        default=env.get("COMPILER_CACHE") or None,
        help="send compilations through a cache (default: COMPILER_CACHE, else none)",
    )
    add(
        "--compiler-cache-store",
        default=env.get("COMPILER_CACHE_STORE") or None,
        metavar="s3://BUCKET",
        help="sccache's bucket (default: COMPILER_CACHE_STORE, else what SCCACHE_* variables say)",
    )
    add("--compiler-cache-read-only", action="store_true", help="take entries from there, leave none")
    add("--pytorch-rocm-arch", default="", metavar="A;B", help="gfx targets (default: the family's)")
    add("--max-jobs", default="", metavar="N", help="compilers at a time (default: MAX_JOBS, else by memory)")
    add("--ignore-needs", action="store_true", help="build with less disk or memory than builds took")
    for platform in ("linux", "windows"):
        add(
            f"--enable-pytorch-flash-attention-{platform}",
            action=argparse.BooleanOptionalAction,
            default=None,
            dest=f"flash_{platform}",
            help="flash attention (default: where triton and a target allow it)",
        )
    add("--depth", type=int, default=1, metavar="N", help="history to fetch (default: 1; 0 for all)")
    add("--no-split", action="store_true", help="keep device code in the wheel (default: as ROCm's packages)")
    add_git_mirror_option(parser)
    add_rocm_options(parser)
    add_platform(parser)
    parser.add_argument("--json", action="store_true", help="with --dry-run: print the plan as JSON")


def request_from(arguments: argparse.Namespace, context: Context, target: Interpreter) -> BuildRequest:
    """Return the build that parsed arguments, and the variables of this process, ask for."""
    max_jobs: str = arguments.max_jobs
    if max_jobs and not (max_jobs.isascii() and max_jobs.isdecimal()):
        raise UsageError(f"--max-jobs {max_jobs!r} is not a number of compilers.")

    policy = None
    if arguments.policy:
        from pytorch_build.check.policy import load_policy

        policy = load_policy(arguments.policy)  # refused before hours are spent

    # This machine's variables say nothing of another platform.
    platform = context.common.outputs.platform
    user_env: Mapping[str, str] = environment() if platform == this_platform() else {}
    return BuildRequest(
        context=context,
        target=target,
        component=find_component(arguments.project),
        user_env=user_env,
        rocm=rocm_options_from(arguments, environment()),
        own_trees=_own_trees_from(arguments),
        requested_targets=arguments.pytorch_rocm_arch,
        flash_attention=arguments.flash_windows if platform == "windows" else arguments.flash_linux,
        may_split=not arguments.no_split,
        compiler_cache=_compiler_cache_from(arguments),
        max_jobs=max_jobs,
        clean=arguments.clean,
        ignore_needs=arguments.ignore_needs,
        update=arguments.update,
        depth=arguments.depth,
        output_dir=arguments.output_dir,
        policy=policy,
        mirrors=mirrors_from(arguments),
    )


def _compiler_cache_from(arguments: argparse.Namespace) -> CompilerCache | None:
    """Return the compiler cache that options or variables choose; None where they choose none."""
    kind = arguments.compiler_cache
    store = arguments.compiler_cache_store
    read_only = arguments.compiler_cache_read_only
    if kind is None:
        if store is not None or read_only:
            raise UsageError(
                "--compiler-cache-store and --compiler-cache-read-only say how a compiler cache is used.",
                hint="Name it: --compiler-cache sccache, or COMPILER_CACHE.",
            )
        return None
    if kind not in KINDS:  # argparse does not validate the variable
        raise UsageError(f"COMPILER_CACHE={kind!r} is not a compiler cache.", hint=nearest(kind, KINDS))
    if store is not None:
        require_usable_store(kind, store)  # refused before hours are spent
    program = process.which(kind)
    if program is None:
        raise EnvironmentSetupError(
            f"{kind} is not on the PATH.", hint=f"Install {kind}, or leave --compiler-cache out."
        )
    return CompilerCache(
        kind=kind,
        program=program.absolute(),
        store=store,
        read_only=read_only,
    )


def run(arguments: argparse.Namespace) -> None:
    """Build the wheel of a project and record it, unless nothing has changed since the last build."""
    component = find_component(arguments.project)
    common = common_from(arguments)
    if arguments.json and not common.dry_run:
        raise UsageError("--json has no effect without --dry-run.", hint="Add --dry-run.")
    target = require(common.python)
    if arguments.container:
        _run_in_container(arguments, target, common)
        return
    if common.platform != this_platform() and not common.dry_run:
        raise UsageError(
            f"Wheels for {common.platform} are built on {common.platform}.",
            hint="Add --dry-run for the plan.",
        )

    request = _find_request(arguments, common, target)
    _warn_of_left_out_targets(request)
    if common.dry_run:
        _dry_run(request, as_json=arguments.json)
        return

    work = find_work(request)
    build_wheel(work)
    set_outputs(environment(), {f"{component.distribution}_version": work.inputs.version})


def look(arguments: argparse.Namespace) -> Status:
    """Return whether the wheel would be built, and why. Nothing is changed."""
    common = replace(common_from(arguments), dry_run=True)
    request = _find_request(arguments, common, require(common.python))
    if request.own_tree is None and usable_lock(request.context, request.rocm) is None:
        return Pending(reasons=("its source lock is not resolved",))

    work = find_work(request)
    return stage.look(work.stage, work.inputs.to_json())


def _find_request(arguments: argparse.Namespace, common: Common, target: Interpreter) -> BuildRequest:
    """Return the build that parsed arguments ask for; own trees that are no checkouts are an error."""
    component = find_component(arguments.project)
    for tree in _own_trees_from(arguments).values():
        require_checkout(tree)
    return request_from(arguments, with_components(find_context(common), component.name), target)


def _own_trees_from(arguments: argparse.Namespace) -> Mapping[str, Path]:
    """Return the source trees that the developer named, by component."""
    trees = {name: getattr(arguments, f"own_{name}") for name in COMPONENTS}
    return {name: tree.resolve() for name, tree in trees.items() if tree is not None}


def _warn_of_left_out_targets(request: BuildRequest) -> None:
    """Warn of those GPU targets of the family that the wheel will have no code for."""
    if request.left_out_targets:
        origin = "--pytorch-rocm-arch" if request.requested_targets else "PYTORCH_ROCM_ARCH"
        targets = ", ".join(request.left_out_targets)
        console.warn(f"{origin} leaves out {targets} of {request.context.gpu_family}.")


def _dry_run(request: BuildRequest, *, as_json: bool) -> None:
    """Print the plan of a build, as text or JSON, and why the wheel would be built."""
    from pytorch_build.build.dry_run import describe_build, print_plan

    assumptions = Assumptions()
    work = find_work(request, assumptions)
    description = describe_build(work, assumptions.sentences)
    if not as_json:
        print_plan(description)

    # Of another platform's run and machine nothing can be said.
    if request.is_for_this_platform:
        reasons = _reasons_to_build(work, assumptions)
        description["rebuild"] = reasons
        if reasons:
            for problem in machine.find_problems(request):
                console.warn(f"{problem.message} {problem.hint}")
    if as_json:
        console.result(json.dumps(description, indent=2))


def _reasons_to_build(work: Work, assumptions: Assumptions) -> list[str]:
    """Return why the wheel would be built, or cannot be built yet; print the latter."""
    if not assumptions.blockers:
        # A record knows nothing of wheels that are only assumed.
        dependencies = tuple(
            dependency for dependency in work.inputs.dependencies if not dependency.is_assumed
        )
        outcome = build_wheel(replace(work, inputs=replace(work.inputs, dependencies=dependencies)))
        return list(outcome.reasons) if isinstance(outcome, Pending) else []

    reasons: list[str] = []
    for problem in assumptions.blockers:
        reason = f"{work.stage.name} cannot be run yet: {problem.message}"
        console.say(reason)
        reasons.append(reason)
    return reasons


def _run_in_container(arguments: argparse.Namespace, target: Interpreter, common: Common) -> None:
    """Run this session again in the manylinux image, with the same checkout and run."""
    from pytorch_build.build import container

    outside_parser = container.parser_of_options_outside()
    outside_parser.add_argument("project")
    outside_parser.add_argument("--container", nargs="?")
    session_arguments = container.arguments_inside(sys.argv[2:], outside_parser)
    if arguments.compiler_cache and not arguments.compiler_cache_read_only:
        from core.run.locations import origin_from, run_buckets

        # The event's file, which names a fork's run, is not mounted.
        if origin_from(environment(), run_buckets()).fork:
            session_arguments = (*session_arguments, "--compiler-cache-read-only")
    session = container.ContainerSession(
        name=f"build_{arguments.project}", python=target.series, arguments=session_arguments, root=common.root
    )
    engine = arguments.container
    if engine == "any":
        otherwise = "Or build without --container; the wheel is then for machines like this one."
        engine = engines.find_engine(*engines.RUNNERS, otherwise=otherwise)
    if common.dry_run:
        console.say(" ".join(container.session_command(engine, session)))
        return
    container.run_session(engine, session, env=environment())
