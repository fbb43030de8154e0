"""toolchain.toml, and where what it pins lies once it is provided."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from core.data import Model, load_toml

FILE = Path(__file__).with_name("toolchain.toml")
LICENSE = "LICENSE"
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Libuv(Model):
    """libuv, built from its repository at a commit."""

    platforms: tuple[str, ...]
    version: str
    license: str
    origin: str
    commit: str = Field(pattern=r"^[0-9a-f]{40}$")
    options: tuple[str, ...]
    libraries: dict[str, str]


class Member(Model):
    """One file in an archive within the archive that is downloaded."""

    archive: str
    member: str
    sha256: _Sha256


class Download(Model):
    """An OpenMP runtime that is downloaded: a zip of ``.tar.zst`` archives."""

    version: str
    license: str
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


@cache
def load_toolchain() -> Toolchain:
    """Read toolchain.toml."""
    return load_toml(FILE, Toolchain)


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where `nox -s prepare` puts things, by what they are made from: a changed pin is another folder."""

    libuv: Path
    openmp: Path


def places(cache_dir: Path, platform: str) -> Places:
    """Say where things for a platform lie once they are provided."""
    pins, root = load_toolchain(), cache_dir / "toolchain"
    return Places(
        libuv=root / f"libuv-{pins.libuv.commit[:12]}-{platform}",
        openmp=root / f"openmp-{pins.openmp.download.sha256[:12]}",
    )
