"""ROCm as files that may go into a wheel, and what libraries need: of a tree, or compressed in wheels."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from core.archive.zips import MemberStream
from core.binaries import elf, pe, rpath
from core.errors import MissingInputError, RocmError
from core.wheel import WheelName, parse_wheel_name
from core.wheel.record import require_listing
from rocm_packaging.packages.layouts import LIBRARIES, device_package, serves

if TYPE_CHECKING:
    from core.archive import EditedFile
    from core.archive.zips import ZipMember
    from core.run import Platform

# Of a tree nothing else can be needed at run time: headers, sources and documents are thousands.
_TREE_FOLDERS = ("lib", "lib64", "bin", "share", ".kpack")
_CORE = "rocm-sdk-core"
_LEAST = 64  # bytes of the smallest header
# torch has ten thousand of these, and none is compiled
_TEXTS = (".cuh", ".cmake", ".cpp", ".h", ".hpp", ".json", ".md", ".py", ".pyi", ".txt", ".yaml")
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Binary:
    """What a library says of itself."""

    name: str
    needed: tuple[str, ...]
    search: tuple[str, ...] = ()
    is_rpath: bool = False


@dataclass(frozen=True, kw_only=True)
class RocmFile:
    """One file of ROCm: in a folder, or the member of a wheel."""

    path: str
    root: str
    source: Path
    member: ZipMember | None = None

    @property
    def name(self) -> str:
        """Its file name."""
        return PurePosixPath(self.path).name

    @property
    def below(self) -> str:
        """Its path in ROCm's own tree."""
        return self.path[len(self.root) :]

    @property
    def size(self) -> int:
        """Its bytes, unpacked."""
        return self.member.size if self.member else self.source.stat().st_size

    def open(self) -> BinaryIO:
        """Open it for reading."""
        return MemberStream(self.source, self.member) if self.member else self.source.open("rb")


@dataclass(frozen=True, kw_only=True)
class Rocm:
    """All files of a ROCm that may be needed."""

    files: Mapping[str, RocmFile]
    version: str
    origin: str


def read_binary(stream: BinaryIO, name: str) -> Binary | None:
    """Read what a library or program of the host needs; None for any other file."""
    found = elf.read_needs(stream, name)
    if found is not None:
        return Binary(name=found.soname, needed=found.needed, search=found.search, is_rpath=found.is_rpath)
    facts = pe.read_needs(stream, name)
    if facts is not None:
        return Binary(name=facts.name, needed=(*facts.needed, *facts.delayed))
    return None


def read_file(file: RocmFile) -> Binary | None:
    """Read a file of ROCm."""
    with file.open() as stream:
        return read_binary(stream, file.path)


def read_members(wheel: Path, members: Iterable[ZipMember]) -> Mapping[str, Binary]:
    """Read the libraries and programs among a wheel's members: path -> what each needs."""

    def read(member: ZipMember) -> Binary | None:
        with MemberStream(wheel, member) as stream:
            return read_binary(stream, f"{wheel.name}: {member.name}")

    large_first = sorted(
        (member for member in members if member.size >= _LEAST and not member.name.endswith(_TEXTS)),
        key=lambda member: -member.size,
    )
    with ThreadPoolExecutor() as pool:
        binaries = zip(large_first, pool.map(read, large_first), strict=True)
        return {member.name: binary for member, binary in binaries if binary is not None}


def with_search_path(file: RocmFile, search: Sequence[str], scratch: Path) -> Path | EditedFile:
    """Return what is written in place of a library: the same with a search path."""
    if file.member:
        return unpacked(file, search, scratch)
    return rpath.edited(file.source, search) or rpath.patched(file.source, search, scratch / file.path)


def unpacked(file: RocmFile, search: Sequence[str], scratch: Path) -> Path:
    """Unpack a library from its wheel into a folder, with a search path."""
    target = copied(file, scratch / file.path)
    rpath.rewrite(target, search)
    return target


