"""What builds link or ship besides ROCm and machines do not have: pinned (`toolchain.toml`), and provided.

libuv is built with git and CMake, and the OpenMP runtime downloaded, by a build of torch that lacks them.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, TYPE_CHECKING, Annotated

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
# A member of an archive that is not ours is read up to here.
_LARGEST_MEMBER = 64 << 20
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


# --- The data ---------------------------------------------------------------------------------


class Libuv(Model):
    """libuv, built from its repository at a commit; `library` is its path where it is installed."""

    version: str
    license: str
    origin: str
    commit: str = Field(pattern=r"^[0-9a-f]{40}$")
    options: tuple[str, ...]
    library: str

    def folder(self, cache_dir: PurePath) -> PurePath:
        """Return the cache folder that this libuv is installed into; a changed pin is another folder."""
        return cache_dir / "toolchain" / f"libuv-{self.commit[:12]}-windows"


class NestedMember(Model):
    """One file in an archive within the archive that is downloaded."""

    archive: str
    member: str
    sha256: _Sha256


class OpenMp(Model):
    """LLVM's OpenMP runtime, downloaded as a zip of ``.tar.zst`` archives; `dll` is what wheels call it."""

    dll: str
    version: str
    license: str
    url: str
    sha256: _Sha256
    library: NestedMember
    license_file: NestedMember

    def folder(self, cache_dir: PurePath) -> PurePath:
        """Return the cache folder that this runtime is unpacked into; a changed pin is another folder."""
        return cache_dir / "toolchain" / f"openmp-{self.sha256[:12]}"


class VisualStudio(Model):
    """Where a Visual Studio on the machine has the OpenMP runtime: a glob below a variable's folder."""

    license: str
    variable: str
    pattern: str


class Toolchain(Model):
    """Content of toolchain.toml."""

    libuv: Libuv
    openmp: OpenMp
    visual_studio: VisualStudio


load_toolchain = data_file(FILE, Toolchain)


# --- What is there ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ToolchainParts:
    """Paths of what a build links or ships besides ROCm; only Windows' builds need it.

    Attributes:
        openmp: The OpenMP runtime.
        libuv: Its library.
        licenses: The licence files of what the wheel ships, by name.
        llvm: The LLVM that triton is built against.
    """

    openmp: PurePath | None = None
    libuv: PurePath | None = None
    licenses: Mapping[str, PurePath] = field(default_factory=dict)
    llvm: PurePath | None = None


def find_toolchain_parts(
    cache_dir: Path,
    *,
    platform: Platform,
    base_env: Mapping[str, str],
    is_redistributed: bool,
) -> ToolchainParts:
    """Return the paths of OpenMP, libuv and LLVM for a build: provided before, or named by variables.

    Args:
        cache_dir: The folder of what is provided.
        platform: The platform of the wheel.
        base_env: The user's variables.
        is_redistributed: Whether the wheel leaves this machine.
    """
    if not platform.windows:
        return ToolchainParts()

    toolchain = load_toolchain()
    licenses: dict[str, PurePath] = {}
    openmp_folder = Path(toolchain.openmp.folder(cache_dir))
    if (openmp_folder / LICENSE).is_file():
        openmp: Path | None = openmp_folder / toolchain.openmp.dll
        licenses["llvm-openmp"] = openmp_folder / LICENSE
    else:
        openmp = _find_visual_studio_openmp(platform, base_env, is_redistributed=is_redistributed)

    libuv = _find_libuv(platform, base_env, Path(toolchain.libuv.folder(cache_dir)))
    if libuv is not None and (libuv.parent.parent / LICENSE).is_file():
        licenses["libuv"] = libuv.parent.parent / LICENSE
    return ToolchainParts(
        openmp=openmp,
        libuv=libuv,
        licenses=licenses,
        llvm=_find_llvm(platform, base_env),
    )


def _find_visual_studio_openmp(
    platform: Platform, base_env: Mapping[str, str], *, is_redistributed: bool
) -> Path | None:
    """Return Visual Studio's OpenMP runtime; None without one, or for a wheel that is passed on."""
    visual_studio = load_toolchain().visual_studio
    folder = platform.find_variable(base_env, visual_studio.variable)
    if is_redistributed or not folder:
        return None
    libraries = sorted(Path(folder).glob(visual_studio.pattern))
    if not libraries:
        return None
    newest = libraries[-1]
    console.warn(f"The wheel gets {newest}, which may not be redistributed: keep it to yourself.")
    return newest


def _find_libuv(platform: Platform, base_env: Mapping[str, str], built_folder: Path) -> Path | None:
    """Return the path of the libuv that libuv_ROOT names, else of the one that was built; None without."""
    named_folder = platform.find_variable(base_env, "libuv_ROOT")
    library = Path(named_folder or built_folder) / load_toolchain().libuv.library
    if not named_folder:
        return library if library.is_file() else None
    if not library.is_file():
        raise MissingInputError(
            f"libuv_ROOT is {named_folder}, and {library} does not exist.",
            hint="Correct libuv_ROOT, or unset it: the build makes a libuv of its own.",
        )
    return library


