"""The sample's pipeline under a Windows Python, which Wine runs, with a compiler: this machine's MinGW."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from core import process
from core.files import sha256
from tests.kit.clones import ROOT, Clone, printed_by
from tests.kit.sample import clone_repository
from tests.kit.windows_compiler import windows_compiler
from tests.kit.windows_python import WindowsPython, windows_python

__all__ = ["windows_python"]

pytestmark = [pytest.mark.processes, pytest.mark.nightly]

# A module `answers` of Python's stable ABI, whose declarations stand here as this Windows has no headers of
# Python.
MODULE_SOURCE = """
#include <cstddef>
struct Object { std::ptrdiff_t references; void* type; };
struct Method { const char* name; Object* (*function)(Object*, Object*); int flags; const char* doc; };
struct Module {
  Object base; void* init; std::ptrdiff_t index; void* copy;
  const char* name; const char* doc; std::ptrdiff_t size;
  Method* methods; void* slots; void* traverse; void* clear; void* free;
};
extern "C" __declspec(dllimport) Object* PyLong_FromLong(long);
extern "C" __declspec(dllimport) Object* PyModule_Create2(Module*, int);
static Object* answer(Object*, Object*) { return PyLong_FromLong(42); }
static Method methods[] = {{"answer", answer, 4, nullptr}, {nullptr, nullptr, 0, nullptr}};
static Module module = {{1, nullptr}, nullptr, 0, nullptr, "answers", nullptr, -1, methods};
extern "C" __declspec(dllexport) Object* PyInit_answers() { return PyModule_Create2(&module, 3); }
"""
# Compiles the module and calls its function.
COMPILE_AND_CALL = """
import subprocess, sys
from pathlib import Path
library = Path(sys.base_prefix, "python3.dll")
module = Path("answers.pyd").absolute()
subprocess.check_call(["g++", "-shared", "-static", "answers.cpp", str(library), "-o", str(module)])
import answers
print(answers.answer())
"""
# Loads the DLLs of ROCm that are in the torch wheel, and multiplies.
USE_STAND_ALONE = """
import ctypes, glob, importlib.util, os, torch
assert importlib.util.find_spec("rocm_sdk") is None
for dll in glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "rocm", "bin", "*.dll")):
    ctypes.CDLL(dll)
print(torch.mm(torch.ones(2, 3), torch.ones(3, 2)).tolist())
"""
FILE_SYSTEM_KEY = r"HKLM\SYSTEM\CurrentControlSet\Control\FileSystem"


@dataclass(frozen=True, kw_only=True)
class WindowsWithCompiler:
    """A Windows Python whose PATH has a compiler."""

    base: WindowsPython
    compiler: str

    @property
    def python(self) -> Path:
        """Windows' Python."""
        return self.base.drive / "py" / "python.exe"

    def run(self, *command: str | Path, cwd: Path) -> process.Completed:
        """Run a program of Windows, with the compiler named as a user of MinGW names it."""
        variables = {
            "CC": "gcc",
            "CXX": "g++",
            "NO_COLOR": "1",
            "SOURCES_DIR": self.base.path(cwd / "src"),
            "WINEPATH": rf"{self.compiler};C:\py;C:\py\Scripts;C:\tools",
        }
        return self.base.run(*command, cwd=cwd, check=False, variables=variables)

    def create_environment(self, root: Path, wheel: Path) -> Path:
        """Create a virtual environment with a wheel; return its Python."""
        python = root / "Scripts" / "python.exe"
        self.base.uv("venv", "--python", self.python, root, cwd=root.parent)
        self.base.uv("pip", "install", "--python", python, wheel, cwd=root.parent)
        return python


def allow_long_paths(windows: WindowsPython, folder: Path) -> None:
    """Let Windows take the long paths that builds have; `folder` is where the command runs."""
    reg = windows.drive / "windows" / "system32" / "reg.exe"
    value = ("/v", "LongPathsEnabled", "/t", "REG_DWORD", "/d", "1")
    windows.run(reg, "add", FILE_SYSTEM_KEY, *value, "/f", cwd=folder)


@pytest.fixture(scope="module")
def windows(
    windows_python: WindowsPython, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WindowsWithCompiler]:
    """Return a Windows with a compiler, which allows long paths as builds ask for it."""
    folder = tmp_path_factory.mktemp("compiler")
    allow_long_paths(windows_python, folder)
    with windows_compiler(windows_python, folder / "mingw") as compiler:
        yield WindowsWithCompiler(base=windows_python, compiler=compiler)


def test_windows_imports_a_module_that_the_compiler_made(
    windows: WindowsWithCompiler, tmp_path: Path
) -> None:
    (tmp_path / "answers.cpp").write_text(MODULE_SOURCE, encoding="utf-8")

    completed = windows.run(windows.python, "-c", COMPILE_AND_CALL, cwd=tmp_path)

    assert completed.stdout.strip() == "42", printed_by(completed)


