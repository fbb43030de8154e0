"""Read every fact of a wheel that the checks judge, in the one pass that verifies RECORD."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from core.archive.zips import read_archive
from core.binaries import elf, pe
from core.errors import ArtifactError, WheelError
from core.wheel import find_dist_info, parse_wheel_name, read_metadata, read_small_member, read_wheel_info
from core.wheel.record import RecordProblem, Tap, verify_record
from pytorch_build.check import Binary, Expectation, WheelView, device_code
from pytorch_build.check.bundles import BundleError
from pytorch_build.check.contents import find_compiled_name_rule
from rocm_packaging.packages import kpack

if TYPE_CHECKING:
    from pytorch_build.check.policy import CheckOptions

_Facts = TypeVar("_Facts")
_TEXT_SUFFIXES = (".py", ".cmake", ".pc", ".json", ".txt", ".la", ".h", ".toml", ".cfg")
_MOST_TEXT = 4 << 20
_MOST_OF_A_SCRIPT = 64 << 10
_LONGEST_MAGIC = 24
_MAGICS = (elf.MAGIC, pe.MAGIC, kpack.MAGIC, *device_code.MAGICS)


def read_wheel(
    path: Path,
    options: CheckOptions,
    expectation: Expectation | None = None,
) -> tuple[WheelView, tuple[RecordProblem, ...]]:
    """Return all that the checks need of a wheel, and what is wrong with its archive and RECORD.

    Raises:
        WheelError: It is no wheel at all.
    """
    name = parse_wheel_name(path.name)
    sizes = {member.name: member.size for member in read_archive(path).members if not member.is_folder}
    reader = _MemberReader(sizes, options.build_paths)
    tap = Tap(
        wanted=reader.select_member,
        inspect=reader.inspect,
        folder=options.scratch,
    )
    problems = list(verify_record(path, tap=tap, jobs=options.jobs))
    view = WheelView(
        name=name,
        size=path.stat().st_size,
        members=dict(sorted(sizes.items())),
        metadata=_try_to_read(read_metadata, path, problems),
        info=_try_to_read(read_wheel_info, path, problems),
        entry_points=_try_to_read(_read_entry_points, path, problems) or "",
        binaries=tuple(sorted(reader.binaries, key=lambda binary: binary.name)),
        build_folder_mentions=tuple(sorted(reader.build_folder_mentions)),
        texts=reader.texts,
        options=options,
        expectation=expectation,
    )
    return view, tuple(problems)


def _try_to_read(read: Callable[[Path], _Facts], path: Path, problems: list[RecordProblem]) -> _Facts | None:
    """Return what a function reads of a wheel; None, and one problem more, where it cannot."""
    try:
        return read(path)
    except WheelError as problem:
        if problem.message not in {known_problem.message for known_problem in problems}:
            problems.append(RecordProblem(member="", message=problem.message))
        return None


def _read_entry_points(path: Path) -> str:
    """Return the text of entry_points.txt; "" without one."""
    archive = read_archive(path)
    name = f"{find_dist_info(archive)}/entry_points.txt"
    if name not in archive.by_name:
        return ""
    try:
        return read_small_member(archive, name).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise WheelError(f"{path.name}: entry_points.txt is not UTF-8: {problem.reason}.") from problem


class _MemberReader:
    """Collects facts of a wheel's members while its RECORD is verified, in several threads."""

    def __init__(self, sizes: Mapping[str, int], build_folders: tuple[str, ...]) -> None:
        self._sizes = sizes
        self._build_folders = build_folders
        self.binaries: list[Binary] = []
        self.build_folder_mentions: list[tuple[str, str]] = []
        self.texts: dict[str, str] = {}

    def select_member(self, name: str, first_bytes: bytes) -> bool:
        """Return whether a member is to be inspected; also keep texts that are named like code."""
        if first_bytes.startswith(_MAGICS):
            return True
        if find_compiled_name_rule(name):
            self.texts[name] = first_bytes[:_MOST_OF_A_SCRIPT].decode("latin-1")
        is_small_text = name.endswith(_TEXT_SUFFIXES) and self._sizes[name] <= _MOST_TEXT
        return bool(self._build_folders) and is_small_text

    def inspect(self, name: str, file: Path) -> None:
        """Add a member's headers and device code, or which folders of the build its text mentions."""
        with file.open("rb") as stream:
            is_code = stream.read(_LONGEST_MAGIC).startswith(_MAGICS)
        if is_code:
            self.binaries.append(read_binary(name, file))
            return

        content = file.read_bytes()
        for folder in self._build_folders:
            if folder.encode() in content:
                self.build_folder_mentions.append((name, folder))


def read_binary(name: str, file: Path) -> Binary:
    """Return a compiled file's headers and device code, or as its problem why these cannot be read."""
    binary = Binary(name=name)
    try:
        with file.open("rb") as stream:
            magic = stream.read(len(elf.MAGIC))
            if magic == elf.MAGIC:
                binary = replace(binary, elf=elf.read_all_facts(stream, name))
            elif magic.startswith(pe.MAGIC):
                binary = replace(binary, pe=pe.read_needs(stream, name))
        if binary.elf is not None:
            return replace(binary, device=device_code.elf_facts(binary.elf, device_code.map_file(file)))
        if binary.pe is not None:
            return replace(binary, device=device_code.pe_facts(binary.pe, device_code.map_file(file)))
        if magic == elf.MAGIC or magic.startswith(pe.MAGIC):
            return binary
        return replace(binary, device=device_code.file_facts(file))
    except ArtifactError as problem:
        return replace(binary, problems=(problem.message,))
    except (BundleError, kpack.KpackError) as problem:
        return replace(binary, problems=(f"Its device code cannot be read: {problem}.",))
