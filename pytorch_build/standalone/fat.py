"""From a torch wheel and a ROCm to a stand-alone ("fat") wheel: torch with the part of ROCm that it needs."""

from __future__ import annotations

import posixpath
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from core.archive import Member, zip_reader
from core.errors import RocmError, UsageError, WheelError, nearest
from core.wheel import parse_wheel_name, read_text_member
from core.wheel.editor import Additions, edit_wheel
from core.wheel.record import require_listing
from pytorch_build.check.dlls import origin
from pytorch_build.check.policy import load_policy
from pytorch_build.standalone import texts
from pytorch_build.standalone.libraries import (
    from_folder,
    listing_of,
    read_file,
    read_members,
    with_search_path,
)
from pytorch_build.standalone.needs import Follower, Machine, load_table
from rocm_packaging.packages.layouts import device_target, library_globs

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterable, Mapping, Sequence

    from packaging.version import Version

    from core.wheel.writer import WrittenFile
    from pytorch_build.standalone.libraries import Platform, RocmFile
    from pytorch_build.standalone.needs import Bundle

_INIT = "_rocm_init.py"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be made."""

    wheel: Path
    rocm: Path
    output: Path
    family: str = ""
    targets: tuple[str, ...] = ()
    devices: tuple[Path, ...] = ()
    system_libraries: tuple[str, ...] = ()
    epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was made, of which ROCm."""

    file: WrittenFile
    rocm: str
    bundle: Bundle


@dataclass(frozen=True, kw_only=True)
class _Wheel:
    """The torch wheel as far as it must be known."""

    path: Path
    version: Version
    platform: Platform
    package: str
    infos: Mapping[str, zipfile.ZipInfo]
    dist_info: str
    loader: texts.Loader
    extras: Sequence[str]


def make(request: Request) -> Result:
    """Make a stand-alone wheel."""
    table = load_table()
    new = texts.standalone_version(parse_wheel_name(request.wheel.name).version, table.label)
    wheel = _read(request.wheel)
    device_code = _device_code(wheel, request)
    rocm = from_folder(
        request.rocm,
        platform=wheel.platform,
        version=wheel.loader.version,
        family=request.family,
        targets=request.targets,
    )
    follower = Follower(
        rocm=rocm,
        table=table,
        machine=_machine(wheel.platform, request.system_libraries),
        targets=request.targets,
        read=read_file,
    )
    first = _first(wheel, follower)
    bundle = follower.follow(first)
    files = {**bundle.libraries, **bundle.data}
    licenses = texts.licenses_of({one.source for one in files.values() if one.info is not None})
    changed = _changed(wheel, [one.path for one in first], new, licenses)
    place = f"{wheel.dist_info.partition('-')[0]}-{new}.dist-info/licenses"
    placed = {
        source: {member: f"{place}/{path}" for member, path in names.items()}
        for source, names in licenses.files.items()
    }
    with tempfile.TemporaryDirectory(prefix="fat-wheel-") as scratch:
        folder = f"{wheel.package}/{texts.FOLDER}"
        edited = edit_wheel(
            wheel.path,
            request.output,
            version=new,
            edit=changed.get,
            additions=_additions(bundle, folder, Path(scratch), [device_code, placed]),
            epoch=request.epoch,
        )
    name = " ".join(filter(None, ("ROCm", rocm.version, "of", rocm.origin)))
    return Result(file=edited.file, rocm=name, bundle=bundle)


def platform_of(path: Path) -> Platform:
    """Return what a wheel is for, by its tags."""
    starts: dict[Platform, tuple[str, ...]] = {"windows": ("win",), "linux": ("linux", "manylinux")}
    for platform, start in starts.items():
        if any(tag.platform.startswith(start) for tag in parse_wheel_name(path.name).tags):
            return platform
    raise UsageError(
        f"{path.name} is neither for Linux nor for Windows.", hint="Choose a wheel with ROCm code."
    )


def _read(path: Path) -> _Wheel:
    platform = platform_of(path)
    with zip_reader.opened(path) as archive:
        listing = require_listing(path, archive)
        infos = {info.filename: info for info, _ in listing.files}
        found = [name for name in infos if name.count("/") == 1 and name.endswith(f"/{_INIT}")]
        if len(found) != 1:
            raise WheelError(
                f"{path.name} has {len(found)} files {_INIT} in its packages, and one is what loads ROCm.",
                hint="It is not built against ROCm's wheels. Build one: nox -s build_torch.",
            )
        text = read_text_member(path, archive, found[0]).decode()
        metadata = read_text_member(path, archive, f"{listing.folder}/METADATA").decode()
    return _Wheel(
        path=path,
        version=parse_wheel_name(path.name).version,
        platform=platform,
        package=posixpath.dirname(found[0]),
        infos=infos,
        dist_info=listing.folder,
        loader=texts.read_rocm_init(text, f"{path.name}: {found[0]}"),
        extras=texts.device_extras(metadata.partition("\n\n")[0].splitlines()),
    )


