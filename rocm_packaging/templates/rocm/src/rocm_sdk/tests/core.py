"""Checks of the core package: layout, libraries, console scripts."""

import os
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from .. import _dist_info
from . import support
from .checks import Check, expect

_WINDOWS = sys.platform == "win32"
_HELP = ("--help",)

# What each program is asked; one that is not named here is asked for its version.
_QUESTIONS = {
    "amdlld": ("-flavor", "ld.lld", "--version"),
    "hipify-perl": _HELP,
    "roc-obj": _HELP,
    "roc-obj-ls": _HELP,
}
# Programs that look at the machine: without a GPU only their start says something. The same
# holds for one whose every question ends with an error.
_LOOKING = frozenset({"amd-smi", "hipInfo", "offload-arch", "rocm-smi", "rocm_agent_enumerator", "rocminfo"})
_ERROR_ALWAYS = frozenset({"roc-obj-extract"})
_NOT_STARTED = (
    "error while loading shared libraries",
    "cannot open shared object file",
    "bad interpreter",
    "_cli.py",
)


def checks():
    root = support.payload("core")
    yield Check("core", "layout", _layout, root)
    yield from support.library_checks("core", root)
    yield from support.preload_checks("core")
    from rocm_sdk_core import _cli

    yield Check("core", "there are console scripts", _some_scripts, _cli.PROGRAMS)
    for name, relative in _cli.PROGRAMS.items():
        yield Check("core", f"{name} runs", _script, name, root / relative)


def _layout(root):
    for folder in ("bin",) if _WINDOWS else ("bin", "lib"):
        expect((root / folder).is_dir(), f"{root} has no folder {folder}")
    manifest = root / "share" / "therock" / "therock_manifest.json"
    expect(manifest.is_file(), f"{manifest} is missing")


def _some_scripts(programs):
    package = _dist_info.ALL_PACKAGES["core"].get_dist_package_name()
    points = metadata.distribution(package).entry_points
    declared = sorted(entry.name for entry in points if entry.group == "console_scripts")
    expect(declared == sorted(programs), f"{package} declares {declared} and knows {sorted(programs)}")
    expect(declared, f"{package} has no console scripts")
    return f"{len(declared)}"


def _script(name, path):
    expect(path.is_file(), f"{path} is missing")
    expect(_WINDOWS or os.access(path, os.X_OK), f"{path} is not executable")
    script = Path(sysconfig.get_path("scripts")) / (f"{name}.exe" if _WINDOWS else name)
    expect(script.is_file(), f"{script} is missing")
    question = () if name in _LOOKING else _QUESTIONS.get(name, ("--version",))
    status, out, error = support.program(script, *question)
    said = f"{' '.join((name, *question))}: {support.ending(status)}\n{(out + error).strip()[-2000:]}"
    started = status not in (126, 127) and status >= 0
    expect(started and not any(text in error for text in _NOT_STARTED), said)
    if name in _ERROR_ALWAYS or (name in _LOOKING and not has_gpu()):
        return "" if status == 0 else "starts"
    expect(status == 0, said)
    return ""


def has_gpu():
    """Whether a GPU's driver is there to be asked."""
    return _WINDOWS or os.path.exists("/dev/kfd")
