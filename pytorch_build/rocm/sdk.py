"""The ROCm environment of a build: installed by name, asked what it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core import process
from core.errors import ProcessError, RocmError
from rocm_packaging.sources import (
    INDEXES_FILE,
    RocmSource,
    in_run,
    install_call,
    is_rocm,
    release_index_url,
    requirements,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.interpreters import Interpreter

__all__ = [
    "INDEXES_FILE",
    "RocmSdk",
    "RocmSource",
    "ask",
    "in_run",
    "install_call",
    "is_rocm",
    "release_index_url",
    "requirements",
]

_QUERY = """
import json, sys
import rocm_sdk
from rocm_sdk import _dist_info
json.dump({
    "version": rocm_sdk.__version__,
    "family": _dist_info.determine_target_family(),
}, sys.stdout)
"""


@dataclass(frozen=True, kw_only=True)
class RocmSdk:
    """What an installed ``rocm_sdk`` says of itself.

    Attributes:
        version: Its version.
        root: The ROCm tree.
        bin: Its programs.
        cmake: Its CMake packages, for CMAKE_PREFIX_PATH.
        targets: The gfx targets or families that the distribution knows.
    """

    version: str
    root: Path
    bin: Path
    cmake: Path
    targets: tuple[str, ...]


def ask(target: Interpreter, *, version: str, family: str, env: Mapping[str, str]) -> RocmSdk:
    """Ask an installed ``rocm_sdk`` for its facts, and refuse empty or other ones.

    Args:
        target: The environment.
        version: What it must be.
        family: What it must be for.
        env: The environment to run it in.

    Raises:
        RocmError: It does not answer, or is of another version or family.
    """
    said = _python(target, env, "-c", _QUERY)
    try:
        facts = json.loads(said)
    except ValueError as problem:
        raise RocmError(f"rocm_sdk in {target.prefix} answered {said.strip()!r}.") from problem
    if facts["version"] != version:
        raise RocmError(
            f"rocm_sdk in {target.prefix} is {facts['version']}, not {version}.", hint="Use --force."
        )
    if facts["family"] != family:
        raise RocmError(
            f"rocm_sdk in {target.prefix} is for {facts['family']!r}, not {family!r}.",
            hint="A cached build of another family was installed: run the stage again with --force.",
        )
    targets = tuple(_python(target, env, "-m", "rocm_sdk", "targets").replace(";", " ").split())
    if not targets:
        raise RocmError(f"rocm_sdk in {target.prefix} names no GPU targets.")
    return RocmSdk(
        version=version,
        root=_path(target, env, "--root"),
        bin=_path(target, env, "--bin"),
        cmake=_path(target, env, "--cmake"),
        targets=targets,
    )


def _path(target: Interpreter, env: Mapping[str, str], which: str) -> Path:
    answer = _python(target, env, "-m", "rocm_sdk", "path", which).strip()
    path = Path(answer)
    if not answer or not path.is_absolute() or not path.is_dir():
        raise RocmError(f"rocm_sdk path {which} in {target.prefix} answered {answer!r}, which is no folder.")
    return path


def _python(target: Interpreter, env: Mapping[str, str], *words: str) -> str:
    try:
        said = process.capture([target.executable, *words], env=env).stdout
    except ProcessError as problem:
        raise RocmError(
            f"rocm_sdk in {target.prefix} does not answer: {problem.message}",
            hint="Install rocm[libraries,devel] for this family: nox -s install_rocm.",
        ) from problem
    if not said.strip():
        raise RocmError(f"rocm_sdk in {target.prefix} gave an empty answer to {' '.join(words[-2:])}.")
    return said
