"""The Python files that a build writes into its packages."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from core.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rocm_packaging.packages import Program

TEMPLATES = Path(__file__).parent / "templates"
_DIST_INFO = TEMPLATES / "dist_info.py"


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """What all packages of one build know of each other.

    Attributes:
        version: The ROCm version.
        platform: What the packages run on.
        families: GPU family -> its gfx targets; the first is the default.
        libraries: Short names of the libraries that the packages hold.
    """

    version: str
    platform: Literal["linux", "windows"]
    families: Mapping[str, tuple[str, ...]]
    libraries: tuple[str, ...]


def dist_info(distribution: Distribution, package: str, family: str = "") -> bytes:
    """Write ``_dist_info.py`` for one package; every value is a literal.

    Args:
        distribution: What it says of the whole.
        package: Logical name of the package it is for; empty for the `rocm` package.
        family: The package's GPU family, if it has one.
    """
    names = list(distribution.families)
    linux = names if distribution.platform == "linux" else []
    windows = names if distribution.platform == "windows" else []
    values = {
        "__version__": distribution.version,
        "PY_PACKAGE_SUFFIX_NONCE": "",
        "DEFAULT_TARGET_FAMILY": names[0],
        "AVAILABLE_TARGET_FAMILIES": names,
        "LINUX_TARGET_FAMILIES": linux,
        "WINDOWS_TARGET_FAMILIES": windows,
        "FAMILY_TARGETS": {name: list(targets) for name, targets in distribution.families.items()},
        "DISTRIBUTED_LIBRARIES": sorted(distribution.libraries),
        "THIS_TARGET_FAMILY": family or None,
    }
    lines = [f"{name} = {value!r}\n" for name, value in values.items()]
    lines.append(f"THIS_PACKAGE_ENTRY = ALL_PACKAGES.get({package!r})\n")
    return (_DIST_INFO.read_text(encoding="utf-8") + "".join(lines)).encode()


def libraries_in(package: str, paths: Iterable[str], platform: str) -> set[str]:
    """Find which libraries of the `rocm_sdk` table a package holds.

    Args:
        package: ``core`` or ``libraries``.
        paths: The files of its payload.
        platform: ``linux`` or ``windows``.

    Returns:
        Their short names.
    """
    spec = importlib.util.spec_from_file_location("rocm_dist_info_template", _DIST_INFO)
    if spec is None or spec.loader is None:
        raise BuildError(f"{_DIST_INFO} cannot be loaded.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    known = list(paths)
    found = set()
    for entry in module.ALL_LIBRARIES.values():
        glob = f"{entry.folder}/{entry.posix}" if platform == "linux" else f"bin/{entry.windows}"
        if entry.package == package and any(fnmatchcase(path, glob) for path in known):
            found.add(str(entry.name))
    return found


def scripts(programs: Mapping[str, Program], paths: Iterable[str], platform: str) -> dict[str, str]:
    """Choose the console scripts of core: programs that the payload really holds.

    Returns:
        Script name -> path of its program below the payload.
    """
    suffix = ".exe" if platform == "windows" else ""
    known = set(paths)
    return {name: f"bin/{name}{suffix}" for name in sorted(programs) if f"bin/{name}{suffix}" in known}


def function_of(script: str) -> str:
    """Name the Python function behind a console script: ``amdclang++`` is ``amdclangxx``."""
    return re.sub(r"\W", "_", script.replace("+", "x"))


def cli(found: Mapping[str, str], programs: Mapping[str, Program], core_payload: str) -> bytes:
    """Write ``rocm_sdk_core/_cli.py``: one function a console script."""
    text = (
        (TEMPLATES / "core" / "_cli.py").read_text(encoding="utf-8").replace("@CORE_PAYLOAD@", core_payload)
    )
    parts = [text, "\n\nPROGRAMS = ", repr(dict(found)), "\n"]
    for name, relative in found.items():
        parts.append(f"\n\ndef {function_of(name)}():\n    _run({relative!r}, {programs[name].expand})\n")
    return "".join(parts).encode()


def runtime_sources() -> Sequence[tuple[str, Path]]:
    """List the files of the `rocm` source distribution, except ``_dist_info.py``.

    Returns:
        ``(path in the sdist, file)`` pairs, sorted.
    """
    root = TEMPLATES / "rocm"
    files = sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [(path.relative_to(root).as_posix(), path) for path in files]
