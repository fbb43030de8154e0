"""`build`: one project's wheel, from the source lock or a developer's own tree."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from core import console
from core.cli.options import add_platform, common_from, environment
from core.env import engines, require
from core.errors import MissingInputError, UsageError, nearest
from core.run.job_files import job_files
from core.run.outputs import this_platform
from pytorch_build.build import building
from pytorch_build.build.build import Build
from pytorch_build.build.dependencies import dependencies
from pytorch_build.build.options import add_build_options, build_choices_from
from pytorch_build.context import context
from pytorch_build.lock.stored import source_lock, with_components
from pytorch_build.refs.torch_refs import DISTRIBUTIONS, PROJECTS
from pytorch_build.rocm.options import find_source, find_version
from pytorch_build.sources.trees import base_version_of, developers_tree, managed_tree

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from core.cli.options import Common
    from core.env import Interpreter
    from pytorch_build.build.options import BuildChoices
    from pytorch_build.context import Context
    from pytorch_build.sources.trees import Tree


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument("project", help=f"what to build: {', '.join(PROJECTS)}")
    parser.add_argument(
        "--container",
        nargs="?",
        const="any",
        choices=("any", *engines.RUNNERS),
        help="run in the manylinux image, by docker or podman (default: whichever is there)",
    )
    add_build_options(parser)
    add_platform(parser)
    parser.add_argument("--json", action="store_true", help="with --dry-run: print the plan as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Build the wheel, unless nothing has changed."""
    project = arguments.project
    if project not in PROJECTS:
        raise UsageError(f"{project!r} is no component.", hint=nearest(project, PROJECTS))
    common = common_from(arguments)
    target = require(common.python)
    if arguments.container:
        _in_container(arguments, project, target.version, common)
        return
    if common.platform != this_platform() and not common.dry_run:
        raise UsageError(
            f"Wheels for {common.platform} are built on {common.platform}.",
            hint="Add --dry-run for the plan.",
        )
    chosen = with_components(context(common), project)
    choices = build_choices_from(arguments, platform=common.outputs.platform)
    if common.dry_run:
        _foresee(chosen, choices, target, project, as_json=arguments.json)
        return
    made = plan(chosen, choices, target=target, project=project)
    building.perform(made)
    files = job_files(environment())
    if files.outputs:
        files.set_output(f"{DISTRIBUTIONS[project]}_version", made.tree.version)


def _foresee(
    chosen: Context, choices: BuildChoices, target: Interpreter, project: str, *, as_json: bool
) -> None:
    """Print the plan, and whether a record says that it has been done."""
    from pytorch_build.build import foreseeing

    data = foreseeing.as_data(foreseeing.foresee(chosen, choices, target=target, project=project))
    if as_json:
        console.result(json.dumps(data, indent=2))
        return
    foreseeing.show(data)
    if chosen.common.outputs.platform != this_platform() or project in choices.own_trees:
        return
    try:
        building.perform(plan(chosen, choices, target=target, project=project))
    except MissingInputError as problem:
        console.say(f"build_{project} cannot be run yet: {problem.message}")


def _in_container(arguments: argparse.Namespace, project: str, python: str, common: Common) -> None:
    """Run the same session in the manylinux image, which has the same checkout and run."""
    from pytorch_build.containers import running

    env, named = environment(), arguments.container
    job = running.Job(
        session=f"build_{project}",
        python=".".join(python.split(".")[:2]),
        words=(*running.inner_words(sys.argv[2:], project=project), *_told_inside(arguments, env)),
        root=common.root,
        user=running.this_user(),
        present=frozenset(env),
    )
    engine = next((one for one in engines.RUNNERS if one == named), None) or engines.find_engine(
        *engines.RUNNERS,
        otherwise="Or build without --container; the wheel is then for machines like this one.",
    )
    if common.dry_run:
        data = running.load_container()
        console.say(" ".join(running.command(engine, data, job, running.mounts_of(job.words, job.root))))
        return
    running.run(engine, job, env=env)


def _told_inside(arguments: argparse.Namespace, env: Mapping[str, str]) -> tuple[str, ...]:
    """Say inside what cannot be seen there: the event's file, which tells a fork's run, is outside."""
    if not arguments.compiler_cache or arguments.compiler_cache_read_only:
        return ()
    from core.run.locations import origin_from, run_buckets

    return ("--compiler-cache-read-only",) if origin_from(env, run_buckets()).fork else ()


def plan(chosen: Context, choices: BuildChoices, *, target: Interpreter, project: str) -> Build:
    """Find everything that the build follows from."""
    own = choices.own_trees.get(project)
    if own is None:
        lock = source_lock(chosen, choices.rocm, update=choices.update, mirrors=choices.mirrors)
        rocm_version = lock.rocm_version
        tree: Tree = managed_tree(chosen, choices, lock, project)
    else:
        rocm_version = find_version(chosen, choices.rocm)
        base = base_version_of(own) or source_lock(chosen, choices.rocm).project(project).base_version
        tree = developers_tree(chosen, own, project, rocm_version=rocm_version, base_version=base)
        console.say(f"{project} from {own}, as it is there")
    return Build(
        context=chosen,
        choices=choices,
        target=target,
        project=project,
        tree=tree,
        rocm=find_source(chosen, choices.rocm, rocm_version) if chosen.gpu else None,
        dependencies=dependencies(chosen, target, project),
        base_env=environment(),
    )
