"""Device code, taken out of the libraries of a fat wheel in one pass, and verified in the wheels made of it.

RECORD is verified in the same pass. The code objects are packed as they will lie in the archives, on all
cores, into scratch files; what a library becomes without them is written beside. Memory holds a few code
objects at a time.
"""

import hashlib
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import zstandard
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from core.archive.zips import read_archive
from core.errors import CheckError, WheelError
from core.wheel import parse_wheel_name, read_metadata
from core.wheel.record import Tap, verify_record
from pytorch_build.check.bundles import Bundle, BundleError, Data, code_objects, read_bundles
from pytorch_build.check.device_code import mapped, processor
from pytorch_build.split.library import AlreadySplitError, ElfLibrary, Library, PeLibrary, SplitError
from rocm_packaging.packages import kpack

# The level that ROCm's own packages have.
LEVEL = 3
_ELF, _PE = b"\x7fELF", b"MZ"
_READ = (kpack.MAGIC, _ELF, _PE)  # archives and libraries
_TARGET = re.compile(r"gfx[0-9a-f]{3,4}")
_SHOWN = 5  # problems of one wheel


@dataclass(frozen=True, kw_only=True, order=True)
class Code:
    """One code object, and where it lies packed in a scratch file."""

    member: str
    index: int
    target: str
    size: int
    sha256: str
    spool: Path = field(compare=False)
    at: int = field(compare=False)
    length: int = field(compare=False)

    def binary(self, package: str) -> str:
        """Return its library and index as kernel archives name them."""
        return f"{self.member.removeprefix(f'{package}/')}#{self.index}"


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


def library_of(data: Data) -> Library:
    """Parse an ELF or PE file."""
    return ElfLibrary(data) if data[:4] == _ELF else PeLibrary(data)


def reference_of(file: Path) -> kpack.Reference | None:
    """Read where a library says its device code is."""
    found = library_of(mapped(file)).reference()
    return None if found is None else kpack.read_reference(found)


def take_apart(wheel: Path, scratch: Path) -> Contents:
    """Read a fat wheel once, and put what the parts will be made of into a folder."""
    package = parse_wheel_name(wheel.name).distribution
    jobs = os.cpu_count() or 1
    with ThreadPoolExecutor(jobs) as pool:
        reader = _Reader(package=package, scratch=scratch, pool=pool)
        tap = Tap(wanted=lambda _, head: head.startswith((_ELF, _PE)), inspect=reader.inspect, folder=scratch)
        problems = verify_record(wheel, tap=tap, jobs=jobs)
    if reader.split:
        raise WheelError(
            f"{wheel.name} is split already: the device code of {min(reader.split)} is in other wheels.",
            hint=f"Install these as {package}[device-gfx…], or split the fat wheel, which builds keep "
            "with --no-split.",
        )
    if problems or reader.problems:
        problem = problems[0].message if problems else min(reader.problems)
        raise WheelError(f"{wheel.name}: {problem}", hint="Build or download the fat wheel again.")
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

    def inspect(self, member: str, file: Path) -> None:
        """Take one library apart; keep what is wrong with it. Several threads append, each whole values."""
        try:
            self._inspect(member, file)
        except AlreadySplitError:
            self.split.append(member)
        except (SplitError, BundleError, kpack.KpackError) as problem:
            self.problems.append(f"{member}: {problem}.")

    def _inspect(self, member: str, file: Path) -> None:
        data = mapped(file)
        library = library_of(data)
        fat = library.fat()
        if fat is None:
            return
        inside = f"{self.package}/"
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
        reference = kpack.reference(self.package, member.removeprefix(inside)).packed()
        number = hashlib.sha256(member.encode()).hexdigest()[:16]
        host = self.scratch / f"{number}.host"
        library.without_code(fat, indexes, reference).written(file, host)
        self.code.extend(self._packed(member, section, bundles, self.scratch / f"{number}.code"))
        self.hosts[member] = host

    def _packed(
        self, member: str, section: memoryview, bundles: tuple[Bundle, ...], spool: Path
    ) -> list[Code]:
        """Pack every code object of a library into one file: bundles side by side, so in any order."""
        lock = threading.Lock()

        def pack(index: int, bundle: Bundle) -> Iterator[Code]:
            packer = zstandard.ZstdCompressor(level=LEVEL)
            for entry, data in code_objects(section, bundle):
                if not _TARGET.fullmatch(processor(entry.target)):
                    raise SplitError(f"it has code for {entry.target}, which fits no device package")
                frame = packer.compress(data)
                with lock, spool.open("ab") as stream:
                    at, length = stream.tell(), stream.write(frame)
                yield Code(
                    member=member,
                    index=index,
                    target=entry.target,
                    size=len(data),
                    sha256=hashlib.sha256(data).hexdigest(),
                    spool=spool,
                    at=at,
                    length=length,
                )

        packed = self.pool.map(lambda one: list(pack(*one)), enumerate(bundles))
        code = [one for some in packed for one in some]
        if len({(one.index, one.target) for one in code}) != len(code):
            raise SplitError("a bundle has two code objects for one target")
        return code


