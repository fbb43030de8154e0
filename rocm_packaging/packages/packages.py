"""What each ROCm package consists of: `packages.toml`, checked."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Annotated

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from pydantic import AfterValidator

from core.data import Model, load_toml

PACKAGES_FILE = Path(__file__).with_name("packages.toml")
CORE_PAYLOAD = "_rocm_sdk_core"
LIBRARIES_PAYLOAD = "_rocm_sdk_libraries"
PROFILER_PAYLOAD = "_rocm_profiler"
DEVEL_PAYLOAD = "_rocm_sdk_devel"


class RuntimePackage(Model):
    """A package of files that programs need at run time."""

    artifacts: tuple[str, ...]
    components: tuple[str, ...]
    only_lib: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    with_headers: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rpath_core: tuple[str, ...] = ()


class DevelPackage(Model):
    """The package of everything that developers need besides."""

    artifacts: tuple[str, ...]
    components: tuple[str, ...]
    links: dict[str, str]


def _expression(text: str) -> str:
    try:
        canonical = canonicalize_license_expression(text)
    except InvalidLicenseExpression as problem:
        raise ValueError(str(problem)) from problem
    if canonical != text:
        raise ValueError(f"write {canonical}")
    return text


LicenseExpression = Annotated[str, AfterValidator(_expression)]


class LicenseData(Model):
    """SPDX expressions of artifacts."""

    default: LicenseExpression
    artifacts: dict[str, LicenseExpression]

    def of(self, artifact: str) -> str:
        """Give an artifact's expression."""
        return self.artifacts.get(artifact, self.default)


class Program(Model):
    """A program of ROCm that gets a console script."""

    expand: bool = True


class UnsplitLayout(Model):
    """Libraries with their device code, one package a GPU family."""

    libraries: RuntimePackage


class SplitLayout(Model):
    """Libraries for all GPUs, and device code in one package a gfx target."""

    libraries: RuntimePackage
    device: RuntimePackage


class Packages(Model):
    """The whole file."""

    core: RuntimePackage
    profiler: RuntimePackage
    unsplit: UnsplitLayout
    split: SplitLayout
    devel: DevelPackage
    licenses: LicenseData
    programs: dict[str, Program]
    profiler_programs: dict[str, Program]


@functools.cache
def packages() -> Packages:
    """Read `packages.toml`."""
    return load_toml(PACKAGES_FILE, Packages)


def payload_folder(package: str, family: str = "", suffix: str = "") -> str:
    """Name the folder of a package's files in site-packages: ``_rocm_sdk_libraries_gfx94X_dcgpu``.

    Args:
        package: Its logical name; ``device`` lies over the libraries of all GPUs.
        family: The GPU family of libraries that hold device code.
        suffix: What the build appends to all such names.
    """
    if package in {"libraries", "device"}:
        name = LIBRARIES_PAYLOAD
        if package == "libraries" and family:
            name = f"{name}_{identifier(family)}"
    else:
        name = {"core": CORE_PAYLOAD, "profiler": PROFILER_PAYLOAD, "devel": DEVEL_PAYLOAD}[package]
    return name + suffix


def identifier(family: str) -> str:
    """Spell a GPU family as part of a Python name."""
    return re.sub(r"\W", "_", family)
