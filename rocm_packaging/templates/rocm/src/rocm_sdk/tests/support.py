"""What the checks share: installed packages, their files, and processes of their own."""

import csv
import functools
import importlib.util
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from .. import _dist_info
from .checks import Check, Skip, expect, expect_none

_SECONDS = 300  # for one process: a program that hangs must not hang the whole test

# Libraries that a plain process cannot load by themselves, and why.
_NOT_ALONE = (
    (re.compile(r"clang_rt|libLLVMOffload"), "the compiler links it into programs that it instruments"),
    (re.compile(r"roctracer"), "it traces the program that loads it"),
    (
        re.compile(r"librocprofiler-sdk-(tool|json)|librocprofiler-.*tool"),
        "it is a plugin of the profiler",
    ),
    (re.compile(r"OpenCL|opencl"), "it needs a loader of vendors' drivers"),
    (re.compile(r"\.abi3\.|\.cpython-|/python\d"), "it belongs to one version of Python"),
)
_LIBRARY = re.compile(r"\.(dll|so(\.\d+)*)$")


def payload(name, family=None):
    """Folder that holds an installed package's files."""
    spec = importlib.util.find_spec(_dist_info.ALL_PACKAGES[name].get_py_package_name(family))
    expect(spec is not None and spec.origin, f"the files of {name} are not installed")
    return Path(spec.origin).absolute().parent


def installed():
    """ROCm's distributions in this environment, sorted by name."""
    found = {}
    for one in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower()
        if name == "rocm" or name.startswith(("rocm-sdk-", "rocm-profiler")):
            found.setdefault(name, one)
    return dict(sorted(found.items()))


def shared_libraries(root):
    """Shared libraries below a folder, links excepted, sorted."""
    found = (path for path in sorted(root.rglob("*")) if _LIBRARY.search(path.name))
    return [path for path in found if path.is_file() and not path.is_symlink()]


def promise_check(package, root):
    """The check that a folder holds the files that the build promised of a package, none of them empty."""
    return Check(package, "what it promises is there", _promise, package, root)


def _promise(package, root):
    paths = [root / name for name in _dist_info.PROMISED_FILES.get(package, ())]
    expect_none((path for path in paths if not path.is_file()), "files are missing")
    expect_none((path for path in paths if not path.stat().st_size), "files are empty")
    if not paths:
        raise Skip("this distribution was packaged without them")
    return f"{len(paths)} files"


def library_checks(group, root):
    """One check a library below a folder: each loads in a process of its own."""
    paths = shared_libraries(root)
    yield Check(group, "there are shared libraries", _some, paths, root)
    for path in paths:
        yield Check(group, f"{path.relative_to(root).as_posix()} loads", _load, path, root)


def _some(paths, root):
    expect(paths, f"no shared library is in {root}")
    return f"{len(paths)} below {root.name}"


def _load(path, root):
    relative = "/" + path.relative_to(root).as_posix()
    for pattern, reason in _NOT_ALONE:
        if pattern.search(relative):
            raise Skip(reason)
    status, out, error = python("-I", "-S", "-c", _LOAD, path)
    expect(status == 0, f"{path}: {ending(status)}\n{error.strip()[-2000:]}")
    own, folder = _own_libraries()
    foreign = [
        line for line in out.splitlines() if Path(line).name in own and folder not in Path(line).parents
    ]
    expect_none(foreign, "libraries come from elsewhere, though these packages hold them")


# Loads a library, and prints the files of all that came with it, where the system tells.
_LOAD = """
import ctypes, os, sys
ctypes.CDLL(sys.argv[1])
if os.path.exists("/proc/self/maps"):
    with open("/proc/self/maps") as maps:
        fields = [line.rstrip("\\n").split(maxsplit=5) for line in maps]
    print("\\n".join(sorted({field[5] for field in fields if len(field) == 6})))
"""


@functools.lru_cache(maxsize=None)
def _own_libraries():
    """Names of all libraries that the installed packages hold, and the folder that holds them all."""
    entry = _dist_info.ALL_PACKAGES.get("profiler")
    roots = [payload("core"), *([payload("profiler")] if entry and entry.has_py_package() else [])]
    roots += [payload("libraries", family) for family in _dist_info.installed_libraries()]
    names = frozenset(path.name for root in roots for path in shared_libraries(root))
    return names, roots[0].parent.resolve()


def files_check(distribution):
    """Every file that a package was installed with is there, with its size."""
    # not distribution.files, which leaves out what is missing since Python 3.12
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    # what has no hash in the RECORD came later: the expanded tree, compiled modules
    listed = [(row[0], row[2]) for row in rows if len(row) == 3 and row[1]]
    expect(listed, f"{distribution.metadata['Name']} has no RECORD")
    wrong = []
    for name, size in listed:
        path = Path(distribution.locate_file(name))
        if not os.path.lexists(path):
            # the archive goes when the tree is expanded
            if not path.name.startswith("_devel.tar"):
                wrong.append(f"{name} is missing")
        elif size and path.stat().st_size != int(size):
            wrong.append(f"{name} has {path.stat().st_size} bytes, not {size}")
    expect_none(wrong, "files are not as they were installed")
    return f"{len(listed)} files"


def preload_checks(package):
    """One check a library that programs ask for by name: it is found, and loads with what it needs."""
    names = names_of(package)
    yield Check(package, "libraries are known by name", _known, names, package)
    for name in names:
        yield Check(package, f"initialize_process loads {name}", _preload, name)
    if names:
        yield Check(package, "initialize_process loads all of them", _preload, *names)


def _known(names, package):
    expect(names, f"none of the names in rocm_sdk is in {package}")
    return ", ".join(names)


def _preload(*names):
    code = (
        "import sys, rocm_sdk\n"
        "assert len(rocm_sdk.find_libraries(*sys.argv[1:])) == len(sys.argv) - 1\n"
        "rocm_sdk.initialize_process(preload_shortnames=sys.argv[1:], env_override=False)\n"
    )
    status, _, error = python("-c", code, *names)
    expect(status == 0, f"{ending(status)}\n{error.strip()[-2000:]}")


def names_of(package):
    """Short names of the libraries that a package must hold."""
    return [
        entry.name
        for entry in _dist_info.ALL_LIBRARIES.values()
        if entry.package == package
        and entry.pattern[1]
        and not entry.optional
        and entry.name in _dist_info.DISTRIBUTED_LIBRARIES
    ]


def python(*arguments):
    """Run this interpreter; ``(status, stdout, stderr)``."""
    return program(sys.executable, *arguments)


def program(*argv, without=()):
    """Run a program, `without` some variables of the environment; ``(status, stdout, stderr)``."""
    try:
        done = subprocess.run(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name not in without},
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{argv[0]} did not end within {_SECONDS} s") from None
    except OSError as problem:
        raise AssertionError(f"{argv[0]} could not be started: {problem}") from None
    return done.returncode, _text(done.stdout), _text(done.stderr)


def _text(output):
    return output.decode("utf-8", "replace").replace("\r\n", "\n")


def ending(status):
    """A process's status in words."""
    return f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
