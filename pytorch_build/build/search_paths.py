"""The search paths of a wheel's libraries: to ROCm's run-time packages beside it, and to nothing else.

CMake leaves the folders of the machine that built it, and of ROCm's development tree, which is not
there where torch only runs. They are replaced before anything else sees the wheel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from core import console, temporary
from core.archive import DeferredFile, Member
from core.archive.zips import MemberStream
from core.binaries import rpath
from core.wheel import parse_wheel_name
from core.wheel.editor import Additions, edit_wheel
from core.wheel.record import require_listing
from pytorch_build.check import path_in_site_packages
from pytorch_build.standalone.libraries import BinaryNeeds, copy_stream, read_members
from rocm_packaging.packages.layouts import Layout, packages, payload_folder

if TYPE_CHECKING:
    from core.archive.zips import ZipMember

_WINDOWS_SUFFIXES = (".dll", ".pyd", ".exe")


def rocm_folders(layout: Layout, family: str) -> tuple[str, ...]:
    """Return the folders of ROCm's run-time packages that hold libraries, below site-packages."""
    core_folder = payload_folder("core")
    libraries_folder = payload_folder("libraries", family if layout == "unsplit" else "")
    folders_in_core = packages().libraries.rpath_core
    return (
        *(f"{core_folder}/{folder}" for folder in folders_in_core),
        f"{libraries_folder}/lib",
    )


def search_paths(
    member: str, search_folders: Sequence[str], current_paths: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the DT_RPATH that a wheel's file gets: ROCm's folders, its own, and relative ones it has.

    Args:
        member: Where the file is installed, below site-packages; "" where it is installed elsewhere.
        search_folders: ROCm's folders below site-packages; none for a wheel without ROCm.
        current_paths: What the build left in the file.
    """
    relative_paths = rpath.relative_entries(current_paths)
    if not member:
        return tuple(dict.fromkeys(relative_paths))

    own_folder = str(PurePosixPath(member).parent)
    folders = [*search_folders, own_folder]
    if own_folder == "torch":
        folders.append("torch/lib")
    return tuple(dict.fromkeys((*rpath.entries_to_folders(member, folders), *relative_paths)))


def changed_search_paths(
    binaries: Mapping[str, BinaryNeeds], search_folders: Sequence[str]
) -> Mapping[str, tuple[str, ...]]:
    """Return the new DT_RPATH of each file whose present one differs, by the file's name."""
    changes: dict[str, tuple[str, ...]] = {}
    for name, binary in binaries.items():
        paths = search_paths(path_in_site_packages(name), search_folders, binary.search)
        if binary.search == paths and (binary.is_rpath or not paths):
            continue
        # A static program needs no library, and stays as it is.
        if binary.needed or binary.search:
            changes[name] = paths
    return changes


def find_search_paths(wheel: Path, search_folders: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the new DT_RPATH of each member of a wheel whose present one differs, by the member's name."""
    return changed_search_paths(read_members(wheel, _possible_elf_members(wheel).values()), search_folders)


def set_search_paths(wheel: Path, search_folders: Sequence[str], *, epoch: int | None = None) -> Path:
    """Set the DT_RPATH of a wheel's ELF files where it has to change, and return the wheel.

    The wheel keeps its version. `epoch` is the time of the new members, in seconds since 1970.
    """
    changes = find_search_paths(wheel, search_folders)
    if not changes:
        return wheel

    console.echo(f"{wheel.name}: search paths of {console.counted(len(changes), 'file')} set")
    members = _possible_elf_members(wheel)
    with temporary.folder("rpaths", within=wheel.parent) as scratch:
        patched_members = tuple(
            _patched_member(wheel, members[name], paths, scratch) for name, paths in sorted(changes.items())
        )
        edited_wheel = edit_wheel(
            wheel,
            wheel.parent,
            version=str(parse_wheel_name(wheel.name).version),
            additions=Additions(members=patched_members),
            epoch=epoch,
        )
    return edited_wheel.path


def _possible_elf_members(wheel: Path) -> Mapping[str, ZipMember]:
    """Return the members of a wheel that may be ELF files, by name: all but those with Windows' suffixes."""
    members: dict[str, ZipMember] = {}
    for member in require_listing(wheel).members:
        if not member.name.endswith(_WINDOWS_SUFFIXES):
            members[member.name] = member
    return members


def _patched_member(wheel: Path, member: ZipMember, paths: Sequence[str], scratch: Path) -> Member:
    """Return a member of the new wheel that is unpacked and given its DT_RPATH when it is written."""

    def patch() -> Path:
        """Unpack the member into the scratch folder, set its DT_RPATH, and return its path."""
        target = scratch / member.name
        copy_stream(MemberStream(wheel, member), target)
        rpath.set_search_path(target, paths)
        return target

    source = DeferredFile(
        size=member.size,
        make=patch,
    )
    return Member(
        name=member.name,
        source=source,
        executable=member.is_executable,
    )
