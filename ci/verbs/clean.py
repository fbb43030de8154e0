"""`clean`: what this checkout holds that can be made again, what it takes and costs; freed with ``--yes``."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from core import console
from core.cli.options import common_from
from core.errors import DataError, UsageError, nearest
from core.run import records
from pytorch_build.sources import edits
from pytorch_build.sources.checkout import UPSTREAM_REF
from pytorch_build.sources.git import Repository, submodules

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from core.cli.options import Common

KINDS = ("environments", "builds", "trees", "caches", "runs")
_DAY = 24 * 60 * 60
_DAYS = re.compile(r"([0-9]+)d")
_COPY = "pytorch-build-mirror.json"  # of a copy of a developer's tree, which the build made


@dataclass(frozen=True, kw_only=True)
class Found:
    """One folder: the bytes that go with it, when it last changed, and the seconds to get it again."""

    kind: str
    path: Path
    size: int = 0
    changed: float = 0
    seconds: float = 0
    kept: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "these alone (default: all but runs, which have to be named)"
    parser.add_argument("--what", nargs="+", choices=KINDS, default=[], help=what)
    what = "what has not changed for so many days, as 30d"
    parser.add_argument("--older-than", default="", metavar="DAYS", help=what)
    what = "a run that stays; repeatable"
    parser.add_argument("--keep-run", action="append", default=[], metavar="ID", help=what)
    parser.add_argument("--yes", action="store_true", help="free it")


def run(arguments: argparse.Namespace) -> None:
    """List what there is, and free it where that is meant."""
    common = common_from(arguments)
    days = _DAYS.fullmatch(arguments.older_than or "0d")
    if not days:
        raise UsageError(f"--older-than {arguments.older_than!r} is not a number of days.", hint="As in 30d.")
    before, chosen = time.time() - int(days[1]) * _DAY, arguments.what or KINDS[:-1]
    frees = arguments.yes and not common.dry_run
    with ExitStack() as held:
        every = list(_found(common, _busy(common, held)))
        if not frees:
            held.close()
        _refuse_unknown(arguments.keep_run, every)
        whys = [(one, _stays(one, arguments, chosen, before)) for one in every]
        going = [one for one, why in whys if not why]
        _show("Can be freed", [(one, "") for one in going], common.root)
        _show("Stays", [row for row in whys if row[1]], common.root)
        for one in going if frees else ():
            shutil.rmtree(one.path)
    size = console.size(sum(one.size for one in going))
    how = ": the same with --yes frees it" if going and not frees else ""
    console.say(f"{size} {'freed' if frees else f'can be freed{how}'}.")


def _stays(one: Found, arguments: argparse.Namespace, chosen: Sequence[str], before: float) -> str:
    """Return why a folder stays; "" for one that goes."""
    rules = (
        (one.kept, one.kept),
        (one.kind not in chosen, f"not asked for: --what {one.kind}"),
        (one.kind == "runs" and {*arguments.keep_run} & _names(one), "--keep-run"),
        (one.changed > before, f"changed since: --older-than {arguments.older_than}"),
    )
    return next((said for applies, said in rules if applies), "")


def _names(run: Found) -> set[str]:
    """Return the names of a run: ``17-linux``, ``17``."""
    return {run.path.name, run.path.name.rpartition("-")[0]}


def _refuse_unknown(keep: Sequence[str], every: Sequence[Found]) -> None:
    known = {name for one in every if one.kind == "runs" for name in _names(one)}
    for run_id in keep:
        if run_id not in known:
            raise UsageError(f"--keep-run {run_id!r}: there is no such run. {nearest(run_id, known)}")


def _busy(common: Common, held: ExitStack) -> Sequence[Path]:
    """Take every lock of the checkout, so that no stage begins; return those that running stages hold."""
    folders = (
        *((common.root / ".nox", ".*.lock"), (common.sources, "*/.*.lock")),
        *((common.cache, "*.lock"), (common.cache, "*/*.lock")),
    )
    busy = []
    for lock in (lock for folder, pattern in folders for lock in folder.glob(pattern)):
        try:
            held.enter_context(FileLock(lock, timeout=0))
        except Timeout:
            busy.append(lock)
    return busy


def _found(common: Common, busy: Sequence[Path]) -> Iterator[Found]:
    """Yield every folder that stages made in the checkout, and why it stays where it has to."""
    store = common.root / common.store
    places = (
        *(("environments", common.root / ".nox", "[!.]*"), ("builds", common.sources, "*/.builds/*")),
        *(("trees", common.sources, "[!.]*/[!.]*"), ("trees", common.sources, ".own/[!.]*")),
        *(("caches", common.cache, "*"), ("runs", store, "*-linux"), ("runs", store, "*-windows")),
    )
    seconds = _seconds(store)
    for kind, folder, pattern in places:
        for path in sorted(one for one in folder.glob(pattern) if one.is_dir()):
            size, changed = _measured(path)
            name = path.name.partition("-")[0] if kind == "builds" else path.name
            known = seconds.get(f"build_{name}" if kind == "builds" else f"{kind} {name}", 0)
            kept = _kept(kind, path, common, busy)
            yield Found(kind=kind, path=path, size=size, changed=changed, seconds=known, kept=kept)


def _kept(kind: str, path: Path, common: Common, busy: Sequence[Path]) -> str:
    """Return why a folder stays whatever is asked for; "" for one that may go."""
    locks = [lock for lock in busy if kind != "environments" or lock.name == f".{path.name}.lock"]
    if locks:
        return f"a running stage holds {locks[0]}"
    if path.is_symlink() or not path.resolve().is_relative_to(common.root.resolve()):
        return "a link, or outside the checkout"
    if kind != "trees" or (path / ".git" / _COPY).is_file():
        return ""
    git = Repository(path=path)
    if not git.commit_of(UPSTREAM_REF):
        return "not one of ours"
    own = any(_own_work(one) for one in (git, *submodules(git)))
    return "" if edits.is_clean(git, submodules=True) and not own else "edits or commits of your own"


def _own_work(git: Repository) -> bool:
    """Return whether a repository of ours has stashes, or commits of the user's that nothing else holds."""
    others = ("--not", "--tags", "--remotes", *([UPSTREAM_REF] if git.commit_of(UPSTREAM_REF) else []))
    authors = git.out("log", "--format=%ae", "HEAD", "--branches", *others).splitlines()
    return bool(git.commit_of("refs/stash")) or any(one != edits.EMAIL for one in authors)


