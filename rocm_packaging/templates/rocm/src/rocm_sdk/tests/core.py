"""Checks of the core package: layout, libraries, console scripts."""

import os
import sys
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path

from .. import _dist_info
from . import support
from .checks import Check, Skip, expect

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

# It calls into the device libraries, and needs no header and no compiler of the host.
_KERNEL = """\
extern "C" __attribute__((device)) float __ocml_sqrt_f32(float);
extern "C" __attribute__((global)) void roots(float* values) { values[0] = __ocml_sqrt_f32(values[0]); }
"""
_DEVICE_ONLY = ("-x", "hip", "-c", "--cuda-device-only", "-nogpuinc")
# Where another ROCm of the machine would be found.
_OTHER_ROCM = (
    *("ROCM_PATH", "ROCM_HOME", "HIP_PATH", "HIP_PLATFORM", "HIP_CLANG_PATH", "DEVICE_LIB_PATH"),
    *("HIP_DEVICE_LIB_PATH", "HIPCC_COMPILE_FLAGS_APPEND", "CCC_OVERRIDE_OPTIONS"),
)


def checks():
    root = support.payload("core")
    yield Check("core", "layout", _layout, root)
    yield support.promise_check("core", root)
    yield from support.library_checks("core", root)
    yield from support.preload_checks("core")
    from rocm_sdk_core import _cli

    yield Check("core", "there are console scripts", _some_scripts, _cli.PROGRAMS)
    for name, relative in _cli.PROGRAMS.items():
        yield Check("core", f"{name} runs", script, name, root / relative)
    compiler = next((name for name in ("hipcc", "amdclang++") if name in _cli.PROGRAMS), None)
    # without device code any target shows whether the compiler is whole
    last = None if _dist_info.installed_target_families() else 1
    for target in _dist_info.get_targets()[:last]:
        yield Check("core", f"a kernel is compiled for {target}", _kernel, compiler, target)


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


def script(name, path, needy=False):
    """A console script and its program are there, and answer; a needy one need only start."""
    expect(path.is_file(), f"{path} is missing")
    expect(_WINDOWS or os.access(path, os.X_OK), f"{path} is not executable")
    front = _path_of(name)
    expect(front.is_file(), f"{front} is missing")
    question = () if name in _LOOKING else _QUESTIONS.get(name, ("--version",))
    status, out, error = support.program(front, *question)
    said = f"{' '.join((name, *question))}: {support.ending(status)}\n{(out + error).strip()[-2000:]}"
    started = status not in (126, 127) and status >= 0
    expect(started and not any(text in error for text in _NOT_STARTED), said)
    if needy or name in _ERROR_ALWAYS or (name in _LOOKING and not has_gpu()):
        return "" if status == 0 else "starts"
    expect(status == 0, said)
    return ""


def _path_of(name):
    return Path(sysconfig.get_path("scripts")) / (f"{name}.exe" if _WINDOWS else name)


def _kernel(compiler, target):
    if compiler is None:
        raise Skip("this distribution was packaged without a HIP compiler")
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "roots.hip"), Path(folder, "roots.o")
        source.write_text(_KERNEL, encoding="utf-8")
        words = (*_DEVICE_ONLY, f"--offload-arch={target}", "-o", made, source)
        status, out, error = support.program(_path_of(compiler), *words, without=_OTHER_ROCM)
        said = f"{compiler}: {support.ending(status)}\n{(out + error).strip()[-2000:]}"
        expect(status == 0, said)
        expect(made.is_file() and made.stat().st_size, f"{compiler} wrote no device code\n{said}")


def has_gpu():
    """Whether a GPU's driver is there to be asked."""
    return _WINDOWS or os.path.exists("/dev/kfd")
