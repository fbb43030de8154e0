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
_SMALLEST_BINARY = 64  # bytes of the smallest header
# torch has ten thousand of these, and none is compiled
_TEXT_SUFFIXES = (".cuh", ".cmake", ".cpp", ".h", ".hpp", ".json", ".md", ".py", ".pyi", ".txt", ".yaml")
_CHUNK = 1 << 20
# What the platform tags of wheels begin with.
_PLATFORM_TAGS: Mapping[Platform, tuple[str, ...]] = {
    "windows": ("win",),
    "linux": ("linux", "manylinux"),
}


@dataclass(frozen=True, kw_only=True)
class BinaryNeeds:
    """A library's or program's own name, the libraries that it needs, and its search path."""

    name: str
    """Its SONAME, or the name in a DLL's export table; "" where it has none."""
    needed: tuple[str, ...]
    search: tuple[str, ...] = ()
    is_rpath: bool = False


@dataclass(frozen=True, kw_only=True)
class RocmFile:
    """One file of ROCm: in a folder, or the member of a wheel."""

    path_in_bundle: str
    """Its path in the new wheel's ROCm, with `/`."""
    root: str
    """How `path_in_bundle` begins: the folder of the package that the file comes from, or ""."""
    wheel_or_file: Path
    member: ZipMember | None = None

    @property
    def name(self) -> str:
        """Its file name."""
        return PurePosixPath(self.path_in_bundle).name

    @property
    def path_in_package(self) -> str:
        """The file's path in ROCm's own tree, without the folder of its package."""
        return self.path_in_bundle[len(self.root) :]

    @property
    def size(self) -> int:
        """Its size in bytes, uncompressed."""
        if self.member is not None:
            return self.member.size
        return self.wheel_or_file.stat().st_size

    def open(self) -> BinaryIO:
        """Open the file's content for reading, inflated if it is in a wheel."""
        if self.member is not None:
            return MemberStream(self.wheel_or_file, self.member)
        return self.wheel_or_file.open("rb")


@dataclass(frozen=True, kw_only=True)
class Rocm:
    """The files of a ROCm that a wheel may need, its version, and where it is."""

    files: Mapping[str, RocmFile]
    version: str
    origin: str


# What libraries need


def read_binary(stream: BinaryIO, name: str) -> BinaryNeeds | None:
    """Return what a library or program of the host needs; None for any other file."""
    elf_facts = elf.read_needs(stream, name)
    if elf_facts is not None:
        return BinaryNeeds(
            name=elf_facts.soname,
            needed=elf_facts.needed,
            search=elf_facts.search,
            is_rpath=elf_facts.is_rpath,
        )
    pe_facts = pe.read_needs(stream, name)
    if pe_facts is not None:
        return BinaryNeeds(
            name=pe_facts.name,
            needed=(*pe_facts.needed, *pe_facts.delayed),
        )
    return None


def read_rocm_file(file: RocmFile) -> BinaryNeeds | None:
    """Return what a library or program of ROCm needs; None for any other file."""
    with file.open() as stream:
        return read_binary(stream, file.path_in_bundle)


def read_members(
    wheel: Path,
    members: Iterable[ZipMember],
) -> Mapping[str, BinaryNeeds]:
    """Return what the libraries and programs among a wheel's members need, by member name."""

    def read(member: ZipMember) -> BinaryNeeds | None:
        """Return what one member needs; None where it is not compiled."""
        with MemberStream(wheel, member) as stream:
            return read_binary(stream, f"{wheel.name}: {member.name}")

    candidates = [
        member
        for member in members
        if member.size >= _SMALLEST_BINARY and not member.name.endswith(_TEXT_SUFFIXES)
    ]
    # A large file that begins last would be waited for alone.
    candidates.sort(
        key=lambda member: member.size,
        reverse=True,
    )

    binaries: dict[str, BinaryNeeds] = {}
    with ThreadPoolExecutor() as pool:
        for member, binary in zip(
            candidates,
            pool.map(read, candidates),
            strict=True,
        ):
            if binary is not None:
                binaries[member.name] = binary
    return binaries


# Files with another search path


def with_search_path(
    file: RocmFile,
    search_path: Sequence[str],
    scratch: Path,
) -> Path | EditedFile:
    """Return a library of ROCm with another search path, as a file in a folder or as edits of the old."""
    target = scratch / file.path_in_bundle
    if file.member is not None:
        copy_stream(file.open(), target)
        rpath.set_search_path(target, search_path)
        return target
    edited_file = rpath.edit_without_patchelf(file.wheel_or_file, search_path)
    if edited_file is not None:
        return edited_file
    return rpath.write_by_patchelf(file.wheel_or_file, search_path, target)


def copy_stream(stream: BinaryIO, target: Path) -> None:
    """Write what a stream holds to a file, and close it."""
    target.parent.mkdir(
        parents=True,
        exist_ok=True,
    )
    with stream, target.open("wb") as copy:
        shutil.copyfileobj(stream, copy, _CHUNK)


# ROCm's files


def read_rocm(
    folder: Path,
    *,
    platform: Platform,
    version: str = "",
    family: str = "",
    targets: Sequence[str] = (),
) -> Rocm:
    """Return the files of a ROCm in a folder, which is a tree or holds ``rocm-sdk-*`` wheels.

    Of wheels, those of a version, of a GPU family and of targets are taken; "" and () are any.
    """
    if not folder.is_dir():
        raise MissingInputError(
            f"{folder} is not a folder.", hint="Name a ROCm tree or a folder of rocm-sdk wheels: --rocm PATH."
        )
    wheels = sorted(folder.glob("rocm_sdk_*.whl"))
    if not wheels:
        return _read_tree(folder, platform)
    return _read_wheels(wheels, platform, version, family, targets)


