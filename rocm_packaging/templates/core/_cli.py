"""Console scripts that run the programs of the installed ROCm.

Where the development tree is installed they run in it, so that compilers find headers and
CMake packages; programs that only look at the machine never expand it.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

_CORE = "@CORE_PAYLOAD@"


def _root(expand):
    spec = importlib.util.find_spec(_CORE)
    if spec is None or not spec.origin:
        sys.exit(f"ERROR: {_CORE} is not installed; install rocm-sdk-core again")
    core = Path(spec.origin).absolute().parent
    if not expand or importlib.util.find_spec("rocm_sdk_devel") is None:
        return core
    try:
        from rocm_sdk import _devel
    except ImportError:
        return core
    try:
        return _devel.get_devel_root()
    except (ImportError, OSError, RuntimeError) as problem:
        sys.exit(
            f"ERROR: the rocm[devel] package could not be expanded: {problem}"
        )


def _run(relative, expand):
    program = str(_root(expand) / relative)
    if sys.platform == "win32":
        sys.exit(subprocess.run([program, *sys.argv[1:]], check=False).returncode)
    os.execv(program, [program, *sys.argv[1:]])
