"""`build`: one project's wheel, from the source lock or a developer's own tree."""

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from core import console, process
from core.cli.options import Common, add_platform, common_from, environment
from core.env import Interpreter, engines, require
from core.errors import EnvironmentSetupError, MissingInputError, UsageError, nearest
from core.run import stage, this_platform
from core.run.job_files import set_outputs
from core.status import Pending, Status
from pytorch_build.build import machine
from pytorch_build.build.build import Build, BuildChoices, dependencies, inputs, perform, stage_of
from pytorch_build.build.cache import KINDS, CompilerCache, storage_at
from pytorch_build.context import Context, add_source_options, context, mirrors_from
from pytorch_build.lock.stored import serving_lock, source_lock, with_components
from pytorch_build.refs.torch_refs import DISTRIBUTIONS, OWN_TREES, PROJECTS
from pytorch_build.sdk import add_rocm_options, find_source, find_version, rocm_options_from
from pytorch_build.sources.trees import Tree, developers_tree, lacks, managed_tree

# options that are choices as they are
_AS_GIVEN = ("max_jobs", "clean", "ignore_needs", "update", "depth", "output_dir")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument("project", help=f"what to build: {', '.join(PROJECTS)}")
    what = "run in the manylinux image, by docker or podman (default: whichever is there)"
    parser.add_argument("--container", nargs="?", const="any", choices=("any", *engines.RUNNERS), help=what)
    trees = parser.add_argument_group("a developer's own trees, built as they are and never changed")
    for project, option in OWN_TREES.items():
        trees.add_argument(option, type=Path, metavar="DIR", dest=f"own_{project}", help=f"tree of {project}")
    add, env = parser.add_argument_group("how to build").add_argument, environment()
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
        default=env.get("COMPILER_CACHE_STORE", ""),
        metavar="STORE",
        help="where its entries lie: a folder, s3://BUCKET (sccache), http://… (ccache), or 'local' "
        "(default: COMPILER_CACHE_STORE, else the run's bucket, for sccache)",
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
    add_source_options(parser)
    add_rocm_options(parser)
    add_platform(parser)
    parser.add_argument("--json", action="store_true", help="with --dry-run: print the plan as JSON")


def build_choices_from(arguments: argparse.Namespace, *, platform: str) -> BuildChoices:
    """Turn parsed arguments into the value that the build gets."""
    if arguments.max_jobs and not (arguments.max_jobs.isascii() and arguments.max_jobs.isdecimal()):
        raise UsageError(f"--max-jobs {arguments.max_jobs!r} is not a number of compilers.")
    policy = None
    if arguments.policy:
        from pytorch_build.check.policy import load_policy

        policy = load_policy(arguments.policy)  # refused before hours are spent
    own = {project: getattr(arguments, f"own_{project}") for project in OWN_TREES}
    return BuildChoices(
        rocm=rocm_options_from(arguments, environment()),
        own_trees={project: tree.resolve() for project, tree in own.items() if tree is not None},
        gpu_targets=arguments.pytorch_rocm_arch,
        flash_attention=arguments.flash_windows if platform == "windows" else arguments.flash_linux,
        split=not arguments.no_split,
        compiler_cache=_cache(arguments),
        policy=policy,
        mirrors=mirrors_from(arguments),
        **{name: getattr(arguments, name) for name in _AS_GIVEN},
    )


def _cache(arguments: argparse.Namespace) -> CompilerCache | None:
    kind, store = arguments.compiler_cache, arguments.compiler_cache_store
    read_only = arguments.compiler_cache_read_only
    if kind is None:
        if store or read_only:
            raise UsageError(
                "--compiler-cache-store and --compiler-cache-read-only say how a compiler cache is used.",
                hint="Name it: --compiler-cache sccache, or COMPILER_CACHE.",
            )
        return None
    if kind not in KINDS:  # argparse does not validate the variable
        raise UsageError(f"COMPILER_CACHE={kind!r} is not a compiler cache.", hint=nearest(kind, KINDS))
    if store:
        storage_at(kind, store)  # refused before hours are spent
    program = process.which(kind)
    if program is None:
        raise EnvironmentSetupError(
            f"{kind} is not on the PATH.", hint=f"Install {kind}, or leave --compiler-cache out."
        )
    return CompilerCache(kind=kind, program=program.absolute(), location=store, read_only=read_only)


