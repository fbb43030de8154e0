"""The ROCm environment of a build: installed by name, asked what it is."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core import process
from core.env import interpreter
from core.errors import ProcessError, RocmError
from core.packages.sources import PackageSource
from rocm_packaging.packages.layouts import sdk_target
from rocm_packaging.rocm_sources import RocmSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.env import Interpreter
    from rocm_packaging.packages.layouts import Layout

_OURS = re.compile(r"_?rocm")
_QUERY = """
import json, sys
import rocm_sdk
from rocm_sdk import _dist_info
split = not _dist_info.ALL_PACKAGES["libraries"].is_target_specific
json.dump({
    "version": rocm_sdk.__version__,
    "layout": "split" if split else "unsplit",
    "family": "" if split else _dist_info.determine_target_family(),
    "available": list(_dist_info.AVAILABLE_TARGET_FAMILIES),
}, sys.stdout)
"""


@dataclass(frozen=True, kw_only=True)
class RocmSdk:
    """What an installed ``rocm_sdk`` says of itself."""

    version: str
    layout: Layout
    root: Path
    bin: Path
    cmake: Path
    targets: tuple[str, ...]


def installed(python: Interpreter) -> RocmSource:
    """Return the ROCm that an interpreter has installed, by its own word."""
    env = process.inherited(ROCM_SDK_TARGET_FAMILY=None, PYTHONPATH=None)
    facts = json.loads(_python(python, env, "-c", _QUERY))
    return RocmSource(
        version=facts["version"],
        layout=facts["layout"],
        packages=PackageSource(installed=python.executable, prefix="--rocm-"),
    )


def link(target: Interpreter) -> None:
    """Let an environment have the ROCm of the Python that it is made from, as if it were installed in it.

    Search paths of wheels lead from torch's folder to ROCm's beside it, so seeing it elsewhere is not enough.
    """
    for path in sorted(interpreter(target.base_executable).purelib.iterdir()):
        there = target.purelib / path.name
        if not _OURS.match(path.name) or there.exists():
            continue
        if path.suffix == ".dist-info":  # uv overlooks a link
            shutil.copytree(path, there)
        else:
            there.symlink_to(path)


def ask(
    target: Interpreter,
    *,
    version: str,
    layout: Layout,
    family: str,
    targets: Sequence[str] = (),
) -> RocmSdk:
    """Ask an installed ``rocm_sdk`` for its facts, and refuse empty or other ones."""
    env = process.inherited(ROCM_SDK_TARGET_FAMILY=sdk_target(layout, family) or None, PYTHONPATH=None)
    said = _python(target, env, "-c", _QUERY)
    try:
        facts = json.loads(said)
    except ValueError as problem:
        raise RocmError(f"rocm_sdk in {target.prefix} answered {said.strip()!r}.") from problem
    where = f"rocm_sdk in {target.prefix}"
    if facts["version"] != version:
        raise RocmError(f"{where} is {facts['version']}, not {version}.", hint="Use --force.")
    if facts["layout"] != layout:
        raise RocmError(f"{where} has {facts['layout']} packages, not {layout} ones.", hint="Use --force.")
    if layout == "unsplit" and facts["family"] != family:
        raise RocmError(
            f"{where} is for {facts['family']!r}, not {family!r}.",
            hint="A cached build of another family was installed: run the stage again with --force.",
        )
    absent = [one for one in targets if layout == "split" and one not in facts["available"]]
    if absent:
        raise RocmError(
            f"ROCm {version} has no device code for {', '.join(absent)}, "
            f"only for {', '.join(facts['available'])}.",
            hint="Choose others with --gpu-family or --pytorch-rocm-arch, or ROCm packages that have them.",
        )
    known = tuple(_python(target, env, "-m", "rocm_sdk", "targets").replace(";", " ").split())
    if not known:
        raise RocmError(f"{where} names no GPU targets.")
    return RocmSdk(
        version=version,
        layout=layout,
        root=_path(target, env, "--root"),
        bin=_path(target, env, "--bin"),
        cmake=_path(target, env, "--cmake"),
        targets=known,
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
