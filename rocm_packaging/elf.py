"""The few facts of an ELF file that packaging decides by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.errors import ArtifactError

if TYPE_CHECKING:
    from pathlib import Path

    from elftools.elf.elffile import ELFFile

_MAGIC = b"\x7fELF"
_HOST_MACHINES = frozenset({"EM_X86_64", "EM_AARCH64"})


@dataclass(frozen=True, kw_only=True)
class ElfFacts:
    """What an ELF file of the host says of itself.

    Attributes:
        soname: DT_SONAME, or empty.
        search: DT_RPATH, else DT_RUNPATH, split at the colons.
        is_rpath: Whether `search` is a DT_RPATH.
        dynamic: Whether it is linked dynamically at all.
        program: Whether it is a program, not a library.
    """

    soname: str
    search: tuple[str, ...]
    is_rpath: bool
    dynamic: bool
    program: bool


def read(path: Path) -> ElfFacts | None:
    """Read the facts of an ELF file for the host's processor.

    Returns:
        The facts; None for anything else (device code objects, relocatable objects, scripts).

    Raises:
        ArtifactError: It begins as an ELF file and is damaged.
    """
    with path.open("rb") as stream:
        if stream.read(4) != _MAGIC:
            return None
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile

        try:
            stream.seek(0)
            return _facts(ELFFile(stream))
        except (ELFError, ValueError, KeyError, IndexError, UnicodeDecodeError, OverflowError) as problem:
            raise ArtifactError(f"{path} is a damaged ELF file: {problem}.") from problem


def _facts(elf: ELFFile) -> ElfFacts | None:
    from elftools.elf.dynamic import DynamicSegment

    if elf["e_machine"] not in _HOST_MACHINES or elf["e_type"] not in {"ET_EXEC", "ET_DYN"}:
        return None
    tags: dict[str, str] = {}
    program = elf["e_type"] == "ET_EXEC"
    dynamic = False
    for segment in elf.iter_segments():
        program = program or segment["p_type"] == "PT_INTERP"
        if isinstance(segment, DynamicSegment):
            dynamic = True
            for tag in segment.iter_tags():
                for attribute in ("soname", "rpath", "runpath"):
                    if tag.entry.d_tag == f"DT_{attribute.upper()}":
                        tags[attribute] = getattr(tag, attribute)
    search = tags.get("rpath", tags.get("runpath", ""))
    return ElfFacts(
        soname=tags.get("soname", ""),
        search=tuple(part for part in search.split(":") if part),
        is_rpath="rpath" in tags,
        dynamic=dynamic,
        program=program and not tags.get("soname"),
    )