def _measured(folder: Path) -> tuple[int, float]:
    """Return the bytes that go with a folder, without files that are elsewhere, too, and its last change."""
    links: Counter[tuple[int, int]] = Counter()
    sizes: dict[tuple[int, int], tuple[int, int]] = {}
    changed = 0.0
    for root, folders, names in os.walk(folder):
        for name in (*names, *folders):
            with suppress(FileNotFoundError):
                one = Path(root, name).lstat()
                key = one.st_dev, one.st_ino
                links[key] += 1
                sizes[key] = one.st_nlink, one.st_size
                changed = max(changed, one.st_mtime)
    return sum(size for key, (count, size) in sizes.items() if links[key] >= count), changed


def _seconds(store: Path) -> Mapping[str, float]:
    """Return how long each stage took at most, by the records of the store's runs; and each run."""
    found: defaultdict[str, float] = defaultdict(float)
    for path in store.glob("*/manifests/**/*.json"):
        with suppress(DataError):
            record = records.parse(path.read_bytes(), where=str(path))
            found[record.stage] = max(found[record.stage], record.seconds)
            found[f"runs {path.relative_to(store).parts[0]}"] += record.seconds
    return found


def _show(title: str, rows: Sequence[tuple[Found, str]], root: Path) -> None:
    console.table(
        ("what", "path", "size", "changed", "again in", "why"),
        [
            (
                one.kind,
                str(one.path.relative_to(root) if one.path.is_relative_to(root) else one.path),
                console.size(one.size),
                time.strftime("%Y-%m-%d", time.localtime(one.changed)),
                console.duration(one.seconds) if one.seconds else "",
                why,
            )
            for one, why in rows
        ],
        title=title,
    )
