"""`clean`: what stages made in this checkout, its size and time to get back; --yes deletes it."""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from core import console, files, temporary
from core.cli.options import Common, common_from
from core.errors import DataError, UsageError, nearest
from core.run import records
from pytorch_build.sources import edits, hipify
from pytorch_build.sources.checkout import UPSTREAM_REF
from pytorch_build.sources.git import Repository
from pytorch_build.sources.submodules import submodules

KINDS = ("leftovers", "environments", "builds", "trees", "caches", "runs")
_DAY = 24 * 60 * 60
_COPY = ".git/pytorch-build-mirror.json"  # of a copy of a developer's tree, which the build made


@dataclass(frozen=True, kw_only=True)
class Found:
    """One folder: the bytes that go with it, its last change, the seconds to get it again (0: not known)."""

    kind: str
    path: Path
    size: int
    changed: float
    seconds: float

    @property
    def names(self) -> set[str]:
        """What ``--keep-run`` may call it: ``17-linux``, ``17``."""
        return {self.path.name, self.path.name.rpartition("-")[0]} if self.kind == "runs" else set()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add = parser.add_argument
    what = "only these (default: all but runs, which you have to name)"
    add("--what", nargs="+", choices=KINDS, default=KINDS[:-1], help=what)
    add("--older-than", type=int, default=0, metavar="DAYS", help="what has not changed for DAYS days")
    add("--keep-run", action="append", default=[], metavar="ID", help="a run to keep; repeatable")
    add("--yes", action="store_true", help="delete it")


def run(arguments: argparse.Namespace) -> None:
    """List what there is, and free it where that is meant."""
    common = common_from(arguments)
    frees = arguments.yes and not common.dry_run
    with ExitStack() as held:
        busy, every = _busy(common, held), list(_found(common))
        known = {name for one in every for name in one.names}
        for run_id in {*arguments.keep_run} - known:
            raise UsageError(f"--keep-run {run_id!r}: there is no such run. {nearest(run_id, known)}")
        why = {one: next(_reasons(one, arguments, common.root, busy), "") for one in every}
        going = [one for one in every if not why[one]]
        rows = [_row(one, common.root, why[one]) for one in sorted(every, key=lambda one: why[one] != "")]
        console.table(("what", "path", "size", "changed", "again in", "stays"), rows)
        for one in going if frees else ():
            temporary.remove_tree(one.path)
    size = console.size(sum(one.size for one in going))
    how = ": add --yes" if going and not frees else ""
    console.say(f"{size} {'freed' if frees else f'can be freed{how}'}.")


def _busy(common: Common, held: ExitStack) -> Sequence[Path]:
    """Take every lock of the checkout, so that no stage begins; return those that running stages hold."""
    folders = (common.root / ".nox", *common.sources.glob("*"), common.cache, *common.cache.glob("*"))
    busy = []
    for lock in (lock for folder in folders for lock in folder.glob("*.lock")):
        # a running program's own, which tells what it would leave if it were killed
        if lock.parent.name == temporary.JOURNALS:
            continue
        try:
            held.enter_context(FileLock(lock, timeout=0))
        except Timeout:
            busy.append(lock)
    return busy


def _found(common: Common) -> Iterator[Found]:
    """Yield every folder that stages made in the checkout."""
    store = common.root / common.store
    places = (
        *(("environments", common.root / ".nox", "[!.]*"), ("builds", common.sources, "*/.builds/*")),
        *(("trees", common.sources, "[!.]*/[!.]*"), ("trees", common.sources, ".own/[!.]*")),
        *(("caches", common.cache, "*"), ("runs", store, "*-linux"), ("runs", store, "*-windows")),
    )
    seconds = _seconds(store)
    for path in temporary.leftovers(common.cache):
        size, changed = files.measured(path)
        yield Found(kind="leftovers", path=path, size=size, changed=changed, seconds=0.0)
    for kind, folder, pattern in places:
        for path in sorted(one for one in folder.glob(pattern) if one.is_dir()):
            if path.name == temporary.JOURNALS:
                continue
            size, changed = files.measured(path)
            made = f"build_{path.name.partition('-')[0]}" if kind == "builds" else f"{kind} {path.name}"
            yield Found(kind=kind, path=path, size=size, changed=changed, seconds=seconds[made])


def _seconds(store: Path) -> Mapping[str, float]:
    """Return how long each stage took at most, by the records of the store's runs; and each run."""
    found: defaultdict[str, float] = defaultdict(float)
    for path in store.glob("*/manifests/**/*.json"):
        with suppress(DataError):
            record = records.parse(path.read_bytes(), where=str(path))
            found[record.stage] = max(found[record.stage], record.seconds)
            found[f"runs {path.relative_to(store).parts[0]}"] += record.seconds
    return found


def _reasons(one: Found, arguments: argparse.Namespace, root: Path, busy: Sequence[Path]) -> Iterator[str]:
    """Yield why a folder stays; nothing of one that may go."""
    path = one.path
    if one.kind not in arguments.what:
        yield f"not asked for: --what {one.kind}"
    if one.names & {*arguments.keep_run}:
        yield "--keep-run"
    if one.changed > time.time() - arguments.older_than * _DAY:
        yield f"changed since: --older-than {arguments.older_than}"
    mine = f".{path.name}.lock" if one.kind == "environments" else ""
    yield from (f"a running stage holds {lock}" for lock in busy if mine in ("", lock.name))
    if one.kind == "leftovers":
        return
    if path.is_symlink() or not path.resolve().is_relative_to(root.resolve()):
        yield "a link, or outside the checkout"
    elif one.kind == "trees" and not (path / _COPY).is_file():
        git = Repository(path=path)
        if not (path / ".git").is_dir() or not git.commit_of(UPSTREAM_REF):
            yield "not one of ours"
        elif _has_edits(git) or any(map(_own_work, (git, *submodules(git)))):
            yield "edits or commits of your own"


def _has_edits(git: Repository) -> bool:
    """Return whether a tree of ours has edits, or may have some that git is told not to show."""
    return edits.has_hidden_files(git) or not edits.is_clean(git, submodules=True)


def _own_work(git: Repository) -> bool:
    """Return whether a repository of ours has stashes, or commits of the user's that nothing else holds."""
    others = ("--not", "--tags", "--remotes", *([UPSTREAM_REF] if git.commit_of(UPSTREAM_REF) else []))
    authors = git.out("log", "--format=%ae", "HEAD", "--branches", *others).splitlines()
    return bool(git.commit_of("refs/stash")) or any(one != hipify.EMAIL for one in authors)


def _row(one: Found, root: Path, why: str) -> Sequence[str]:
    path = one.path.relative_to(root) if one.path.is_relative_to(root) else one.path
    changed = time.strftime("%Y-%m-%d", time.localtime(one.changed))
    again = console.duration(one.seconds) if one.seconds else ""
    return one.kind, str(path), console.size(one.size), changed, again, why
