"""Artifacts as archives: ``{name}_{component}_{target}.tar.zst`` or ``.tar.xz``, and a digest beside.

Archives from elsewhere are hostile until read to their end. What may not happen is decided before
anything is written: a member's name must be a plain path below a folder that the manifest lists, no
member may lie behind a link, and links are made last, after all of them were followed on paper. So no
order of members leads outside. `extract` writes into a sibling of the artifact's folder, and renames it
only when the digest held.
"""

import os
import posixpath
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from core.archive.tar import XZ, ZSTD, HashedSource, StreamedMember, TarLimits, TarStream
from core.archive.zips import unsafe_path
from core.errors import ArtifactError, nearest
from core.files import replacement_folder, writing
from core.run import Platform, this_platform
from rocm_packaging.artifacts import COMPONENTS, MANIFEST, parse_stage_folders

SUFFIXES = (ZSTD, XZ)  # the preferred one first
SIDECAR = ".sha256sum"
MARKER = ".archive.sha256"

_STEM = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z0-9-]*)_(?P<component>[a-z]+)"
    r"_(?P<target>[A-Za-z0-9][A-Za-z0-9-]*)(?P<features>(?::[a-z]+[+-])*)"
)
_DIGEST = re.compile(r"[0-9a-f]{64}")
# What `shasum`, `sha256sum --tag` and `openssl dgst` write: ``SHA256 (blas.tar.zst) = 12ab…``.
_BSD_LINE = re.compile(r"SHA(2-)?256 ?\(.*\) ?= (?P<digest>[0-9A-Fa-f]{64})\s*")
_DRIVE = re.compile(r"[A-Za-z]:")
_LONGEST_MANIFEST = 1 << 20
_MOST_HOPS = 40  # as many as Linux follows
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_FILE = stat.S_IRUSR | stat.S_IWUSR
_PERMISSIONS = 0o777


@dataclass(frozen=True, kw_only=True, order=True)
class ArchiveName:
    """What an archive's file name says; `features` are those of the target (``:xnack+``), mostly empty."""

    name: str
    component: str
    target: str
    features: str = ""
    suffix: str = ZSTD

    @property
    def stem(self) -> str:
        """The artifact's name: ``{name}_{component}_{target}``, features included."""
        return f"{self.name}_{self.component}_{self.target}{self.features}"

    @property
    def filename(self) -> str:
        """The archive's file name."""
        return f"{self.stem}{self.suffix}"

    def folder(self, platform: Platform) -> str:
        """Return the name of the artifact's folder; Windows allows no colon in it."""
        return self.stem.replace(":", "~") if platform == "windows" else self.stem


def is_archive(filename: str) -> bool:
    """Return whether a file is named like an artifact's archive, be it malformed."""
    return filename.endswith(SUFFIXES)


def parse_name(filename: str) -> ArchiveName:
    """Read an archive's file name: exactly three fields, then one of `SUFFIXES`."""
    suffixes = [suffix for suffix in SUFFIXES if filename.endswith(suffix)]
    match = _STEM.fullmatch(filename.removesuffix(suffixes[0])) if suffixes else None
    if match is None:
        raise ArtifactError(
            f"{filename!r} is not the name of an artifact's archive: "
            f"those are name_component_target{' or '.join(SUFFIXES)}."
        )
    if match["component"] not in COMPONENTS:
        nearest_component = nearest(match["component"], COMPONENTS)
        raise ArtifactError(
            f"{filename!r} has an unknown component {match['component']!r}. {nearest_component}"
        )
    return ArchiveName(
        name=match["name"],
        component=match["component"],
        target=match["target"],
        features=match["features"],
        suffix=suffixes[0],
    )


def parse_sidecar(text: str, *, where: str) -> str:
    """Read a ``.sha256sum`` in the form of GNU, where the digest is the first word, or that of BSD."""
    text = text.removeprefix("\ufeff")
    bsd_line = _BSD_LINE.fullmatch(text)
    if bsd_line is not None:
        return bsd_line["digest"].lower()

    words = text.split()
    # sha256sum puts a backslash before the digest where it had to escape the file's name.
    digest = words[0].removeprefix("\\").lower() if words else ""
    if not _DIGEST.fullmatch(digest):
        raise ArtifactError(f"{where} holds no SHA-256.", hint="Upload the artifact again.")
    return digest


def extracted_digest(folder: Path) -> str:
    """Return the digest of the archive that an artifact's folder came from; "" where it came from none."""
    with suppress(OSError, UnicodeDecodeError):
        return (folder / MARKER).read_text(encoding="ascii")
    return ""