def _find_llvm(platform: Platform, base_env: Mapping[str, str]) -> Path | None:
    """Return the folder of the LLVM that LLVM_SYSPATH names; None where it is unset."""
    named_folder = platform.find_variable(base_env, "LLVM_SYSPATH")
    if not named_folder:
        return None
    if not (Path(named_folder) / "include").is_dir():
        raise MissingInputError(
            f"LLVM_SYSPATH is {named_folder}, and no LLVM lies there.",
            hint="Name the folder of its include and lib.",
        )
    return Path(named_folder)


# --- Providing what is not --------------------------------------------------------------------


def provide_part(name: str, cache_dir: Path, *, target: Interpreter, mirrors: Mapping[str, str]) -> None:
    """Build libuv, or download the OpenMP runtime, into the cache unless it is there."""
    toolchain = load_toolchain()
    pin = toolchain.libuv if name == "libuv" else toolchain.openmp
    folder = Path(pin.folder(cache_dir))
    with files.locked(folder.parent / f".{folder.name}.lock", what=str(folder)):
        # The licence is written last, so that what was interrupted is known by its absence.
        if (folder / LICENSE).is_file():
            console.done(f"{name} {pin.version}: already at {folder}")
            return

        if folder.exists():
            files.remove_folder(folder)
        with (
            console.group(f"{name} {pin.version}"),
            temporary.folder("toolchain", within=files.ensure_folder(folder.parent)) as scratch,
        ):
            if isinstance(pin, Libuv):
                _build_libuv(pin, scratch, folder, target, mirrors)
            else:
                _unpack_openmp(pin, scratch, folder, mirrors)
        console.done(f"{name} {pin.version}: {folder}")


def _build_libuv(
    libuv: Libuv, scratch: Path, prefix: Path, target: Interpreter, mirrors: Mapping[str, str]
) -> None:
    """Fetch and build libuv in a scratch folder, and install it into `prefix`."""
    git = Repository(
        path=scratch,
        settings=Origins(mirrors=mirrors).settings(libuv.origin),
    )
    git.init(libuv.origin)
    fetch_commit(git, libuv.origin, libuv.commit)
    git.run("checkout", "--quiet", "--detach", libuv.commit)

    cmake = target.scripts / "cmake"
    build_folder = scratch / "build"
    # ninja lies beside cmake.
    search_path = os.pathsep.join((str(target.scripts), environment().get("PATH", "")))
    env = process.handed_on(PATH=search_path)
    configure: list[str | Path] = [cmake, "-S", scratch, "-B", build_folder, "-G", "Ninja"]
    configure += [f"-DCMAKE_INSTALL_PREFIX={prefix}", *libuv.options]
    process.run(
        configure,
        cwd=scratch,
        env=env,
    )
    process.run(
        [cmake, "--build", build_folder],
        cwd=scratch,
        env=env,
    )
    process.run(
        [cmake, "--install", build_folder],
        cwd=scratch,
        env=env,
    )

    library = prefix / libuv.library
    if not library.is_file():
        raise BuildError(f"The build of libuv left no {library}.", hint="Correct it in toolchain.toml.")
    files.copy(scratch / LICENSE, prefix / LICENSE)


def _unpack_openmp(openmp: OpenMp, scratch: Path, folder: Path, mirrors: Mapping[str, str]) -> None:
    """Download the OpenMP runtime, and unpack its library and its licence."""
    archive = scratch / PurePosixPath(openmp.url).name
    download(_mirrored_url(openmp.url, mirrors), archive, sha256=openmp.sha256)

    library = _read_member(archive, openmp.library)
    license_text = _read_member(archive, openmp.license_file)
    for path, content in ((folder / openmp.dll, library), (folder / LICENSE, license_text)):
        with files.atomic_file(path) as stream:
            stream.write(content)


def _mirrored_url(url: str, mirrors: Mapping[str, str]) -> str:
    """Return a URL at the mirror of its longest matching prefix; the URL itself without a mirror."""
    prefixes = [prefix for prefix in mirrors if url.startswith(prefix)]
    if not prefixes:
        return url
    prefix = max(prefixes, key=len)
    return mirrors[prefix] + url.removeprefix(prefix)


def _read_member(path: Path, pin: NestedMember) -> bytes:
    """Return the bytes of a file in an archive within a zip; its SHA-256 must be the pinned one."""
    try:
        with zipfile.ZipFile(path) as package, package.open(pin.archive) as packed:
            content = _read_from_tar(packed, pin.member)
    except (KeyError, zipfile.BadZipFile, tarfile.TarError, zstandard.ZstdError, OSError) as problem:
        raise DataError(f"{path.name}: {pin.archive} cannot be read: {problem}.") from problem

    if hashlib.sha256(content).hexdigest() != pin.sha256:
        raise DataError(
            f"{path.name} has no {pin.member} of SHA-256 {pin.sha256}.",
            hint="Correct the member and its digest in toolchain.toml.",
        )
    return content


def _read_from_tar(packed: IO[bytes], name: str) -> bytes:
    """Return the bytes of a member of a ``.tar.zst``; none where it has no such member."""
    stream = zstandard.ZstdDecompressor().stream_reader(packed)
    with tarfile.open(fileobj=io.BufferedReader(stream), mode="r|") as archive:
        for member in archive:
            if member.name == name and member.isfile():
                content = archive.extractfile(member)
                if content is not None:
                    return content.read(_LARGEST_MEMBER)
    return b""
