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

# A copy of a developer's tree, which the build made, has this file.
_MIRROR_FILE = ".git/pytorch-build-mirror.json"


@dataclass(frozen=True, kw_only=True)
class CleanableFolder:
    """A folder that sessions made.

    Attributes:
        size: The bytes that go with it.
        changed: When it changed last, in seconds since 1970.
        seconds: How long it takes to get it again; 0 where that is not known.
    """

    kind: str
    path: Path
    size: int
    changed: float
    seconds: float

    @property
    def run_names(self) -> frozenset[str]:
        """What ``--keep-run`` may call it: ``17-linux``, ``17``."""
        if self.kind != "runs":
            return frozenset()
        return frozenset({self.path.name, self.path.name.rpartition("-")[0]})


COMMON_OPTIONS = ("store", "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "--what",
        nargs="+",
        choices=KINDS,
        default=KINDS[:-1],
        help="only these (default: all but runs, which you have to name)",
    )
    parser.add_argument(
        "--older-than",
        type=int,
        default=0,
        metavar="DAYS",
        help="what has not changed for DAYS days",
    )
    parser.add_argument(
        "--keep-run",
        action="append",
        default=[],
        metavar="ID",
        help="a run to keep; repeatable",
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="delete it",
    )


def run(arguments: argparse.Namespace) -> None:
    """List what there is, and free it where that is meant."""
    common = common_from(arguments)
    is_deleting = arguments.yes and not common.dry_run
    with ExitStack() as locks:
        held_locks = _take_locks(common, locks)
        folders = list(_find_folders(common))
        _require_known_runs(arguments.keep_run, folders)

        going: list[CleanableFolder] = []
        rows_of_going: list[Sequence[str]] = []
        rows_of_staying: list[Sequence[str]] = []
        for folder in folders:
            reason = next(_reasons_to_stay(folder, arguments, common.root, held_locks), None)
            row = _row(folder, common.root, reason or "")
            if reason is None:
                going.append(folder)
                rows_of_going.append(row)
            else:
                rows_of_staying.append(row)
        columns = ("what", "path", "size", "changed", "made in", "stays because")
        console.table(columns, [*rows_of_going, *rows_of_staying])

        if is_deleting:
            for folder in going:
                temporary.remove_tree(folder.path)

    size = console.size(sum(folder.size for folder in going))
    if is_deleting:
        console.say(f"{size} freed.")
    elif going:
        console.say(f"{size} can be freed: add --yes.")
    else:
        console.say(f"{size} can be freed.")


def _require_known_runs(
    run_ids: Sequence[str],
    folders: Sequence[CleanableFolder],
) -> None:
    """Refuse to keep a run that does not exist."""
    known_names: set[str] = set()
    for folder in folders:
        known_names |= folder.run_names
    for run_id in run_ids:
        if run_id not in known_names:
            hint = "Leave the option out: there are no runs."
            if known_names:
                hint = nearest(run_id, known_names)
            raise UsageError(f"--keep-run {run_id!r}: there is no such run.", hint=hint)


def _take_locks(common: Common, locks: ExitStack) -> Sequence[Path]:
    """Take every lock of the checkout, so that no session begins; return those that running ones hold."""
    held_locks: list[Path] = []
    for folder in (common.root / ".nox", *common.sources.glob("*"), common.cache, *common.cache.glob("*")):
        for path in folder.glob("*.lock"):
            # A running program's own, which tells what it would leave if it were killed.
            if path.parent.name == temporary.JOURNALS:
                continue
            try:
                locks.enter_context(FileLock(path, timeout=0))
            except Timeout:
                held_locks.append(path)
    return held_locks


# What there is