def extract(
    stream: BinaryIO,
    archive: ArchiveName,
    directory: Path,
    *,
    sha256: str,
    limits: TarLimits | None = None,
    on_bytes: Callable[[int], object] = int,
) -> Path:
    """Extract an archive as it arrives, hashing the same bytes; return the artifact's folder.

    The folder appears, or is replaced, when it is whole. `sha256` may be "", for any; `on_bytes` is called
    with each number of compressed bytes read. A `StoreError`, alone, may pass when it is tried again.
    """
    filename = archive.filename
    source = HashedSource(stream, name=filename, on_bytes=on_bytes)
    tar = TarStream(source, archive.suffix, name=filename, limits=limits or TarLimits())
    folder = directory / archive.folder(this_platform())
    with writing(folder), replacement_folder(folder) as fresh_folder:
        try:
            _unpack(tar, fresh_folder, where=filename)
        except ArtifactError as problem:
            # The digest says more than what a damaged archive happens to break.
            _require_digest(source.finish(), sha256, filename, problem)
            raise
        digest = source.finish()
        _require_digest(digest, sha256, filename, None)
        (fresh_folder / MARKER).write_text(digest, encoding="ascii")
    return folder


def _require_digest(digest: str, expected: str, filename: str, problem: ArtifactError | None) -> None:
    """Refuse an archive of another digest; `problem` is what was wrong with its members, if anything."""
    if not expected or digest == expected:
        return
    message = f"{filename} has the SHA-256 {digest}, but its {SIDECAR} says {expected}."
    if problem is not None:
        message += f" ({problem.message})"
    raise ArtifactError(
        message,
        hint="It was damaged or replaced: fetch it again, or upload it again.",
    ) from problem


def _unpack(tar: TarStream, folder: Path, *, where: str) -> None:
    """Write an archive's members into a fresh folder.

    Permission bits are kept, except that the owner may always read and write; set-user-id,
    set-group-id and sticky bits are not. Files get the time at which they are written.
    """
    members = tar.members()
    stage_folders = _read_manifest(tar, members, folder, where)
    tree = _ExtractedTree(folder, where, stage_folders)
    for member in members:
        name = member.name.removeprefix("./")
        # One that ends with a slash is a folder's, of which the slash is gone.
        fault = unsafe_path(f"{name}/" if member.name.endswith("/") else name)
        if fault:
            raise ArtifactError(f"{where}: {member.name!r} is {fault}.")
        with writing(folder / member.name):
            tree.add(member, tar.chunks())
    tree.make_links()


def _read_manifest(
    tar: TarStream, members: Iterator[StreamedMember], folder: Path, where: str
) -> tuple[str, ...]:
    """Write the manifest, which must come first; return the folders that it lists."""
    first = next(members, None)
    if first is None or first.name.removeprefix("./") != MANIFEST or first.kind != "file":
        reason = "it is empty" if first is None else f"{first.name!r} comes first"
        raise ArtifactError(
            f"{where} does not begin with {MANIFEST}: {reason}.",
            hint="Make it again.",
        )
    if first.size > _LONGEST_MANIFEST:
        raise ArtifactError(f"{where} has a {MANIFEST} of {first.size} bytes.")

    content = tar.data()
    try:
        text = content.decode()
    except UnicodeDecodeError as problem:
        raise ArtifactError(f"{where} has a {MANIFEST} that is not UTF-8.") from problem
    (folder / MANIFEST).write_bytes(content)
    return parse_stage_folders(text, f"{where}: {MANIFEST}")