def _device_code(wheel: _Wheel, request: Request) -> dict[Path, dict[str, str]]:
    """List what comes of a host wheel's device wheels, each file to its own place."""
    named = {path: parse_wheel_name(path.name) for path in request.devices}
    held = {device_target(name.distribution) for name in named.values()}
    known = [one.removeprefix("device-") for one in wheel.extras if one != "device-all"]
    # of a family's targets those that it was built for
    wanted = [one for one in known if one in request.targets] or known
    absent = [one for one in wanted if one not in held]
    strange = [path.name for path, name in named.items() if name.version != wheel.version or not wheel.extras]
    if absent:
        raise WheelError(
            f"{wheel.path.name} is a host wheel, and its device code for {', '.join(absent)} is not given.",
            hint="Name its device wheels beside it, or other targets (--gpu-targets).",
        )
    if strange:
        raise WheelError(
            f"{strange[0]} holds no device code of {wheel.path.name}.", hint="Name wheels of one build."
        )
    found = {}
    for path, listing in ((path, listing_of(path)) for path in named):
        names = [info.filename for info, _ in listing.files]
        found[path] = {name: name for name in names if not name.startswith(f"{listing.folder}/")}
    return found


def _machine(platform: Platform, more: Sequence[str]) -> Machine:
    policy = load_policy()
    if platform == "windows":
        return Machine(
            promised=tuple(more),
            has=lambda name: origin(name, policy.windows) not in {"", "debug"},
            searches=False,
        )
    promised = (*policy.system_libraries, *load_table().system.linux, *more)
    return Machine(promised=promised, usual=policy.machine_libraries)


def _first(wheel: _Wheel, follower: Follower) -> list[RocmFile]:
    """List what is loaded before torch's own libraries: its loader's list, then what these need."""
    first = {one.path: one for one in _preloads(wheel, follower)}
    binaries = read_members(wheel.path, wheel.infos.values())
    names = {PurePosixPath(path).name for path in binaries} | {one.name for one in binaries.values()}
    inside = names | {name.lower() for name in names}
    for member, binary in sorted(binaries.items()):
        for name in binary.needed:
            key = name.lower() if wheel.platform == "windows" else name
            if key in inside or follower.is_promised(name):
                continue
            if found := follower.need(name, member):
                first.setdefault(found.path, found)
    if not first:
        raise WheelError(f"{wheel.path.name} needs nothing of ROCm.", hint="Choose a wheel with ROCm code.")
    return list(first.values())


def _preloads(wheel: _Wheel, follower: Follower) -> list[RocmFile]:
    """Find what the wheel's loader loads by short names."""
    globs = library_globs(wheel.platform)
    unknown = [name for name in wheel.loader.names if name not in globs]
    if unknown:
        raise RocmError(
            f"{wheel.path.name} loads {unknown[0]!r}, which is not a library of ROCm.",
            hint=nearest(unknown[0], globs),
        )
    found = {name: follower.find_glob(globs[name]) for name in wheel.loader.names}
    absent = [f"{name} ({globs[name]})" for name, one in found.items() if one is None]
    if absent:
        raise RocmError(
            f"{follower.rocm.origin} lacks libraries that {wheel.path.name} loads first: "
            f"{', '.join(absent)}.",
            hint="Name the ROCm that the wheel was built with: --rocm PATH or --run-id RUN.",
        )
    return [one for one in found.values() if one is not None]


def _changed(wheel: _Wheel, first: Sequence[str], new: str, licenses: texts.Licenses) -> dict[str, bytes]:
    """Make the new content of the files that change."""
    windows = wheel.platform == "windows"
    metadata = f"{wheel.dist_info}/METADATA"
    module, start = f"{wheel.package}/version.py", f"{wheel.package}/__init__.py"
    if windows and start not in wheel.infos:
        raise WheelError(f"{wheel.path.name} holds no {start}.")
    edited = [name for name in (metadata, module, start) if name in wheel.infos]
    with zip_reader.opened(wheel.path) as archive:
        old = {name: read_text_member(wheel.path, archive, name) for name in edited}
    changed = {
        f"{wheel.package}/{_INIT}": texts.standalone_init(first, windows=windows).encode(),
        metadata: texts.standalone_metadata(old[metadata], new, licenses),
    }
    if module in old:
        changed[module] = texts.standalone_module(old[module], wheel.version, new)
    if windows:
        where = f"{wheel.path.name}: {start}"
        changed[start] = texts.patched_torch_init(old[start].decode(), where).encode()
    return changed


def _additions(
    bundle: Bundle, folder: str, scratch: Path, more: Iterable[Mapping[Path, Mapping[str, str]]]
) -> Additions:
    """Choose how each file gets into the wheel: compressed as it is, as all of `more` is, or now."""
    members: list[Member] = []
    borrowed: dict[Path, dict[str, str]] = {}
    for wheel, names in (item for one in more for item in one.items()):
        borrowed.setdefault(wheel, {}).update(names)
    for path, file in {**bundle.libraries, **bundle.data}.items():
        name = f"{folder}/{path}"
        if path in bundle.search:
            source = with_search_path(file, bundle.search[path], scratch)
            members.append(Member(name=name, source=source, executable=True))
        elif file.info is None:
            executable = bool(file.source.stat().st_mode & 0o111)
            members.append(Member(name=name, source=file.source, executable=executable))
        else:
            borrowed.setdefault(file.source, {})[file.info.filename] = name
    return Additions(members=tuple(members), borrowed=borrowed)
