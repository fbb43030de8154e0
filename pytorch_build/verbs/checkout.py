"""`checkout`: source lock -> source trees, tagged and hipified; or one repository by its address."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from core import console
from core.cli.options import RUN_OPTIONS, common_from, split_list
from core.errors import UsageError
from core.status import Pending, Status, UpToDate
from pytorch_build.components import COMPONENTS
from pytorch_build.context import Context, add_git_mirror_option, mirrors_from
from pytorch_build.lock.resolve import resolve
from pytorch_build.lock.stored import ensure_source_lock, prepare_origins, usable_lock, with_components
from pytorch_build.refs.torch_refs import absolute_origin
from pytorch_build.sdk import add_rocm_options, rocm_options_from
from pytorch_build.sources.checkout import CheckoutOptions, checkout, tree_path, unchanged_tree
from pytorch_build.sources.trees import checkout_options
from pytorch_build.verbs.resolve import context_of_sources

if TYPE_CHECKING:
    from pytorch_build.lock.source_lock import SourceLock
    from pytorch_build.sources.checkout import SourceTree

COMMON_OPTIONS = ("torch-ref", "gpu-family", *RUN_OPTIONS, "force")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "--components",
        default="",
        metavar="A,B",
        help=f"which projects (default: the ref's components): {', '.join(COMPONENTS)}",
    )
    parser.add_argument(
        "--checkout-dir",
        type=Path,
        metavar="DIR",
        help="check one component out there",
    )
    parser.add_argument(
        "--gitrepo-origin",
        default="",
        metavar="URL",
        help="take it from this repository",
    )
    parser.add_argument(
        "--repo-hashtag",
        default="",
        metavar="REF",
        help="take this branch, tag or commit",
    )
    parser.add_argument(
        "--stash",
        action="store_true",
        help="put your edits in a managed tree into a named git stash (default: refuse to overwrite them)",
    )
    parser.add_argument(
        "--require-related-commit",
        action="store_true",
        help="refuse a project that torch's related_commits does not name",
    )
    parser.add_argument(
        "--depth", type=int, default=1, metavar="N", help="history to fetch (default: 1; 0 for all)"
    )
    parser.add_argument(
        "--no-hipify",
        action="store_true",
        help="leave CUDA sources as they are",
    )
    parser.add_argument(
        "--no-submodules",
        action="store_true",
        help="leave submodules out",
    )
    add_git_mirror_option(parser)
    add_rocm_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Check out the source trees of chosen projects, and print commit and folder of each."""
    context = context_of_sources(common_from(arguments))
    names = _components_to_check_out(context, arguments.components)
    lock = _find_lock(context, names, arguments)

    rows: list[tuple[str, ...]] = []
    for name in names:
        path = arguments.checkout_dir or tree_path(context.common.sources, context.ref.name, name)
        with console.group(f"checkout {name}"):
            tree = checkout(lock.project(name), path, _checkout_options_from(context, arguments, name))
        for folder, stash in tree.stashes.items():
            console.warn(
                f"{folder}: your edits are in the git stash {stash!r}. "
                "`git stash pop` there brings them back."
            )
        rows.append(_table_row(name, tree))
    console.table(("project", "commit", "hipified", "folder", ""), rows)


def look(arguments: argparse.Namespace) -> Status:
    """Return whether all trees are checked out as the run's lock says. Nothing is changed."""
    context = context_of_sources(replace(common_from(arguments), dry_run=True))
    names = _components_to_check_out(context, arguments.components)
    lock = usable_lock(with_components(context, *names), rocm_options_from(arguments))
    if lock is None:
        return Pending(reasons=("the source lock is not resolved",))
    if context.common.force:
        return Pending(reasons=("--force asks for it",))

    for name in names:
        path = tree_path(context.common.sources, context.ref.name, name)
        tree = unchanged_tree(lock.project(name), path, _checkout_options_from(context, arguments, name))
        if tree is None:
            return Pending(reasons=(f"{path} is not as the source lock says",))

    console.done(f"checkout: unchanged, {console.counted(len(names), 'tree')} as the source lock says")
    return UpToDate()


def _components_to_check_out(context: Context, option: str) -> Sequence[str]:
    """Return the names of components that an option lists, else all of the ref, in build order."""
    components = context.ref.with_only_components(split_list(option) or context.ref.components).components
    for name in components:
        if context.ref.projects[name].prebuilt:
            raise UsageError(f"{name} of {context.ref.name} is prebuilt: there is nothing to check out.")
    return components


def _find_lock(
    context: Context,
    names: Sequence[str],
    arguments: argparse.Namespace,
) -> SourceLock:
    """Return the run's source lock, or one of a single project that is taken from elsewhere."""
    has_own_source = arguments.gitrepo_origin or arguments.repo_hashtag
    if len(names) != 1 and (has_own_source or arguments.checkout_dir):
        raise UsageError(
            "--checkout-dir, --gitrepo-origin and --repo-hashtag are for one project.",
            hint="Name it with --components.",
        )
    if has_own_source:
        return _resolve_alone(context, names[0], arguments)
    return ensure_source_lock(
        with_components(context, *names),
        rocm_options_from(arguments),
        require_related_commit=arguments.require_related_commit,
        mirrors=mirrors_from(arguments),
    )


def _resolve_alone(
    context: Context,
    name: str,
    arguments: argparse.Namespace,
) -> SourceLock:
    """Return a source lock of one project, at the repository or ref that arguments name."""
    source = context.ref.projects[name]
    if arguments.gitrepo_origin:
        origin = absolute_origin(arguments.gitrepo_origin, context.common.root)
        source = replace(
            source,
            origin=origin,
            has_own_origin=True,
        )
    if arguments.repo_hashtag:
        source = replace(
            source,
            ref=arguments.repo_hashtag,
            pin="",
        )
    projects = {name: source}
    # torch's tree has nothing to say about a project that names its own ref, but for the version of some.
    is_stated_by_torch = COMPONENTS[name].version_rule.file_in_torch is not None
    if not arguments.repo_hashtag or is_stated_by_torch:
        projects = {**context.ref.projects, name: source}

    ref = replace(
        context.ref,
        projects=projects,
        components=(name,),
    )
    return resolve(
        ref,
        rocm_version="",
        release_type=context.common.release_type,
        cache=context.common.cache / "refs",
        origins=prepare_origins(context.common, ref, mirrors_from(arguments)),
        require_related_commit=arguments.require_related_commit,
    )


def _checkout_options_from(
    context: Context,
    arguments: argparse.Namespace,
    component: str,
) -> CheckoutOptions:
    """Return how a component is checked out, by parsed arguments and the torch ref."""
    options = checkout_options(context, arguments.depth, mirrors_from(arguments), component)
    return replace(
        options,
        submodules=not arguments.no_submodules,
        hipify=options.hipify and not arguments.no_hipify,
        stash=arguments.stash,
    )


def _table_row(name: str, tree: SourceTree) -> tuple[str, ...]:
    """Return a row on a checked-out tree: project, commit, hipify's commit, folder and state."""
    hipified_commit = "-" if tree.head == tree.commit else tree.head[:12]
    state = "checked out" if tree.changed_by_checkout else "unchanged"
    if tree.stashes:
        state += ", edits stashed"
    return (name, tree.commit[:12], hipified_commit, str(tree.path), state)
