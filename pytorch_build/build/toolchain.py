"""What builds link or ship besides ROCm and machines do not have: pinned (`toolchain.toml`), and provided.

libuv is built with git and CMake, the OpenMP runtime downloaded, by a build of torch that lacks them.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal

import zstandard
from pydantic import Field

from core import console, files, process, temporary
from core.cli.options import environment
from core.data import Model, data_file
from core.errors import BuildError, DataError, MissingInputError
from core.http import download
from pytorch_build.sources.git import Origins, Repository, fetch_commit

if TYPE_CHECKING:
    from core.env import Interpreter
    from pytorch_build.platforms import Platform

FILE = Path(__file__).with_name("toolchain.toml")
LICENSE = "LICENSE"
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Pin(Model):
    """What every part has."""

    version: str
    license: str


class Libuv(Pin):
    """libuv, built from its repository at a commit."""

    platforms: tuple[str, ...]
    origin: str
    commit: str = Field(pattern=r"^[0-9a-f]{40}$")
    options: tuple[str, ...]
    libraries: dict[str, str]


class Member(Model):
    """One file in an archive within the archive that is downloaded."""

    archive: str
    member: str
    sha256: _Sha256


class Download(Pin):
    """An OpenMP runtime that is downloaded: a zip of ``.tar.zst`` archives."""

    redistributable: bool
    url: str
    sha256: _Sha256
    library: Member
    license_file: Member


class VisualStudio(Model):
    """The OpenMP runtime of the Visual Studio on the machine: a glob below a variable's folder."""

    license: str
    redistributable: bool
    variable: str
    pattern: str


class OpenMp(Model):
    """The OpenMP runtimes of Windows; the first of `order` that is there is taken."""

    platforms: tuple[str, ...]
    dll: str
    order: tuple[Literal["download", "visual_studio"], ...]
    download: Download
    visual_studio: VisualStudio


class Toolchain(Model):
    """Content of toolchain.toml."""

    libuv: Libuv
    openmp: OpenMp


load_toolchain = data_file(FILE, Toolchain)


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where builds put things, by what they are made from: a changed pin is another folder."""

    libuv: Path
    openmp: Path


def places(cache_dir: Path, platform: str) -> Places:
    """Return where things for a platform lie once they are provided."""
    pins, root = load_toolchain(), cache_dir / "toolchain"
    return Places(
        libuv=root / f"libuv-{pins.libuv.commit[:12]}-{platform}",
        openmp=root / f"openmp-{pins.openmp.download.sha256[:12]}",
    )


@dataclass(frozen=True, kw_only=True)
class Provided:
    """What a build links or ships besides ROCm; only Windows' builds need it."""

    openmp: PurePath | None = None
    uv: PurePath | None = None
    licenses: Mapping[str, PurePath] = field(default_factory=dict)
    llvm: PurePath | None = None


def provided(at: Places, *, platform: Platform, base_env: Mapping[str, str], redistributed: bool) -> Provided:
    """Find what is there for a build, as provided or as variables name it."""
    if not platform.windows:
        return Provided()
    openmp, uv = _openmp(platform, base_env, at, redistributed=redistributed), _uv(platform, base_env, at)
    carried = {"llvm-openmp": at.openmp if openmp else None, "libuv": uv and uv.parent.parent}
    llvm = platform.find_variable(base_env, "LLVM_SYSPATH")
    if llvm and not (Path(llvm) / "include").is_dir():
        raise MissingInputError(
            f"LLVM_SYSPATH is {llvm}, and no LLVM lies there.", hint="Name the folder of its include and lib."
        )
    return Provided(
        openmp=openmp,
        uv=uv,
        licenses={
            name: folder / LICENSE
            for name, folder in carried.items()
            if folder and (folder / LICENSE).is_file()
        },
        llvm=Path(llvm) if llvm else None,
    )


def _openmp(
    platform: Platform, base_env: Mapping[str, str], at: Places, *, redistributed: bool
) -> Path | None:
    """Find the first OpenMP runtime of toolchain.toml that is there and may be carried."""
    data = load_toolchain().openmp
    redist = platform.find_variable(base_env, data.visual_studio.variable)
    found = {
        "download": [path] if (path := at.openmp / data.dll).is_file() else [],
        "visual_studio": sorted(Path(redist).glob(data.visual_studio.pattern)) if redist else [],
    }
    for name in data.order:
        allowed = getattr(data, name).redistributable
        if not found[name] or (redistributed and not allowed):
            continue
        if not allowed:
            console.warn(
                f"The wheel gets {found[name][-1]}, which may not be redistributed: keep it to yourself."
            )
        return found[name][-1]
    return None


def _uv(platform: Platform, base_env: Mapping[str, str], at: Places) -> Path | None:
    named = platform.find_variable(base_env, "libuv_ROOT")
    found = (Path(named) if named else at.libuv) / load_toolchain().libuv.libraries[platform.name]
    if named and not found.is_file():
        raise MissingInputError(
            f"libuv_ROOT is {named}, and {found} does not exist.",
            hint="Correct libuv_ROOT, or unset it: the build makes a libuv of its own.",
        )
    return found if found.is_file() else None


