"""One pass over a fat wheel: RECORD is verified, and each library's device code is taken out of it.

The code objects are packed as they will lie in the archives, on all cores, into scratch files; what a
library becomes without them is written beside. Memory holds a few code objects at a time.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import zstandard
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from core.archive import zip_members
from core.errors import CheckError, WheelError
from core.wheel.wheel_record import Tap, verify_record
from core.wheel.wheels import parse_wheel_name, read_metadata
from pytorch_build.check.bundles import BundleError, code_objects, read_bundles
from pytorch_build.check.device_code import processor
from pytorch_build.split import elf_host, pe_host
from pytorch_build.split.places import AlreadySplitError, SplitError
from rocm_packaging.packages import kpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pytorch_build.check.bundles import Bundle, Data
    from pytorch_build.split.places import Cut, FatFile


# The level that ROCm's own packages have.
LEVEL = 3
_TARGET = re.compile(r"gfx[0-9a-f]{3,4}")


@dataclass(frozen=True, kw_only=True, order=True)
class Code:
    """One code object."""

    member: str
    index: int
    target: str
    size: int
    sha256: str
    spool: Path = field(compare=False)
    at: int = field(compare=False)
    length: int = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What was found in a fat wheel."""

    package: str
    hosts: dict[str, Path]
    code: tuple[Code, ...]

    @property
    def targets(self) -> tuple[str, ...]:
        """The gfx targets that it has code for, without features, sorted."""
        return tuple(sorted({processor(one.target) for one in self.code}))


def take_apart(wheel: Path, scratch: Path) -> Contents:
    """Read a fat wheel once, and put what the parts will be made of into a folder."""
    package = parse_wheel_name(wheel.name).distribution
    jobs = os.cpu_count() or 1
    with ThreadPoolExecutor(jobs) as pool:
        reader = _Reader(package=package, scratch=scratch, pool=pool)
        tap = Tap(wanted=lambda _, head: head.startswith(MAGICS), inspect=reader.inspect, folder=scratch)
        problems = verify_record(wheel, tap=tap, jobs=jobs)
    if reader.split:
        raise WheelError(
            f"{wheel.name} is split already: the device code of {min(reader.split)} is in other wheels.",
            hint=f"Install these as {package}[device-gfx…], or split the fat wheel, which builds keep "
            "with --no-split.",
        )
    if problems or reader.problems:
        said = problems[0].message if problems else min(reader.problems)
        raise WheelError(f"{wheel.name}: {said}", hint="Build or download the fat wheel again.")
    if not reader.code:
        raise WheelError(
            f"{wheel.name} holds no device code that could be moved.",
            hint="Split a wheel of torch or torchvision that was built for GPUs.",
        )
    return Contents(package=package, hosts=reader.hosts, code=tuple(sorted(reader.code)))


@dataclass
class _Reader:
    package: str
    scratch: Path
    pool: ThreadPoolExecutor
    hosts: dict[str, Path] = field(default_factory=dict)
    code: list[Code] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    split: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def inspect(self, member: str, file: Path) -> None:
        """Take one library apart; keep what is wrong with it."""
        try:
            self._inspect(member, file)
        except AlreadySplitError:
            with self._lock:
                self.split.append(member)
        except (SplitError, BundleError, kpack.KpackError) as problem:
            with self._lock:
                self.problems.append(f"{member}: {problem}.")

    def _inspect(self, member: str, file: Path) -> None:
        data = mapped(file)
        side = side_of(data)
        fat = side.read(data)
        if fat is None:
            return
        inside, below = self.package + "/", member.removeprefix(self.package + "/")
        if not member.startswith(inside):
            raise SplitError(f"it holds device code and lies outside of {inside}")
        section = memoryview(data)[fat.start : fat.start + fat.size]
        bundles = read_bundles(section)
        indexes = {bundle.offset: index for index, bundle in enumerate(bundles)}
        strays = [wrapper.bundle for wrapper in fat.wrappers if wrapper.bundle not in indexes]
        if strays:
            raise SplitError(
                f"a wrapper points to offset {strays[0]} of its device code, where no bundle begins"
            )
        reference = kpack.packed_reference(kpack.reference(self.package, below))
        cut = side.without_code(data, fat, indexes, reference)
        number = hashlib.sha256(member.encode()).hexdigest()[:16]
        host = self.scratch / f"{number}.host"
        cut.written(file, host)
        spool = _Spool(member=member, path=self.scratch / f"{number}.code")
        code = spool.filled(section, bundles, self.pool)
        with self._lock:
            self.hosts[member] = host
            self.code += code


@dataclass
class _Spool:
    """Packs the code objects of one library into one file, in any order."""

    member: str
    path: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def filled(
        self, section: memoryview, bundles: tuple[Bundle, ...], pool: ThreadPoolExecutor
    ) -> list[Code]:
        """Pack every code object, bundles side by side."""
        self.path.touch()
        futures = [
            pool.submit(lambda bundle, index: list(self._packed(section, bundle, index)), bundle, index)
            for index, bundle in enumerate(bundles)
        ]
        code = [one for future in futures for one in future.result()]
        keys = {(one.index, one.target) for one in code}
        if len(keys) != len(code):
            raise SplitError("a bundle has two code objects for one target")
        return code

    def _packed(self, section: memoryview, bundle: Bundle, index: int) -> Iterator[Code]:
        packer = zstandard.ZstdCompressor(level=LEVEL)
        for entry, data in code_objects(section, bundle):
            if not _TARGET.fullmatch(processor(entry.target)):
                raise SplitError(
                    f"it has code for {entry.target}, which is no GPU's and fits no device package"
                )
            frame = packer.compress(data)
            with self._lock, self.path.open("ab") as stream:
                at = stream.tell()
                stream.write(frame)
            yield Code(
                member=self.member,
                index=index,
                target=entry.target,
                size=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
                spool=self.path,
                at=at,
                length=len(frame),
            )


