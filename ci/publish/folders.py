"""What is uploaded of folders: of a user, or of a build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci.publish import batches, kinds, upload_records
from ci.publish.local_files import Digests, is_temporary, list_files, read_logs, require_addressable
from core import files
from core.errors import MissingInputError, UsageError
from core.parallel import judge_in_threads
from core.run import BUILD_MANIFEST

if TYPE_CHECKING:
    from ci.publish.batches import Batch, Document
    from ci.publish.kinds import LogKind
    from core.cli.options import Common


@dataclass(frozen=True, kw_only=True)
class Folders:
    """Folders whose files go into a run, and the manifest of a ROCm build; None for what is not uploaded."""

    wheels: Path | None = None
    logs: Path | None = None
    reports: Path | None = None
    artifacts: Path | None = None
    manifest: Path | None = None


def compare_folders(
    common: Common,
    folders: Folders,
    artifact_group: str,
) -> Sequence[Batch]:
    """Return what a run lacks of folders' files. All but artifacts goes to an artifact group."""
    if not artifact_group and folders != Folders(artifacts=folders.artifacts):
        raise UsageError(
            "Files from a folder need the group they go to.",
            hint="Give --gpu-family or --artifact-group.",
        )

    compared: list[Batch] = []
    if folders.artifacts is not None:
        compared.append(_compare_artifacts(common, folders.artifacts))
    if folders.wheels is not None:
        compared.append(_compare_wheels(common, folders.wheels, artifact_group))
    if folders.logs is not None:
        compared.append(_compare_logs(common, folders.logs, "logs", artifact_group))
    if folders.reports is not None:
        compared.append(_compare_logs(common, folders.reports, "reports", artifact_group))
    if folders.manifest is not None:
        compared.append(_compare_manifest(common, folders.manifest, artifact_group))
    return compared


def _compare_artifacts(common: Common, folder: Path) -> Batch:
    from rocm_packaging import archives

    outputs = common.outputs
    paths: dict[str, Path] = {}
    for path in list_files(folder):
        if path.parent == folder and archives.is_archive(path.name):
            paths[f"{outputs.prefix}/{path.name}"] = path
    if not paths:
        raise MissingInputError(
            f"{folder} holds no artifact.", hint="Artifacts are named {name}_{component}_{target}.tar.zst."
        )

    digest_files: dict[str, bytes] = {}
    for key, path in paths.items():
        digest_file = path.with_name(f"{path.name}{archives.SIDECAR}")
        if digest_file.is_file():
            digest_files[key] = digest_file.read_bytes()
    local_files = digests_of(common, folder).read_files(paths, may_replace=not outputs.immutable)
    return kinds.artifact_batch(common.open_store(), outputs, local_files, digest_files)


def _compare_wheels(common: Common, folder: Path, artifact_group: str) -> Batch:
    """Compare a folder's wheels and sdists with a group's. The upload's record names those that are new."""
    store = common.open_store()
    outputs = common.outputs
    prefix = outputs.python_prefix(artifact_group)
    paths = {f"{prefix}/{path.name}": path for path in list_wheels(folder)}
    local_files = digests_of(common, folder).read_files(paths, may_replace=not outputs.immutable)
    kinds.require_wheels(outputs, local_files)
    wheels, sidecars = kinds.describe_wheels(local_files)

    listing = batches.list_folders(store, [prefix, outputs.manifests_prefix(artifact_group)])
    recorded_digests = upload_records.read_digests(store, listing, outputs, artifact_group)
    batch = batches.compare(
        store,
        f"wheels of {artifact_group}",
        prefix,
        listing,
        local_files,
        recorded_digests=recorded_digests,
        sidecars=sidecars,
    )
    new_wheels = [wheel for wheel in wheels if wheel.sha256 not in recorded_digests.get(wheel.key, ())]
    documents: list[Document] = []
    if new_wheels:
        documents.append(upload_records.record_of_wheels(outputs, artifact_group, new_wheels))
    return replace(batch, documents=documents, artifact_group=artifact_group, wheels=wheels)


def list_wheels(folder: Path) -> Sequence[Path]:
    """Return the wheels and sdists of a folder, or of its ``dist`` where it has one, sorted by name."""
    from core.wheel import distributions

    if (folder / "dist").is_dir():
        folder = folder / "dist"
    paths = [
        path
        for path in sorted(folder.glob("*"))
        if distributions.is_distribution(path.name) and not is_temporary(path.name)
    ]
    if not paths:
        raise MissingInputError(f"{folder} holds no wheel or sdist.", hint="Name another one: --input-dir.")
    judge_in_threads(files.require_regular, paths)
    return paths


def _compare_logs(
    common: Common,
    folder: Path,
    kind: LogKind,
    artifact_group: str,
) -> Batch:
    outputs = common.outputs
    prefix = f"{outputs.prefix}/{kind}/{artifact_group}"
    paths: dict[str, Path] = {}
    for path in list_files(folder):
        relative_path = path.relative_to(folder).as_posix()
        paths[f"{prefix}/{relative_path}"] = path
    require_addressable(str(folder), paths)
    local_files = read_logs(paths, digests_of(common, folder))
    return kinds.log_batch(common.open_store(), outputs, artifact_group, kind, local_files)


def _compare_manifest(common: Common, path: Path, artifact_group: str) -> Batch:
    """Compare the manifest of a ROCm build with the one in the run, which it replaces."""
    if not path.is_file() or path.name != BUILD_MANIFEST:
        raise MissingInputError(
            f"--manifest {path} is not a build's {BUILD_MANIFEST}.",
            hint="Name that file; records are uploaded with their run.",
        )
    store = common.open_store()
    prefix = common.outputs.manifests_prefix(artifact_group)
    local_files = Digests().read_files({f"{prefix}/{path.name}": path}, may_replace=True)
    return batches.compare(store, "manifests", prefix, batches.list_folders(store, [prefix]), local_files)


def digests_of(common: Common, folder: Path) -> Digests:
    """Return the digests that are remembered of a folder's files; a dry run remembers no others."""
    if common.dry_run:
        return Digests()
    name = files.sha256_text(str(folder.resolve()))
    return Digests(memory_file=common.cache / "digests" / f"{name[:16]}.json")
