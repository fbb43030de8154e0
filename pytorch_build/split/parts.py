"""From a fat wheel to a host wheel and one wheel of device code a GPU target."""

from __future__ import annotations

import calendar
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from core import temporary
from core.archive import DeferredFile, Member
from core.data import Model, data_file
from core.errors import UsageError, WheelError
from core.families import parents, sub_family
from core.wheel import WheelMetadata, read_metadata, read_wheel_info
from core.wheel.editor import Additions, assemble_wheel, edit_wheel
from core.wheel.record import require_listing
from core.wheel.writer import WheelSpec, file_stem
from pytorch_build.check.device_code import processor
from pytorch_build.split.kernels import Code, Contents, require_whole, take_apart
from rocm_packaging.packages import kpack

if TYPE_CHECKING:
    from core.archive.zips import ZipMember


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What becomes of a fat wheel."""

    path: Path
    metadata: WheelMetadata
    folder: str
    members: Mapping[str, ZipMember]
    contents: Contents
    files: Mapping[str, Sequence[str]]
    wheels: Wheels

    @property
    def epoch(self) -> int:
        """The time that the wheel's own metadata has."""
        return calendar.timegm((*self.members[f"{self.folder}/METADATA"].modified, 0, 0, 0))


def split(fat_wheel: Path, out_dir: Path, *, rocm_version: str = "") -> tuple[Path, ...]:
    """Split a fat wheel, and verify that the parts hold what it held."""
    if out_dir.resolve() == fat_wheel.parent.resolve():
        raise UsageError(
            f"The host wheel takes the name of {fat_wheel.name}, so it needs another folder.",
            hint="Choose one with --output-dir.",
        )
    out_dir.mkdir(parents=True, exist_ok=True)
    with temporary.folder("split", within=out_dir) as scratch:
        planned = plan(fat_wheel, scratch, rocm_version=rocm_version)
        finished = scratch / "wheels"
        finished.mkdir()
        made = [_host(planned, finished), *(_device(planned, gpu, finished) for gpu in planned.wheels.gpus)]
        require_whole(fat_wheel, made, planned.contents.code)
        # only wheels that passed get their names in the folder
        return tuple(one.replace(out_dir / one.name) for one in made)


def plan(fat_wheel: Path, scratch: Path, *, rocm_version: str = "") -> Plan:
    """Take a fat wheel apart and decide what becomes of it."""
    metadata = read_metadata(fat_wheel)
    rocm = rocm_version or required_rocm(metadata.requires_dist)
    if not rocm:
        raise UsageError(
            f"{fat_wheel.name} does not say which ROCm it was built against.", hint="Set --rocm-version V."
        )
    listing = require_listing(fat_wheel)
    members = {member.name: member for member in listing.members}
    contents = take_apart(fat_wheel, scratch)
    inside = f"{contents.package}/"
    files: dict[str, list[str]] = {}
    for name in sorted(members.keys() - contents.hosts.keys()):
        if name.startswith(inside) and (gpu := gpu_of(name.removeprefix(inside), contents.targets)):
            files.setdefault(gpu, []).append(name)
    return Plan(
        path=fat_wheel,
        metadata=metadata,
        folder=listing.folder,
        members=members,
        contents=contents,
        files=files,
        wheels=Wheels(
            distribution=contents.package,
            version=str(metadata.version),
            targets=contents.targets,
            groups=tuple(sorted(set(files) - set(contents.targets))),
            rocm=rocm,
        ),
    )


def _host(fat: Plan, folder: Path) -> Path:
    edits = {f"{fat.folder}/METADATA": host_metadata(fat.metadata.raw, fat.wheels)}
    members = tuple(
        Member(name=name, source=path, executable=fat.members[name].is_executable)
        for name, path in sorted(fat.contents.hosts.items())
    )
    dropped = frozenset(name for names in fat.files.values() for name in names)
    additions = Additions(members=members, dropped=dropped)
    return edit_wheel(
        fat.path, folder, version=fat.wheels.version, edit=edits.get, additions=additions, epoch=fat.epoch
    ).path


def _device(fat: Plan, gpu: str, folder: Path) -> Path:
    name, version = fat.wheels.name(gpu), fat.wheels.version
    spec = WheelSpec(
        distribution=name,
        version=version,
        tag=_tag_of(fat.path.name),
        metadata=device_metadata(fat.metadata, fat.wheels, gpu),
        purelib=read_wheel_info(fat.path).root_is_purelib,
    )
    code = [one for one in fat.contents.code if processor(one.target) == gpu]
    members = [_archive(fat.contents.package, gpu, code, folder)] if code else []
    licences = licence_members(fat.members, fat.folder, f"{file_stem(name, version)}.dist-info")
    borrowed = {**{file: file for file in fat.files.get(gpu, ())}, **licences}
    return assemble_wheel(folder, spec, members, borrowed={fat.path: borrowed}, epoch=fat.epoch).path


def _archive(package: str, gpu: str, code: Sequence[Code], folder: Path) -> Member:
    """Return the kernel archive of a target; all its variants share it, so no name holds their colon."""

    def make() -> Path:
        path = folder / f"{gpu}{kpack.SUFFIX}"
        kernels = [
            (kpack.Kernel(binary=one.binary(package), target=one.target, size=one.size), one.length)
            for one in code
        ]
        with path.open("wb") as stream:
            try:
                kpack.write(stream, package, gpu, _frames(code), kernels)
            except kpack.KpackError as problem:
                raise WheelError(f"{path.name}: {problem}.", hint="Build for fewer libraries.") from problem
        return path

    size = sum(one.length for one in code)
    return Member(
        name=f"{package}/{kpack.archive_name(package, gpu)}", source=DeferredFile(size=size, make=make)
    )


