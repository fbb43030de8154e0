"""From a torch wheel and a ROCm to a stand-alone ("fat") wheel: torch with the part of ROCm that it needs.

Its texts are new: version, requirements, licences, and the Python that loads ROCm.
"""

from __future__ import annotations

import ast
import contextlib
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from core import temporary
from core.archive import Member
from core.archive.zips import read_archive
from core.data import read_text
from core.errors import RocmError, UsageError, WheelError, nearest
from core.wheel import parse_wheel_name, read_metadata, read_text_member
from core.wheel.editor import Additions, edit_wheel
from core.wheel.record import require_listing
from pytorch_build.check import load_policy, required_name
from pytorch_build.check.libraries import origin
from pytorch_build.standalone import libraries
from pytorch_build.standalone.needs import Bundle, Follower, Machine, load_table
from rocm_packaging.packages.layouts import device_target, is_rocm, library_globs
from rocm_packaging.packages.payload import joined

if TYPE_CHECKING:
    from packaging.version import Version

    from core.archive.zips import ZipMember
    from core.run import Platform
    from core.wheel.writer import WrittenFile

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
    members: Mapping[str, ZipMember]
    dist_info: str
    loader: Loader
    extras: Sequence[str]


def make(request: Request) -> Result:
    """Make a stand-alone wheel."""
    table = load_table()
    new = standalone_version(parse_wheel_name(request.wheel.name).version, table.label)
    wheel = _read(request.wheel)
    device_code = _device_code(wheel, request)
    rocm = libraries.from_folder(
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
        read=libraries.read_file,
    )
    first = _first(wheel, follower)
    bundle = follower.follow(first)
    files = {**bundle.libraries, **bundle.data}
    licenses = licenses_of({one.source for one in files.values() if one.member is not None})
    changed = _changed(wheel, [one.path for one in first], new, licenses)
    place = f"{wheel.dist_info.partition('-')[0]}-{new}.dist-info/licenses"
    placed = {
        source: {member: f"{place}/{path}" for member, path in names.items()}
        for source, names in licenses.files.items()
    }
    with temporary.folder("fat-wheel") as scratch:
        folder = f"{wheel.package}/{FOLDER}"
        edited = edit_wheel(
            wheel.path,
            request.output,
            version=new,
            edit=changed.get,
            additions=_additions(bundle, folder, scratch, [device_code, placed]),
            epoch=request.epoch,
        )
    name = " ".join(filter(None, ("ROCm", rocm.version, "of", rocm.origin)))
    return Result(file=edited, rocm=name, bundle=bundle)


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
    listing = require_listing(path)
    members = {member.name: member for member in listing.members}
    found = [name for name in members if name.count("/") == 1 and name.endswith(f"/{_INIT}")]
    if len(found) != 1:
        raise WheelError(
            f"{path.name} has {len(found)} files {_INIT} in its packages, and one is what loads ROCm.",
            hint="It is not built against ROCm's wheels. Build one: nox -s build_torch.",
        )
    text = read_text_member(listing.archive, found[0]).decode()
    return _Wheel(
        path=path,
        version=parse_wheel_name(path.name).version,
        platform=platform,
        package=posixpath.dirname(found[0]),
        members=members,
        dist_info=listing.folder,
        loader=read_rocm_init(text, f"{path.name}: {found[0]}"),
        extras=[one for one in read_metadata(path).provides_extra if one.startswith("device-")],
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
    for path in named:
        listing = require_listing(path)
        names = [member.name for member in listing.members]
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


def _first(wheel: _Wheel, follower: Follower) -> list[libraries.RocmFile]:
    """List what is loaded before torch's own libraries: its loader's list, then what these need."""
    first = {one.path: one for one in _preloads(wheel, follower)}
    binaries = libraries.read_members(wheel.path, wheel.members.values())
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


def _preloads(wheel: _Wheel, follower: Follower) -> list[libraries.RocmFile]:
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


def _changed(wheel: _Wheel, first: Sequence[str], new: str, licenses: Licenses) -> dict[str, bytes]:
    windows = wheel.platform == "windows"
    metadata = f"{wheel.dist_info}/METADATA"
    module, start = f"{wheel.package}/version.py", f"{wheel.package}/__init__.py"
    if windows and start not in wheel.members:
        raise WheelError(f"{wheel.path.name} holds no {start}.")
    edited = [name for name in (metadata, module, start) if name in wheel.members]
    archive = read_archive(wheel.path)
    old = {name: read_text_member(archive, name) for name in edited}
    changed = {
        f"{wheel.package}/{_INIT}": standalone_init(first, windows=windows).encode(),
        metadata: standalone_metadata(old[metadata], new, licenses),
    }
    if module in old:
        changed[module] = standalone_module(old[module], wheel.version, new)
    if windows:
        where = f"{wheel.path.name}: {start}"
        changed[start] = patched_torch_init(old[start].decode(), where).encode()
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
            source = libraries.with_search_path(file, bundle.search[path], scratch)
            members.append(Member(name=name, source=source, executable=True))
        elif file.member is None:
            executable = bool(file.source.stat().st_mode & 0o111)
            members.append(Member(name=name, source=file.source, executable=executable))
        else:
            borrowed.setdefault(file.source, {})[file.member.name] = name
    return Additions(members=tuple(members), borrowed=borrowed)


FOLDER = "lib/rocm"
"""Where ROCm lies in torch's package, on both platforms."""
_DLL_INSERT = 'dll_paths.insert(0, os.path.join(th_dll_path, "rocm", "bin"))'


@dataclass(frozen=True, kw_only=True)
class Licenses:
    """The licences of some wheels: member -> path below ``licenses`` of the new wheel."""

    expression: str
    files: Mapping[Path, Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class Loader:
    """What a wheel's ``_rocm_init.py`` loads by `rocm_sdk`: libraries by short names, of a version."""

    names: tuple[str, ...]
    version: str


def standalone_version(version: Version, label: str) -> str:
    """Mark a version: ``2.10.0+rocm7.10.0`` becomes ``2.10.0+rocm7.10.0.standalone``.

    PEP 440 lets a local version have letters, digits and dots, and sorts the longer one later.
    """
    if version.local and label in version.local.split("."):
        raise WheelError(f"Version {version} is that of a stand-alone wheel already.")
    return f"{version}.{label}" if version.local else f"{version}+{label}"


def standalone_metadata(content: bytes, version: str, licenses: Licenses) -> bytes:
    """Edit METADATA: the version and licences, without requirements on ROCm's or device packages."""
    head, gap, body = content.decode().partition("\n\n")
    lines: list[str] = []
    # a field goes on in the lines that are indented
    for field in re.findall(r"^\S.*(?:\n[ \t].*)*", head, re.MULTILINE):
        name, _, value = field.partition(":")
        plain = " ".join(value.split())
        match name.lower():
            case "version":
                lines.append(f"Version: {version}")
            case "license-expression" if licenses.expression:
                own, more = value.strip(), licenses.expression
                both = f"({own}) AND {more}" if " OR " in own else joined([own, more])
                lines.append(f"License-Expression: {both}")
                paths = sorted(path for names in licenses.files.values() for path in names.values())
                lines += [f"License-File: {path}" for path in paths]
            case "requires-dist" if is_rocm(needed := required_name(plain)) or device_target(needed):
                pass
            case "provides-extra" if value.strip().startswith("device-"):
                pass
            case _:
                lines.append(field)
    return ("\n".join(lines) + (gap + body if gap else "\n")).encode()


def licenses_of(wheels: Iterable[Path]) -> Licenses:
    """Gather the licences of ROCm's wheels, with their files (PEP 639)."""
    expressions: list[str] = []
    files: dict[Path, Mapping[str, str]] = {}
    for wheel in sorted(wheels):
        listing = require_listing(wheel)
        name = parse_wheel_name(wheel.name).distribution
        prefix = f"{listing.folder}/licenses/"
        names = [member.name for member in listing.members if member.name.startswith(prefix)]
        files[wheel] = {one: f"{name}/{one.removeprefix(prefix)}" for one in names}
        with contextlib.suppress(InvalidLicenseExpression):  # older metadata names licences in words
            expressions.append(canonicalize_license_expression(read_metadata(wheel).license))
    return Licenses(expression=joined(expressions), files=files)


def standalone_module(content: bytes, old: Version, new: str) -> bytes:
    """Edit ``version.py``: every quoted text that is the old version becomes the new one."""
    return re.sub(rf"(['\"]){re.escape(str(old))}\1", rf"\g<1>{new}\g<1>", content.decode()).encode()


def read_rocm_init(text: str, where: str) -> Loader:
    """Read ``_rocm_init.py``: the arguments of its one call of ``initialize_process``."""
    try:
        given = _arguments(text)
    except (SyntaxError, ValueError) as problem:
        raise WheelError(
            f"{where} cannot be made stand-alone: it has {problem}.",
            hint="Build the wheel with nox -s build_torch, or take one that loads ROCm so.",
        ) from problem
    names, version = given.get("preload_shortnames", ()), given.get("check_version", "")
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise WheelError(f"{where} cannot be made stand-alone: preload_shortnames is not a list of names.")
    return Loader(names=tuple(names), version=version if isinstance(version, str) else "")


def _arguments(text: str) -> dict[str, object]:
    """Read the keyword arguments of the one call of ``initialize_process``, which are literals."""
    calls = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "initialize_process"
    ]
    if len(calls) != 1:
        raise ValueError(f"{len(calls)} calls of rocm_sdk.initialize_process")
    return {one.arg: ast.literal_eval(one.value) for one in calls[0].keywords if one.arg}


def standalone_init(paths: Sequence[str], *, windows: bool) -> str:
    """Write a ``_rocm_init.py`` that loads ROCm out of the wheel itself.

    Libraries are loaded with global symbols, as `rocm_sdk` does, so that torch's own find them by
    their SONAMEs; these need no search path into ROCm's folders, and stay as they are.
    """
    text = read_text(Path(__file__).with_name("rocm_init.template"))
    text = text.replace("@LIBRARIES@", "".join(f'    "{path}",\n' for path in paths))
    text = text.replace("@GLOBAL@", "_added = None\n" if windows else "")
    added = '    global _added\n    _added = os.add_dll_directory(os.path.join(_ROOT, "bin"))\n'
    return text.replace("@DLL_FOLDER@", added if windows else "")


def patched_torch_init(text: str, where: str) -> str:
    """Let torch's ``__init__.py`` look for DLLs in the wheel's ROCm first."""
    if _DLL_INSERT in text:
        raise WheelError(f"{where} looks into the wheel's own ROCm already: it is stand-alone.")
    loop = r"(?m)^(?P<indent>[ \t]*)for dll_path in dll_paths:"
    patched, count = re.subn(loop, rf"\g<indent>{_DLL_INSERT}\n\g<0>", text)
    if not count:
        raise WheelError(
            f"{where} has no line 'for dll_path in dll_paths:', so nothing would look for ROCm's DLLs.",
            hint="This torch loads its DLLs in another way than the versions that this stage supports.",
        )
    return patched