def _find_folders(common: Common) -> Iterator[CleanableFolder]:
    """Yield every folder that sessions made in the checkout."""
    for path in temporary.leftovers(common.cache):
        yield _measure("leftovers", path, seconds=0.0)

    store = common.root / common.store
    durations = _read_durations(store)
    for kind, folder, pattern in (
        ("environments", common.root / ".nox", "[!.]*"),
        ("builds", common.sources, "*/.builds/*"),
        ("trees", common.sources, "[!.]*/[!.]*"),
        ("trees", common.sources, ".own/[!.]*"),
        ("caches", common.cache, "*"),
        ("runs", store, "*-linux"),
        ("runs", store, "*-windows"),
    ):
        for path in sorted(filter(Path.is_dir, folder.glob(pattern))):
            if path.name == temporary.JOURNALS:
                continue
            work = f"{kind} {path.name}"
            if kind == "builds":
                work = f"build_{path.name.partition('-')[0]}"
            yield _measure(kind, path, seconds=durations.get(work, 0.0))


def _measure(
    kind: str,
    path: Path,
    *,
    seconds: float,
) -> CleanableFolder:
    size, changed = files.measure_folder(path)
    return CleanableFolder(
        kind=kind,
        path=path,
        size=size,
        changed=changed,
        seconds=seconds,
    )


def _read_durations(store: Path) -> Mapping[str, float]:
    """Return how long each step took at most, by the records of the store's runs; and each run."""
    durations: defaultdict[str, float] = defaultdict(float)
    for path in store.glob("*/manifests/**/*.json"):
        with suppress(DataError):
            record = records.parse(path.read_bytes(), where=str(path))
            durations[record.stage] = max(durations[record.stage], record.seconds)
            durations[f"runs {path.relative_to(store).parts[0]}"] += record.seconds
    return durations


# What stays


def _reasons_to_stay(
    folder: CleanableFolder,
    arguments: argparse.Namespace,
    root: Path,
    held_locks: Sequence[Path],
) -> Iterator[str]:
    """Yield why a folder stays; nothing of one that may go."""
    path = folder.path
    if folder.kind not in arguments.what:
        yield f"not asked for: --what {folder.kind}"
    if not folder.run_names.isdisjoint(arguments.keep_run):
        yield "--keep-run"
    if folder.changed > time.time() - arguments.older_than * _DAY:
        yield f"changed since: --older-than {arguments.older_than}"

    # An environment has a lock of its own; anything else may be in use by any session.
    for lock in held_locks:
        if folder.kind != "environments" or lock.name == f".{path.name}.lock":
            yield f"a running stage holds {lock}"
    if folder.kind == "leftovers":
        return

    if path.is_symlink() or not path.resolve().is_relative_to(root.resolve()):
        yield "a link, or outside the checkout"
    elif folder.kind == "trees" and not (path / _MIRROR_FILE).is_file():
        yield from _reasons_to_keep_tree(path)


def _reasons_to_keep_tree(path: Path) -> Iterator[str]:
    """Yield why a tree of sources stays: it is the user's, or has work of theirs."""
    repository = Repository(path=path)
    if not (path / ".git").is_dir() or not repository.commit_of(UPSTREAM_REF):
        yield "not one of ours"
    elif _has_edits(repository) or any(map(_has_own_commits, (repository, *submodules(repository)))):
        yield "edits or commits of your own"


def _has_edits(repository: Repository) -> bool:
    """Return whether a tree of ours has edits, or may have some that git is told not to show."""
    return edits.has_hidden_files(repository) or not edits.is_clean(repository, submodules=True)


def _has_own_commits(repository: Repository) -> bool:
    """Return whether a repository of ours has stashes, or commits of the user's that nothing else holds."""
    if repository.commit_of("refs/stash"):
        return True

    excluding_arguments = ["--not", "--tags", "--remotes"]
    if repository.commit_of(UPSTREAM_REF):
        excluding_arguments.append(UPSTREAM_REF)
    authors = repository.read_output(
        "log", "--format=%ae", "HEAD", "--branches", *excluding_arguments
    ).splitlines()
    return any(author != hipify.EMAIL for author in authors)


def _row(
    folder: CleanableFolder,
    root: Path,
    reason: str,
) -> Sequence[str]:
    path = folder.path
    if path.is_relative_to(root):
        path = path.relative_to(root)
    changed = time.strftime("%Y-%m-%d", time.localtime(folder.changed))
    duration = console.duration(folder.seconds) if folder.seconds else ""
    return folder.kind, str(path), console.size(folder.size), changed, duration, reason
