"""Provides the toolchain's parts: libuv by git and CMake, the OpenMP runtime by download."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING

import zstandard

from core import console, files, process
from core.cli.options import environment
from core.errors import BuildError, DataError, ProcessError
from core.http import download
from pytorch_build.sources.git import TRANSFER_SECONDS, Origins, Repository, unreachable
from pytorch_build.toolchain.pins import LICENSE, Download, Libuv, load_toolchain, places

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from core.env import Interpreter
    from pytorch_build.toolchain.pins import Member

_MOST_BYTES = 64 << 20  # of one file out of a downloaded archive


@dataclass(frozen=True, kw_only=True)
class Step:
    """One part that a platform's builds need and nothing else brings."""

    name: str
    version: str
    source: str
    digest: str
    license: str
    target: str
    commands: tuple[tuple[str, ...], ...] = ()


def plan(cache_dir: Path, platform: str, *, only: Sequence[str] = ()) -> tuple[Step, ...]:
    """Say what `provide` would do for a platform, from any platform."""
    pins, at = load_toolchain(), places(cache_dir, platform)
    steps = []
    if "libuv" in only or (not only and platform in pins.libuv.platforms):
        steps.append(
            Step(
                name="libuv",
                version=pins.libuv.version,
                source=pins.libuv.origin,
                digest=pins.libuv.commit,
                license=pins.libuv.license,
                target=str(at.libuv),
                commands=_libuv_commands(pins.libuv, PurePath("cmake"), Path("SOURCE"), at.libuv),
            )
        )
    if "openmp" in only or (not only and platform in pins.openmp.platforms):
        chosen = pins.openmp.download
        steps.append(
            Step(
                name="openmp",
                version=chosen.version,
                source=chosen.url,
                digest=chosen.sha256,
                license=chosen.license,
                target=str(at.openmp),
            )
        )
    return tuple(steps)


def _libuv_commands(pin: Libuv, cmake: PurePath, source: Path, prefix: Path) -> tuple[tuple[str, ...], ...]:
    build = str(source / "build")
    configure = ("-S", str(source), "-B", build, "-G", "Ninja", f"-DCMAKE_INSTALL_PREFIX={prefix}")
    return (
        (str(cmake), *configure, *pin.options),
        (str(cmake), "--build", build),
        (str(cmake), "--install", build),
    )


def provide(steps: Sequence[Step], platform: str, *, target: Interpreter, mirrors: Mapping[str, str]) -> None:
    """Provide what `plan` names and is not there yet."""
    made = {"libuv": _build_libuv, "openmp": _unpack_openmp}
    for step in steps:
        folder = Path(step.target)
        with files.locked(folder.parent / f".{folder.name}.lock", what=str(folder)):
            if (folder / LICENSE).is_file():
                console.done(f"{step.name} {step.version}: is there, {folder}")
                continue
            if folder.exists():
                shutil.rmtree(folder)
            with console.group(f"{step.name} {step.version}"), _scratch(folder.parent) as scratch:
                # the licence is written last, so that what was interrupted is known by its absence
                made[step.name](scratch, folder, platform, target, mirrors)
            console.done(f"{step.name} {step.version}: {folder}")


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as made:
        yield Path(made)


def _build_libuv(
    scratch: Path, prefix: Path, platform: str, target: Interpreter, mirrors: Mapping[str, str]
) -> None:
    pin = load_toolchain().libuv
    git = Repository(path=scratch, settings=Origins(mirrors=mirrors).settings(pin.origin))
    try:
        git.run("init", "--quiet", "--template=")
        git.run(
            "fetch", "--quiet", "--depth=1", "--no-tags", pin.origin, pin.commit, timeout=TRANSFER_SECONDS
        )
    except ProcessError as problem:
        raise unreachable(pin.origin, problem) from problem
    git.run("checkout", "--quiet", "--detach", pin.commit)
    env = dict(environment())
    env["PATH"] = os.pathsep.join((str(target.scripts), env.get("PATH", "")))  # ninja lies beside cmake
    for command in _libuv_commands(pin, target.scripts / "cmake", scratch, prefix):
        process.run(command, cwd=scratch, env=env)
    library = prefix / pin.libraries[platform]
    if not library.is_file():
        raise BuildError(
            f"The build of libuv left no {library}.", hint="Correct libraries in toolchain.toml."
        )
    files.copy(scratch / LICENSE, prefix / LICENSE)


def _unpack_openmp(
    scratch: Path, folder: Path, platform: str, target: Interpreter, mirrors: Mapping[str, str]
) -> None:
    del platform, target  # one archive, which nothing is built from
    openmp = load_toolchain().openmp
    pin: Download = openmp.download
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
                content = opened.read(_MOST_BYTES) if opened else b""
    except (KeyError, zipfile.BadZipFile, tarfile.TarError, zstandard.ZstdError, OSError) as problem:
        raise DataError(f"{path.name}: {wanted.archive} cannot be read: {problem}.") from problem
    if hashlib.sha256(content).hexdigest() != wanted.sha256:
        raise DataError(
            f"{path.name} has no {wanted.member} of SHA-256 {wanted.sha256}.",
            hint="Correct the member and its digest in toolchain.toml.",
        )
    return content
