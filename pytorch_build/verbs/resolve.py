"""`resolve`: torch ref -> source lock, among the run's outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core import console
from core.errors import UsageError
from core.families import CPU
from core.options import common_from
from pytorch_build.context import Context, chosen_family, chosen_ref
from pytorch_build.lock.stored import source_lock
from pytorch_build.refs.torch_refs import PROJECTS
from pytorch_build.rocm.options import add_rocm_options, rocm_options_from
from pytorch_build.verbs.shared import add_source_options, mirrors_from

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from core.options import Common
    from pytorch_build.lock.source_lock import SourceLock


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "--at",
        action="append",
        default=[],
        metavar="PROJECT=REF",
        help="take this branch, tag or commit of a project instead of the ref's; repeatable",
    )
    parser.add_argument(
        "--require-related-commit",
        action="store_true",
        help="refuse a project that torch's related_commits does not name",
    )
    parser.add_argument("--compact", action="store_true", help="print the lock as one line, for a job output")
    add_source_options(parser)
    add_rocm_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Resolve the ref, and print what every project is at."""
    common = common_from(arguments)
    chosen = any_context(common)
    lock = source_lock(
        chosen,
        rocm_options_from(arguments),
        # the local run's lock is resolved anew; any other run's once
        update=not common.outputs.immutable,
        explicit=explicit_refs(arguments.at),
        require_related_commit=arguments.require_related_commit,
        mirrors=mirrors_from(arguments),
    )
    console.table(("project", "commit", "version", "from"), rows(lock, gpu=chosen.gpu))
    if arguments.compact:
        console.result(lock.compact())


def rows(lock: SourceLock, *, gpu: bool) -> Sequence[tuple[str, str, str, str]]:
    """Give a row a project: name, short commit, the version to come, where it comes from."""
    return [
        (name, "prebuilt", locked.prebuilt, "")
        if locked.prebuilt
        else (
            name,
            locked.commit[:12],
            locked.versions["rocm" if gpu else "cpu"],
            f"{locked.origin} {locked.ref}",
        )
        for name, locked in lock.projects.items()
    ]


def explicit_refs(given: Sequence[str]) -> dict[str, str]:
    """Read ``PROJECT=REF`` pairs.

    Raises:
        UsageError: A pair of another form, or an unknown project.
    """
    pairs = {}
    for pair in given:
        project, equals, ref = pair.partition("=")
        if not equals or not ref or project not in PROJECTS:
            raise UsageError(f"--at {pair!r} is not PROJECT=REF.", hint=f"Projects: {', '.join(PROJECTS)}.")
        pairs[project] = ref
    return pairs


def any_context(common: Common) -> Context:
    """Look up ref and family; a machine without a GPU can resolve all the same, for cpu."""
    ref = chosen_ref(common)
    try:
        name = chosen_family(common, ref)
    except UsageError:
        if common.gpu_family:
            raise
        console.say("GPU family: none given and no GPU here; versions without ROCm are locked")
        name = CPU
    from core.families import gpu_targets

    return Context(common=common, ref=ref, gpu_family=name, gpu_targets=gpu_targets(name))
