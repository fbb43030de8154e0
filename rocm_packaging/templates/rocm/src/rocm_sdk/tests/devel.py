"""Checks of the development tree: paths, links, libraries, and the runtime packages' files in it."""

import filecmp
import os
import sys
import unittest
from pathlib import Path

from .. import _dist_info, _files
from . import support
from .check import Check, expect, expect_none

_IS_WINDOWS = sys.platform == "win32"


def expansion_check():
    """Return the check that comes first: the tree can be expanded."""
    return Check("devel", "rocm-sdk init", _check_init)


def checks():
    """Yield the checks of an expanded tree."""
    from .. import _devel

    root = Path(_devel.get_devel_root())
    yield Check("devel", "rocm-sdk path --root", _check_path, "root", root)
    yield Check("devel", "rocm-sdk path --bin", _check_path, "bin", root / "bin")
    yield Check(
        "devel",
        "rocm-sdk path --cmake",
        _check_path,
        "cmake",
        root / "lib" / "cmake",
    )
    yield Check("devel", "hipconfig knows its root", _check_hipconfig, root)
    yield Check("devel", "llvm is lib/llvm", _check_llvm, root)
    yield support.promise_check("devel", root)
    yield Check("devel", "no link dangles", _check_links, root)
    yield from support.library_checks("devel", root)
    for package, payload in _linked_payloads():
        yield Check(
            "devel",
            f"the files of {package} are in it",
            _check_files,
            root,
            payload,
        )


def _linked_payloads():
    """Yield the packages whose files the tree links to, with their folders."""
    yield "core", support.payload("core")
    for family in _dist_info.installed_libraries():
        if family == _dist_info.determine_target_family():
            yield "libraries", support.payload("libraries", family)


def _check_init():
    result = support.run_python("-m", "rocm_sdk", "init", "--quiet")
    expect(result.status == 0 and not result.output, result.summary)


def _check_path(kind, folder):
    result = support.run_python("-m", "rocm_sdk", "path", f"--{kind}")
    expect(result.status == 0, result.summary)
    printed_path = result.output.strip()
    expect(
        printed_path == str(folder),
        f"it printed {printed_path!r}, not {str(folder)!r}",
    )
    expect(folder.is_dir(), f"{folder} is not a folder")


def _check_hipconfig(root):
    program = root / "bin" / "hipconfig"
    if _IS_WINDOWS:
        program = program.with_suffix(".exe")
    if not program.exists():
        raise unittest.SkipTest("this distribution has no hipconfig")
    result = support.run_program(program, "--rocmpath")
    expect(result.status == 0, result.summary)
    printed_path = result.output.strip()
    expect(os.path.samefile(printed_path, root), f"it printed {printed_path!r}")


def _check_llvm(root):
    if not (root / "lib" / "llvm").is_dir():
        raise unittest.SkipTest("this distribution has no lib/llvm")
    if _IS_WINDOWS:
        raise unittest.SkipTest("links to folders need a right on Windows")
    link = root / "llvm"
    expect(
        link.exists() and os.path.samefile(link, root / "lib" / "llvm"),
        f"{link} is something else",
    )


def _check_links(root):
    if not _dist_info.installed_libraries():
        raise unittest.SkipTest(
            "the libraries that some of them point to are not installed"
        )
    links = [path for path in root.rglob("*") if path.is_symlink()]
    expect_none((link for link in links if not link.exists()), "links dangle")
    if not links:
        raise unittest.SkipTest("the tree holds no links")


def _check_files(root, payload):
    """Require that each file of a runtime package is in the tree."""
    problems = []
    count = 0
    for relative, path in _files.files_below(str(payload)):
        if relative == "__init__.py" or relative.startswith(".devel_links/"):
            continue
        count += 1
        problem = _difference(path, root / relative, root)
        if problem is not None:
            problems.append(f"{relative}: {problem}")
    expect(count, f"{payload} holds no files")
    expect_none(problems, "files differ")


def _difference(path, path_in_tree, root):
    """Return how a file of a package and the one in the tree disagree, or None."""
    if not os.path.lexists(path_in_tree):
        return "not in the tree"
    if path_in_tree.is_symlink():
        # a wheel holds a copy or a stub where ROCm's tree has a link
        target = path_in_tree.resolve()
        is_in_tree = root.resolve() in target.parents
        return None if is_in_tree and target.is_file() else f"links to {target}"

    # Hard links are copies where the file system has none, and where layers of an image have been copied.
    if os.path.samefile(path, path_in_tree) or filecmp.cmp(
        path, path_in_tree, shallow=False
    ):
        return None
    return "another file of the same name"