class _ExtractedTree:
    """What lies where, as far as the archive was read."""

    def __init__(self, folder: Path, where: str, stage_folders: tuple[str, ...]) -> None:
        self._folder = folder
        # As a text too: a path object for each member takes longer.
        self._folder_text = str(folder)
        self._where = where
        self._stage_prefixes = tuple(f"{folder}/" for folder in stage_folders)
        self._stage_folders_and_parents = _with_parents(stage_folders)
        self._kinds = {"": "folder", MANIFEST: "file"}
        self._links: dict[str, str] = {}

    def add(self, member: StreamedMember, content: Iterable[memoryview]) -> None:
        """Write a member, or note it where it is a link."""
        name = member.name.removeprefix("./")
        self._require_place(name, member.kind)
        if member.kind == "folder":
            self._make_folder(name, member.mode & _PERMISSIONS | stat.S_IRWXU)
            return

        self._make_parent(name)
        if member.kind == "symlink":
            self._links[name] = member.link
            self._kinds[name] = "symlink"
        elif member.kind == "hardlink":
            self._make_hard_link(name, member.link)
            self._kinds[name] = "file"
        else:
            _write_file(
                f"{self._folder_text}/{name}",
                member.mode & _PERMISSIONS | _FILE,
                content,
            )
            self._kinds[name] = "file"

    def make_links(self) -> None:
        """Make the symbolic links, once all of them are known to stay inside."""
        for name, target in self._links.items():
            self._require_inside(name, target)
        for name, target in self._links.items():
            with writing(self._folder / name):
                os.symlink(target, f"{self._folder_text}/{name}")  # noqa: PTH211 - a path object a link takes longer

    def _require_place(self, name: str, kind: str) -> None:
        """Require that a member lies in a stage folder, at a free place; a folder may come again."""
        is_in_stage_folder = name.startswith(self._stage_prefixes)
        leads_to_one = kind == "folder" and name in self._stage_folders_and_parents
        if not is_in_stage_folder and not leads_to_one:
            raise self._error(name, f"lies outside of the folders that {MANIFEST} lists")

        earlier_kind = self._kinds.get(name)
        is_folder_again = kind == "folder" and earlier_kind == "folder"
        if earlier_kind is not None and not is_folder_again:
            raise self._error(name, "is there twice")

    def _make_folder(self, name: str, mode: int) -> None:
        path = f"{self._folder_text}/{name}"
        if name not in self._kinds:
            self._make_parent(name)
            os.mkdir(path)  # noqa: PTH102 - as above
            self._kinds[name] = "folder"
        os.chmod(path, mode)  # noqa: PTH101 - as above

    def _make_parent(self, name: str) -> None:
        """Require that what holds `name` is a folder; make it where the archive left it out."""
        parent = name.rpartition("/")[0]
        kind = self._kinds.get(parent)
        if kind is None:
            self._make_folder(parent, 0o755)
        elif kind != "folder":
            raise self._error(name, f"lies behind {parent!r}, which is a {kind}")

    def _make_hard_link(self, name: str, link: str) -> None:
        target = link.removeprefix("./")
        if self._kinds.get(target) != "file" or target == MANIFEST:
            raise self._error(
                name,
                f"is a hard link to {link!r}, which is not a file before it in the archive",
            )
        try:
            os.link(f"{self._folder_text}/{target}", f"{self._folder_text}/{name}")
        except OSError:  # a file system without hard links
            shutil.copy2(f"{self._folder_text}/{target}", f"{self._folder_text}/{name}")

    def _require_inside(self, name: str, target: str) -> None:
        """Follow a link's target through all links of the archive; no step may lead out of it."""
        if not target or posixpath.isabs(target) or "\\" in target or "\0" in target or _DRIVE.match(target):
            raise self._error(name, f"links to {target!r}, which is outside")

        folder_parts = name.split("/")[:-1]
        remaining_parts = target.split("/")[::-1]  # the next one last
        hops = 0
        while remaining_parts:
            part = remaining_parts.pop()
            if part == "..":
                if not folder_parts:
                    raise self._error(name, f"links to {target!r}, which is outside")
                folder_parts.pop()
            elif part not in {"", "."}:
                folder_parts.append(part)
                next_target = self._links.get("/".join(folder_parts))
                if next_target is not None:
                    folder_parts.pop()
                    remaining_parts += next_target.split("/")[::-1]
                    hops += 1
            if hops > _MOST_HOPS:
                raise self._error(name, f"links to {target!r}, which leads in circles")

    def _error(self, name: str, problem: str) -> ArtifactError:
        return ArtifactError(f"{self._where}: {name!r} {problem}.")


def _with_parents(folders: Iterable[str]) -> set[str]:
    """Return folders and those above them, without the root."""
    paths: set[str] = set()
    for folder in map(PurePosixPath, folders):
        paths.add(str(folder))
        paths.update(str(parent) for parent in folder.parents)
    return paths - {"."}


def _write_file(path: str, mode: int, content: Iterable[memoryview]) -> None:
    handle = os.open(path, _CREATE, mode)
    try:
        for chunk in content:
            remaining_bytes = chunk
            while remaining_bytes:
                remaining_bytes = remaining_bytes[os.write(handle, remaining_bytes) :]
        if os.name == "posix":
            os.fchmod(handle, mode)
    finally:
        os.close(handle)