@dataclass(frozen=True, kw_only=True)
class Step:
    """One part that a platform's builds need and nothing else brings."""

    name: str
    version: str
    source: str
    digest: str
    license: str
    folder: Path


def plan(cache_dir: Path, platform: str) -> tuple[Step, ...]:
    """Return what `provide` would do for a platform, from any platform."""
    pins, at = load_toolchain(), places(cache_dir, platform)
    libuv, openmp = pins.libuv, pins.openmp.download
    parts = (
        ("libuv", libuv, libuv.origin, libuv.commit, at.libuv, libuv.platforms),
        ("openmp", openmp, openmp.url, openmp.sha256, at.openmp, pins.openmp.platforms),
    )
    return tuple(
        Step(name=name, version=pin.version, source=source, digest=digest, license=pin.license, folder=folder)
        for name, pin, source, digest, folder, platforms in parts
        if platform in platforms
    )


def provide(steps: Sequence[Step], platform: str, *, target: Interpreter, mirrors: Mapping[str, str]) -> None:
    """Provide what `plan` names and does not exist yet."""
    for step in steps:
        folder = step.folder
        with files.locked(folder.parent / f".{folder.name}.lock", what=str(folder)):
            if (folder / LICENSE).is_file():
                console.done(f"{step.name} {step.version}: already at {folder}")
                continue
            if folder.exists():
                shutil.rmtree(folder)
            scratch = temporary.folder("toolchain", within=files.made(folder.parent))
            with console.group(f"{step.name} {step.version}"), scratch as name:
                # the licence is written last, so that what was interrupted is known by its absence
                if step.name == "libuv":
                    _build_libuv(Path(name), folder, platform, target, mirrors)
                else:
                    _unpack_openmp(Path(name), folder, mirrors)
            console.done(f"{step.name} {step.version}: {folder}")


def _build_libuv(
    scratch: Path, prefix: Path, platform: str, target: Interpreter, mirrors: Mapping[str, str]
) -> None:
    pin = load_toolchain().libuv
    git = Repository(path=scratch, settings=Origins(mirrors=mirrors).settings(pin.origin))
    git.init(pin.origin)
    fetch_commit(git, pin.origin, pin.commit)
    git.run("checkout", "--quiet", "--detach", pin.commit)
    path = os.pathsep.join((str(target.scripts), environment().get("PATH", "")))  # ninja lies beside cmake
    env = process.handed_on(PATH=path)
    source, build = str(scratch), str(scratch / "build")
    configure = ("-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_INSTALL_PREFIX={prefix}", *pin.options)
    for words in (configure, ("--build", build), ("--install", build)):
        process.run([target.scripts / "cmake", *words], cwd=scratch, env=env)
    library = prefix / pin.libraries[platform]
    if not library.is_file():
        raise BuildError(f"The build of libuv left no {library}.", hint="Correct it in toolchain.toml.")
    files.copy(scratch / LICENSE, prefix / LICENSE)


def _unpack_openmp(scratch: Path, folder: Path, mirrors: Mapping[str, str]) -> None:
    openmp = load_toolchain().openmp
    pin = openmp.download
    archive = scratch / PurePosixPath(pin.url).name
    download(_mirrored(pin.url, mirrors), archive, sha256=pin.sha256)
    library, text = _member(archive, pin.library), _member(archive, pin.license_file)
    for path, content in ((folder / openmp.dll, library), (folder / LICENSE, text)):
        with files.atomic(path) as out:
            out.write(content)


def _mirrored(url: str, mirrors: Mapping[str, str]) -> str:
    """Put the longest prefix's mirror in its place, as git does."""
    prefix = max((one for one in mirrors if url.startswith(one)), key=len, default="")
    return mirrors[prefix] + url.removeprefix(prefix) if prefix else url


def _member(path: Path, wanted: Member) -> bytes:
    """Read a file out of an archive within an archive, both known by digest."""
    try:
        with zipfile.ZipFile(path) as outer, outer.open(wanted.archive) as packed:
            stream = zstandard.ZstdDecompressor().stream_reader(packed)
            with tarfile.open(fileobj=io.BufferedReader(stream), mode="r|") as inner:
                found = next((one for one in inner if one.name == wanted.member and one.isfile()), None)
                opened = inner.extractfile(found) if found else None
                content = opened.read(64 << 20) if opened else b""  # bounded: the archive is not ours
    except (KeyError, zipfile.BadZipFile, tarfile.TarError, zstandard.ZstdError, OSError) as problem:
        raise DataError(f"{path.name}: {wanted.archive} cannot be read: {problem}.") from problem
    if hashlib.sha256(content).hexdigest() != wanted.sha256:
        raise DataError(
            f"{path.name} has no {wanted.member} of SHA-256 {wanted.sha256}.",
            hint="Correct the member and its digest in toolchain.toml.",
        )
    return content
