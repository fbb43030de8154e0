"""One pass over a wheel: RECORD is verified and every fact that the checks judge is read."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, BinaryIO

from core.archive import zip_members
from core.binaries import pe
from core.errors import ArtifactError, WheelError
from core.wheel.wheel_record import RecordProblem, Tap, verify_record
from core.wheel.wheels import parse_wheel_name, read_metadata, read_wheel_info
from pytorch_build.check import device_code, elf
from pytorch_build.check.bundles import BundleError
from pytorch_build.check.view import Binary, Member, WheelView
from rocm_packaging.packages import kpack

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from core.wheel.wheels import WheelInfo, WheelMetadata
    from pytorch_build.check.view import ElfFacts

_TEXT = (".py", ".cmake", ".pc", ".json", ".txt", ".la", ".h", ".toml", ".cfg")
_MAX_TEXT = 4 << 20
_MAGICS = (elf.MAGIC, pe.MAGIC, kpack.MAGIC, *device_code.MAGICS)


def gather(
    path: Path, *, build_paths: Iterable[str] = (), jobs: int | None = None, scratch: Path | None = None
) -> tuple[WheelView, tuple[RecordProblem, ...]]:
    """Read a wheel."""
    name = parse_wheel_name(path.name)
    with zip_members.opened(path) as archive:
        members = {
            info.filename: Member(name=info.filename, size=info.file_size)
            for info in archive.infolist()
            if not info.is_dir()
        }
    reader = _Reader(members, tuple(build_paths))
    problems = verify_record(
        path, tap=Tap(wanted=reader.wanted, inspect=reader.inspect, folder=scratch), jobs=jobs
    )
    metadata, info, more = _texts(path)
    view = WheelView(
        name=name,
        size=path.stat().st_size,
        members=tuple(members[key] for key in sorted(members)),
        metadata=metadata,
        info=info,
        binaries=tuple(sorted(reader.binaries, key=lambda binary: binary.member.name)),
        mentions=tuple(sorted(reader.mentions)),
    )
    known = {problem.message for problem in problems}
    return view, (*problems, *(one for one in more if one.message not in known))


def _texts(path: Path) -> tuple[WheelMetadata | None, WheelInfo | None, list[RecordProblem]]:
    metadata, info = None, None
    problems: list[RecordProblem] = []
    try:
        metadata = read_metadata(path)
    except WheelError as problem:
        problems.append(RecordProblem(member="", kind="structure", message=problem.message))
    try:
        info = read_wheel_info(path)
    except WheelError as problem:
        problems.append(RecordProblem(member="", kind="structure", message=problem.message))
    return metadata, info, problems


class _Reader:
    """Takes compiled and text members out of the verifying pass; called from several threads."""

    def __init__(self, members: dict[str, Member], build_paths: tuple[str, ...]) -> None:
        self._members = members
        self._build_paths = build_paths
        self._lock = threading.Lock()
        self.binaries: list[Binary] = []
        self.mentions: list[tuple[str, str]] = []

    def wanted(self, name: str, first: bytes) -> bool:
        return first.startswith(_MAGICS) or self._is_text(name)

    def inspect(self, name: str, file: Path) -> None:
        member = self._members[name]
        with file.open("rb") as stream:
            is_code = stream.read(24).startswith(_MAGICS)
        if is_code:
            found = read_binary(member, file)
            with self._lock:
                self.binaries.append(found)
        else:
            data = file.read_bytes()
            hits = [(name, folder) for folder in self._build_paths if folder.encode() in data]
            with self._lock:
                self.mentions += hits

    def _is_text(self, name: str) -> bool:
        return bool(self._build_paths) and name.endswith(_TEXT) and self._members[name].size <= _MAX_TEXT


def read_binary(member: Member, file: Path) -> Binary:
    """Read a compiled file's headers and device code; what cannot be read becomes a problem of it."""
    with file.open("rb") as stream:
        first = stream.read(len(elf.MAGIC))
        if first == elf.MAGIC:
            return _read_elf(member, stream)
        if first.startswith(pe.MAGIC):
            return _read_pe(member, stream)
    try:
        return Binary(member=member, device=device_code.file_facts(file))
    except (BundleError, kpack.KpackError) as problem:
        return Binary(member=member, problems=(f"Its device code cannot be read: {problem}.",))


def _read_pe(member: Member, stream: BinaryIO) -> Binary:
    import mmap

    try:
        headers = pe.read_needs(stream, member.name)
    except ArtifactError as problem:
        return Binary(member=member, problems=(problem.message,))
    if headers is None:
        return Binary(member=member)
    # Closed by the collector: an error's traceback may still hold views of it.
    data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return Binary(member=member, pe=headers, device=device_code.pe_facts(headers, data))
    except BundleError as problem:
        said = f"Its device code cannot be read: {problem}."
        return Binary(member=member, pe=headers, problems=(said,))


def _read_elf(member: Member, stream: BinaryIO) -> Binary:
    import mmap

    from elftools.elf.elffile import ELFFile

    headers: ElfFacts | None = None
    try:
        opened = ELFFile(stream)
        headers = elf.facts(opened)
        # Closed by the collector: an error's traceback may still hold views of it.
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return Binary(member=member, elf=headers, device=device_code.elf_facts(opened, data))
    except BundleError as problem:
        said = f"Its device code cannot be read: {problem}."
    except Exception as problem:  # noqa: BLE001 - the parser raises anything for hostile headers
        said = f"Its ELF headers cannot be read ({type(problem).__name__}: {problem})."
    return Binary(member=member, elf=headers, problems=(said,))
