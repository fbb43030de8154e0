"""From a torch wheel and a ROCm to a stand-alone ("fat") wheel: torch with the part of ROCm that it needs."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from core import temporary
from core.archive import Member
from core.errors import RocmError, UsageError, WheelError, nearest
from core.files import path_pattern
from core.wheel import metadata_in, parse_wheel_name, read_small_member
from core.wheel.editor import Additions, edit_wheel
from core.wheel.record import require_listing
from pytorch_build.check.dlls import dll_origin
from pytorch_build.check.policy import load_policy
from pytorch_build.standalone import libraries, texts
from pytorch_build.standalone.needs import MachineLibraries, RocmBundle, RocmBundleBuilder, load_table
from rocm_packaging.packages.layouts import device_target, library_globs

if TYPE_CHECKING:
    from packaging.version import Version

    from core.run import Platform
    from core.wheel.record import WheelListing
    from core.wheel.writer import WrittenFile
    from pytorch_build.standalone.libraries import RocmFile
    from pytorch_build.standalone.texts import Licenses, Loader

    # wheels -> their members -> the names of these in the new wheel
    MembersByWheel = Mapping[Path, Mapping[str, str]]

FOLDER = "lib/rocm"
"""Where ROCm lies in torch's package, on both platforms."""
_INIT = "_rocm_init.py"
_PLATFORMS: tuple[Platform, ...] = ("windows", "linux")


@dataclass(frozen=True, kw_only=True)
class FatWheelRequest:
    """A stand-alone wheel to make: the torch wheel, the ROCm, and for which GPUs."""

    wheel: Path
    rocm: Path
    output: Path
    family: str = ""
    targets: tuple[str, ...] = ()
    device_wheels: tuple[Path, ...] = ()
    system_libraries: tuple[str, ...] = ()
    epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class FatWheel:
    """A stand-alone wheel that was made, the ROCm that it is of, and which files of it."""

    file: WrittenFile
    rocm: str
    bundle: RocmBundle


@dataclass(frozen=True, kw_only=True)
class TorchWheel:
    """What making a stand-alone wheel takes from a torch wheel: version, members, ROCm's loader."""

    path: Path
    version: Version
    platform: Platform
    package: str
    listing: WheelListing
    loader: Loader
    device_extras: Sequence[str]


def make_fat_wheel(request: FatWheelRequest) -> FatWheel:
    """Write a stand-alone wheel: the torch wheel with those files of ROCm that it needs."""
    table = load_table()
    version = texts.standalone_version(parse_wheel_name(request.wheel.name).version, table.label)
    wheel = _read_torch_wheel(request.wheel)
    device_members = _device_members(wheel, request)

    rocm = libraries.read_rocm(
        request.rocm,
        platform=wheel.platform,
        version=wheel.loader.version,
        family=request.family,
        targets=request.targets,
    )
    builder = RocmBundleBuilder(
        rocm=rocm,
        table=table,
        machine=_machine_libraries_of(wheel.platform, request.system_libraries),
        targets=request.targets,
        read=libraries.read_rocm_file,
    )
    loaded_first = _files_loaded_first(wheel, builder)
    bundle = builder.build(loaded_first)

    licenses = texts.read_licenses(bundle.wheels)
    copied_members = {**device_members, **_members_of_rocm(wheel, version, licenses, bundle)}

    new_texts = _new_texts(wheel, [file.path_in_bundle for file in loaded_first], version, licenses)
    with temporary.folder("fat-wheel") as scratch:
        members = _compressed_members(wheel, bundle, scratch)
        written_file = edit_wheel(
            wheel.path,
            request.output,
            version=version,
            additions=Additions(members=members, texts=new_texts, new_names_by_wheel=copied_members),
            epoch=request.epoch,
        )
    release = f"ROCm {rocm.version}".strip()
    return FatWheel(
        file=written_file,
        rocm=f"{release} of {rocm.origin}",
        bundle=bundle,
    )


def platform_of(path: Path) -> Platform:
    """Return the platform that a wheel's tags are for; neither Linux nor Windows is an error."""
    wheel_name = parse_wheel_name(path.name)
    for platform in _PLATFORMS:
        if libraries.is_for_platform(wheel_name, platform):
            return platform
    raise UsageError(
        f"{path.name} is neither for Linux nor for Windows.", hint="Choose a wheel with ROCm code."
    )


