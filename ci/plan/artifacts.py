"""A run's artifacts: found in a store, chosen for a GPU family, fetched and extracted side by side."""

import os
import shutil
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ci.publish.buckets import buckets
from core import console, files
from core.cli.options import DEFAULT_STORE, Common
from core.errors import ArtifactError, FatalError, InterruptedStageError, MissingInputError, StoreError
from core.families import Family
from core.parallel import Transfer, transfer
from core.run import LOCAL_RUN, this_platform
from core.run.locations import Origin, location
from core.stores import Store
from core.stores.location import open_store
from rocm_packaging import archives
from rocm_packaging.artifacts import GENERIC, INCOMPLETE, targets_of

LOCK = ".fetch.lock"
_LEAST_JOBS = 8  # a store is waited for more than computed with
_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """An artifact of a run; `key` or `sidecar` is "" where the store lacks it, `sha256` until it is read."""

    name: archives.ArchiveName
    key: str
    sidecar: str
    size: int
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run's artifacts were found."""

    store: Store
    named: str
    external_repo: str
    prefix: str
    listed: tuple[Artifact, ...]

    @property
    def where(self) -> str:
        """The place, for people."""
        return f"{self.store.url}/{self.prefix}"


@dataclass(frozen=True, kw_only=True)
class FetchPlan:
    """What is fetched; of artifacts that are incomplete in the store, why."""

    artifacts: tuple[Artifact, ...]
    problems: Mapping[str, str]
    targets: frozenset[str]

    @property
    def digests(self) -> Mapping[str, str]:
        """The SHA-256 of each artifact, by the archive's name."""
        return {one.name.filename: one.sha256 for one in self.artifacts}


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """An artifact that is in its folder."""

    artifact: Artifact
    seconds: float
    fresh: bool


def find_place(common: Common, source: str, repository: str, *, fork: bool) -> Place:
    """Find a run's artifacts: in the store that is named, else in ours, else in the repository's bucket."""
    looked_at = []
    for named, external_repo in _stores(common, source, repository, fork=fork):
        store = open_store(named, root=common.root)
        for folder in dict.fromkeys((external_repo, "")):
            prefix = replace(common.outputs, external_repo=folder).prefix
            listed = list_artifacts(store, prefix)
            place = Place(store=store, named=named, external_repo=folder, prefix=prefix, listed=listed)
            if listed:
                return place
            looked_at.append(place.where)
    raise MissingInputError(
        f"Run {common.run_id} has no artifacts in {' nor in '.join(looked_at)}.",
        hint="Name an artifact run (--artifact-run-id, or --commit, --latest), and its store "
        "with --artifact-store.",
    )


def _stores(common: Common, source: str, repository: str, *, fork: bool) -> Iterator[tuple[str, str]]:
    """Name the stores to look in, each with the folder that the repository has there."""
    if common.run_id == LOCAL_RUN:
        yield source or common.store, ""
        return
    place = location(buckets(), Origin(repository=repository, fork=fork), common.release_type)
    yield source or common.store, place.external_repo
    if not source and common.store == DEFAULT_STORE:
        yield place.store, place.external_repo


def list_artifacts(store: Store, prefix: str) -> tuple[Artifact, ...]:
    """List a run's artifacts; of one in several forms, the preferred form."""
    sizes = {stored.key: stored.size for stored in store.list(f"{prefix}/", recursive=False)}
    held = {key.removeprefix(f"{prefix}/").removesuffix(archives.SIDECAR) for key in sizes}
    chosen: dict[str, Artifact] = {}
    for name in map(archives.parse_name, sorted(filter(archives.is_archive, held))):
        key = f"{prefix}/{name.filename}"
        key, sidecar = (one if one in sizes else "" for one in (key, f"{key}{archives.SIDECAR}"))
        one = Artifact(name=name, key=key, sidecar=sidecar, size=sizes.get(key, 0))
        known = chosen.setdefault(name.stem, one)
        chosen[name.stem] = min(
            known, one, key=lambda one: (not one.key, archives.SUFFIXES.index(one.name.suffix))
        )
    return tuple(one for _, one in sorted(chosen.items()))


def choose(listed: Sequence[Artifact], family: Family, *, where: str) -> tuple[Artifact, ...]:
    """Choose a family's artifacts, and those that are for every target."""
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


def plan(
    store: Store, chosen: Collection[Artifact], family: Family | None = None, *, jobs: int = 0
) -> FetchPlan:
    """Read the digests of the chosen artifacts, side by side."""
    artifacts: list[Artifact] = []
    problems: dict[str, str] = {}
    with ThreadPoolExecutor(_jobs(jobs)) as pool:
        for one, future in [(one, pool.submit(_with_digest, store, one)) for one in chosen]:
            try:
                artifacts.append(future.result())
            except FatalError as problem:
                problems[one.name.filename] = problem.message
    targets = targets_of(family) if family else frozenset()
    return FetchPlan(artifacts=tuple(artifacts), problems=problems, targets=targets)