MAGICS = (b"\x7fELF", b"MZ")


class Side(Protocol):
    """What each file format brings."""

    def read(self, data: Data) -> FatFile | None:
        """Find the device code of a library; None where it has none."""

    def without_code(self, data: Data, fat: FatFile, indexes: Mapping[int, int], reference: bytes) -> Cut:
        """Say what a library becomes without its device code."""

    def reference_in(self, data: Data) -> bytes | None:
        """Return where a library says its code is, and what follows; None where its code was not moved."""


def side_of(data: Data) -> Side:
    """Choose by a file's first bytes, which are one of `MAGICS`."""
    return elf_host if data[:4] == MAGICS[0] else pe_host


def mapped(file: Path) -> mmap.mmap:
    """Map a file; the collector closes it, as an error's traceback may still hold views of it."""
    with file.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def reference_of(file: Path) -> kpack.Reference | None:
    """Read where a library says its device code is."""
    data = mapped(file)
    found = side_of(data).reference_in(data)
    return None if found is None else kpack.read_reference(found)


_Key = tuple[str, str, str]  # library and index, target, SHA-256


def require_whole(fat: Path, wheels: Sequence[Path], code: Sequence[Code]) -> None:
    """Hold the finished wheels against what the fat wheel held."""
    said = sorted(set(_problems(fat, wheels, code)))
    if said:
        more = f"\n… and {len(said) - 5} more" if len(said) > 5 else ""  # noqa: PLR2004 - enough to see what it is
        raise CheckError(
            f"The wheels made of {fat.name} are not what it was:\n" + "\n".join(said[:5]) + more,
            hint="Keep the fat wheel (--no-split), and report it.",
        )


def _problems(fat: Path, wheels: Sequence[Path], code: Sequence[Code]) -> Iterator[str]:
    package = read_metadata(fat).name
    found = _Found(package=package)
    names: Counter[str] = Counter()
    for wheel in wheels:
        tap = Tap(wanted=found.wanted, inspect=found.inspect, folder=wheel.parent)
        yield from (f"{wheel.name}: {problem.message}" for problem in verify_record(wheel, tap=tap))
        with zip_members.opened(wheel) as archive:
            names.update(archive.namelist())
    yield from found.problems
    yield from (f"{name} is in {count} wheels." for name, count in names.items() if count > 1)
    with zip_members.opened(fat) as archive:
        yield from (f"{name} is in none of the wheels." for name in archive.namelist() if name not in names)
    yield from _differences(package, found, code)
    yield from _unmet(wheels)


def _differences(package: str, found: _Found, code: Sequence[Code]) -> Iterator[str]:
    wanted = {
        (f"{one.member.removeprefix(f'{package}/')}#{one.index}", one.target, one.sha256) for one in code
    }
    for binary, target, _ in sorted(wanted - found.kernels):
        yield f"The code of {binary} for {target} is in no archive."
    for binary, target, _ in sorted(found.kernels - wanted):
        yield f"The code of {binary} for {target} is not what the fat wheel held."
    have = {(binary, processor(target)) for binary, target, _ in found.kernels}
    for binary, target, _ in wanted:
        if (binary, processor(target)) not in have:
            yield f"{binary} has no code for {target}."
    missing = {binary.rpartition("#")[0] for binary, _, _ in wanted} - found.libraries
    yield from (f"{name} does not say where its code is." for name in sorted(missing))


def _unmet(wheels: Sequence[Path]) -> Iterator[str]:
    """Find requirements on wheels of the set that it does not meet."""
    made = {canonicalize_name(one.name): one.version for one in map(read_metadata, wheels)}
    own = min(made, key=len)
    for wheel in wheels:
        for text in read_metadata(wheel).requires_dist:
            one = Requirement(text)
            name = canonicalize_name(one.name)
            if name.startswith(f"amd-{own}-device-") and name not in made:
                yield f"{wheel.name} requires {name}, which was not made."
            elif name in made and not one.specifier.contains(made[name], prereleases=True):
                yield f"{wheel.name} requires {text}, and {made[name]} was made."


@dataclass
class _Found:
    package: str
    kernels: set[_Key] = field(default_factory=set)
    libraries: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wanted(self, _: str, head: bytes) -> bool:
        """Whether a member is an archive or a library."""
        return head.startswith((kpack.MAGIC, *MAGICS))

    def inspect(self, member: str, file: Path) -> None:
        """Read what an archive holds, or where a library says its code is."""
        try:
            if member.endswith(kpack.SUFFIX):
                self._archive(file)
            else:
                self._library(member, file)
        except (kpack.KpackError, SplitError) as problem:
            with self._lock:
                self.problems.append(f"{member}: {problem}.")

    def _archive(self, file: Path) -> None:
        with file.open("rb") as stream:
            archive = kpack.read(stream)
            # the same bytes may stand for a mode of the GPU, too: the most general target is theirs
            owners = {
                archive.kernels[one]: one for one in sorted(archive.kernels, key=lambda one: -len(one.target))
            }
            for kernel in owners.values():
                digest = hashlib.sha256(archive.content(stream, kernel)).hexdigest()
                with self._lock:
                    self.kernels.add((kernel.binary, kernel.target, digest))

    def _library(self, member: str, file: Path) -> None:
        one = reference_of(file)
        if one is None:
            return
        if f"{self.package}/{one.binary}" != member or one != kpack.reference(self.package, one.binary):
            raise SplitError(f"it looks for its code as {one.binary} in {one.paths[0]}")
        with self._lock:
            self.libraries.add(one.binary)