# The torch wheel and its device wheels


def _read_torch_wheel(path: Path) -> TorchWheel:
    """Return what making a stand-alone wheel takes from a torch wheel, which must load ROCm."""
    platform = platform_of(path)
    listing = require_listing(path)
    # `?*/` is a folder at the top of the wheel.
    loader_name = path_pattern(f"?*/{_INIT}")
    loaders = list(filter(loader_name.fullmatch, listing.by_name))
    if len(loaders) != 1:
        raise WheelError(
            f"{path.name} has {len(loaders)} files {_INIT} in its packages, and one is what loads ROCm.",
            hint="It is not built against ROCm's wheels. Build one: nox -s build_torch.",
        )

    loader = loaders[0]
    loader_text = read_small_member(listing.archive, loader).decode()
    extras = metadata_in(listing.archive).provides_extra
    return TorchWheel(
        path=path,
        version=parse_wheel_name(path.name).version,
        platform=platform,
        package=posixpath.dirname(loader),
        listing=listing,
        loader=texts.read_rocm_init(loader_text, f"{path.name}: {loader}"),
        device_extras=[extra for extra in extras if extra.startswith("device-")],
    )


def _device_members(wheel: TorchWheel, request: FatWheelRequest) -> MembersByWheel:
    """Return the members of a host wheel's device wheels, by wheel, each with its name in the new wheel."""
    _require_device_code(wheel, request)
    members: dict[Path, dict[str, str]] = {}
    for path in request.device_wheels:
        if parse_wheel_name(path.name).version != wheel.version or not wheel.device_extras:
            raise WheelError(
                f"{path.name} holds no device code of {wheel.path.name}.",
                hint="Name wheels of one build.",
            )

        listing = require_listing(path)
        members[path] = {}
        for member in listing.members:
            if not member.name.startswith(f"{listing.folder}/"):
                members[path][member.name] = member.name
    return members


def _require_device_code(wheel: TorchWheel, request: FatWheelRequest) -> None:
    """Fail where no device wheel is given for a target that the host wheel was built for."""
    wheel_targets = {extra.removeprefix("device-") for extra in wheel.device_extras}
    wheel_targets.discard("all")
    # A family has targets that the wheel was not built for.
    required_targets = wheel_targets.intersection(request.targets) or wheel_targets

    missing_targets = set(required_targets)
    for path in request.device_wheels:
        missing_targets.discard(device_target(parse_wheel_name(path.name).distribution))
    if missing_targets:
        targets = ", ".join(sorted(missing_targets))
        raise WheelError(
            f"{wheel.path.name} is a host wheel, and its device code for {targets} is not given.",
            hint="Name its device wheels beside it, or other targets (--gpu-targets).",
        )


# What is taken of ROCm


def _machine_libraries_of(platform: Platform, system_libraries: Sequence[str]) -> MachineLibraries:
    """Return which libraries machines of a platform have by themselves."""
    policy = load_policy()
    if platform == "windows":
        return MachineLibraries(
            on_every_machine=tuple(system_libraries),
            has_library=lambda name: dll_origin(name, policy.windows) not in {None, "debug"},
            has_search_paths=False,
        )
    on_every_machine = (*policy.system_libraries, *load_table().linux_libraries, *system_libraries)
    return MachineLibraries(
        on_every_machine=on_every_machine,
        on_most_machines=policy.machine_libraries,
    )


def _files_loaded_first(wheel: TorchWheel, builder: RocmBundleBuilder) -> list[RocmFile]:
    """Return ROCm's files that are loaded before torch's libraries, as these need them."""
    loaded_first = {file.path_in_bundle: file for file in _preloaded_files(wheel, builder)}
    binaries = libraries.read_members(wheel.path, wheel.listing.members)
    names_in_wheel: set[str] = set()
    for member, binary in binaries.items():
        names_in_wheel.add(builder.comparison_key(PurePosixPath(member).name))
        names_in_wheel.add(builder.comparison_key(binary.name))

    for member, binary in sorted(binaries.items()):
        for name in binary.needed:
            if builder.comparison_key(name) in names_in_wheel or builder.is_on_every_machine(name):
                continue
            needed_file = builder.find_needed(name, member)
            if needed_file is not None:
                loaded_first.setdefault(needed_file.path_in_bundle, needed_file)

    if not loaded_first:
        raise WheelError(f"{wheel.path.name} needs nothing of ROCm.", hint="Choose a wheel with ROCm code.")
    return list(loaded_first.values())


