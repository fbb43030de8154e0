"""What the checks share: packages' files, libraries, and processes of their own."""

import csv
import functools
import importlib.util
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

from .. import _dist_info
from .check import Check, expect, expect_files, expect_none

_SECONDS = (
    300  # for one process: a program that hangs must not hang the whole test
)

# Libraries that a plain process cannot load by themselves, and why.
_NOT_ALONE = (
    (
        re.compile(r"clang_rt|libLLVMOffload"),
        "the compiler links it into programs that it instruments",
    ),
    (re.compile(r"roctracer"), "it traces the program that loads it"),
    (
        re.compile(r"librocprofiler-sdk-(tool|json)|librocprofiler-.*tool"),
        "it is a plugin of the profiler",
    ),
    (re.compile(r"OpenCL|opencl"), "it needs a loader of vendors' drivers"),
    (
        re.compile(r"\.abi3\.|\.cpython-|/python\d"),
        "it belongs to one version of Python",
    ),
)
_LIBRARY = re.compile(r"\.(dll|so(\.\d+)*)$")

_IS_WINDOWS = sys.platform == "win32"
# Statuses of programs that Windows could not start, or ended: a DLL is missing, an access violation.
_FIRST_WINDOWS_ERROR = 0xC0000000
_CANNOT_EXECUTE = (126, 127)  # a shell's statuses

# Loads a library, and prints the files of all that came with it, where the system tells.
_LOAD = """
import ctypes, os, sys
ctypes.CDLL(sys.argv[1])
if os.path.exists("/proc/self/maps"):
    with open("/proc/self/maps") as maps:
        fields = [line.rstrip("\\n").split(maxsplit=5) for line in maps]
    print("\\n".join(sorted({field[5] for field in fields if len(field) == 6})))
"""
# The same on Windows; it gets the folders to look in, too, as a DLL there has no RPATH.
_LOAD_DLL = """
import ctypes, sys
from rocm_sdk import _dlls
for folder in sys.argv[2:]:
    _dlls.search_folder(folder)
ctypes.CDLL(sys.argv[1])
print("\\n".join(sorted(_dlls.loaded_files())))
"""
_PRELOAD = """
import sys, rocm_sdk
assert len(rocm_sdk.find_libraries(*sys.argv[1:])) == len(sys.argv) - 1
rocm_sdk.initialize_process(preload_shortnames=sys.argv[1:], env_override=False)
"""


def payload(name, family=None):
    """Return the folder that holds an installed package's files."""
    spec = importlib.util.find_spec(
        _dist_info.ALL_PACKAGES[name].get_py_package_name(family)
    )
    expect(
        spec is not None and spec.origin, f"the files of {name} are not installed"
    )
    return Path(spec.origin).absolute().parent


# Files


def promise_check(package, root):
    """Return the check that a folder holds the files that the build promised of a package, none empty."""
    return Check(
        package, "what it promises is there", _check_promised_files, package, root
    )


def _check_promised_files(package, root):
    paths = [root / name for name in _dist_info.PROMISED_FILES.get(package, ())]
    if not paths:
        raise unittest.SkipTest("this distribution was packaged without them")
    expect_files(paths)


def check_installed_files(distribution):
    """Require every file that a package was installed with, with its size."""
    # not distribution.files, which leaves out what is missing since Python 3.12
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    # what has no hash in the RECORD came later: the expanded tree, compiled modules
    sizes = {row[0]: row[2] for row in rows if len(row) == 3 and row[1]}
    expect(sizes, f"{distribution.metadata['Name']} has no RECORD")

    problems = []
    for name, size in sizes.items():
        path = Path(distribution.locate_file(name))
        if not os.path.lexists(path):
            # the archive goes when the tree is expanded
            if not path.name.startswith("_devel.tar"):
                problems.append(f"{name} is missing")
        elif size and path.stat().st_size != int(size):
            problems.append(f"{name} has {path.stat().st_size} bytes, not {size}")
    expect_none(problems, "files are not as they were installed")


# Libraries


def shared_libraries(root):
    """Return the shared libraries below a folder, links excepted, sorted."""
    paths = [
        path for path in sorted(root.rglob("*")) if _LIBRARY.search(path.name)
    ]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def library_checks(group, root, *other_roots):
    """Yield a check a library below a folder: each loads in a process of its own.

    Windows looks in the other folders, too, for what a library needs.
    """
    paths = shared_libraries(root)
    yield Check(
        group,
        "there are shared libraries",
        expect,
        bool(paths),
        f"no shared library is in {root}",
    )
    for path in paths:
        yield Check(
            group,
            f"{path.relative_to(root).as_posix()} loads",
            _check_loading,
            path,
            root,
            *other_roots,
        )


