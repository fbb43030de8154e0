"""The kinds of files that uploads put into a run: wheels, logs and reports, artifacts, manifests.

Whether they come from a folder of the user's or from a run in another store makes no difference here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ci.publish import batches, upload_records
from ci.publish.batches import Batch, Document
from core.errors import ArtifactError
from core.parallel import judge_in_threads

if TYPE_CHECKING:
    from ci.publish.local_files import LocalFile
    from core.run import RunOutputs
    from core.run.records import FileRecord
    from core.stores import Store

LogKind = Literal["logs", "reports"]


def describe_wheels(
    local_files: Sequence[LocalFile],
) -> tuple[Sequence[FileRecord], Mapping[str, Document]]:
    """Return what records say of wheels and sdists; and of wheels the sidecar with their METADATA, by key.

    All are read. Where some are refused, the error names each of them.
    """
    from core.wheel.distributions import SIDECAR, describe

    descriptions = judge_in_threads(
        lambda file: describe(file.path, key=file.key, sha256=file.sha256), local_files
    )
    wheels: list[FileRecord] = []
    sidecars: dict[str, Document] = {}
    for file, description in zip(local_files, descriptions, strict=True):
        wheel, metadata = description
        wheels.append(wheel)
        if metadata is not None:
            sidecars[file.key] = Document(f"{file.key}{SIDECAR}", metadata, file.may_replace)
    return wheels, sidecars


def require_wheels(outputs: RunOutputs, local_files: Sequence[LocalFile]) -> None:
    """Refuse wheels of another platform than the run's, and names that no page can list."""
    from ci.publish.index.names import require_names
    from core.wheel import distributions

    filenames = [file.path.name for file in local_files]
    require_names(filenames)
    distributions.require_platform(filenames, outputs)


def log_batch(
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
    kind: LogKind,
    local_files: Sequence[LocalFile],
) -> Batch:
    """Return what a run lacks of a group's logs or reports; those of an earlier attempt are replaced."""
    prefix = f"{outputs.prefix}/{kind}/{artifact_group}"
    listing = batches.list_folders(store, [prefix, outputs.manifests_prefix(artifact_group)])
    all_digests = upload_records.read_digests(store, listing, outputs, artifact_group, kind=kind)
    # Of a file in several records it is not known which came last.
    recorded_digests = {key: digests for key, digests in all_digests.items() if len(digests) == 1}
    title = f"{kind} of {artifact_group}"
    batch = batches.compare(store, title, prefix, listing, local_files, recorded_digests=recorded_digests)
    is_recorded = all(file.sha256 in recorded_digests.get(file.key, frozenset()) for file in local_files)
    if is_recorded and not batch.files:
        return batch
    record = upload_records.record_of_files(outputs, artifact_group, kind, local_files)
    return replace(batch, documents=[record])


def artifact_batch(
    store: Store,
    outputs: RunOutputs,
    local_files: Sequence[LocalFile],
    digest_files: Mapping[str, bytes],
) -> Batch:
    """Return what a run lacks of ROCm's artifacts, each with its digest beside it.

    `digest_files` has the digest files that a build wrote, by the keys of their artifacts.
    """
    from rocm_packaging import archives

    sidecars: dict[str, Document] = {}
    for file in local_files:
        archives.parse_name(file.path.name)  # refuses what is not named as an artifact is
        content = digest_files.get(file.key)
        if content is None:
            content = f"{file.sha256}\n".encode()
        else:
            _require_artifact_digest(file, content)
        sidecars[file.key] = Document(f"{file.key}{archives.SIDECAR}", content, file.may_replace)

    stored_objects = store.list(outputs.prefix, recursive=False)
    listing = {stored_object.key: stored_object for stored_object in stored_objects}
    return batches.compare(store, "artifacts", outputs.prefix, listing, local_files, sidecars=sidecars)


def _require_artifact_digest(file: LocalFile, digest_file: bytes) -> None:
    from rocm_packaging import archives

    where = f"{file.path.name}{archives.SIDECAR}"
    stated_digest = archives.parse_sidecar(digest_file.decode(errors="replace"), where=where)
    if stated_digest != file.sha256:
        raise ArtifactError(
            f"{file.path} has the digest {file.sha256}, and {where} says {stated_digest}.",
            hint="Pack the artifact again.",
        )
