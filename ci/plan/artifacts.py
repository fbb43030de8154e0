"""A run's artifacts: found in a store, chosen for a GPU family, fetched and extracted side by side."""

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from core import console, files
from core.cli.options import DEFAULT_STORE, Common
from core.errors import (
    STOPPING,
    ArtifactError,
    FatalError,
    InterruptedStageError,
    MissingInputError,
    StoreError,
)
from core.families import Family
from core.parallel import Transfer, map_in_threads, transfer
from core.run import LOCAL_RUN, this_platform
from core.run.locations import Origin, buckets_of, location
from core.stores import Store
from core.stores.location import open_store
from rocm_packaging import archives
from rocm_packaging.artifacts import GENERIC, INCOMPLETE, targets_of

LOCK = ".fetch.lock"
_ATTEMPTS = 3
_LEAST_JOBS = 8  # a store is waited for more than computed with


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """An artifact of a run."""

    name: archives.ArchiveName
    key: str | None  # None where the store has its sidecar alone
    sidecar: str | None  # the key of the file with its digest
    size: int
    sha256: str | None = None  # None until the sidecar is read


@dataclass(frozen=True, kw_only=True)
class RunArtifacts:
    """The artifacts of a run, and where they are."""

    store: Store
    store_name: str  # as options have it
    external_repo: str
    prefix: str
    artifacts: tuple[Artifact, ...]

    @property
    def where(self) -> str:
        """The folder, for people."""
        return f"{self.store.url}/{self.prefix}"


@dataclass(frozen=True, kw_only=True)
class FetchPlan:
    """What is fetched, and for artifacts that are incomplete in the store the reason."""

    artifacts: tuple[Artifact, ...]
    problems: Mapping[str, str]
    targets: frozenset[str]

    @property
    def digests(self) -> Mapping[str, str]:
        """The SHA-256 of each artifact, by the archive's name."""
        return {artifact.name.filename: artifact.sha256 or "" for artifact in self.artifacts}


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """An artifact that is in its folder."""

    artifact: Artifact
    seconds: float
    fresh: bool


# --- Where artifacts are ---------------------------------------------------------------------


def find_run_artifacts(
    common: Common,
    store_name: str | None,
    repository: str,
    *,
    fork: bool,
) -> RunArtifacts:
    """Return a run's artifacts.

    They are looked for in the named store. Without a name, they are looked for in the run's own store and in
    the bucket of the repository.
    """
    empty_folders: list[str] = []
    for name, external_repo in _stores(common, store_name, repository, fork=fork):
        store = open_store(name, root=common.root)
        for folder in dict.fromkeys((external_repo, "")):
            prefix = replace(common.outputs, external_repo=folder).prefix
            run_artifacts = RunArtifacts(
                store=store,
                store_name=name,
                external_repo=folder,
                prefix=prefix,
                artifacts=list_artifacts(store, prefix),
            )
            if run_artifacts.artifacts:
                return run_artifacts
            empty_folders.append(run_artifacts.where)
    raise MissingInputError(
        f"Run {common.run_id} has no artifacts in {' nor in '.join(empty_folders)}.",
        hint="Name an artifact run (--artifact-run-id, or --commit, --latest), and its store "
        "with --artifact-store.",
    )


def _stores(
    common: Common,
    store_name: str | None,
    repository: str,
    *,
    fork: bool,
) -> Iterator[tuple[str, str]]:
    """Yield the stores to look in, each with the folder that the repository has there."""
    if common.run_id == LOCAL_RUN:
        yield store_name or common.store, ""
        return

    origin = Origin(repository=repository, fork=fork)
    bucket = location(buckets_of(repository), origin, common.release_type)
    yield store_name or common.store, bucket.external_repo
    if not store_name and common.store == DEFAULT_STORE:
        yield bucket.store, bucket.external_repo


def list_artifacts(store: Store, prefix: str) -> tuple[Artifact, ...]:
    """Return a run's artifacts, by name. Of one in several forms it is the preferred form."""
    sizes = {stored.key: stored.size for stored in store.list(f"{prefix}/", recursive=False)}
    filenames: set[str] = set()
    for key in sizes:
        filename = key.removeprefix(f"{prefix}/").removesuffix(archives.SIDECAR)
        if archives.is_archive(filename):
            filenames.add(filename)

    artifacts: dict[str, Artifact] = {}
    for filename in sorted(filenames):
        key = f"{prefix}/{filename}"
        sidecar = f"{key}{archives.SIDECAR}"
        artifact = Artifact(
            name=archives.parse_name(filename),
            key=key if key in sizes else None,
            sidecar=sidecar if sidecar in sizes else None,
            size=sizes.get(key, 0),
        )
        stem = artifact.name.stem
        # Those forms that are there come first.
        artifacts[stem] = min(
            artifacts.get(stem, artifact),
            artifact,
            key=lambda form: (form.key is None, archives.SUFFIXES.index(form.name.suffix)),
        )
    return tuple(artifacts[stem] for stem in sorted(artifacts))


