"""From a fat wheel to a host wheel and one wheel of device code a GPU target."""

from __future__ import annotations

import calendar
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.archive import Made, Member, zip_reader
from core.archive.zip_reader import is_executable
from core.errors import UsageError, WheelError
from core.wheel import read_metadata, read_wheel_info
from core.wheel.editor import Additions, assemble_wheel, edit_wheel
from core.wheel.record import require_listing
from core.wheel.writer import WheelSpec, file_stem
from pytorch_build.check.device_code import processor
from pytorch_build.split import described
from pytorch_build.split.checking import require_whole
from pytorch_build.split.files import gpu_of
from pytorch_build.split.reading import take_apart
from rocm_packaging.packages import kpack

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator, Mapping, Sequence

    from core.wheel import WheelMetadata
    from pytorch_build.split.reading import Code, Contents


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What becomes of a fat wheel."""

    path: Path
    metadata: WheelMetadata
    folder: str
    infos: Mapping[str, zipfile.ZipInfo]
    epoch: int
    contents: Contents
    files: Mapping[str, Sequence[str]]
    wheels: described.Wheels


def split(fat_wheel: Path, out_dir: Path, *, rocm_version: str = "") -> tuple[Path, ...]:
    """Split a fat wheel, and check that the parts hold what it held."""
    if out_dir.resolve() == fat_wheel.resolve().parent:
        raise UsageError(
            f"The host wheel takes the name of {fat_wheel.name}, so it needs another folder.",
            hint="Choose one with --output-dir.",
        )
    out_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".split-", dir=out_dir) as scratch:
        planned = plan(fat_wheel, Path(scratch), rocm_version=rocm_version)
        finished = Path(scratch) / "wheels"
        finished.mkdir()
        gpus = (*planned.wheels.targets, *planned.wheels.groups)
        made = [_host(planned, finished), *(_device(planned, gpu, finished) for gpu in gpus)]
        require_whole(fat_wheel, made, planned.contents.code)
        # only wheels that passed get their names in the folder
        return tuple(one.replace(out_dir / one.name) for one in made)


def plan(fat_wheel: Path, scratch: Path, *, rocm_version: str = "") -> Plan:
    """Take a fat wheel apart and decide what becomes of it."""
    metadata = read_metadata(fat_wheel)
    rocm = rocm_version or described.rocm_version(metadata.requires_dist)
    if not rocm:
        raise UsageError(
            f"{fat_wheel.name} does not say which ROCm it was built against.",
            hint="Say it: --rocm-version V.",
        )
    with zip_reader.opened(fat_wheel) as archive:
        listing = require_listing(fat_wheel, archive)
    infos = {info.filename: info for info, _ in listing.files}
    contents = take_apart(fat_wheel, scratch)
    files = _files(infos, contents)
    moment = infos[f"{listing.folder}/METADATA"].date_time
    return Plan(
        path=fat_wheel,
        metadata=metadata,
        folder=listing.folder,
        infos=infos,
        epoch=calendar.timegm((*moment, 0, 0, 0)),
        contents=contents,
        files=files,
        wheels=described.Wheels(
            distribution=contents.package,
            version=str(metadata.version),
            targets=contents.targets,
            groups=tuple(sorted(set(files) - set(contents.targets))),
            rocm=rocm,
        ),
    )


def _files(infos: Mapping[str, zipfile.ZipInfo], contents: Contents) -> Mapping[str, Sequence[str]]:
    """Say which members besides libraries go into whose wheel."""
    inside = f"{contents.package}/"
    found: dict[str, list[str]] = {}
    for name in sorted(infos):
        if name.startswith(inside) and name not in contents.hosts:
            gpu = gpu_of(name.removeprefix(inside), contents.targets)
            if gpu:
                found.setdefault(gpu, []).append(name)
    return found


def _host(fat: Plan, folder: Path) -> Path:
    def edit(member: str, content: bytes) -> bytes:
        if member != f"{fat.folder}/METADATA":
            return content
        return described.host_metadata(content, fat.wheels)

    members = tuple(
        Member(name=name, source=path, executable=is_executable(fat.infos[name]))
        for name, path in sorted(fat.contents.hosts.items())
    )
    dropped = frozenset(name for names in fat.files.values() for name in names)
    additions = Additions(members=members, dropped=dropped)
    return edit_wheel(
        fat.path, folder, version=fat.wheels.version, edit=edit, additions=additions, epoch=fat.epoch
    ).file.path


def _device(fat: Plan, gpu: str, folder: Path) -> Path:
    name = described.device_package(fat.wheels.distribution, gpu)
    spec = WheelSpec(
        distribution=name,
        version=fat.wheels.version,
        tag=described.tag_of(fat.path.name),
        metadata=described.device_metadata(fat.metadata, fat.wheels, gpu),
        purelib=read_wheel_info(fat.path).root_is_purelib,
    )
    code = [one for one in fat.contents.code if processor(one.target) == gpu]
    members = [_archive(fat.contents.package, gpu, code, folder)] if code else []
    borrowed = {
        **{file: file for file in fat.files.get(gpu, ())},
        **described.licence_members(
            fat.infos, fat.folder, f"{file_stem(name, fat.wheels.version)}.dist-info"
        ),
    }
    return assemble_wheel(folder, spec, members, borrowed={fat.path: borrowed}, epoch=fat.epoch).path


def _archive(package: str, gpu: str, code: Sequence[Code], folder: Path) -> Member:
    """Give the kernel archive of a target; all its variants share it, so no name holds their colon."""

    def make() -> Path:
        path = folder / f"{gpu}{kpack.SUFFIX}"
        kernels = [
            (
                kpack.Kernel(
                    binary=f"{one.member.removeprefix(f'{package}/')}#{one.index}",
                    target=one.target,
                    size=one.size,
                ),
                one.length,
            )
            for one in code
        ]
        with path.open("wb") as stream:
            try:
                kpack.write(stream, package, gpu, _frames(code), kernels)
            except kpack.KpackError as problem:
                raise WheelError(f"{path.name}: {problem}.", hint="Build for fewer libraries.") from problem
        return path

    size = sum(one.length for one in code)
    return Member(name=f"{package}/{kpack.archive_name(package, gpu)}", source=Made(size=size, make=make))


def _frames(code: Sequence[Code]) -> Iterator[bytes]:
    for one in code:
        with one.spool.open("rb") as stream:
            stream.seek(one.at)
            yield stream.read(one.length)
