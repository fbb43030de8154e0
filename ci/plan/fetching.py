"""A run's artifacts: listed in a store, chosen for a GPU family, fetched and extracted side by side."""

from __future__ import annotations

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core import console, files
from core.console import transfer
from core.errors import ArtifactError, FatalError, InterruptedStageError, MissingInputError, StoreError
from core.run.outputs import this_platform
from rocm_packaging.archives import (
    MARKER,
    SIDECAR,
    SUFFIXES,
    ArchiveName,
    extract,
    extracted_digest,
    is_archive,
    parse_name,
    parse_sidecar,
)
from rocm_packaging.artifacts import GENERIC, INCOMPLETE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from core.console import Transfer
    from core.families import Family
    from core.stores import Store

LOCK = ".fetch.lock"
_LEAST_JOBS = 8  # a store is waited for more than computed with
_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class Listed:
    """An artifact of a run, as the store lists it."""

    name: ArchiveName
    key: str
    sidecar: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Planned:
    """An artifact to fetch, whole in the store as far as can be seen."""

    name: ArchiveName
    key: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What fetching will do."""

    artifacts: tuple[Planned, ...]
    problems: Mapping[str, str]
    targets: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """An artifact that is in its folder."""

    planned: Planned
    seconds: float
    fresh: bool


def list_artifacts(store: Store, prefix: str) -> tuple[Listed, ...]:
    """List a run's artifacts; of one in several forms, the preferred form."""
    sizes = {
        stored.key.removeprefix(f"{prefix}/"): stored.size
        for stored in store.list(f"{prefix}/", recursive=False)
    }
    names = [
        parse_name(name)
        for name in sorted({name.removesuffix(SIDECAR) for name in sizes})
        if is_archive(name)
    ]
    chosen: dict[str, ArchiveName] = {}
    for name in sorted(names, key=lambda name: (name.filename not in sizes, SUFFIXES.index(name.suffix))):
        chosen.setdefault(name.stem, name)
    return tuple(
        Listed(
            name=name,
            key=f"{prefix}/{name.filename}" if name.filename in sizes else "",
            sidecar=f"{prefix}/{name.filename}{SIDECAR}" if f"{name.filename}{SIDECAR}" in sizes else "",
            size=sizes.get(name.filename, 0),
        )
        for _, name in sorted(chosen.items())
    )


def targets_of(family: Family) -> frozenset[str]:
    """Name the targets whose artifacts a family needs: itself, its gfx targets, and ``generic``."""
    return frozenset({GENERIC, *family.name.split(";"), *family.targets})


def choose(listed: Sequence[Listed], family: Family, *, where: str) -> tuple[Listed, ...]:
    """Choose a family's artifacts, and those that are for every target."""
    if not listed:
        raise MissingInputError(
            f"There are no artifacts in {where}.",
            hint="Name a run with --run-id (or --commit, --latest), and its store with --from.",
        )
    wanted = targets_of(family)
    held = {one.name.target for one in listed} - {GENERIC}
    if not held & wanted:
        raise MissingInputError(
            f"There are no artifacts of {family.name} in {where}.",
            hint=f"It has those of {', '.join(sorted(held)) or 'no GPU family'}: choose with --gpu-family.",
        )
    absent = [target for target in family.targets if target not in held]
    if absent and not held & {*family.name.split(";")}:
        console.warn(f"{where} has no artifacts of {', '.join(absent)}; {family.name} will lack them.")
    return tuple(one for one in listed if one.name.target in wanted)


def plan(store: Store, chosen: Sequence[Listed], family: Family, *, jobs: int = 0) -> Plan:
    """Read the digests of the chosen artifacts, side by side."""
    artifacts, problems = _read(store, chosen, jobs=jobs)
    return Plan(artifacts=tuple(artifacts), problems=problems, targets=targets_of(family))


def _read(store: Store, chosen: Collection[Listed], *, jobs: int) -> tuple[list[Planned], dict[str, str]]:
    artifacts: list[Planned] = []
    problems: dict[str, str] = {}
    with ThreadPoolExecutor(_jobs(jobs)) as pool:
        reading = [(one, pool.submit(_planned, store, one)) for one in chosen]
        for one, future in reading:
            try:
                artifacts.append(future.result())
            except FatalError as problem:
                problems[one.name.filename] = problem.message
    return artifacts, problems


def digests(store: Store, chosen: Collection[Listed]) -> Mapping[str, str]:
    """Read the SHA-256 of artifacts, by the archive's name."""
    planned = _read(store, chosen, jobs=0)
    if planned[1]:
        raise ArtifactError(f"{len(planned[1])} artifacts are not whole: {' '.join(planned[1].values())}")
    return {one.name.filename: one.sha256 for one in planned[0]}


def _planned(store: Store, one: Listed) -> Planned:
    if not one.key:
        raise MissingInputError(f"{one.name.filename} is missing; only its {SIDECAR} is there.")
    if not one.sidecar:
        raise MissingInputError(f"{one.name.filename} has no {SIDECAR}.")
    where = f"{one.name.filename}{SIDECAR}"
    digest = parse_sidecar(store.read(one.sidecar).decode("utf-8", "replace"), where=where)
    return Planned(name=one.name, key=one.key, size=one.size, sha256=digest)