def run(arguments: argparse.Namespace) -> None:
    """Build the wheel, unless nothing has changed."""
    project = arguments.project
    if project not in PROJECTS:
        raise UsageError(f"Unknown component {project!r}.", hint=nearest(project, PROJECTS))
    common = common_from(arguments)
    target = require(common.python)
    if arguments.container:
        _in_container(arguments, target, common)
        return
    if common.platform != this_platform() and not common.dry_run:
        raise UsageError(
            f"Wheels for {common.platform} are built on {common.platform}.",
            hint="Add --dry-run for the plan.",
        )
    chosen = with_components(context(common), project)
    choices = build_choices_from(arguments, platform=common.outputs.platform)
    if common.dry_run:
        _forecast(chosen, choices, target, project, as_json=arguments.json)
        return
    build = plan(chosen, choices, target=target, project=project)
    perform(build)
    set_outputs(environment(), {f"{DISTRIBUTIONS[project]}_version": build.tree.version})


def look(arguments: argparse.Namespace) -> Status:
    """Return whether the wheel has to be built. Nothing is changed."""
    common = replace(common_from(arguments), dry_run=True)
    chosen = with_components(context(common), arguments.project)
    choices = build_choices_from(arguments, platform=common.outputs.platform)
    if arguments.project not in choices.own_trees and serving_lock(chosen, choices.rocm) is None:
        return Pending(reasons=("its source lock is not resolved",))

    build = plan(chosen, choices, target=require(common.python), project=arguments.project)
    return stage.look(stage_of(build), inputs(build))


def _forecast(
    chosen: Context, choices: BuildChoices, target: Interpreter, project: str, *, as_json: bool
) -> None:
    """Print the plan, and whether a record says that it has been done."""
    from pytorch_build.build.forecast import forecast, show

    data = forecast(chosen, choices, target=target, project=project)
    if not as_json:
        show(data)
    if chosen.common.outputs.platform == this_platform():
        try:
            build = plan(chosen, choices, target=target, project=project)
            result = perform(build)
            data["rebuild"] = list(result.reasons) if isinstance(result, Pending) else []
        except MissingInputError as problem:
            data["rebuild"] = [f"build_{project} cannot be run yet: {problem.message}"]
            console.say(data["rebuild"][0])
        for message, hint in machine.look(chosen, choices, project, target) if data["rebuild"] else ():
            console.warn(f"{message} {hint}")
    if as_json:
        console.result(json.dumps(data, indent=2))


def _in_container(arguments: argparse.Namespace, target: Interpreter, common: Common) -> None:
    """Run the same session in the manylinux image, which has the same checkout and run."""
    from pytorch_build.build import container

    words = container.inner_words(sys.argv[2:], project={}, **{"--container": {"nargs": "?"}})
    if arguments.compiler_cache and not arguments.compiler_cache_read_only:
        from core.run.locations import origin_from, run_buckets

        # the event's file, which names a fork's run, is not mounted
        words += ("--compiler-cache-read-only",) if origin_from(environment(), run_buckets()).fork else ()
    job = container.Job(
        session=f"build_{arguments.project}", python=target.series, words=words, root=common.root
    )
    engine = arguments.container
    if engine == "any":
        otherwise = "Or build without --container; the wheel is then for machines like this one."
        engine = engines.find_engine(*engines.RUNNERS, otherwise=otherwise)
    if common.dry_run:
        console.say(" ".join(container.command(engine, job)))
        return
    container.run(engine, job, env=environment())


def plan(chosen: Context, choices: BuildChoices, *, target: Interpreter, project: str) -> Build:
    """Find everything that the build follows from."""
    own = choices.own_trees.get(project)
    if own and not chosen.common.dry_run and any(lacks(own, project, environment())):
        machine.require_none(machine.look(chosen, choices, project, target))
    if own is None:
        lock = source_lock(chosen, choices.rocm, update=choices.update, mirrors=choices.mirrors)
        rocm_version = lock.rocm_version
        tree: Tree = managed_tree(chosen, choices, lock, project)
    else:
        rocm_version = find_version(chosen, choices.rocm)
        found = partial(source_lock, chosen, choices.rocm)
        tree = developers_tree(chosen, own, project, rocm_version=rocm_version, lock=found)
        console.say(f"{project} from {own}, as it is there")
    return Build(
        context=chosen,
        choices=choices,
        target=target,
        project=project,
        tree=tree,
        rocm=find_source(chosen, choices.rocm, rocm_version) if chosen.gpu else None,
        dependencies=tuple(dependencies(chosen, target, project, own=own is not None)),
        base_env=environment(),
    )