def _read_tree(root: Path, platform: Platform) -> Rocm:
    """Return the files of an installed ROCm tree such as ``/opt/rocm``; links to files are followed."""
    files: dict[str, RocmFile] = {}
    for top in _TREE_FOLDERS:
        for folder, subfolders, names in os.walk(root / top, followlinks=False):
            subfolders.sort()
            for source in (Path(folder, name) for name in sorted(names)):
                if source.is_file():
                    path = source.relative_to(root).as_posix()
                    files[path] = RocmFile(
                        path_in_bundle=path,
                        root="",
                        wheel_or_file=source,
                    )

    runtime = "amdhip64*.dll" if platform == "windows" else "libamdhip64.so*"
    if not any(PurePosixPath(path).match(runtime) for path in files):
        raise MissingInputError(
            f"{root} holds neither rocm-sdk wheels nor a ROCm tree: there is no {runtime} in it.",
            hint="Name the folder that holds bin and lib (such as /opt/rocm), or the one with the wheels.",
        )

    version = ""
    version_file = root / ".info" / "version"
    if version_file.is_file():
        # such as 7.2.4-93: the number behind the hyphen is that of a build
        text = version_file.read_text(encoding="utf-8").strip()
        version = text.partition("-")[0]
    return Rocm(
        files=files,
        version=version,
        origin=str(root),
    )


def _read_wheels(
    wheels: Iterable[Path],
    platform: Platform,
    version: str,
    family: str,
    targets: Sequence[str],
) -> Rocm:
    """Return the files of ROCm's wheels of a version, for a GPU family or targets.

    On Windows, where the folder of a library decides alone, they share one tree.
    """
    wheel_names: dict[Path, WheelName] = {}
    for wheel in wheels:
        wheel_name = parse_wheel_name(wheel.name)
        if is_for_platform(wheel_name, platform):
            wheel_names[wheel] = wheel_name
    wheel_names = _wheels_of_version(wheel_names, version)
    if not wheel_names:
        raise MissingInputError(f"There is no rocm-sdk wheel for {platform}.")

    first_wheel, first_name = next(iter(wheel_names.items()))
    folder = first_wheel.parent
    libraries = _libraries_distribution(wheel_names.values(), family, folder)
    distributions = {_CORE, libraries}
    if libraries == LIBRARIES:
        distributions.update(device_package(target) for target in targets)

    wheel_by_distribution = {name.distribution: wheel for wheel, name in wheel_names.items()}
    missing_distributions = sorted(distributions - set(wheel_by_distribution))
    if missing_distributions:
        names = ", ".join(missing_distributions)
        raise RocmError(
            f"{folder} has no {names} {first_name.version}.",
            hint="Build them (nox -s build_rocm), or choose other GPU targets: --gpu-targets.",
        )

    files: dict[str, RocmFile] = {}
    for distribution in sorted(distributions):
        for file in _rocm_files_of(wheel_by_distribution[distribution], is_one_tree=platform == "windows"):
            files[file.path_in_bundle] = file
    return Rocm(
        files=files,
        version=str(first_name.version),
        origin=str(folder),
    )


def is_for_platform(wheel_name: WheelName, platform: Platform) -> bool:
    """Return whether a wheel's tags name a platform; one for any platform is for none."""
    prefixes = _PLATFORM_TAGS[platform]
    return any(tag.platform.startswith(prefixes) for tag in wheel_name.tags)


def _wheels_of_version(
    wheel_names: Mapping[Path, WheelName],
    version: str,
) -> dict[Path, WheelName]:
    """Return the wheels of the requested ROCm version, or of the only one; else fail."""
    core_names = [name for name in wheel_names.values() if name.distribution == _CORE]
    versions = sorted({name.version for name in core_names})
    matching_versions = [candidate for candidate in versions if version in {"", str(candidate)}]
    if len(matching_versions) != 1:
        offered_versions = ", ".join(map(str, versions)) or "none"
        requirement = (
            f"ROCm {version}, which the wheel was built with" if version else "one version of rocm-sdk-core"
        )
        raise RocmError(
            f"The ROCm wheels must be of {requirement}; there is {offered_versions}.",
            hint="Name a folder (--rocm) or run (--run-id) that has it.",
        )

    version_of_all = matching_versions[0]
    return {wheel: name for wheel, name in wheel_names.items() if name.version == version_of_all}


def _libraries_distribution(
    wheel_names: Iterable[WheelName],
    family: str,
    folder: Path,
) -> str:
    """Return the name of the distribution with ROCm's libraries for a family, or for all GPUs."""
    distributions = sorted(
        {name.distribution for name in wheel_names if name.distribution.startswith(LIBRARIES)}
    )
    matching_distributions = distributions
    if family:
        matching_distributions = [name for name in distributions if serves(name, [family], ())]
    if len(matching_distributions) != 1:
        offered_names = ", ".join(distributions) or "none"
        raise RocmError(
            f"{folder} must hold the libraries of {family or 'one GPU family'}; there is {offered_names}.",
            hint="Choose a family that it has (--gpu-family), or build it: nox -s build_rocm.",
        )
    return matching_distributions[0]


def _rocm_files_of(wheel: Path, *, is_one_tree: bool) -> Iterator[RocmFile]:
    """Yield the files of ROCm in a wheel: those in folders that begin with ``_rocm_sdk_``."""
    for member in require_listing(wheel).members:
        folder, slash, path = member.name.partition("/")
        if not slash or not folder.startswith("_rocm_sdk_") or path == "__init__.py":
            continue
        root = "" if is_one_tree else f"{folder}/"
        yield RocmFile(
            path_in_bundle=f"{root}{path}",
            root=root,
            wheel_or_file=wheel,
            member=member,
        )
