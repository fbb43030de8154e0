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
from pytorch_build.check.device_code import map_file, processor
from pytorch_build.split.elf_library import ElfLibrary
from pytorch_build.split.library import SplitError, damage_as_split_error
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
    """One code object of a library, compressed in a scratch file.

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
        """Return the name of the library and the bundle's index, as kernel archives have them."""
        return f"{self.member.removeprefix(f'{package}/')}#{self.bundle}"

    def read_zstd_frame(self) -> bytes:
        """Return the code object's compressed bytes."""
        with self.frames_file.open("rb") as stream:
            stream.seek(self.offset)
            return stream.read(self.length)


def open_library(path: Path) -> Library:
    """Return an ELF library or a DLL, parsed; raise SplitError where it is damaged."""
    with damage_as_split_error():
        if map_file(path)[:4] == elf.MAGIC:
            return ElfLibrary(path)
        return PeLibrary(path)


def take_apart(
    wheel: Path,
    scratch: Path,
    new_search_paths: Mapping[str, Sequence[str]],
) -> tuple[Mapping[str, Path], tuple[CodeObject, ...]]:
    """Take the device code out of a fat wheel's libraries; return these by member, and the code objects.

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
    """Takes device code out of libraries, several at a time, and collects it and what is wrong."""

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
        """Take the device code out of one library, or note what is wrong with it; its file is used up."""
        try:
            self._take_apart(member, file)
        except (SplitError, BundleError, kpack.KpackError) as problem:
            self.problems.append(f"{member}: {problem}.")

    def _take_apart(self, member: str, file: Path) -> None:
        """Write one library without its device code, and compress its code objects."""
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
        library.without_device_code(device_code, index_by_bundle_offset, reference).write(file, host_file)
        self.code += self._pack_code_objects(
            member,
            section,
            bundles,
            self._scratch / f"{scratch_name}.code",
        )
        self.libraries[member] = host_file

    def _pack_code_objects(
        self,
        member: str,
        section: memoryview,
        bundles: Sequence[Bundle],
        frames_file: Path,
    ) -> list[CodeObject]:
        """Compress every code object of a library into one file, and return where each is."""
        lock = threading.Lock()

        def pack_bundle(index: int) -> list[CodeObject]:
            """Compress the code objects of one bundle, and return where each is."""
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
