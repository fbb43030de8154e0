"""Stand-alone ("fat") wheels: torch with the part of ROCm that it needs inside."""

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
from pytorch_build.standalone.libraries import from_folder, read_file, read_members, with_search_path
from pytorch_build.standalone.needs import Follower, Machine, load_table
from pytorch_build.standalone.texts import licenses_of
from rocm_packaging.packages.layouts import device_target, library_globs

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterable, Mapping, Sequence

    from packaging.version import Version

    from core.wheel.writer import WrittenFile
    from pytorch_build.standalone.libraries import Binary, Platform, Rocm, RocmFile
    from pytorch_build.standalone.needs import Bundle
    from pytorch_build.standalone.texts import Held


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
    """What was made."""

    file: WrittenFile
    rocm: str
    bundle: Bundle
    own: int


@dataclass(frozen=True, kw_only=True)
class _Wheel:
    """A wheel as far as it must be known."""

    path: Path
    platform: Platform
    package: str
    infos: Mapping[str, zipfile.ZipInfo]
    dist_info: str
    asked: texts.Asked
    extras: Sequence[str]


def make(request: Request) -> Result:
    """Make a stand-alone wheel."""
    table = load_table()
    old = parse_wheel_name(request.wheel.name).version
    new = texts.standalone_version(old, table.label)
    wheel = _read(request.wheel)
    device_code = _device_code(wheel, old, request)
    rocm = from_folder(
        request.rocm,
        platform=wheel.platform,
        version=wheel.asked.version,
        family=request.family,
        targets=request.targets,
    )
    binaries = read_members(wheel.path, wheel.infos.values())
    follower = Follower(
        rocm=rocm,
        table=table,
        machine=_machine(wheel.platform, request.system_libraries),
        targets=request.targets,
        read=read_file,
    )
    first = _first(wheel, rocm, follower, binaries)
    bundle = follower.follow(first)
    held = licenses_of(
        {one.source for one in {**bundle.libraries, **bundle.data}.values() if one.info is not None}
    )
    changed = _texts(wheel, [one.path for one in first], old, new, held)

    def edit(member: str, content: bytes) -> bytes:
        return changed.get(member, content)

    with tempfile.TemporaryDirectory(prefix="fat-wheel-") as scratch:
        folder = f"{wheel.package}/{texts.FOLDER}"
        edited = edit_wheel(
            wheel.path,
            request.output,
            version=new,
            edit=edit,
            additions=_additions(
                bundle,
                folder,
                Path(scratch),
                [device_code, _placed(held, f"{wheel.dist_info.partition('-')[0]}-{new}.dist-info")],
            ),
            epoch=request.epoch,
        )
    return Result(
        file=edited.file,
        rocm=" ".join(filter(None, ("ROCm", rocm.version, "of", rocm.origin))),
        bundle=bundle,
        own=len(binaries),
    )


def platform_of(path: Path) -> Platform:
    """Say what a wheel is for, by its tags."""
    platforms = {tag.platform for tag in parse_wheel_name(path.name).tags}
    if any(one.startswith("win") for one in platforms):
        return "windows"
    if any(one.startswith(("linux", "manylinux")) for one in platforms):
        return "linux"
    raise UsageError(
        f"{path.name} is neither for Linux nor for Windows.", hint="Give a wheel with ROCm code."
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
        platform=platform,
        package=posixpath.dirname(found[0]),
        infos=infos,
        dist_info=listing.folder,
        asked=texts.read_rocm_init(text, f"{path.name}: {found[0]}"),
        extras=texts.device_extras(metadata.partition("\n\n")[0].splitlines()),
    )


def _device_code(wheel: _Wheel, version: Version, request: Request) -> dict[Path, dict[str, str]]:
    """List what comes of a host wheel's device wheels, each file to its own place."""
    named = {path: parse_wheel_name(path.name) for path in request.devices}
    held = {device_target(name.distribution) for name in named.values()}
    known = [one.removeprefix("device-") for one in wheel.extras if one != "device-all"]
    # of a family's targets those that it was built for; of others' none would be an answer
    wanted = [one for one in known if one in request.targets] or known
    absent = [one for one in wanted if one not in held]
    strange = [path.name for path, name in named.items() if name.version != version or not wheel.extras]
    if absent:
        raise WheelError(
            f"{wheel.path.name} is a host wheel, and its device code for {', '.join(absent)} is not given.",
            hint="Name its device wheels beside it, or other targets (--gpu-targets).",
        )
    if strange:
        raise WheelError(
            f"{strange[0]} holds no device code of {wheel.path.name}.", hint="Name wheels of one build."
        )
    found: dict[Path, dict[str, str]] = {}
    for path in named:
        with zip_reader.opened(path) as archive:
            listing = require_listing(path, archive)
        names = (info.filename for info, _ in listing.files)
        found[path] = {name: name for name in names if not name.startswith(f"{listing.folder}/")}
    return found


