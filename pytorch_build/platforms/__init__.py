"""What differs between Linux and Windows: one module each, behind one Protocol.

The modules hold data and pure functions, so that either platform's builds can be
computed and tested on the other. Nothing else in this package asks which platform it is.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

from core.errors import UsageError, nearest
from pytorch_build.platforms import linux, windows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePath

NAMES = ("linux", "windows")


class Platform(Protocol):
    """A platform that wheels are built on."""

    NAME: str
    WHEEL_TAG: str
    PATH_SEPARATOR: str
    KINETO: str
    FLASH_FLAG: str
    PRELOADS: tuple[str, ...]

    def compiler_settings(self, env: Mapping[str, str], rocm_root: PurePath | None) -> Mapping[str, str]:
        """Give the variables that choose and steer the compilers, on top of `env`."""
        ...

    def find_variable(self, env: Mapping[str, str], name: str) -> str:
        """Read a variable; an unset one is empty. Windows does not see letter case in names."""
        ...

    def merge(
        self, base: Mapping[str, str], changes: Mapping[str, str], *, unset: frozenset[str]
    ) -> dict[str, str]:
        """Lay `changes` over `base` without `unset`, by the platform's idea of equal names."""
        ...


def platform_named(name: str) -> Platform:
    """Look a platform up."""
    found: dict[str, Platform] = {"linux": linux, "windows": windows}
    if name not in found:
        raise UsageError(f"{name!r} is no platform that wheels are built on.", hint=nearest(name, NAMES))
    return found[name]


def this_platform() -> Platform:
    """Look up the platform that this process runs on."""
    return platform_named("windows" if sys.platform == "win32" else sys.platform)
