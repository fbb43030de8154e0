"""Checks of the core package: layout, libraries, console scripts."""

import os
import sys
import sysconfig
import tempfile
import unittest
from importlib import metadata
from pathlib import Path

from .. import _dist_info
from . import support
from .check import Check, expect

_IS_WINDOWS = sys.platform == "win32"

# What each program is asked; one that is not named here is asked for its version.
_QUESTIONS = {
    "amdlld": ("-flavor", "ld.lld", "--version"),
    "hipify-perl": ("--help",),
    "roc-obj": ("--help",),
    "roc-obj-ls": ("--help",),
}
# Programs that look at the machine: without a GPU only their start says something. The same
# holds for one whose every question ends with an error.
_ASK_THE_MACHINE = frozenset(
    {
        "amd-smi",
        "hipInfo",
        "offload-arch",
        "rocm-smi",
        "rocm_agent_enumerator",
        "rocminfo",
    }
)
_END_WITH_ERRORS = frozenset({"roc-obj-extract"})
_SIGNS_OF_NO_START = (
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
    "ROCM_PATH",
    "ROCM_HOME",
    "HIP_PATH",
    "HIP_PLATFORM",
    "HIP_CLANG_PATH",
    "DEVICE_LIB_PATH",
    "HIP_DEVICE_LIB_PATH",
    "HIPCC_COMPILE_FLAGS_APPEND",
    "CCC_OVERRIDE_OPTIONS",
)


def checks():
    """Yield the checks of the core package."""
    root = support.payload("core")
    yield Check("core", "layout", _check_layout, root)
    yield support.promise_check("core", root)
    yield from support.library_checks("core", root)
    yield from support.preload_checks("core")

    from rocm_sdk_core import _cli

    yield Check(
        "core",
        "there are console scripts",
        _check_declared_scripts,
        _cli.PROGRAMS,
    )
    for name, relative in _cli.PROGRAMS.items():
        yield Check("core", f"{name} runs", check_script, name, root / relative)
    compilers = [
        name for name in ("hipcc", "amdclang++") if name in _cli.PROGRAMS
    ]
    for target in _targets_to_compile_for():
        yield Check(
            "core",
            f"a kernel is compiled for {target}",
            _check_compiler,
            compilers,
            target,
        )


def _targets_to_compile_for():
    targets = _dist_info.get_targets()
    # without device code any target shows whether the compiler is whole
    if not _dist_info.installed_target_families():
        return targets[:1]
    return targets


def _check_layout(root):
    expect((root / "bin").is_dir(), f"{root} has no folder bin")
    expect(_IS_WINDOWS or (root / "lib").is_dir(), f"{root} has no folder lib")
    manifest = root / "share" / "therock" / "therock_manifest.json"
    expect(manifest.is_file(), f"{manifest} is missing")


def _check_declared_scripts(programs):
    package = _dist_info.ALL_PACKAGES["core"].get_dist_package_name()
    entry_points = metadata.distribution(package).entry_points
    declared = sorted(
        point.name for point in entry_points if point.group == "console_scripts"
    )
    expect(
        declared == sorted(programs),
        f"{package} declares {declared} and knows {sorted(programs)}",
    )
    expect(declared, f"{package} has no console scripts")


def check_script(name, path, must_only_start=False):
    """Require that a console script and its program are there, and answer."""
    expect(path.is_file(), f"{path} is missing")
    expect(_IS_WINDOWS or os.access(path, os.X_OK), f"{path} is not executable")
    script = _script_path(name)
    expect(script.is_file(), f"{script} is missing")

    question = _QUESTIONS.get(name, ("--version",))
    if name in _ASK_THE_MACHINE:
        question = ()
    result = support.run_program(script, *question)
    has_sign = any(sign in result.errors for sign in _SIGNS_OF_NO_START)
    expect(result.has_run and not has_sign, result.summary)

    is_without_gpu = name in _ASK_THE_MACHINE and not _has_gpu()
    if not (must_only_start or is_without_gpu or name in _END_WITH_ERRORS):
        expect(result.status == 0, result.summary)


def _script_path(name):
    file_name = f"{name}.exe" if _IS_WINDOWS else name
    return Path(sysconfig.get_path("scripts"), file_name)


def _check_compiler(compilers, target):
    """Require that the first compiler makes device code for a gfx target."""
    if not compilers:
        raise unittest.SkipTest(
            "this distribution was packaged without a HIP compiler"
        )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "roots.hip")
        source.write_text(_KERNEL, encoding="utf-8")
        device_code = Path(folder, "roots.o")
        options = (*_DEVICE_ONLY, f"--offload-arch={target}", "-o", device_code)
        result = support.run_program(
            _script_path(compilers[0]), *options, source, without=_OTHER_ROCM
        )
        expect(result.status == 0, result.summary)
        is_written = device_code.is_file() and device_code.stat().st_size
        expect(is_written, f"no device code was written: {result.summary}")


def _has_gpu():
    """Return whether a GPU's driver is there to be asked."""
    if not _IS_WINDOWS:
        return os.path.exists("/dev/kfd")
    # A driver brings the HIP runtime that it was made with.
    system = Path(os.environ.get("SystemRoot", r"C:\Windows"), "System32")
    return any(system.glob("amdhip64*.dll"))
