"""`checkout`: source lock -> source trees, tagged and hipified; or one repository by its address."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from core import console
from core.cli.options import common_from
from core.errors import UsageError
from core.status import Pending, Status, UpToDate
from pytorch_build.components import COMPONENTS
from pytorch_build.context import Context, add_source_options, mirrors_from
from pytorch_build.lock.resolve import resolve
from pytorch_build.lock.stored import origins, serving_lock, source_lock, with_components
from pytorch_build.refs.torch_refs import absolute_origin
from pytorch_build.sdk import add_rocm_options, rocm_options_from
from pytorch_build.sources.checkout import CheckoutOptions, checkout, tree_path, unchanged_tree
from pytorch_build.sources.trees import checkout_options
from pytorch_build.verbs.resolve import any_context

if TYPE_CHECKING:
    from pytorch_build.lock.source_lock import SourceLock


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = f"which projects (default: the ref's components): {', '.join(COMPONENTS)}"
    parser.add_argument("--components", default="", metavar="A,B", help=what)
    parser.add_argument("--checkout-dir", type=Path, metavar="DIR", help="check one component out there")
    parser.add_argument("--gitrepo-origin", default="", metavar="URL", help="take it from this repository")
    parser.add_argument("--repo-hashtag", default="", metavar="REF", help="take this branch, tag or commit")
    what = "put your edits in a managed tree into a named git stash (default: refuse to overwrite them)"
    parser.add_argument("--stash", action="store_true", help=what)
    what = "refuse a project that torch's related_commits does not name"
    parser.add_argument("--require-related-commit", action="store_true", help=what)
    what = "history to fetch (default: 1; 0 for all)"
    parser.add_argument("--depth", type=int, default=1, metavar="N", help=what)
    parser.add_argument("--no-hipify", action="store_true", help="leave CUDA sources as they are")
    parser.add_argument("--no-submodules", action="store_true", help="leave submodules out")
    add_source_options(parser)
    add_rocm_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Check out every chosen project, and print where each is."""
    chosen = any_context(common_from(arguments))
    names = chosen_components(chosen, arguments.components)
    own = arguments.gitrepo_origin or arguments.repo_hashtag
    if (own or arguments.checkout_dir) and len(names) != 1:
        raise UsageError(
            "--checkout-dir, --gitrepo-origin and --repo-hashtag are for one project.",
            hint="Name it with --components.",
        )
    if own:
        lock = _lock_of(chosen, names[0], arguments)
    else:
        lock = source_lock(
            with_components(chosen, *names),
            rocm_options_from(arguments),
            require_related_commit=arguments.require_related_commit,
            mirrors=mirrors_from(arguments),
        )
    rows = []
    for name in names:
        path = arguments.checkout_dir or tree_path(chosen.common.sources, chosen.ref.name, name)
        with console.group(f"checkout {name}"):
            tree = checkout(lock.project(name), path, _options_of(chosen, arguments, name))
        hipified = tree.head[:12] if tree.head != tree.commit else "-"
        for folder, stash in tree.stashes.items():
            console.warn(
                f"{folder}: your edits are in the git stash {stash!r}. "
                "`git stash pop` there brings them back."
            )
        state = "checked out" if tree.changed else "unchanged"
        if tree.stashes:
            state += ", edits stashed"
        rows.append((name, tree.commit[:12], hipified, str(tree.path), state))
    console.table(("project", "commit", "hipified", "folder", ""), rows)


def look(arguments: argparse.Namespace) -> Status:
    """Return whether a tree of the ref is not as the run's lock says. Nothing is changed."""
    chosen = any_context(replace(common_from(arguments), dry_run=True))
    names = chosen_components(chosen, arguments.components)
    lock = serving_lock(with_components(chosen, *names), rocm_options_from(arguments))
    if lock is None:
        return Pending(reasons=("the source lock is not resolved",))
    if chosen.common.force:
        return Pending(reasons=("--force asks for it",))

    for name in names:
        path = tree_path(chosen.common.sources, chosen.ref.name, name)
        tree = unchanged_tree(lock.project(name), path, _options_of(chosen, arguments, name))
        if tree is None:
            return Pending(reasons=(f"{path} is not as the source lock says",))

    console.done(f"checkout: unchanged, {console.counted(len(names), 'tree')} as the source lock says")
    return UpToDate()


def _options_of(chosen: Context, arguments: argparse.Namespace, component: str) -> CheckoutOptions:
    options = checkout_options(chosen, arguments.depth, mirrors_from(arguments), component)
    hipify = options.hipify and not arguments.no_hipify
    return replace(options, submodules=not arguments.no_submodules, hipify=hipify, stash=arguments.stash)


def chosen_components(chosen: Context, given: str) -> Sequence[str]:
    """Return which projects are checked out: those asked for, else the ref's components."""
    names = [name for name in given.split(",") if name] or list(chosen.ref.components)
    ordered = chosen.ref.only(names).components
    for name in ordered:
        if chosen.ref.projects[name].prebuilt:
            raise UsageError(f"{name} of {chosen.ref.name} is prebuilt: there is nothing to check out.")
    return ordered


def _lock_of(chosen: Context, name: str, arguments: argparse.Namespace) -> SourceLock:
    """Resolve one project from an address of its own, beside the run's lock."""
    source = chosen.ref.projects[name]
    source = replace(
        source,
        origin=absolute_origin(arguments.gitrepo_origin, chosen.common.root)
        if arguments.gitrepo_origin
        else source.origin,
        own_origin=bool(arguments.gitrepo_origin) or source.own_origin,
        ref=arguments.repo_hashtag or source.ref,
        pin="" if arguments.repo_hashtag else source.pin,
    )
    # torch's tree has nothing to say about a project that names its own ref, but for the version of some.
    is_stated_by_torch = COMPONENTS[name].version_rule.file_in_torch is not None
    others = {} if arguments.repo_hashtag and not is_stated_by_torch else chosen.ref.projects
    ref = replace(chosen.ref, projects={**others, name: source}, components=(name,))
    return resolve(
        ref,
        rocm_version="",
        release_type=chosen.common.release_type,
        cache=chosen.common.cache / "refs",
        origins=origins(chosen.common, ref, mirrors_from(arguments)),
        require_related_commit=arguments.require_related_commit,
    )
