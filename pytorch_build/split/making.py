"""From a fat wheel to a host wheel and one wheel of device code a GPU target."""

from __future__ import annotations

import calendar
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core import zip_members
from core.errors import UsageError, WheelError
from core.wheel_editing import Additions, assemble_wheel, edit_wheel
from core.wheel_record import require_listing
from core.wheel_writer import Made, Member, WheelSpec, file_stem
from core.wheels import parse_wheel_name, read_metadata, read_wheel_info
from core.zip_writer import is_executable
from pytorch_build.checks.device_code import processor
from pytorch_build.split import described, kpack
from pytorch_build.split.checking import require_whole
from pytorch_build.split.files import gpu_of
from pytorch_build.split.reading import take_apart

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator, Mapping, Sequence

    from pytorch_build.split.reading import Code, Contents


@dataclass(frozen=True, kw_only=True)
class _Fat:
    path: Path
    folder: str
    infos: Mapping[str, zipfile.ZipInfo]
    epoch: int


def split(fat_wheel: Path, out_dir: Path, *, rocm_version: str = "") -> tuple[Path, ...]:
    """Split a fat wheel, and check that the parts hold what it held.

    Args:
        fat_wheel: A wheel of torch or torchvision with device code in its libraries.
        out_dir: Where the new wheels go; not the fat wheel's own folder, as the host takes its name.
        rocm_version: Of ROCm's device packages (default: what the wheel requires of ``rocm``).

    Returns:
        The host wheel, then those of the targets, then those of groups of targets.

    Raises:
        WheelError: The wheel is broken, split already, or has device code that cannot be moved.
        UsageError: The ROCm version is not known, or the folder is the fat wheel's.
        CheckError: The parts are not the whole.
    """
    if out_dir.resolve() == fat_wheel.resolve().parent:
        raise UsageError(
            f"The host wheel takes the name of {fat_wheel.name}, so it needs another folder.",
            hint="Choose one with --output-dir.",
        )
    old = read_metadata(fat_wheel)
    rocm = rocm_version or described.rocm_version(old.requires_dist)
    if not rocm:
        raise UsageError(
            f"{fat_wheel.name} does not say which ROCm it was built against.", hint="Say it: --rocm-version V."
        )
    fat = _survey(fat_wheel)
    out_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".split-", dir=out_dir) as scratch:
        contents = take_apart(fat_wheel, Path(scratch))
        files = _files(fat, contents)
        wheels = described.Wheels(
            distribution=contents.package,
            version=str(old.version),
            targets=contents.targets,
            groups=tuple(sorted(set(files) - set(contents.targets))),
            rocm=rocm,
        )
        finished = Path(scratch) / "wheels"
        finished.mkdir()
        made = [_host(fat, contents, wheels, files, finished)]
        for gpu in (*wheels.targets, *wheels.groups):
            made.append(_device(fat, contents, wheels, gpu, files.get(gpu, ()), finished))  # noqa: PERF401 - long
        require_whole(fat_wheel, made, contents.code)
        # only wheels that passed get their names in the folder
        return tuple(one.replace(out_dir / one.name) for one in made)


def _survey(wheel: Path) -> _Fat:
    with zip_members.opened(wheel) as archive:
        listing = require_listing(wheel, archive)
    infos = {info.filename: info for info, _ in listing.files}
    moment = infos[f"{listing.folder}/METADATA"].date_time
    return _Fat(path=wheel, folder=listing.folder, infos=infos, epoch=calendar.timegm((*moment, 0, 0, 0)))


def _files(fat: _Fat, contents: Contents) -> Mapping[str, Sequence[str]]:
    """Say which members besides libraries go into whose wheel."""
    inside = f"{contents.package}/"
    found: dict[str, list[str]] = {}
    for name in sorted(fat.infos):
        if name.startswith(inside) and name not in contents.hosts:
            gpu = gpu_of(name.removeprefix(inside), contents.targets)
            if gpu:
                found.setdefault(gpu, []).append(name)
    return found


def _host(
    fat: _Fat,
    contents: Contents,
    wheels: described.Wheels,
    files: Mapping[str, Sequence[str]],
    folder: Path,
) -> Path:
    def edit(member: str, content: bytes) -> bytes:
        if member != f"{fat.folder}/METADATA":
            return content
        return described.host_metadata(content, wheels)

    members = tuple(
        Member(name=name, source=path, executable=is_executable(fat.infos[name]))
        for name, path in sorted(contents.hosts.items())
    )
    additions = Additions(
        members=members, dropped=frozenset(name for names in files.values() for name in names)
    )
    return edit_wheel(
        fat.path, folder, version=wheels.version, edit=edit, additions=additions, epoch=fat.epoch
    ).file.path


def _device(
    fat: _Fat,
    contents: Contents,
    wheels: described.Wheels,
    gpu: str,
    files: Sequence[str],
    folder: Path,
) -> Path:
    name = described.device_package(wheels.distribution, gpu)
    _, _, tag = fat.path.name.removesuffix(".whl").split("-", 2)
    build = parse_wheel_name(fat.path.name).build_tag
    spec = WheelSpec(
        distribution=name,
        version=wheels.version,
        tag=tag.partition("-")[2] if build else tag,
        metadata=described.device_metadata(read_metadata(fat.path), wheels, gpu),
        purelib=read_wheel_info(fat.path).root_is_purelib,
    )
    code = [one for one in contents.code if processor(one.target) == gpu]
    members = [_archive(contents.package, gpu, code, folder)] if code else []
    borrowed = {
        **{file: file for file in files},
        **described.licence_members(fat.infos, fat.folder, f"{file_stem(name, wheels.version)}.dist-info"),
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
