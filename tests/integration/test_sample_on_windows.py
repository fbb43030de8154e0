"""A compiler for a Windows Python, which Wine runs: this machine's MinGW."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from core import process
from tests.kit.clones import printed_by
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
KEY = r"HKLM\SYSTEM\CurrentControlSet\Control\FileSystem"


@dataclass(frozen=True, kw_only=True)
class WindowsWithCompiler:
    """A Windows Python whose PATH has a compiler."""

    windows: WindowsPython
    compiler: str

    def run(self, *words: str, cwd: Path) -> process.Completed:
        """Run Windows' Python, with the compiler named as a user of MinGW names it."""
        variables = {
            "CC": "gcc",
            "CXX": "g++",
            "NO_COLOR": "1",
            "SOURCES_DIR": self.windows.path(cwd / "src"),
            "WINEPATH": rf"{self.compiler};C:\py;C:\py\Scripts;C:\tools",
        }
        python = self.windows.drive / "py" / "python.exe"
        return self.windows.run(python, *words, cwd=cwd, check=False, variables=variables)


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

    completed = windows.run("-c", COMPILE, cwd=tmp_path)

    assert completed.stdout.strip() == "42", printed_by(completed)