def digests(store: Store, chosen: Collection[Artifact]) -> Mapping[str, str]:
    """Read the SHA-256 of artifacts, by the archive's name."""
    planned = plan(store, chosen)
    if problems := planned.problems:
        raise ArtifactError(f"{len(problems)} artifacts are incomplete: {' '.join(problems.values())}")
    return planned.digests


def _with_digest(store: Store, one: Artifact) -> Artifact:
    if not one.key:
        raise MissingInputError(f"{one.name.filename} is missing; only its {archives.SIDECAR} exists.")
    if not one.sidecar:
        raise MissingInputError(f"{one.name.filename} has no {archives.SIDECAR}.")
    where = f"{one.name.filename}{archives.SIDECAR}"
    digest = archives.parse_sidecar(store.read(one.sidecar).decode("utf-8", "replace"), where=where)
    return replace(one, sha256=digest)


def is_current(planned: FetchPlan, folder: Path) -> bool:
    """Return whether a folder holds just what is planned."""
    return (
        not planned.problems
        and not (folder / INCOMPLETE).exists()
        and all(archives.extracted_digest(_place(folder, one)) == one.sha256 for one in planned.artifacts)
        and not _outdated(planned, folder)
    )


def fetch(
    store: Store, planned: FetchPlan, folder: Path, *, jobs: int = 0, force: bool = False
) -> tuple[Fetched, ...]:
    """Fetch artifacts side by side, each extracted as it arrives and verified against its digest.

    What is there already, by the digest of the archive that it came from, is kept. What an
    earlier fetch left and the run no longer has is removed. While artifacts are missing,
    the folder says so, and nothing packages it.
    """
    with files.locked(folder / LOCK, what=str(folder)):
        for path in [*_outdated(planned, folder), *folder.glob(".*.part")]:
            shutil.rmtree(path)
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


def _place(folder: Path, one: Artifact) -> Path:
    return folder / one.name.folder(this_platform())


def _outdated(planned: FetchPlan, folder: Path) -> list[Path]:
    """List what earlier fetches left of the chosen targets that this one would not make."""
    present = {_place(folder, one) for one in planned.artifacts}
    folders = (marker.parent for marker in folder.glob(f"*/{archives.MARKER}"))
    named = {
        path: f"{path.name.replace('~', ':')}{archives.SUFFIXES[0]}"
        for path in folders
        if path not in present
    }
    return [path for path, name in named.items() if archives.parse_name(name).target in planned.targets]


def _fetch_all(
    store: Store, artifacts: Sequence[Artifact], folder: Path, *, jobs: int, force: bool
) -> tuple[tuple[Fetched, ...], dict[str, str]]:
    """Fetch each, the largest first, and say for those that failed why."""
    done: dict[str, Fetched] = {}
    failed: dict[str, str] = {}
    stopped = threading.Event()
    total = sum(one.size for one in artifacts)
    title = f"Fetching {len(artifacts)} artifacts, {console.size(total)}, from {store.url}"
    with transfer(title, size=total) as shown, ThreadPoolExecutor(_jobs(jobs)) as pool:
        work = partial(_fetch_one, store=store, folder=folder, force=force, shown=shown, stopped=stopped)
        largest_first = sorted(artifacts, key=lambda one: -one.size)
        futures = {pool.submit(work, one): one.name.filename for one in largest_first}
        try:
            for future in as_completed(futures):
                name = futures[future]
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


def _fetch_one(
    one: Artifact, *, store: Store, folder: Path, force: bool, shown: Transfer, stopped: threading.Event
) -> Fetched:
    """Begin again where reading breaks off: extracting a stream cannot be resumed."""
    started = time.monotonic()
    fresh = force or archives.extracted_digest(_place(folder, one)) != one.sha256
    if not fresh:
        shown.advance(one.size)
    for attempt in range(_TRIES) if fresh else ():
        came = 0

        def count(size: int) -> None:
            nonlocal came
            if stopped.is_set():
                raise InterruptedStageError("Fetching was stopped.")
            came += size
            shown.advance(size)

        try:
            with store.open(one.key) as stream:
                archives.extract(stream, one.name, folder, sha256=one.sha256, on_bytes=count)
            break
        except StoreError as problem:
            shown.advance(-came)
            if attempt == _TRIES - 1:
                raise
            console.say(f"{problem.message} Trying again.")
            stopped.wait(2.0**attempt)
    shown.finish(one.name.stem, one.size)
    return Fetched(artifact=one, seconds=time.monotonic() - started, fresh=fresh)
