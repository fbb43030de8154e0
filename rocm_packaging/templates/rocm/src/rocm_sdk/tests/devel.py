"""Checks of the development tree: paths, links, libraries, and the runtime packages' files in it."""

import os
import sys
import tempfile
from pathlib import Path

from .. import _dist_info
from . import support
from .checks import Check, Skip, expect, expect_none

_WINDOWS = sys.platform == "win32"


def expand():
    """The check that comes first: the tree can be made."""
    return Check("devel", "rocm-sdk init", _init)


def checks():
    """The checks of an expanded tree."""
    from .. import _devel

    root = Path(_devel.get_devel_root())
    for kind, folder in (("root", root), ("bin", root / "bin"), ("cmake", root / "lib" / "cmake")):
        yield Check("devel", f"rocm-sdk path --{kind}", _path, kind, folder)
    yield Check("devel", "hipconfig knows its root", _hipconfig, root)
    yield Check("devel", "llvm is lib/llvm", _llvm, root)
    yield support.promise_check("devel", root)
    yield Check("devel", "no link dangles", _links, root)
    yield from support.library_checks("devel", root)
    for name, source in _sources():
        yield Check("devel", f"the files of {name} are in it", _mirrored, root, source)


def _sources():
    yield "core", support.payload("core")
    for family in _dist_info.installed_libraries():
        if family == _dist_info.determine_target_family():
            yield "libraries", support.payload("libraries", family)


def _init():
    status, out, error = support.python("-m", "rocm_sdk", "init", "--quiet")
    expect((status, out) == (0, ""), f"{support.ending(status)}: {out}{error}")


def _path(kind, folder):
    status, out, error = support.python("-m", "rocm_sdk", "path", f"--{kind}")
    expect(status == 0, error)
    expect(out.strip() == str(folder), f"it printed {out.strip()!r}, not {str(folder)!r}")
    expect(folder.is_dir(), f"{folder} is not a folder")


def _hipconfig(root):
    program = root / "bin" / ("hipconfig.exe" if _WINDOWS else "hipconfig")
    if not program.exists():
        raise Skip("this distribution has no hipconfig")
    status, out, error = support.program(program, "--rocmpath")
    expect(status == 0, f"{support.ending(status)}: {error}")
    expect(os.path.samefile(out.strip(), root), f"it printed {out.strip()!r}")


def _llvm(root):
    if not (root / "lib" / "llvm").is_dir():
        raise Skip("this distribution has no lib/llvm")
    if _WINDOWS:
        raise Skip("links to folders need a right on Windows")
    link = root / "llvm"
    expect(link.exists() and os.path.samefile(link, root / "lib" / "llvm"), f"{link} is something else")


def _links(root):
    if not _dist_info.installed_libraries():
        raise Skip("the libraries that some of them point to are not installed")
    links = [path for path in root.rglob("*") if path.is_symlink()]
    expect_none((path for path in links if not path.exists()), "links dangle")
    if not links:
        raise Skip("the tree holds no links")
    return f"{len(links)} links"


def _mirrored(root, source):
    """Every file of a runtime package is the tree's own file, not a copy of it."""
    if not _hard_links(source, root):
        raise Skip("this file system has no hard links, so the tree holds copies")
    count, wrong = 0, []
    for current, folders, files in os.walk(source):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = Path(current, name)
            relative = path.relative_to(source)
            if str(relative) == "__init__.py" or relative.parts[0] == ".devel_links":
                continue
            count += 1
            problem = _difference(path, root / relative, root)
            if problem:
                wrong.append(f"{relative.as_posix()}: {problem}")
    expect(count, f"{source} holds no files")
    expect_none(wrong, "files differ")
    return f"{count} files"


def _difference(path, twin, root):
    """Return how a file of a package and its twin in the tree disagree; "" where they do not."""
    if not os.path.lexists(twin):
        return "not in the tree"
    if twin.is_symlink():
        # a wheel holds a copy or a stub where ROCm's tree has a link
        target = twin.resolve()
        inside = root.resolve() in target.parents
        return "" if inside and target.is_file() else f"links to {target}"
    return "" if os.path.samefile(path, twin) else "another file of the same name"


def _hard_links(source, root):
    first = next((Path(at, name) for at, _, names in os.walk(source) for name in sorted(names)), None)
    expect(first is not None, f"{source} holds no files")
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=".rocm-") as folder:
        try:
            os.link(first, Path(folder, "link"))
        except OSError:
            return False
    return True
