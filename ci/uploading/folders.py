"""What folders hold that goes into a run's outputs: wheels, logs, reports, artifacts, a manifest."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ci.uploading.transferring import Item
from core import console, distributions
from core.errors import ArtifactError, MissingInputError, UsageError
from core.outputs import BUILD_MANIFEST
from core.parallel import each
from rocm_packaging.archives import SIDECAR, is_archive, parse_name, parse_sidecar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ci.uploading.digests import Digests
    from core.outputs import RunOutputs

# what programs write while they work, and leave when they are killed
_TEMPORARY_ENDS = ("~", ".part", ".tmp", ".temp", ".lock", ".swp")
_TEMPORARY_NAMES = frozenset({"__pycache__", "tmp", "temp"})
# above this many bytes, text that is a log goes in its gzip form
PACKED_FROM = 1 << 20
_TEXT = frozenset({".log", ".txt", ".out", ".err"})


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An artifact's archive and the digest that lies beside it.

    Attributes:
        item: The archive.
        sidecar: What its ``.sha256sum`` holds.
    """

    item: Item
    sidecar: bytes


def is_temporary(name: str) -> bool:
    """Say whether a file or folder is hidden or half made, by its name: such are never uploaded."""
    return name.startswith(".") or name.lower().endswith(_TEMPORARY_ENDS) or name in _TEMPORARY_NAMES


def walked(folder: Path) -> Sequence[Path]:
    """List a folder's files at every depth, sorted; without links, and what is hidden or half made.

    Raises:
        MissingInputError: There is no such folder, or no file in it.
    """
    if not folder.is_dir():
        raise MissingInputError(f"{folder} is no folder.", hint="Give one that there is.")
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_temporary(name))
        found += [Path(parent, name) for name in names if not is_temporary(name)]
    links = [path for path in found if path.is_symlink()]
    for path in links:
        console.say(f"{path} is a link and is left out.")
    files = sorted(path for path in found if path not in set(links) and path.is_file())
    if not files:
        raise MissingInputError(f"{folder} holds no file to upload.", hint="Give a folder that does.")
    return files


def wheel_paths(folder: Path) -> Sequence[Path]:
    """List the wheels and sdists of a folder, or of its ``dist`` where there is one.

    Raises:
        MissingInputError: There is no such folder, or none in it.
    """
    place = folder / "dist" if (folder / "dist").is_dir() else folder
    names = sorted(path for path in place.glob("*") if distributions.is_distribution(path.name))
    found = [path for path in names if not is_temporary(path.name) and path.is_file()]
    if not found:
        raise MissingInputError(
            f"{place} holds no wheel or sdist.", hint="Give a folder that does with --input-dir."
        )
    return found


def items_of(
    paths: Sequence[Path],
    keys: Sequence[str],
    digests: Digests,
    *,
    replace: bool,
    pack: bool = False,
    owned: bool = False,
) -> Sequence[Item]:
    """Describe files, hashed side by side.

    Args:
        paths: The files.
        keys: Their keys.
        digests: What is remembered of them.
        replace: Whether other bytes under the keys may be replaced.
        pack: Whether large logs go in their gzip form.
        owned: Whether nobody writes to the files any more.
    """

    def item(path: Path, key: str) -> Item:
        status = path.stat()
        packed = pack and status.st_size > PACKED_FROM and path.suffix in _TEXT
        content = digests.content(path, packed=packed)
        return Item(
            key=f"{key}.gz" if packed else key,
            path=path,
            size=content.size,
            sha256=content.sha256,
            replace=replace,
            packed=packed,
            owned=owned,
            changed=status.st_mtime_ns,
        )

    jobs = os.cpu_count() or 1
    found = each(lambda pair: item(*pair), list(zip(paths, keys, strict=True)), jobs=jobs)
    digests.save()
    return found


def tree(folder: Path, prefix: str, digests: Digests) -> Sequence[Item]:
    """Describe a folder's files as they lie under a prefix; large logs in their gzip form.

    Raises:
        MissingInputError: There is no such folder, or no file in it.
    """
    paths = walked(folder)
    keys = [f"{prefix}/{path.relative_to(folder).as_posix()}" for path in paths]
    return items_of(paths, keys, digests, replace=True, pack=True)


def archives(folder: Path, outputs: RunOutputs, digests: Digests) -> Sequence[Archive]:
    """Describe a folder's artifacts, each held against the digest beside it, where there is one.

    Raises:
        MissingInputError: There is no such folder, or none in it.
        ArtifactError: One is named otherwise, or is not what its digest says.
    """
    paths = [path for path in walked(folder) if path.parent == folder and is_archive(path.name)]
    if not paths:
        raise MissingInputError(
            f"{folder} holds no artifact.", hint="Artifacts are named {name}_{component}_{target}.tar.zst."
        )
    for path in paths:
        parse_name(path.name)
    keys = [f"{outputs.prefix}/{path.name}" for path in paths]
    found = items_of(paths, keys, digests, replace=not outputs.immutable)
    return [Archive(item=one, sidecar=_sidecar(one)) for one in found]


def _sidecar(item: Item) -> bytes:
    beside = item.path.with_name(f"{item.path.name}{SIDECAR}")
    if beside.is_file():
        said = parse_sidecar(beside.read_text(encoding="utf-8", errors="replace"), where=beside.name)
        if said != item.sha256:
            raise ArtifactError(
                f"{item.path} has the digest {item.sha256}, and {beside.name} says {said}.",
                hint="Pack the artifact again.",
            )
        return beside.read_bytes()
    return f"{item.sha256}\n".encode()


def manifest(path: Path, outputs: RunOutputs, artifact_group: str, digests: Digests) -> Item:
    """Describe the manifest of a ROCm build.

    Raises:
        MissingInputError: There is no such file.
        UsageError: It is named otherwise, and would be taken for a record.
    """
    if not path.is_file():
        raise MissingInputError(
            f"{path} is no file.", hint=f"Name the build's {BUILD_MANIFEST} with --manifest."
        )
    if path.name != BUILD_MANIFEST:
        raise UsageError(
            f"{path} is not named {BUILD_MANIFEST}.", hint="Records are uploaded with their run."
        )
    key = f"{outputs.manifests_prefix(artifact_group)}/{BUILD_MANIFEST}"
    (item,) = items_of([path], [key], digests, replace=True)
    return item