def is_current(planned: Plan, folder: Path) -> bool:
    """Say whether a folder holds just what is planned."""
    return (
        not planned.problems
        and not (folder / INCOMPLETE).exists()
        and all(extracted_digest(_place(folder, one)) == one.sha256 for one in planned.artifacts)
        and not _outdated(planned, folder)
    )


def fetch(
    store: Store, planned: Plan, folder: Path, *, jobs: int = 0, force: bool = False
) -> tuple[Fetched, ...]:
    """Fetch artifacts side by side, each extracted as it arrives and held against its digest.

    What is there already, by the digest of the archive that it came from, is kept. What an
    earlier fetch left and the run has no longer is taken away. While artifacts are missing,
    the folder says so, and nothing packages it.
    """
    with files.locked(folder / LOCK, what=str(folder)):
        _clear(planned, folder)
        files.write_text(folder / INCOMPLETE, "Fetching artifacts into this folder has not ended.\n")
        done, failed = _fetch_all(store, planned.artifacts, folder, jobs=jobs, force=force)
        problems = {**planned.problems, **failed}
        if problems:
            listing = "\n".join(f"  {name}: {said}" for name, said in sorted(problems.items()))
            raise ArtifactError(
                f"{len(problems)} of {len(planned.artifacts) + len(planned.problems)} artifacts "
                f"could not be fetched:\n{listing}",
                hint="Run the same command again: what is there already is not fetched again.",
            )
        (folder / INCOMPLETE).unlink()
    return done


def _jobs(given: int) -> int:
    return given or max(_LEAST_JOBS, os.cpu_count() or 1)


def _place(folder: Path, one: Planned) -> Path:
    return folder / one.name.folder(this_platform())


def _outdated(planned: Plan, folder: Path) -> list[Path]:
    """List what earlier fetches left of the chosen targets that this one would not make."""
    present = {_place(folder, one) for one in planned.artifacts}
    found = []
    for marker in folder.glob(f"*/{MARKER}"):
        path = marker.parent
        name = parse_name(f"{path.name.replace('~', ':')}{SUFFIXES[0]}")
        if name.target in planned.targets and path not in present:
            found.append(path)
    return found


def _clear(planned: Plan, folder: Path) -> None:
    for path in [*_outdated(planned, folder), *folder.glob(".*.part")]:
        shutil.rmtree(path)


def _fetch_all(
    store: Store, artifacts: Sequence[Planned], folder: Path, *, jobs: int, force: bool
) -> tuple[tuple[Fetched, ...], dict[str, str]]:
    """Fetch each, the largest first, and say for those that failed why."""
    done: dict[str, Fetched] = {}
    failed: dict[str, str] = {}
    stopped = threading.Event()
    total = sum(one.size for one in artifacts)
    title = f"Fetching {len(artifacts)} artifacts, {console.size(total)}, from {store.url}"
    with transfer(title, files=len(artifacts), size=total) as shown, ThreadPoolExecutor(_jobs(jobs)) as pool:
        fetcher = _Fetcher(store=store, folder=folder, force=force, shown=shown, stopped=stopped)
        futures = {
            pool.submit(fetcher.fetch, one): one for one in sorted(artifacts, key=lambda one: -one.size)
        }
        try:
            for future in as_completed(futures):
                name = futures[future].name.filename
                try:
                    done[name] = future.result()
                except FatalError as problem:
                    failed[name] = problem.message
                    console.error(f"{name}: {problem.message}")
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return tuple(done[name] for name in sorted(done)), failed


@dataclass(frozen=True, kw_only=True)
class _Fetcher:
    store: Store
    folder: Path
    force: bool
    shown: Transfer
    stopped: threading.Event

    def fetch(self, one: Planned) -> Fetched:
        started = time.monotonic()
        fresh = self.force or extracted_digest(_place(self.folder, one)) != one.sha256
        if fresh:
            self._fetch_patiently(one)
        else:
            self.shown.advance(one.size)
        seconds = time.monotonic() - started
        self.shown.finish(one.name.stem, one.size, seconds)
        return Fetched(planned=one, seconds=seconds, fresh=fresh)

    def _fetch_patiently(self, one: Planned) -> None:
        """Begin again where reading breaks off: what came cannot be gone on with."""
        for attempt in range(1, _TRIES + 1):
            came = 0

            def count(size: int) -> None:
                nonlocal came
                if self.stopped.is_set():
                    raise InterruptedStageError("Fetching was stopped.")
                came += size
                self.shown.advance(size)

            try:
                with self.store.open(one.key) as stream:
                    extract(stream, one.name, self.folder, sha256=one.sha256, on_bytes=count)
            except StoreError as problem:
                self.shown.advance(-came)
                if attempt == _TRIES:
                    raise
                console.say(f"{problem.message} Trying again.")
                self.stopped.wait(2.0 ** (attempt - 1))
            else:
                return
