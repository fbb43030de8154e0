"""A fat wheel, split into a host wheel and device wheels, with the device code of one GPU target each.

`plan_split` reads the fat wheel once and decides what becomes of it; `write_wheels` writes that.
`split_wheel` does both, and verifies the finished wheels before they get their names.
"""

from __future__ import annotations

import calendar
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from core import temporary
from core.archive import DeferredFile, Member
from core.errors import UsageError, WheelError
from core.wheel import WheelMetadata, parse_wheel_name, read_metadata, read_wheel_info
from core.wheel.editor import Additions, assemble_wheel, edit_wheel
from core.wheel.record import require_listing
from core.wheel.writer import WheelSpec
from pytorch_build.check.device_code import processor
from pytorch_build.split.gpu_files import gpu_of_file
from pytorch_build.split.layout import (
    SplitLayout,
    device_metadata,
    host_metadata,
    license_members,
    required_rocm,
    tag_of,
)
from pytorch_build.split.take_apart import CodeObject, take_apart
from pytorch_build.split.verify import require_whole
from rocm_packaging.packages import kpack

if TYPE_CHECKING:
    from core.archive.zips import ZipMember

_NO_SEARCH_PATHS: Mapping[str, Sequence[str]] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """The wheels that a fat wheel is split into, and what each of them gets.

    Attributes:
        fat_wheel: The wheel.
        metadata: Its METADATA.
        dist_info: Its ``.dist-info`` folder.
        members: Its files, by name.
        libraries: What becomes of the libraries that change, by member.
        code_objects: Their device code.
        device_files: The members that move to the device wheel of a target or group, by that.
        layout: The wheels that it becomes.
        epoch: The time of all members of these wheels.
    """

    fat_wheel: Path
    metadata: WheelMetadata
    dist_info: str
    members: Mapping[str, ZipMember]
    libraries: Mapping[str, Path]
    code_objects: Sequence[CodeObject]
    device_files: Mapping[str, Sequence[str]]
    layout: SplitLayout
    epoch: int


def split_wheel(
    fat_wheel: Path,
    output: Path,
    *,
    rocm_version: str | None = None,
    new_search_paths: Mapping[str, Sequence[str]] = _NO_SEARCH_PATHS,
    epoch: int | None = None,
) -> tuple[Path, ...]:
    """Split a fat wheel, and verify that the new wheels hold what it held; return them, the host first.

    Args:
        fat_wheel: The wheel.
        output: The folder for the new ones, which is not that of the wheel.
        rocm_version: The version of ROCm's device packages (default: of ROCm as the wheel requires it).
        new_search_paths: Search paths (DT_RPATH) of members; other libraries keep theirs.
        epoch: The time of the new wheels' members (default: that of the wheel's METADATA).
    """
    if output.resolve() == fat_wheel.parent.resolve():
        raise UsageError(
            f"The host wheel takes the name of {fat_wheel.name}, so it needs another folder.",
            hint="Choose one with --output-dir.",
        )
    output.mkdir(
        parents=True,
        exist_ok=True,
    )
    with temporary.folder("split", within=output) as scratch:
        plan = plan_split(
            fat_wheel,
            scratch,
            rocm_version=rocm_version,
            new_search_paths=new_search_paths,
            epoch=epoch,
        )
        finished = scratch / "wheels"
        finished.mkdir()
        wheels = write_wheels(plan, finished)
        require_whole(fat_wheel, wheels, plan.code_objects)
        # Only wheels that passed get their names in the folder.
        return tuple(wheel.replace(output / wheel.name) for wheel in wheels)


def plan_split(
    fat_wheel: Path,
    scratch: Path,
    *,
    rocm_version: str | None = None,
    new_search_paths: Mapping[str, Sequence[str]] = _NO_SEARCH_PATHS,
    epoch: int | None = None,
) -> SplitPlan:
    """Take the device code out of a fat wheel into a folder, and return the plan of the new wheels."""
    metadata = read_metadata(fat_wheel)
    rocm_version = rocm_version or required_rocm(metadata.requires_dist)
    if rocm_version is None:
        raise UsageError(
            f"{fat_wheel.name} does not say which ROCm it was built against.",
            hint="Set --rocm-version V.",
        )
    listing = require_listing(fat_wheel)
    members = listing.by_name
    distribution = parse_wheel_name(fat_wheel.name).distribution
    libraries, code_objects = take_apart(fat_wheel, scratch, new_search_paths)
    targets = tuple(sorted({processor(code_object.target) for code_object in code_objects}))
    device_files: dict[str, list[str]] = {}
    for name in sorted(members.keys() - libraries.keys()):
        if not name.startswith(f"{distribution}/"):
            continue
        target_or_group = gpu_of_file(name.removeprefix(f"{distribution}/"), targets)
        if target_or_group is not None:
            device_files.setdefault(target_or_group, []).append(name)

    if epoch is None:
        modified = members[f"{listing.folder}/METADATA"].modified
        epoch = calendar.timegm((*modified, 0, 0, 0))
    return SplitPlan(
        fat_wheel=fat_wheel,
        metadata=metadata,
        dist_info=listing.folder,
        members=members,
        libraries=libraries,
        code_objects=code_objects,
        device_files=device_files,
        layout=SplitLayout(
            distribution=distribution,
            version=str(metadata.version),
            targets=targets,
            groups=tuple(sorted(device_files.keys() - set(targets))),
            rocm_version=rocm_version,
        ),
        epoch=epoch,
    )


