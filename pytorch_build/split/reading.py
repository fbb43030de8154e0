"""One pass over a fat wheel: RECORD is verified, and each library's device code is taken out of it.

The code objects are packed as they will lie in the archives, on all cores, into scratch files; what a
library becomes without them is written beside. Memory holds a few code objects at a time.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import zstandard

from core.errors import WheelError
from core.wheel import parse_wheel_name
from core.wheel.record import Tap, verify_record
from pytorch_build.check.bundles import BundleError, code_objects, read_bundles
from pytorch_build.check.device_code import processor
from pytorch_build.split.libraries import MAGICS, mapped, side_of
from pytorch_build.split.places import AlreadySplitError, SplitError
from rocm_packaging.packages import kpack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytorch_build.check.bundles import Bundle

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