def _check_loading(path, root, *other_roots):
    relative = "/" + path.relative_to(root).as_posix()
    for pattern, reason in _NOT_ALONE:
        if pattern.search(relative):
            raise unittest.SkipTest(reason)

    if _IS_WINDOWS:
        folders = [folder / "bin" for folder in (root, *other_roots)]
        result = run_python("-I", "-c", _LOAD_DLL, path, *folders)
    else:
        result = run_python("-I", "-S", "-c", _LOAD, path)
    expect(result.status == 0, f"{path}: {result.summary}")

    names, site = _libraries_of_packages()
    foreign_paths = []
    for line in result.output.splitlines():
        is_of_packages = os.path.normcase(Path(line).name) in names
        if is_of_packages and site not in Path(line).resolve().parents:
            foreign_paths.append(line)
    expect_none(
        foreign_paths,
        "libraries come from elsewhere, though these packages hold them",
    )


@functools.lru_cache(maxsize=None)
def _libraries_of_packages():
    """Return the names of all libraries that the installed packages hold, and the folder around them."""
    roots = [payload("core")]
    profiler = _dist_info.ALL_PACKAGES.get("profiler")
    if profiler is not None and profiler.has_py_package():
        roots.append(payload("profiler"))
    roots += [
        payload("libraries", family)
        for family in _dist_info.installed_libraries()
    ]

    names = set()
    for root in roots:
        names.update(
            os.path.normcase(path.name) for path in shared_libraries(root)
        )
    return frozenset(names), roots[0].parent.resolve()


def preload_checks(package):
    """Yield a check a library that programs ask for by name: it is found, and loads with what it needs."""
    names = distributed_libraries(package)
    problem = f"none of the names in rocm_sdk is in {package}"
    yield Check(
        package, "libraries are known by name", expect, bool(names), problem
    )
    for name in names:
        yield Check(
            package, f"initialize_process loads {name}", _check_preloading, name
        )
    if names:
        yield Check(
            package,
            "initialize_process loads all of them",
            _check_preloading,
            *names,
        )


def _check_preloading(*names):
    result = run_python("-c", _PRELOAD, *names)
    expect(result.status == 0, result.summary)


def distributed_libraries(package):
    """Return the short names of the libraries that a package must hold."""
    names = []
    for library in _dist_info.ALL_LIBRARIES.values():
        is_on_platform = bool(library.pattern[1])
        is_distributed = library.name in _dist_info.DISTRIBUTED_LIBRARIES
        if (
            library.package == package
            and is_on_platform
            and is_distributed
            and not library.optional
        ):
            names.append(library.name)
    return names


# Processes


class ProcessResult:
    """A process that has ended: its status, and what it printed as text."""

    def __init__(self, program, status, output, errors):
        self.status = status
        self.output = output.decode("utf-8", "replace").replace("\r\n", "\n")
        self.errors = errors.decode("utf-8", "replace").replace("\r\n", "\n")
        self._program = program

    @property
    def has_run(self):
        """Whether the program was started, and ended by itself."""
        if self.status < 0 or self.status in _CANNOT_EXECUTE:
            return False
        return not (_IS_WINDOWS and self.status >= _FIRST_WINDOWS_ERROR)

    @property
    def summary(self):
        """How it ended, and the end of what it printed."""
        if self.status < 0:
            ending = f"ended by signal {-self.status}"
        elif self.status >= _FIRST_WINDOWS_ERROR:
            ending = f"ended with status {self.status:#x}"
        else:
            ending = f"ended with status {self.status}"
        printed = (self.output + self.errors).strip()[-2000:]
        return f"{Path(self._program).name} {ending}\n{printed}"


def run_python(*arguments):
    """Run this interpreter; return how it result."""
    return run_program(sys.executable, *arguments)


def run_program(*command, without=()):
    """Run a program, `without` some variables of the environment; return how it result."""
    try:
        completed = subprocess.run(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            env={
                name: value
                for name, value in os.environ.items()
                if name not in without
            },
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AssertionError(
            f"{command[0]} did not end within {_SECONDS} s"
        ) from None
    except OSError as problem:
        raise AssertionError(
            f"{command[0]} could not be started: {problem}"
        ) from None
    return ProcessResult(
        command[0], completed.returncode, completed.stdout, completed.stderr
    )