def choose_artifacts(
    artifacts: Sequence[Artifact],
    family: Family,
    *,
    where: str,
) -> tuple[Artifact, ...]:
    """Return a family's artifacts, and those that are for every target."""
    targets = {artifact.name.target for artifact in artifacts} - {GENERIC}
    family_targets = targets_of(family)
    if not targets & family_targets:
        available_targets = ", ".join(sorted(targets)) or "no GPU family"
        raise MissingInputError(
            f"There are no artifacts of {family.name} in {where}.",
            hint=f"It has those of {available_targets}: choose with --gpu-family.",
        )

    missing_targets = [target for target in family.targets if target not in targets]
    has_artifacts_of_family = bool(targets & set(family.name.split(";")))
    if missing_targets and not has_artifacts_of_family:
        console.warn(
            f"{where} has no artifacts of {', '.join(missing_targets)}; {family.name} will lack them."
        )
    return tuple(artifact for artifact in artifacts if artifact.name.target in family_targets)


# --- Digests ---------------------------------------------------------------------------------


def plan_fetch(
    store: Store,
    artifacts: Collection[Artifact],
    family: Family | None = None,
    *,
    jobs: int | None = None,
) -> FetchPlan:
    """Return what is fetched, with the digests of the artifacts, which are read side by side."""
    problems: dict[str, str] = {}

    def read_digest(artifact: Artifact) -> Artifact | None:
        try:
            return _with_digest(store, artifact)
        except FatalError as problem:
            problems[artifact.name.filename] = problem.message
            return None

    artifacts_with_digests = map_in_threads(read_digest, artifacts, jobs=jobs or _default_jobs())
    return FetchPlan(
        artifacts=tuple(artifact for artifact in artifacts_with_digests if artifact is not None),
        problems=problems,
        targets=frozenset() if family is None else targets_of(family),
    )


def read_digests(store: Store, artifacts: Collection[Artifact]) -> Mapping[str, str]:
    """Return the SHA-256 of artifacts, by the archive's name."""
    fetch_plan = plan_fetch(store, artifacts)
    problems = fetch_plan.problems
    if problems:
        raise ArtifactError(f"{len(problems)} artifacts are incomplete: {' '.join(problems.values())}")
    return fetch_plan.digests


def _with_digest(store: Store, artifact: Artifact) -> Artifact:
    filename = artifact.name.filename
    if artifact.key is None:
        raise MissingInputError(f"{filename} is missing; only its {archives.SIDECAR} exists.")
    if artifact.sidecar is None:
        raise MissingInputError(f"{filename} has no {archives.SIDECAR}.")

    content = store.read(artifact.sidecar).decode("utf-8", "replace")
    digest = archives.parse_sidecar(content, where=f"{filename}{archives.SIDECAR}")
    return replace(artifact, sha256=digest)


# --- Fetching --------------------------------------------------------------------------------


def is_current(fetch_plan: FetchPlan, folder: Path) -> bool:
    """Return whether a folder holds just what is planned."""
    if fetch_plan.problems or (folder / INCOMPLETE).exists():
        return False
    if _outdated_folders(fetch_plan, folder):
        return False
    return all(_is_extracted(artifact, folder) for artifact in fetch_plan.artifacts)


def _is_extracted(artifact: Artifact, folder: Path) -> bool:
    return archives.extracted_digest(_folder_of(artifact, folder)) == artifact.sha256