def copied(file: RocmFile, target: Path) -> Path:
    """Copy a file's bytes to another path, and return that."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with file.open() as stream, target.open("wb") as copy:
        shutil.copyfileobj(stream, copy, _CHUNK)
    return target


def from_folder(
    folder: Path, *, platform: Platform, version: str = "", family: str = "", targets: Sequence[str] = ()
) -> Rocm:
    """Read a folder: one with ``rocm-sdk-*`` wheels, or an installed tree such as ``/opt/rocm``."""
    if not folder.is_dir():
        raise MissingInputError(
            f"{folder} is not a folder.", hint="Name a ROCm tree or a folder of rocm-sdk wheels: --rocm PATH."
        )
    wheels = sorted(folder.glob("rocm_sdk_*.whl"))
    if not wheels:
        return _from_tree(folder, platform)
    return _from_wheels(wheels, platform, version, family, targets)


def _from_tree(root: Path, platform: Platform) -> Rocm:
    """Read an installed tree; links to files are followed."""
    files: dict[str, RocmFile] = {}
    for top in _TREE_FOLDERS:
        for folder, folders, names in os.walk(root / top, followlinks=False):
            folders.sort()
            for source in (Path(folder, name) for name in sorted(names)):
                if source.is_file():
                    path = source.relative_to(root).as_posix()
                    files[path] = RocmFile(path=path, root="", source=source)
    runtime = "amdhip64*.dll" if platform == "windows" else "libamdhip64.so*"
    if not any(PurePosixPath(path).match(runtime) for path in files):
        raise MissingInputError(
            f"{root} holds neither rocm-sdk wheels nor a ROCm tree: there is no {runtime} in it.",
            hint="Name the folder that holds bin and lib (such as /opt/rocm), or the one with the wheels.",
        )
    info = root / ".info" / "version"
    version = info.read_text(encoding="utf-8").strip() if info.is_file() else ""
    return Rocm(files=files, version=version.partition("-")[0], origin=str(root))


def _from_wheels(
    wheels: Iterable[Path], platform: Platform, version: str, family: str, targets: Sequence[str]
) -> Rocm:
    """Read ROCm's wheels; paths keep the names of their folders, as search paths between them need.

    On Windows, where the folder of a library decides alone, they share one tree.
    """
    tag = "win" if platform == "windows" else "linux"
    named = [(path, parse_wheel_name(path.name)) for path in wheels]
    named = [one for one in named if any(part.platform.startswith((tag, "many")) for part in one[1].tags)]
    chosen = _of_version(named, version)
    folder = str(chosen[0][0].parent)
    libraries = _libraries(chosen, family, folder)
    wanted = {_CORE, libraries, *(device_package(one) for one in targets if libraries == LIBRARIES)}
    present = {name.distribution: path for path, name in chosen if name.distribution in wanted}
    lacking = sorted(wanted - set(present))
    if lacking:
        raise RocmError(
            f"{folder} has no {', '.join(lacking)} {chosen[0][1].version}.",
            hint="Build them (nox -s build_rocm), or choose other GPU targets: --gpu-targets.",
        )
    files = {
        one.path: one
        for _, wheel in sorted(present.items())
        for one in _payload(wheel, one_tree=platform == "windows")
    }
    return Rocm(files=files, version=str(chosen[0][1].version), origin=folder)


def _of_version(named: list[tuple[Path, WheelName]], version: str) -> list[tuple[Path, WheelName]]:
    versions = sorted({name.version for _, name in named if name.distribution == _CORE})
    fitting = [one for one in versions if not version or str(one) == version]
    if len(fitting) != 1:
        exact = f"ROCm {version}, which the wheel was built with"
        raise RocmError(
            f"The ROCm wheels must be of {exact if version else 'one version of rocm-sdk-core'}; "
            f"there is {', '.join(map(str, versions)) or 'none'}.",
            hint="Name a folder (--rocm) or run (--run-id) that has it.",
        )
    return [one for one in named if one[1].version == fitting[0]]


def _libraries(chosen: list[tuple[Path, WheelName]], family: str, folder: str) -> str:
    """Choose the libraries' distribution: that of the family, or the one of all in a split build."""
    found = sorted({name.distribution for _, name in chosen if name.distribution.startswith(LIBRARIES)})
    fitting = [one for one in found if not family or serves(one, [family], ())]
    if len(fitting) != 1:
        raise RocmError(
            f"{folder} must hold the libraries of {family or 'one GPU family'}; "
            f"there is {', '.join(found) or 'none'}.",
            hint="Choose a family that it has (--gpu-family), or build it: nox -s build_rocm.",
        )
    return fitting[0]


def _payload(wheel: Path, *, one_tree: bool) -> Iterator[RocmFile]:
    """List the payload of a wheel: its folders that begin with ``_rocm_sdk``."""
    for member in require_listing(wheel).members:
        folder, slash, rest = member.name.partition("/")
        if slash and folder.startswith("_rocm_sdk_") and rest != "__init__.py":
            root = "" if one_tree else f"{folder}/"
            yield RocmFile(path=f"{root}{rest}", root=root, source=wheel, member=member)
