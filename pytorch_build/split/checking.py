"""Whether the wheels of a split are the fat wheel again: read from the finished files."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from core.archive import zip_reader
from core.errors import CheckError
from core.wheel import read_metadata
from core.wheel.record import Tap, verify_record
from pytorch_build.check.device_code import processor
from pytorch_build.split.libraries import MAGICS, reference_of
from pytorch_build.split.places import SplitError
from rocm_packaging.packages import kpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pytorch_build.split.reading import Code

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
        with zip_reader.opened(wheel) as archive:
            names.update(archive.namelist())
    yield from found.problems
    yield from (f"{name} is in {count} wheels." for name, count in names.items() if count > 1)
    with zip_reader.opened(fat) as archive:
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
