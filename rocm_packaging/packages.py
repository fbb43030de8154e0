"""What each ROCm package consists of: `packages.toml`, checked."""

from __future__ import annotations

import functools
from pathlib import Path

from core.data import Model, load_toml

PACKAGES_FILE = Path(__file__).with_name("packages.toml")
CORE_PAYLOAD = "_rocm_sdk_core"
DEVEL_PAYLOAD = "_rocm_sdk_devel"


class RuntimePackage(Model):
    """A package of files that programs need at run time."""

    artifacts: tuple[str, ...]
    components: tuple[str, ...]
    required: tuple[str, ...] = ()
    with_headers: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rpath_core: tuple[str, ...] = ()


class DevelPackage(Model):
    """The package of everything that developers need besides."""

    artifacts: tuple[str, ...]
    components: tuple[str, ...]


class Program(Model):
    """A program of ROCm that gets a console script."""

    expand: bool = True


class Packages(Model):
    """The whole file."""

    core: RuntimePackage
    libraries: RuntimePackage
    devel: DevelPackage
    programs: dict[str, Program]


@functools.cache
def packages() -> Packages:
    """Read `packages.toml`."""
    return load_toml(PACKAGES_FILE, Packages)