# The Python of the Wine root.
TAG = "cp313"
BATCH_BLOCK = re.compile(r"^```batch\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PIPELINE = "invoke ci --torch-ref sample"
STEPS = (
    "build_rocm",
    f"build_torch-sample-{TAG}",
    f"build_audio-sample-{TAG}",
    f"build_vision-sample-{TAG}",
    f"test_smoke-sample-{TAG}",
    f"test_torch-sample-{TAG}",
)


def write_commands_of_page(folder: Path) -> Path:
    """Write docs/try.md's commands for Windows, up to the pipeline; the file ends at the first that fails."""
    page = (ROOT / "docs" / "try.md").read_text(encoding="utf-8")
    (block,) = BATCH_BLOCK.findall(page)
    lines = ["@echo off"]
    for command in block.splitlines():
        if command.startswith("set "):
            # What stands behind a value would be a part of it.
            lines.append(command)
        else:
            lines.append(f"{command} || exit /b 1")
        if command.endswith(PIPELINE):
            break

    path = folder / "commands.bat"
    path.write_text("\r\n".join([*lines, ""]), encoding="ascii", newline="")
    return path


@pytest.fixture(scope="module")
def clone(windows: WindowsWithCompiler) -> Iterator[Clone]:
    """Return a clone on Windows' drive, in which cmd.exe has run the sample's pipeline."""
    path = windows.base.drive / "sample"
    shutil.rmtree(path, ignore_errors=True)
    clone_repository(ROOT, path)
    cmd = windows.base.drive / "windows" / "system32" / "cmd.exe"

    completed = windows.run(cmd, "/c", write_commands_of_page(path), cwd=path)

    assert completed.returncode == 0, printed_by(completed)[-6000:]
    yield Clone(path=path, platform="windows")
    shutil.rmtree(path, ignore_errors=True)


def test_the_samples_pipeline_records_every_step_on_windows(clone: Clone) -> None:
    for step in STEPS:
        assert clone.record(step)["status"] == "ok", step


@pytest.mark.parametrize("session", ["test_smoke", "test_torch"])
def test_tests_pass_on_the_wheels_of_windows(clone: Clone, session: str) -> None:
    counts = clone.record(f"{session}-sample-{TAG}")["details"]["tests"]

    assert counts["tests"] > counts["skipped"]
    assert counts["failures"] == 0
    assert counts["errors"] == 0


def test_the_index_lists_every_wheel_of_windows(clone: Clone) -> None:
    page = (clone.wheels() / "index.html").read_text(encoding="utf-8")
    wheels = sorted(clone.wheels().glob("*.whl"))

    names = {wheel.name.partition("-")[0] for wheel in wheels}
    assert names > {"rocm_sdk_core", "torch", "amd_torch_device_gfx942", "torchaudio", "torchvision"}
    for wheel in wheels:
        assert f">{wheel.name}</a>" in page
        assert sha256(wheel) in page


def test_the_page_of_a_run_on_windows_shows_its_tests(clone: Clone) -> None:
    page = (clone.outputs_of("local") / "reports" / "index.html").read_text(encoding="utf-8")

    for step in ("build_vision", "test_smoke", "test_torch"):
        assert step in page


def test_a_second_run_on_windows_has_nothing_to_do(clone: Clone, windows: WindowsWithCompiler) -> None:
    invoke = clone.path / ".venv" / "Scripts" / "invoke.exe"

    completed = windows.run(invoke, "ci", "--torch-ref", "sample", cwd=clone.path)

    printed = printed_by(completed)
    assert completed.returncode == 0, printed[-6000:]
    assert "nox >" not in printed
    for step in ("build_rocm", "build_torch", "build_audio", "build_vision", "test_smoke", "test_torch"):
        assert f"{step}: unchanged" in printed


def test_a_stand_alone_wheel_runs_on_windows_without_rocms_packages(
    clone: Clone, windows: WindowsWithCompiler, tmp_path: Path
) -> None:
    fat_wheel = ("nox", "-s", "fat_wheel", "--", "--torch-ref", "sample")

    completed = windows.run(windows.python, "-m", *fat_wheel, cwd=clone.path)

    assert completed.returncode == 0, printed_by(completed)[-6000:]
    (wheel,) = (clone.path / "dist").glob("torch-*.standalone-*.whl")
    python = windows.create_environment(tmp_path / "environment", wheel)
    completed = windows.run(python, "-c", USE_STAND_ALONE, cwd=tmp_path)
    assert completed.stdout.strip() == "[[3.0, 3.0], [3.0, 3.0]]", printed_by(completed)
