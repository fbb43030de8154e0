"""The import of a built wheel beside ROCm's run-time packages alone, with nothing loaded before.

On the machine that built a wheel its libraries also find ROCm's development tree, and ``_rocm_init.py``
loads most of ROCm before they are asked. Both hide search paths that lead nowhere.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, files
from pytorch_build.build.execution import require_import
from pytorch_build.build.rocm_init import PATH
from rocm_packaging.packages.layouts import DEVEL_PAYLOAD

if TYPE_CHECKING:
    from core.env import Interpreter
    from pytorch_build.build.plans.types import BuildPlan

_NO_PRELOADS = "def initialize():\n    pass\n"
_WHERE = ", where ROCm's development tree is not installed and nothing was loaded before"


def check_bare_import(target: Interpreter, plan: BuildPlan, wheel: Path, *, preloads: bool) -> None:
    """Import an installed wheel without ROCm's development tree, and without torch's preloads.

    The environment is copied with hard links, which is a matter of a second for tens of thousands of files.
    """
    prefix = target.prefix
    with tempfile.TemporaryDirectory(prefix=".bare-", dir=prefix.parent) as folder:
        bare = Path(folder) / prefix.name
        ignored = shutil.ignore_patterns(f"{DEVEL_PAYLOAD}*", "rocm_sdk_devel*")
        shutil.copytree(prefix, bare, symlinks=True, ignore=ignored, copy_function=_link)
        init = bare / target.purelib.relative_to(prefix) / PATH
        if init.is_file() and not preloads:
            files.write_text(init, _NO_PRELOADS)
        python = bare / target.scripts.relative_to(prefix) / target.executable.name
        require_import(plan, wheel, python, cwd=bare, where=_WHERE)
    console.say(f"{wheel.name} imports beside ROCm's run-time packages")


def _link(source: str, target: str) -> str:
    """Link a file; copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
