"""The wheels of a split, held against the fat wheel: they have all that it had, once, and nothing else."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from core.archive.zips import read_archive
from core.errors import CheckError
from core.wheel import read_metadata
from core.wheel.record import Tap, verify_record
from pytorch_build.split.library import SplitError
from pytorch_build.split.take_apart import LIBRARY_MAGICS, CodeObject, open_library
from rocm_packaging.packages import kpack

if TYPE_CHECKING:
    from packaging.version import Version

_MOST_PROBLEMS = 5
# A code object as kernel archives name it: its library and index, its gfx target, the digest of its bytes.
_Kernel: TypeAlias = tuple[str, str, str]


def require_whole(
    fat_wheel: Path,
    wheels: Sequence[Path],
    code: Sequence[CodeObject],
) -> None:
    """Fail unless the new wheels together hold all that the fat wheel held, each thing once."""
    package = read_metadata(fat_wheel).name
    reader = _WheelReader(package)
    members: Counter[str] = Counter()
    for wheel in wheels:
        members.update(reader.read(wheel))

    problems = {
        *reader.problems,
        *_compare_members(fat_wheel, members),
        *_compare_code(package, code, reader),
        *_find_unmet_requirements(package, wheels),
    }
    if problems:
        shown_problems = "\n".join(sorted(problems)[:_MOST_PROBLEMS])
        if len(problems) > _MOST_PROBLEMS:
            shown_problems += f"\n… and {len(problems) - _MOST_PROBLEMS} more"
        raise CheckError(
            f"The wheels made of {fat_wheel.name} differ from it:\n{shown_problems}",
            hint="Keep the fat wheel (--no-split), and report it.",
        )


class _WheelReader:
    """Collects the kernels of wheels, and the libraries whose references lead to them."""

    def __init__(self, package: str) -> None:
        # Threads only add whole values to these.
        self.kernels: set[_Kernel] = set()
        self.libraries: set[str] = set()
        self.problems: list[str] = []
        self._package = package

    def read(self, wheel: Path) -> list[str]:
        """Verify a wheel's RECORD, collect its kernels and references, and return its members."""
        magics = (kpack.MAGIC, *LIBRARY_MAGICS)
        tap = Tap(
            wanted=lambda _member, head: head.startswith(magics),
            inspect=self._inspect,
            folder=wheel.parent,
        )
        for problem in verify_record(wheel, tap=tap):
            self.problems.append(f"{wheel.name}: {problem.message}")
        return list(read_archive(wheel).by_name)

    def _inspect(self, member: str, file: Path) -> None:
        """Add the kernels of an archive, or the reference of a library."""
        try:
            if member.endswith(kpack.SUFFIX):
                self.kernels |= _read_kernels(file)
            else:
                self._read_reference(member, file)
        except (kpack.KpackError, SplitError) as problem:
            self.problems.append(f"{member}: {problem}.")

    def _read_reference(self, member: str, file: Path) -> None:
        """Add a library whose reference names its own kernels; another reference is an error."""
        reference = reference_of(file)
        if reference is None:
            return
        binary = reference.binary
        is_its_own = f"{self._package}/{binary}" == member
        if not is_its_own or reference != kpack.reference(self._package, binary):
            raise SplitError(f"it looks for its code as {binary} in {reference.paths[0]}")
        self.libraries.add(binary)


def reference_of(library: Path) -> kpack.Reference | None:
    """Return a library's reference to the kernel archive with its device code; None without one."""
    content = open_library(library).reference()
    return None if content is None else kpack.read_reference(content)


def _read_kernels(file: Path) -> set[_Kernel]:
    """Return library, target and digest of each code object in a kernel archive.

    The same bytes may stand for a mode of the GPU, too: they are those of the most general target.
    """
    with file.open("rb") as stream:
        archive = kpack.read(stream)
        kernel_by_place: dict[tuple[int, int], kpack.Kernel] = {}
        for kernel in sorted(archive.kernels, key=lambda kernel: -len(kernel.target)):
            kernel_by_place[archive.kernels[kernel]] = kernel

        kernels: set[_Kernel] = set()
        for kernel in kernel_by_place.values():
            digest = hashlib.sha256(archive.content(stream, kernel)).hexdigest()
            kernels.add((kernel.binary, kernel.target, digest))
    return kernels


def _compare_members(fat_wheel: Path, members: Counter[str]) -> Iterator[str]:
    """Yield a sentence for each member that is in several of the wheels, or was lost."""
    for name, count in members.items():
        if count > 1:
            yield f"{name} is in {count} wheels."
    for name in read_archive(fat_wheel).by_name:
        if name not in members:
            yield f"{name} is in none of the wheels."


def _compare_code(
    package: str,
    code: Sequence[CodeObject],
    reader: _WheelReader,
) -> Iterator[str]:
    """Yield a sentence for each code object that was lost, or is not in the fat wheel."""
    expected: set[_Kernel] = set()
    for code_object in code:
        expected.add((code_object.binary(package), code_object.target, code_object.sha256))
    for binary, target, _digest in expected - reader.kernels:
        yield f"The code of {binary} for {target} is in no archive."
    for binary, target, _digest in reader.kernels - expected:
        yield f"The code of {binary} for {target} is not what the fat wheel held."

    libraries = {binary.rpartition("#")[0] for binary, _target, _digest in expected}
    for library in libraries - reader.libraries:
        yield f"{library} does not say where its code is."


def _find_unmet_requirements(package: str, wheels: Sequence[Path]) -> Iterator[str]:
    """Yield a sentence for each requirement on a wheel of the set that the set does not meet."""
    metadata_by_wheel = {wheel: read_metadata(wheel) for wheel in wheels}
    versions: dict[str, Version] = {}
    for metadata in metadata_by_wheel.values():
        name = canonicalize_name(metadata.name)
        versions[name] = metadata.version

    device_prefix = f"amd-{canonicalize_name(package)}-device-"
    for wheel, metadata in metadata_by_wheel.items():
        for requirement in map(Requirement, metadata.requires_dist):
            name = canonicalize_name(requirement.name)
            version = versions.get(name)
            if version is None:
                if name.startswith(device_prefix):
                    yield f"{wheel.name} requires {name}, which was not made."
            elif not requirement.specifier.contains(version, prereleases=True):
                yield f"{wheel.name} requires {requirement}, and {version} was made."