def _machine(platform: Platform, more: Sequence[str]) -> Machine:
    table, policy = load_table(), load_policy()
    if platform == "windows":
        return Machine(
            promised=tuple(more),
            has=lambda name: origin(name, policy.windows) not in {"", "debug"},
            searches=False,
        )
    promised = (*policy.system_libraries, *table.system.linux, *more)
    return Machine(promised=promised, usual=policy.machine_libraries)


def _first(wheel: _Wheel, rocm: Rocm, follower: Follower, binaries: Mapping[str, Binary]) -> list[RocmFile]:
    """List what is loaded before torch's own libraries: its loader's list, then what these need."""
    first = {one.path: one for one in _preloads(wheel, rocm, follower)}
    inside = _inside(binaries)
    for member, binary in sorted(binaries.items()):
        for name in binary.needed:
            key = name.lower() if wheel.platform == "windows" else name
            if key in inside or follower.is_promised(name):
                continue
            found = follower.find(name)
            if found is not None:
                first.setdefault(found.path, found)
            elif not follower.of_machine(name, member):
                follower.lack(name, member)
    if not first:
        raise WheelError(f"{wheel.path.name} needs nothing of ROCm.", hint="Give a wheel with ROCm code.")
    return list(first.values())


def _preloads(wheel: _Wheel, rocm: Rocm, follower: Follower) -> list[RocmFile]:
    """Find what the wheel's loader asks for by short names."""
    globs = library_globs(wheel.platform)
    unknown = [name for name in wheel.asked.names if name not in globs]
    if unknown:
        said = f"{wheel.path.name} loads {unknown[0]!r}, which is no library of ROCm."
        raise RocmError(said, hint=nearest(unknown[0], globs))
    found = {name: follower.find_glob(globs[name]) for name in wheel.asked.names}
    absent = [f"{name} ({globs[name]})" for name, one in found.items() if one is None]
    if absent:
        raise RocmError(
            f"{rocm.origin} lacks libraries that {wheel.path.name} loads first: {', '.join(absent)}.",
            hint="Name the ROCm that the wheel was built with: --rocm PATH or --run-id RUN.",
        )
    return [one for one in found.values() if one is not None]


def _inside(binaries: Mapping[str, Binary]) -> set[str]:
    names = {PurePosixPath(path).name for path in binaries} | {one.name for one in binaries.values()}
    return names | {name.lower() for name in names}


def _placed(held: Held, dist_info: str) -> dict[Path, dict[str, str]]:
    """Say which licence files are taken of ROCm's wheels, and where they go."""
    return {
        wheel: {member: f"{dist_info}/licenses/{path}" for member, path in names.items()}
        for wheel, names in held.files.items()
    }


def _texts(wheel: _Wheel, first: Iterable[str], old: Version, new: str, held: Held) -> dict[str, bytes]:
    """Make the new content of the files that change."""
    where = wheel.path.name
    metadata, module = f"{wheel.dist_info}/METADATA", f"{wheel.package}/version.py"
    start = f"{wheel.package}/__init__.py"
    windows = wheel.platform == "windows"
    with zip_reader.opened(wheel.path) as archive:
        changed = {
            f"{wheel.package}/{_INIT}": texts.standalone_init(list(first), windows=windows).encode(),
            metadata: texts.standalone_metadata(
                read_text_member(wheel.path, archive, metadata),
                new,
                expression=held.expression,
                license_files=held.paths,
            ),
        }
        if module in wheel.infos:
            content = read_text_member(wheel.path, archive, module)
            changed[module] = texts.standalone_module(content, old, new)
        if windows:
            if start not in wheel.infos:
                raise WheelError(f"{where} holds no {start}.")
            content = read_text_member(wheel.path, archive, start)
            changed[start] = texts.patched_torch_init(content.decode(), f"{where}: {start}").encode()
    return changed


def _additions(
    bundle: Bundle, folder: str, scratch: Path, more: Iterable[Mapping[Path, Mapping[str, str]]]
) -> Additions:
    """Say how each file gets into the wheel: as it is compressed, as all of `more` is, or compressed now."""
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
            members.append(
                Member(name=name, source=file.source, executable=bool(file.source.stat().st_mode & 0o111))
            )
        else:
            borrowed.setdefault(file.source, {})[file.info.filename] = name
    return Additions(members=tuple(members), borrowed=borrowed)
