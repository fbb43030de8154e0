"""Search paths of a built wheel's ELF files: from where it will be installed to ROCm's run-time packages.

CMake leaves the folders of the machine that built it, and of ROCm's development tree, which is not
there where torch only runs. They are replaced once, before anything else sees the wheel.
"""

from __future__ import annotations

import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from core import console
from core.archive import Made, Member, zip_reader
from core.archive.zip_reader import is_executable
from core.binaries import rpath
from core.wheel import parse_wheel_name
from core.wheel.editor import Additions, edit_wheel
from core.wheel.record import require_listing
from pytorch_build.check import WheelMember
from pytorch_build.standalone.libraries import RocmFile, read_members, unpacked
from rocm_packaging.packages.layouts import packages, payload_folder

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Mapping, Sequence

    from pytorch_build.standalone.libraries import Binary
    from rocm_packaging.packages.layouts import Layout

_WINDOWS = (".dll", ".pyd", ".exe")


def rocm_folders(layout: Layout | None, family: str) -> tuple[str, ...]:
    """Return the folders of ROCm's run-time packages that hold libraries, below site-packages."""
    if layout is None:
        return ()
    core = payload_folder("core")
    libraries = payload_folder("libraries", family if layout == "unsplit" else "")
    inside = packages().libraries.rpath_core
    return (*(f"{core}/{folder}" for folder in inside), f"{libraries}/lib")


def search_paths(member: str, layout: Layout | None, family: str, own: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the DT_RPATH of a file: ROCm's folders, then its own, then what it leads to besides."""
    kept = rpath.relative(own)
    if not member:
        return tuple(dict.fromkeys(kept))
    folder = str(PurePosixPath(member).parent)
    beside = (folder, "torch/lib") if folder == "torch" else (folder,)
    return tuple(dict.fromkeys((*rpath.ways(member, (*rocm_folders(layout, family), *beside)), *kept)))


def planned(
    binaries: Mapping[str, Binary], layout: Layout | None, family: str
) -> Mapping[str, tuple[str, ...]]:
    """Return what must change in a wheel, path -> search path; static programs stay as they are."""
    changes = {}
    for name, binary in binaries.items():
        installed = WheelMember(name=name, size=0).installed
        wanted = search_paths(installed, layout, family, binary.search)
        right = binary.search == wanted and (binary.is_rpath or not wanted)
        if not right and (binary.needed or binary.search):
            changes[name] = wanted
    return changes


def set_search_paths(wheel: Path, layout: Layout | None, family: str, *, epoch: int | None = None) -> Path:
    """Set the search path of every ELF file of a wheel; only those that change are compressed again."""
    with zip_reader.opened(wheel) as archive:
        listed = (info for info, _ in require_listing(wheel, archive).files)
        infos = {info.filename: info for info in listed if not info.filename.endswith(_WINDOWS)}
    changes = planned(read_members(wheel, infos.values()), layout, family)
    if not changes:
        return wheel
    console.echo(f"{wheel.name}: the search paths of {len(changes)} files")
    with tempfile.TemporaryDirectory(prefix=".rpaths-", dir=wheel.parent) as scratch:
        members = tuple(
            _member(wheel, infos[name], search, Path(scratch)) for name, search in sorted(changes.items())
        )
        version = str(parse_wheel_name(wheel.name).version)
        made = edit_wheel(
            wheel, wheel.parent, version=version, additions=Additions(members=members), epoch=epoch
        )
    return made.file.path


def _member(wheel: Path, info: zipfile.ZipInfo, search: Sequence[str], scratch: Path) -> Member:
    """Return a member of the new wheel, which is unpacked and patched when its turn comes."""
    file = RocmFile(path=info.filename, root="", source=wheel, info=info)
    return Member(
        name=info.filename,
        source=Made(size=info.file_size, make=lambda: unpacked(file, search, scratch)),
        executable=is_executable(info),
    )