def require_whole(fat: Path, wheels: Sequence[Path], code: Sequence[Code]) -> None:
    """Verify that the finished wheels hold what the fat wheel held."""
    found = sorted(set(_problems(fat, wheels, code)))
    if found:
        more = f"\n… and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise CheckError(
            f"The wheels made of {fat.name} differ from it:\n" + "\n".join(found[:_SHOWN]) + more,
            hint="Keep the fat wheel (--no-split), and report it.",
        )


def _problems(fat: Path, wheels: Sequence[Path], code: Sequence[Code]) -> Iterator[str]:
    package = read_metadata(fat).name
    found = _Found(package=package)
    names: Counter[str] = Counter()
    for wheel in wheels:
        tap = Tap(wanted=lambda _, head: head.startswith(_READ), inspect=found.inspect, folder=wheel.parent)
        yield from (f"{wheel.name}: {problem.message}" for problem in verify_record(wheel, tap=tap))
        names.update(read_archive(wheel).by_name)
    yield from found.problems
    yield from (f"{name} is in {count} wheels." for name, count in names.items() if count > 1)
    for name in read_archive(fat).by_name:
        if name not in names:
            yield f"{name} is in none of the wheels."
    wanted = {(one.binary(package), one.target, one.sha256) for one in code}
    for binary, target, _ in wanted - found.kernels:
        yield f"The code of {binary} for {target} is in no archive."
    for binary, target, _ in found.kernels - wanted:
        yield f"The code of {binary} for {target} is not what the fat wheel held."
    have = {(binary, processor(target)) for binary, target, _ in found.kernels}
    for binary, target, _ in wanted:
        if (binary, processor(target)) not in have:
            yield f"{binary} has no code for {target}."
    missing = {binary.rpartition("#")[0] for binary, _, _ in wanted} - found.libraries
    yield from (f"{name} does not say where its code is." for name in missing)
    yield from _unmet(wheels)


def _unmet(wheels: Sequence[Path]) -> Iterator[str]:
    """Find requirements on wheels of the set that it does not meet."""
    metadata = {wheel: read_metadata(wheel) for wheel in wheels}
    made = {canonicalize_name(one.name): one.version for one in metadata.values()}
    own = min(made, key=len)
    for wheel, one in metadata.items():
        for required in map(Requirement, one.requires_dist):
            name = canonicalize_name(required.name)
            if name.startswith(f"amd-{own}-device-") and name not in made:
                yield f"{wheel.name} requires {name}, which was not made."
            elif name in made and not required.specifier.contains(made[name], prereleases=True):
                yield f"{wheel.name} requires {required}, and {made[name]} was made."


@dataclass
class _Found:
    package: str
    kernels: set[tuple[str, str, str]] = field(default_factory=set)  # library and index, target, SHA-256
    libraries: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def inspect(self, member: str, file: Path) -> None:
        """Read what an archive holds, or where a library says its code is. Threads add whole values."""
        try:
            if member.endswith(kpack.SUFFIX):
                self.kernels.update(_kernels(file))
            else:
                self.libraries.update(self._moved(member, file))
        except (kpack.KpackError, SplitError) as problem:
            self.problems.append(f"{member}: {problem}.")

    def _moved(self, member: str, file: Path) -> Iterator[str]:
        one = reference_of(file)
        if one is None:
            return
        if f"{self.package}/{one.binary}" != member or one != kpack.reference(self.package, one.binary):
            raise SplitError(f"it looks for its code as {one.binary} in {one.paths[0]}")
        yield one.binary


def _kernels(file: Path) -> set[tuple[str, str, str]]:
    with file.open("rb") as stream:
        archive = kpack.read(stream)
        # the same bytes may stand for a mode of the GPU, too: the most general target is theirs
        by_target = sorted(archive.kernels, key=lambda one: -len(one.target))
        owners = {archive.kernels[one]: one for one in by_target}
        return {
            (one.binary, one.target, hashlib.sha256(archive.content(stream, one)).hexdigest())
            for one in owners.values()
        }
