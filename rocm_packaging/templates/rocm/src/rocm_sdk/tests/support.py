"""Helpers of the installation tests."""

import importlib.util
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .. import _dist_info

# Libraries that a plain process cannot load by themselves: they are plugins of a host
# program, instrument the process that loads them, or belong to one Python version.
_NOT_ALONE = re.compile(
    r"clang_rt|libLLVMOffload|roctracer|librocprofiler-sdk-(tool|json)|librocprofiler-.*tool"
    r"|OpenCL|opencl|\.abi3\.|\.cpython-|/python\d"
)


def payload(name, family=None):
    """Folder that holds an installed package's files."""
    spec = importlib.util.find_spec(_dist_info.ALL_PACKAGES[name].get_py_package_name(family))
    return Path(spec.origin).absolute().parent


def shared_libraries(root):
    """Shared libraries below a folder that a plain process can load."""
    pattern = "*.dll" if sys.platform == "win32" else "*.so*"
    found = (path for path in sorted(root.rglob(pattern)) if path.is_file() and not path.is_symlink())
    return [
        path
        for path in found
        if re.search(r"\.(dll|so(\.\d+)*)$", path.name)
        and not _NOT_ALONE.search("/" + path.relative_to(root).as_posix())
    ]


def python(*arguments):
    """Run this interpreter; ``(status, stdout, stderr)``."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def load_errors(paths):
    """Load each library in a process of its own; what went wrong, one text a library."""

    def load(path):
        status, _, error = python("-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", path)
        return f"{path}: status {status}: {error.strip()[-500:]}" if status else ""

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [error for error in pool.map(load, paths) if error]


def names_of(package):
    """Short names of the libraries that a package must hold."""
    return [
        entry.name
        for entry in _dist_info.ALL_LIBRARIES.values()
        if entry.package == package and entry.pattern[1] and not entry.optional
        and entry.name in _dist_info.DISTRIBUTED_LIBRARIES
    ]