def fetch(
    store: Store,
    fetch_plan: FetchPlan,
    folder: Path,
    *,
    jobs: int | None = None,
    force: bool = False,
) -> tuple[Fetched, ...]:
    """Fetch artifacts side by side, each extracted as it arrives and verified against its digest.

    What is there already, by the digest of the archive that it came from, is kept. What an
    earlier fetch left and the run no longer has is removed. While artifacts are missing,
    the folder says so, and nothing packages it.
    """
    total = sum(artifact.size for artifact in fetch_plan.artifacts)
    title = f"Fetching {len(fetch_plan.artifacts)} artifacts, {console.size(total)}, from {store.url}"
    problems = dict(fetch_plan.problems)

    def fetch_one(artifact: Artifact) -> Fetched | None:
        try:
            return _fetch_artifact(store, artifact, folder, screen, force=force)
        except FatalError as problem:
            if STOPPING.is_set():
                raise
            problems[artifact.name.filename] = problem.message
            console.error(f"{artifact.name.filename}: {problem.message}")
            return None

    with files.locked(folder / LOCK, what=str(folder)):
        for path in (*_outdated_folders(fetch_plan, folder), *folder.glob(".*.part")):
            files.remove_folder(path)
        files.write_text(folder / INCOMPLETE, "Fetching artifacts into this folder has not ended.\n")

        with transfer(title, size=total) as screen:
            largest_first = sorted(fetch_plan.artifacts, key=lambda artifact: -artifact.size)
            fetched = map_in_threads(fetch_one, largest_first, jobs=jobs or _default_jobs())
        if problems:
            count = len(fetch_plan.artifacts) + len(fetch_plan.problems)
            lines = [f"  {name}: {problem}" for name, problem in sorted(problems.items())]
            listing = "\n".join(lines)
            raise ArtifactError(
                f"{len(problems)} of {count} artifacts could not be fetched:\n{listing}",
                hint="Run the same command again: what is there already is not fetched again.",
            )
        (folder / INCOMPLETE).unlink()
    arrived = [fetched_artifact for fetched_artifact in fetched if fetched_artifact is not None]
    return tuple(sorted(arrived, key=lambda fetched_artifact: fetched_artifact.artifact.name.filename))


def _default_jobs() -> int:
    return max(_LEAST_JOBS, os.cpu_count() or 1)


def _folder_of(artifact: Artifact, folder: Path) -> Path:
    return folder / artifact.name.folder(this_platform())


def _outdated_folders(fetch_plan: FetchPlan, folder: Path) -> Sequence[Path]:
    """Return what earlier fetches left of the chosen targets that this one would not leave."""
    planned_folders = {_folder_of(artifact, folder) for artifact in fetch_plan.artifacts}
    outdated_folders: list[Path] = []
    for marker in folder.glob(f"*/{archives.MARKER}"):
        artifact_folder = marker.parent
        # A folder on Windows has no colon in its name.
        stem = artifact_folder.name.replace("~", ":")
        name = archives.parse_name(f"{stem}{archives.SUFFIXES[0]}")
        if artifact_folder not in planned_folders and name.target in fetch_plan.targets:
            outdated_folders.append(artifact_folder)
    return outdated_folders


def _fetch_artifact(
    store: Store,
    artifact: Artifact,
    folder: Path,
    screen: Transfer,
    *,
    force: bool,
) -> Fetched:
    """Fetch an artifact where its folder is not up to date."""
    started = time.monotonic()
    is_fresh = force or not _is_extracted(artifact, folder)
    if is_fresh:
        _extract_with_retries(store, artifact, folder, screen)
    else:
        screen.advance(artifact.size)

    screen.finish(artifact.name.stem, artifact.size)
    return Fetched(
        artifact=artifact,
        seconds=time.monotonic() - started,
        fresh=is_fresh,
    )


def _extract_with_retries(store: Store, artifact: Artifact, folder: Path, screen: Transfer) -> None:
    """Begin again where reading breaks off: extracting a stream cannot be resumed."""
    if artifact.key is None or artifact.sha256 is None:
        raise MissingInputError(f"{artifact.name.filename} is incomplete in {store.url}.")

    size_of_attempt = 0

    def count(size: int) -> None:
        nonlocal size_of_attempt
        # Another artifact's fetch was interrupted.
        if STOPPING.is_set():
            raise InterruptedStageError("Fetching was stopped.")
        size_of_attempt += size
        screen.advance(size)

    for attempt in range(1, _ATTEMPTS + 1):
        size_of_attempt = 0
        try:
            with store.open(artifact.key) as stream:
                archives.extract(stream, artifact.name, folder, sha256=artifact.sha256, on_bytes=count)
        except StoreError as problem:
            # What came in this attempt is to come again.
            screen.advance(-size_of_attempt)
            if attempt == _ATTEMPTS:
                raise
            console.say(f"{problem.message} Trying again.")
            STOPPING.wait(2.0 ** (attempt - 1))
        else:
            return
