"""The Python files that a build writes into its packages."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from core.errors import BuildError
from rocm_packaging.packages.packages import payload_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rocm_packaging.packages.packages import Program

TEMPLATES = Path(__file__).parents[1] / "templates"
_DIST_INFO = TEMPLATES / "dist_info.py"


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """What all packages of one build know of each other."""

    version: str
    platform: Literal["linux", "windows"]
    families: Mapping[str, tuple[str, ...]]
    libraries: tuple[str, ...]
    split: bool = False
    suffix: str = ""
    profiler: bool = False
    linux: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def dist_info(distribution: Distribution, package: str, family: str = "") -> bytes:
    """Write ``_dist_info.py`` for one package; every value is a literal."""
    names = list(distribution.families)
    offered = {"linux": list(distribution.linux), "windows": list(distribution.windows)}
    if not any(offered.values()):
        offered[distribution.platform] = names
    targets = {**distribution.aliases, **distribution.families}
    values = {
        "__version__": distribution.version,
        "PY_PACKAGE_SUFFIX_NONCE": distribution.suffix,
        "SPLIT": distribution.split,
        "DEFAULT_TARGET_FAMILY": names[0],
        "AVAILABLE_TARGET_FAMILIES": names,
        "LINUX_TARGET_FAMILIES": offered["linux"],
        "WINDOWS_TARGET_FAMILIES": offered["windows"],
        "FAMILY_TARGETS": {name: list(of) for name, of in targets.items()},
        "DISTRIBUTED_LIBRARIES": sorted(distribution.libraries),
        "THIS_TARGET_FAMILY": family or None,
    }
    lines = [f"{name} = {value!r}\n" for name, value in values.items()]
    lines.append(
        f"ALL_PACKAGES = packages_of(split={distribution.split}, profiler={distribution.profiler})\n"
    )
    lines.append(f"THIS_PACKAGE_ENTRY = ALL_PACKAGES.get({package!r})\n")
    return (_DIST_INFO.read_text(encoding="utf-8") + "".join(lines)).encode()


def library_globs(platform: str) -> dict[str, str]:
    """Give what `rocm_sdk` looks for: short name -> glob in ROCm's own tree.

    Args:
        platform: ``linux`` or ``windows``; libraries that it does not have are left out.
    """
    if platform == "windows":
        return {str(one.name): f"bin/{one.windows}" for one in _library_entries() if one.windows}
    return {str(one.name): f"{one.folder}/{one.posix}" for one in _library_entries() if one.posix}


def _library_entries() -> Iterable[Any]:
    spec = importlib.util.spec_from_file_location("rocm_dist_info_template", _DIST_INFO)
    if spec is None or spec.loader is None:
        raise BuildError(f"{_DIST_INFO} cannot be loaded.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.ALL_LIBRARIES.values())


def libraries_in(package: str, paths: Iterable[str], platform: str) -> set[str]:
    """Find which libraries of the `rocm_sdk` table a package holds."""
    known = list(paths)
    found = set()
    for entry in _library_entries():
        glob = f"{entry.folder}/{entry.posix}" if platform == "linux" else f"bin/{entry.windows}"
        if entry.package == package and any(fnmatchcase(path, glob) for path in known):
            found.add(str(entry.name))
    return found


def scripts(programs: Mapping[str, Program], paths: Iterable[str], platform: str) -> dict[str, str]:
    """Choose the console scripts of core: programs that the payload really holds."""
    suffix = ".exe" if platform == "windows" else ""
    known = set(paths)
    return {name: f"bin/{name}{suffix}" for name in sorted(programs) if f"bin/{name}{suffix}" in known}


def function_of(script: str) -> str:
    """Name the Python function behind a console script: ``amdclang++`` is ``amdclangxx``."""
    return re.sub(r"\W", "_", script.replace("+", "x"))


def cli(package: str, found: Mapping[str, str], programs: Mapping[str, Program], suffix: str = "") -> bytes:
    """Write the ``_cli.py`` of a package: one function a console script."""
    text = (TEMPLATES / package / "_cli.py").read_text(encoding="utf-8")
    for name in ("core", "profiler"):
        text = text.replace(f"@{name.upper()}_PAYLOAD@", payload_folder(name, suffix=suffix))
    parts = [text, "\n\nPROGRAMS = ", repr(dict(found)), "\n"]
    for name, relative in found.items():
        parts.append(f"\n\ndef {function_of(name)}():\n    _run({relative!r}, {programs[name].expand})\n")
    return "".join(parts).encode()


def runtime_sources() -> Sequence[tuple[str, Path]]:
    """List the files of the `rocm` source distribution, except ``_dist_info.py``."""
    root = TEMPLATES / "rocm"
    files = sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [(path.relative_to(root).as_posix(), path) for path in files]