def write_wheels(plan: SplitPlan, folder: Path) -> list[Path]:
    """Write the wheels of a plan into a folder, and return their paths, the host first."""
    device_wheels = [_write_device_wheel(plan, gpu, folder) for gpu in plan.layout.gpus]
    return [_write_host(plan, folder), *device_wheels]


def _write_host(plan: SplitPlan, folder: Path) -> Path:
    """Write the host wheel, which lacks device code and the device wheels' files, and return its path."""
    # Libraries without device code, which get another search path alone, come first.
    with_device_code = {code_object.member for code_object in plan.code_objects}
    libraries = [name for name in sorted(plan.libraries) if name not in with_device_code]
    libraries += sorted(with_device_code)
    new_members: list[Member] = []
    for name in libraries:
        path = plan.libraries[name]
        new_members.append(Member(name=name, source=path, executable=plan.members[name].is_executable))
    dropped_names: set[str] = set()
    for names in plan.device_files.values():
        dropped_names.update(names)

    new_texts = {f"{plan.dist_info}/METADATA": host_metadata(plan.metadata.raw, plan.layout)}
    host = edit_wheel(
        plan.fat_wheel,
        folder,
        version=plan.layout.version,
        additions=Additions(
            members=tuple(new_members), texts=new_texts, dropped_names=frozenset(dropped_names)
        ),
        epoch=plan.epoch,
    )
    return host.path


def _write_device_wheel(
    plan: SplitPlan,
    gpu: str,
    folder: Path,
) -> Path:
    """Write the device wheel of a target or group, and return its path."""
    spec = WheelSpec(
        distribution=plan.layout.device_distribution(gpu),
        version=plan.layout.version,
        tag=tag_of(plan.fat_wheel.name),
        metadata=device_metadata(plan.metadata, plan.layout, gpu),
        purelib=read_wheel_info(plan.fat_wheel).root_is_purelib,
    )
    members: list[Member] = []
    code_objects = [code_object for code_object in plan.code_objects if processor(code_object.target) == gpu]
    if code_objects:
        members.append(_kernel_archive(plan.layout.distribution, gpu, code_objects, folder))

    copied_names = {name: name for name in plan.device_files.get(gpu, ())}
    copied_names.update(license_members(plan.members, plan.dist_info, spec.info))
    wheel = assemble_wheel(
        folder,
        spec,
        members,
        new_names_by_wheel={plan.fat_wheel: copied_names},
        epoch=plan.epoch,
    )
    return wheel.path


def _kernel_archive(
    package: str,
    gpu: str,
    code_objects: Sequence[CodeObject],
    folder: Path,
) -> Member:
    """Return a target's kernel archive as a member of its wheel, written when its turn comes."""

    def write() -> Path:
        """Write the kernel archive, and return its path."""
        path = folder / f"{gpu}{kpack.SUFFIX}"
        kernels: list[tuple[kpack.Kernel, int]] = []
        for code_object in code_objects:
            kernel = kpack.Kernel(
                binary=code_object.binary(package), target=code_object.target, size=code_object.size
            )
            kernels.append((kernel, code_object.length))
        with path.open("wb") as stream:
            try:
                kpack.write(
                    stream,
                    package,
                    gpu,
                    (code_object.read_zstd_frame() for code_object in code_objects),
                    kernels,
                )
            except kpack.KpackError as problem:
                raise WheelError(f"{path.name}: {problem}.", hint="Build for fewer libraries.") from problem
        return path

    size = sum(code_object.length for code_object in code_objects)
    name = f"{package}/{kpack.archive_name(package, gpu)}"
    return Member(
        name=name,
        source=DeferredFile(size=size, make=write),
    )
