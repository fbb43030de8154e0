"""Console scripts that run the programs of ROCm's profiler.

The programs load libraries and Python modules of their own, and ROCm's of the core package.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

_CORE = "@CORE_PAYLOAD@"
_PROFILER = "@PROFILER_PAYLOAD@"


def _folder(package):
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        sys.exit(
            f"ERROR: {package} is not installed; install rocm[profiler] again"
        )
    return Path(spec.origin).absolute().parent


def _environment(profiler, core):
    environment = dict(os.environ)
    libraries = [
        profiler / "lib",
        core / "lib",
        core / "lib" / "rocm_sysdeps" / "lib",
    ]
    _prepend(environment, "LD_LIBRARY_PATH", libraries)
    _prepend(
        environment, "PYTHONPATH", [profiler / "lib" / "python" / "site-packages"]
    )
    environment.setdefault("ROCM_PATH", str(core))
    return environment


def _prepend(environment, variable, folders):
    parts = [str(folder) for folder in folders if folder.is_dir()]
    if environment.get(variable):
        parts.append(environment[variable])
    if parts:
        environment[variable] = os.pathsep.join(parts)


def _run(relative, _expand):
    profiler = _folder(_PROFILER)
    program = str(profiler / relative)
    environment = _environment(profiler, _folder(_CORE))
    if sys.platform == "win32":
        sys.exit(
            subprocess.run(
                [program, *sys.argv[1:]], env=environment, check=False
            ).returncode
        )
    os.execve(program, [program, *sys.argv[1:]], environment)