def _preloaded_files(wheel: TorchWheel, builder: RocmBundleBuilder) -> list[RocmFile]:
    """Return ROCm's libraries that the torch wheel's loader loads by name."""
    globs = library_globs(wheel.platform)
    preloaded_files: list[RocmFile] = []
    missing_libraries: list[str] = []
    for name in wheel.loader.names:
        if name not in globs:
            raise RocmError(
                f"{wheel.path.name} loads {name!r}, which is not a library of ROCm.",
                hint=nearest(name, globs),
            )
        file = builder.find_library(globs[name])
        if file is None:
            missing_libraries.append(f"{name} ({globs[name]})")
        else:
            preloaded_files.append(file)

    if missing_libraries:
        names = ", ".join(missing_libraries)
        raise RocmError(
            f"{builder.rocm.origin} lacks libraries that {wheel.path.name} loads first: {names}.",
            hint="Name the ROCm that the wheel was built with: --rocm PATH or --run-id RUN.",
        )
    return preloaded_files


# The new wheel


def _new_texts(
    wheel: TorchWheel,
    loaded_first: Sequence[str],
    version: str,
    licenses: Licenses,
) -> dict[str, bytes]:
    """Return the contents of changed text files by member: METADATA, version, loader, ``__init__``."""
    archive = wheel.listing.archive
    is_windows = wheel.platform == "windows"
    new_texts: dict[str, bytes] = {}

    metadata = f"{wheel.listing.folder}/METADATA"
    old_metadata = read_small_member(archive, metadata)
    new_texts[metadata] = texts.standalone_metadata(old_metadata, version, licenses)

    rocm_init = f"{wheel.package}/{_INIT}"
    new_texts[rocm_init] = texts.render_rocm_init(loaded_first, windows=is_windows).encode()

    version_module = f"{wheel.package}/version.py"
    if version_module in archive.by_name:
        old_module = read_small_member(archive, version_module)
        new_texts[version_module] = texts.standalone_version_module(old_module, wheel.version, version)

    if is_windows:
        package_init = f"{wheel.package}/__init__.py"
        if package_init not in archive.by_name:
            raise WheelError(f"{wheel.path.name} holds no {package_init}.")
        old_init = read_small_member(archive, package_init).decode()
        new_init = texts.patched_torch_init(old_init, f"{wheel.path.name}: {package_init}")
        new_texts[package_init] = new_init.encode()
    return new_texts


def _members_of_rocm(
    wheel: TorchWheel,
    version: str,
    licenses: Licenses,
    bundle: RocmBundle,
) -> MembersByWheel:
    """Return members of ROCm's wheels that are copied without recompressing, with their new names."""
    distribution = wheel.listing.folder.partition("-")[0]
    folder = f"{distribution}-{version}.dist-info/licenses"
    members: defaultdict[Path, dict[str, str]] = defaultdict(dict)
    for source, paths in licenses.files.items():
        for member, path in paths.items():
            members[source][member] = f"{folder}/{path}"
    for path, file in bundle.files.items():
        if file.member is not None and path not in bundle.search_paths:
            members[file.wheel_or_file][file.member.name] = _name_in_wheel(wheel, path)
    return members


def _compressed_members(
    wheel: TorchWheel,
    bundle: RocmBundle,
    scratch: Path,
) -> tuple[Member, ...]:
    """Return ROCm's files that have to be compressed: of a tree, or with a new search path."""
    members: list[Member] = []
    for path, file in bundle.files.items():
        name = _name_in_wheel(wheel, path)
        if path in bundle.search_paths:
            members.append(
                Member(
                    name=name,
                    source=libraries.with_search_path(file, bundle.search_paths[path], scratch),
                    executable=True,
                )
            )
        elif file.member is None:
            members.append(
                Member(
                    name=name,
                    source=file.wheel_or_file,
                    executable=bool(file.wheel_or_file.stat().st_mode & 0o111),
                )
            )
    return tuple(members)


def _name_in_wheel(wheel: TorchWheel, path: str) -> str:
    """Return the member name of a file of ROCm in the stand-alone wheel."""
    return f"{wheel.package}/{FOLDER}/{path}"