def _frames(code: Sequence[Code]) -> Iterator[bytes]:
    for one in code:
        with one.spool.open("rb") as stream:
            stream.seek(one.at)
            yield stream.read(one.length)


# Fields of the host's metadata that hold for its device code as well.
_KEPT = (
    *("license-expression", "license", "license-file", "requires-python", "home-page"),
    *("author", "author-email", "maintainer", "maintainer-email", "project-url"),
)
_OLDEST = (2, 1)  # Provides-Extra


@dataclass(frozen=True, kw_only=True)
class Wheels:
    """The wheels of a split."""

    distribution: str
    version: str
    targets: tuple[str, ...]
    groups: tuple[str, ...]
    rocm: str

    @property
    def gpus(self) -> tuple[str, ...]:
        """The targets, and the sub-families and families with files of their own."""
        return (*self.targets, *self.groups)

    def name(self, gpu: str) -> str:
        """Return the name of the distribution with the device code of a target, sub-family or family."""
        return f"amd-{self.distribution}-device-{gpu}"

    def chain(self, target: str) -> tuple[str, ...]:
        """Return whose wheels a GPU needs: its target's, and those of the groups that it is in."""
        return (target, *(group for group in parents(target) if group in self.groups))

    def file_names(self, host: str) -> Sequence[str]:
        """Return the names of all files, by the name of the host wheel, which comes first."""
        stems = (file_stem(self.name(gpu), self.version) for gpu in self.gpus)
        return (host, *(f"{stem}-{_tag_of(host)}.whl" for stem in stems))

    def _pin(self, gpu: str) -> str:
        return f"{self.name(gpu)} == {self.version}"

    def host_lines(self) -> Sequence[str]:
        """Write the host's extras: one a target, and all."""
        extras = {f"device-{target}": self.chain(target) for target in self.targets}
        lines: list[str] = []
        for extra, gpus in {**extras, "device-all": self.gpus}.items():
            lines.append(f"Provides-Extra: {extra}")
            lines += [f'Requires-Dist: {self._pin(gpu)}; extra == "{extra}"' for gpu in gpus]
        return lines

    def requirements(self, gpu: str) -> Sequence[str]:
        """Return what the wheel of a target or group requires."""
        host = f"{self.distribution} == {self.version}"
        if gpu not in self.targets:
            return (host,)
        return (host, f"rocm-sdk-device-{gpu} == {self.rocm}", *map(self._pin, self.chain(gpu)[1:]))


def _tag_of(wheel: str) -> str:
    return "-".join(wheel.removesuffix(".whl").split("-")[-3:])


def host_metadata(old: bytes, wheels: Wheels) -> bytes:
    """Add the extras to the host's METADATA, behind its other fields."""
    text = old.decode()
    head, blank, body = text.partition("\n\n")
    return "\n".join((head.rstrip("\n"), *wheels.host_lines(), "")).encode() + (blank[1:] + body).encode()


def device_metadata(host: WheelMetadata, wheels: Wheels, gpu: str) -> str:
    """Write the METADATA of the wheel of a target or group; who may use it follows the host."""
    # a licence's text may fill several lines, which a header continues by indenting them
    message = BytesHeaderParser().parsebytes(host.raw)
    fields = [(name.lower(), str(value)) for name, value in message.items()]
    classifiers = (value for name, value in fields if name == "classifier")
    version = message.get("metadata-version", "2.1")
    newest = max(_OLDEST, tuple(int(part) for part in version.split(".")))
    served = [target for target in wheels.targets if gpu in wheels.chain(target)]
    lines = [
        f"Metadata-Version: {'.'.join(map(str, newest))}",
        f"Name: {wheels.name(gpu)}",
        f"Version: {wheels.version}",
        f"Summary: Device code of {wheels.distribution} for {', '.join(served)}",
        *(f"{name.title()}: {value}" for name, value in fields if name in _KEPT),
        *(f"Classifier: {value}" for value in classifiers if value.startswith("License ::")),
        *(f"Requires-Dist: {one}" for one in wheels.requirements(gpu)),
    ]
    return "\n".join(lines) + "\n"


def required_rocm(requires: Collection[str]) -> str:
    """Return the version of ROCm that a wheel requires exactly; empty where it requires none."""
    rocm = (one for one in map(Requirement, requires) if one.name == "rocm")
    return next((pin.version for one in rocm for pin in one.specifier if pin.operator == "=="), "")


def licence_members(names: Collection[str], folder: str, new: str) -> Mapping[str, str]:
    """Choose the licence files that go along: old member -> new one."""
    starts = ("licenses/", "LICENSE", "LICENCE", "NOTICE", "COPYING", "AUTHORS")
    prefixes = tuple(f"{folder}/{start}" for start in starts)
    return {name: f"{new}/{name.removeprefix(f'{folder}/')}" for name in names if name.startswith(prefixes)}


TABLE = Path(__file__).with_name("files.toml")


class _Rule(Model):
    holds: str
    pattern: re.Pattern[str]


class _Table(Model):
    files: tuple[_Rule, ...]


_table = data_file(TABLE, _Table)


def gpu_of(path: str, targets: Collection[str]) -> str | None:
    """Return the GPU target or group whose wheel a file belongs into; None for the host's."""
    found = next(filter(None, (rule.pattern.fullmatch(path) for rule in _table().files)), None)
    if found is None:
        return None
    word, group = found["gpu"], ""
    if family := re.fullmatch(r"gfx([0-9]+)xx", word):
        group = f"gfx{family[1]}"
    elif found := re.fullmatch(r"gfx([0-9]+)([0-9a-f])x", word):
        group = sub_family(found[1], found[2])
    if group:
        return group if any(group in parents(target) for target in targets) else None
    return max((target for target in targets if word.startswith(target)), key=len, default=None)
