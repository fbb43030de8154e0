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

# A module of Python's stable ABI, whose declarations stand here as this Windows has no headers of Python.
MODULE = """
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
COMPILE = """
import subprocess, sys
from pathlib import Path
library = Path(sys.base_prefix, "python3.dll")
module = Path("answers.pyd").absolute()
subprocess.check_call(["g++", "-shared", "-static", "answers.cpp", str(library), "-o", str(module)])
import answers
print(answers.answer())
"""
USE_STAND_ALONE = """
import ctypes, glob, importlib.util, os, torch
assert importlib.util.find_spec("rocm_sdk") is None
for dll in glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "rocm", "bin", "*.dll")):
    ctypes.CDLL(dll)
print(torch.mm(torch.ones(2, 3), torch.ones(3, 2)).tolist())
"""
KEY = r"HKLM\SYSTEM\CurrentControlSet\Control\FileSystem"


@dataclass(frozen=True, kw_only=True)
class WindowsWithCompiler:
    """A Windows Python whose PATH has a compiler."""

    windows: WindowsPython
    compiler: str

    @property
    def python(self) -> Path:
        """Windows' Python."""
        return self.windows.drive / "py" / "python.exe"

    def run(self, *words: str | Path, cwd: Path) -> process.Completed:
        """Run a program of Windows, with the compiler named as a user of MinGW names it."""
        variables = {
            "CC": "gcc",
            "CXX": "g++",
            "NO_COLOR": "1",
            "SOURCES_DIR": self.windows.path(cwd / "src"),
            "WINEPATH": rf"{self.compiler};C:\py;C:\py\Scripts;C:\tools",
        }
        return self.windows.run(*words, cwd=cwd, check=False, variables=variables)


@pytest.fixture(scope="module")
def windows(
    windows_python: WindowsPython, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WindowsWithCompiler]:
    """Return a Windows with a compiler, which allows long paths as builds ask for it."""
    folder = tmp_path_factory.mktemp("compiler")
    reg = windows_python.drive / "windows" / "system32" / "reg.exe"
    windows_python.run(
        reg, "add", KEY, "/v", "LongPathsEnabled", "/t", "REG_DWORD", "/d", "1", "/f", cwd=folder
    )
    with windows_compiler(windows_python, folder / "mingw") as compiler:
        yield WindowsWithCompiler(windows=windows_python, compiler=compiler)


def test_windows_imports_a_module_that_the_compiler_made(
    windows: WindowsWithCompiler, tmp_path: Path
) -> None:
    (tmp_path / "answers.cpp").write_text(MODULE, encoding="utf-8")

    completed = windows.run(windows.python, "-c", COMPILE, cwd=tmp_path)

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
        # What stands behind a value would be a part of it.
        lines.append(command if command.startswith("set ") else f"{command} || exit /b 1")
        if command.endswith(PIPELINE):
            break

    path = folder / "commands.bat"
    path.write_text("\r\n".join([*lines, ""]), encoding="ascii", newline="")
    return path


@pytest.fixture(scope="module")
def clone(windows: WindowsWithCompiler) -> Iterator[Clone]:
    """Return a clone on Windows' drive, in which cmd.exe has run the sample's pipeline."""
    path = windows.windows.drive / "sample"
    shutil.rmtree(path, ignore_errors=True)
    clone_repository(ROOT, path)
    cmd = windows.windows.drive / "windows" / "system32" / "cmd.exe"

    completed = windows.run(cmd, "/c", write_commands_of_page(path), cwd=path)

    assert completed.returncode == 0, printed_by(completed)[-6000:]
    yield Clone(path=path, platform="windows")
    shutil.rmtree(path, ignore_errors=True)


def test_the_samples_pipeline_records_every_step_on_windows(clone: Clone) -> None:
    assert {step: clone.record(step)["status"] for step in STEPS} == dict.fromkeys(STEPS, "ok")


@pytest.mark.parametrize("stage", ["test_smoke", "test_torch"])
def test_tests_pass_on_the_wheels_of_windows(clone: Clone, stage: str) -> None:
    tests = clone.record(f"{stage}-sample-{TAG}")["details"]["tests"]

    assert tests["tests"] > tests["skipped"]
    assert tests["failures"] == 0
    assert tests["errors"] == 0


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
    session = ("-m", "nox", "-s", "fat_wheel", "--", "--torch-ref", "sample")
    python = tmp_path / "environment" / "Scripts" / "python.exe"

    session_run = windows.run(windows.python, *session, cwd=clone.path)

    assert session_run.returncode == 0, printed_by(session_run)[-6000:]
    (wheel,) = (clone.path / "dist").glob("torch-*.standalone-*.whl")
    windows.windows.uv("venv", "--python", windows.python, tmp_path / "environment", cwd=tmp_path)
    windows.windows.uv("pip", "install", "--python", python, wheel, cwd=tmp_path)
    completed = windows.run(python, "-c", USE_STAND_ALONE, cwd=tmp_path)
    assert completed.stdout.strip() == "[[3.0, 3.0], [3.0, 3.0]]", printed_by(completed)
