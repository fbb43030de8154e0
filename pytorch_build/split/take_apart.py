"""Device code, taken out of the libraries of a fat wheel in the pass that verifies its RECORD.

The code objects are packed as they will lie in the kernel archives, on all cores, into scratch files; what a
library becomes without them is written beside. Memory holds a few code objects at a time.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import zstandard

from core.binaries import elf, pe, rpath
from core.errors import WheelError
from core.wheel import parse_wheel_name
from core.wheel.record import Tap, verify_record
from pytorch_build.check.bundles import Bundle, BundleError, code_objects, read_bundles
from pytorch_build.check.device_code import mapped, processor
from pytorch_build.split.elf_library import ElfLibrary
from pytorch_build.split.library import SplitError, refused_where_damaged
from pytorch_build.split.pe_library import PeLibrary
from rocm_packaging.packages import kpack

if TYPE_CHECKING:
    from pytorch_build.split.library import Library

LIBRARY_MAGICS = (elf.MAGIC, pe.MAGIC)
# The level that ROCm's own packages have.
_LEVEL = 3
_TARGET = re.compile(r"gfx[0-9a-f]{3,4}")


@dataclass(
    frozen=True,
    kw_only=True,
    order=True,
)
class CodeObject:
    """One code object of a library: the member, the index of its bundle there, and its gfx target.

    It lies packed in a scratch file: `length` bytes of `frames_file`, from `offset` on.
    """

    member: str
    bundle: int
    target: str
    size: int
    sha256: str
    frames_file: Path = field(compare=False)
    offset: int = field(compare=False)
    length: int = field(compare=False)

    def binary(self, package: str) -> str:
        """Return the library and the bundle's index as kernel archives name them."""
        return f"{self.member.removeprefix(f'{package}/')}#{self.bundle}"

    def read_zstd_frame(self) -> bytes:
        """Read it as it is packed."""
        with self.frames_file.open("rb") as stream:
            stream.seek(self.offset)
            return stream.read(self.length)


def open_library(path: Path) -> Library:
    """Parse a library of Linux or Windows; raise SplitError where it is damaged."""
    with refused_where_damaged():
        if mapped(path)[:4] == elf.MAGIC:
            return ElfLibrary(path)
        return PeLibrary(path)


def take_apart(
    wheel: Path,
    scratch: Path,
    new_search_paths: Mapping[str, Sequence[str]],
) -> tuple[Mapping[str, Path], tuple[CodeObject, ...]]:
    """Read a fat wheel once, and put what the new wheels will be made of into a folder.

    Return its changed libraries, by member, and their device code.

    Libraries among `new_search_paths` (by member) get that search path before anything else.
    """
    package = parse_wheel_name(wheel.name).distribution
    jobs = os.cpu_count() or 1
    with ThreadPoolExecutor(jobs) as pool:
        reader = _LibraryReader(package, scratch, new_search_paths, pool)
        tap = Tap(
            wanted=lambda _member, head: head.startswith(LIBRARY_MAGICS),
            inspect=reader.inspect,
            folder=scratch,
        )
        problems = [problem.message for problem in verify_record(wheel, tap=tap, jobs=jobs)]

    if reader.split_members:
        raise WheelError(
            f"{wheel.name} is split already: the device code of {min(reader.split_members)} is in other "
            "wheels.",
            hint=f"Install these as {package}[device-gfx…], or split the fat wheel, which builds keep "
            "with --no-split.",
        )
    problems += sorted(reader.problems)
    if problems:
        raise WheelError(f"{wheel.name}: {problems[0]}", hint="Build or download the fat wheel again.")
    if not reader.code:
        raise WheelError(
            f"{wheel.name} holds no device code that could be moved.",
            hint="Split a wheel of torch or torchvision that was built for GPUs.",
        )
    return reader.libraries, tuple(sorted(reader.code))


class _LibraryReader:
    """Takes libraries apart, several at the same time, and keeps what is wrong with them."""

    def __init__(
        self,
        package: str,
        scratch: Path,
        new_search_paths: Mapping[str, Sequence[str]],
        pool: ThreadPoolExecutor,
    ) -> None:
        # Threads only add whole values to these.
        self.libraries: dict[str, Path] = {}
        self.code: list[CodeObject] = []
        self.problems: list[str] = []
        self.split_members: list[str] = []
        self._package = package
        self._scratch = scratch
        self._new_search_paths = new_search_paths
        self._pool = pool

    def inspect(self, member: str, file: Path) -> None:
        """Take one library apart; the file is gone afterwards."""
        try:
            self._take_apart(member, file)
        except (SplitError, BundleError, kpack.KpackError) as problem:
            self.problems.append(f"{member}: {problem}.")

    def _take_apart(self, member: str, file: Path) -> None:
        scratch_name = hashlib.sha256(member.encode()).hexdigest()[:16]
        host_file = self._scratch / f"{scratch_name}.host"
        if member in self._new_search_paths:
            rpath.set_search_path(file, self._new_search_paths[member])

        library = open_library(file)
        if library.is_split:
            self.split_members.append(member)
            return
        device_code = library.device_code()
        if device_code is None:
            if member in self._new_search_paths:
                self.libraries[member] = file.rename(host_file)
            return

        inside = f"{self._package}/"
        if not member.startswith(inside):
            raise SplitError(f"it holds device code and lies outside of {inside}")
        section = memoryview(library.data)[device_code.offset : device_code.end]
        bundles = read_bundles(section)
        index_by_bundle_offset = {bundle.offset: index for index, bundle in enumerate(bundles)}
        for wrapper in device_code.wrappers:
            bundle_offset = device_code.bundle_offset_of(wrapper)
            if bundle_offset not in index_by_bundle_offset:
                raise SplitError(
                    f"a wrapper points to offset {bundle_offset} of its device code, where no bundle begins"
                )

        reference = kpack.reference(self._package, member.removeprefix(inside)).packed()
        library.without_code(device_code, index_by_bundle_offset, reference).write(file, host_file)
        self.code += self._pack(
            member,
            section,
            bundles,
            self._scratch / f"{scratch_name}.code",
        )
        self.libraries[member] = host_file

    def _pack(
        self,
        member: str,
        section: memoryview,
        bundles: Sequence[Bundle],
        frames_file: Path,
    ) -> list[CodeObject]:
        """Pack every code object of a library into one file: bundles side by side, so in any order."""
        lock = threading.Lock()

        def pack_bundle(index: int) -> list[CodeObject]:
            packer = zstandard.ZstdCompressor(level=_LEVEL)
            packed: list[CodeObject] = []
            for entry, content in code_objects(section, bundles[index]):
                if not _TARGET.fullmatch(processor(entry.target)):
                    raise SplitError(f"it has code for {entry.target}, which fits no device package")
                frame = packer.compress(content)
                with lock, frames_file.open("ab") as stream:
                    offset = stream.tell()
                    stream.write(frame)
                packed.append(
                    CodeObject(
                        member=member,
                        bundle=index,
                        target=entry.target,
                        size=len(content),
                        sha256=hashlib.sha256(content).hexdigest(),
                        frames_file=frames_file,
                        offset=offset,
                        length=len(frame),
                    )
                )
            return packed

        code: list[CodeObject] = []
        for packed in self._pool.map(pack_bundle, range(len(bundles))):
            code += packed
        if len({(code_object.bundle, code_object.target) for code_object in code}) != len(code):
            raise SplitError("a bundle has two code objects for one target")
        return code
