"""PyTorch's whole tree through the front door, in a Debian root (`--torch-root`).

Upstream's `setup.py`, CMake, ninja, code generators and installation are real, and so is all of the
project. The compiler is real where CMake tries it, and for one file; for the others a launcher
(`torch_root/prebuilt.sh`) puts the libraries that Debian made of the same tree in their places.
`--compile` compiles them all, with clang.
"""

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from core import process
from tests.kit.debian_root import (
    CLANG,
    GCC,
    PREBUILT,
    PROJECT,
    SCRIPTS,
    SETTINGS,
    TREE,
    Machine,
    flag_checks,
    machine,
)

BROKEN_FILE = "c10/core/DeviceType.cpp"
OPTIONS = ("--gpu-family", "cpu")
UPSTREAM_TREE = ("--pytorch-dir", TREE)
# Where little is compiled, less disk is enough.
BUILD_SOME = ("build_torch", *OPTIONS, *UPSTREAM_TREE, "--ignore-needs")
LOG = ".cache/logs/*/cpu/build_torch-*.log"
NINJA_STEP = re.compile(r"^\[(\d+)/(\d+)\]", re.MULTILINE)
STEPS_UNTIL_INTERRUPTION = 300
UPSTREAM_TESTS = ("test_type_info", "test_comparison_utils")
MORE_UPSTREAM_TESTS = ("test_shape_ops", "test_view_ops", "inductor/test_minifier")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far ninja is, in steps."""

    steps: int
    all_steps: int


@pytest.fixture(scope="module")
def debian(torch_root: Path) -> Machine:
    """Return the root, with the project and upstream's tree."""
    return machine(torch_root)


@pytest.fixture
def mistake_line(debian: Machine) -> Iterator[int]:
    """Put a mistake into a source file; return its line."""
    file = debian.path(TREE) / BROKEN_FILE
    text = file.read_text()
    file.write_text(f"{text}int mistake = missing_name;\n")
    yield text.count("\n") + 1
    file.write_text(text)


def cmake_cache(debian: Machine) -> dict[str, str]:
    """Return the settings in CMake's cache."""
    (cache,) = debian.path(PROJECT).glob("src/.own/torch-*/build/CMakeCache.txt")
    return dict(re.findall(r"^(\w+):\w+=(.*)$", cache.read_text(), re.MULTILINE))


def read_progress(debian: Machine) -> Progress:
    """Return how far the last build is."""
    steps: list[tuple[str, str]] = []
    for log in debian.path(PROJECT).glob(LOG):
        steps += NINJA_STEP.findall(log.read_text())
    if not steps:
        return Progress(steps=0, all_steps=0)
    step, all_steps = steps[-1]
    return Progress(steps=int(step), all_steps=int(all_steps))


def require_configured(debian: Machine, compiler: str) -> None:
    """Hold that the compiler was asked for flags, took those that it knows, and got something to do."""
    (log,) = debian.path(PROJECT).glob(LOG)
    checks = flag_checks(log.read_text())
    assert len(checks) > 30
    assert sum(checks.values()) > len(checks) / 2, checks
    assert checks["COMPILER_SUPPORTS_HIDDEN_VISIBILITY"]
    assert checks["COMPILER_SUPPORTS_HIDDEN_INLINE_VISIBILITY"]
    assert checks["HAS_FNO_MATH_ERRNO"]
    assert checks["HAS_WERROR_RETURN_TYPE"]

    settings = cmake_cache(debian)
    assert Path(settings["CMAKE_CXX_COMPILER"]).name == compiler
    assert settings["CMAKE_BUILD_TYPE"] == "Release"
    assert read_progress(debian).all_steps > 1000


def require_tested(debian: Machine, *tests: str) -> None:
    """Check the wheel, write its page, and test what is installed from there."""
    for session in ("check_wheels", "index", "test_smoke"):
        debian.nox(session, *OPTIONS)
    included = [f"--include={name}" for name in tests]
    debian.nox("test_torch", *OPTIONS, *UPSTREAM_TREE, *included)


def test_a_mistake_in_the_tree_ends_with_the_compilers_line(debian: Machine, mistake_line: int) -> None:
    completed = debian.nox(*BUILD_SOME, env={**SETTINGS, **PREBUILT, **CLANG}, check=False)

    assert completed.returncode != 0
    assert f"error: {BROKEN_FILE}:{mistake_line}:" in completed.stderr, completed.stderr
    assert "undeclared identifier 'missing_name'" in completed.stderr
    require_configured(debian, "clang++-19")


def test_all_but_the_compile_is_real(debian: Machine) -> None:
    """After clang's build, so that the compilers are others than those of the folder that is there."""
    debian.nox(*BUILD_SOME, env={**SETTINGS, **PREBUILT, **GCC})

    require_configured(debian, "g++")
    require_tested(debian, *UPSTREAM_TESTS)


def interrupt_build(debian: Machine, command: list[str], output: Path) -> Progress:
    """Build until some steps are done, and end it with a signal; return how far it came."""
    child = process.start(command, cwd=output.parent, env=process.inherited(), output=output)
    try:
        while child.wait(5) is None and read_progress(debian).steps < STEPS_UNTIL_INTERRUPTION:
            pass
        assert read_progress(debian).steps >= STEPS_UNTIL_INTERRUPTION, output.read_text()
        require_configured(debian, "clang++-19")
        child.signal(signal.SIGTERM)
        assert child.wait(60) not in {0, None}
    finally:
        child.kill()
    return read_progress(debian)


def test_a_whole_compile_goes_on_after_an_interruption(
    debian: Machine, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    """With a compiler cache in the root, so that the second of these is one of minutes."""
    if not pytestconfig.getoption("--compile"):
        pytest.skip("--compile compiles everything: 40 to 100 minutes on two cores")
    environment = {
        **SETTINGS,
        **CLANG,
        # With clang torch finds libomp, and leaves it out where it links.
        "LDFLAGS": "-fuse-ld=lld -Wl,--no-as-needed -L/usr/lib/llvm-19/lib -lomp",
        "CCACHE_DEPEND": "1",
        "CMAKE_PROJECT_INCLUDE": f"{SCRIPTS}/one.cmake",
    }
    command = ["nox", "-s", "build_torch", "-P", "3.13", "--", *OPTIONS, *UPSTREAM_TREE]
    command += ["--compiler-cache", "ccache"]
    command_outside = debian.words(*command, env=environment)

    progress = interrupt_build(debian, command_outside, tmp_path / "output")
    debian.run(*command, env=environment)

    # What was compiled is not compiled again, but for what was at work.
    steps_left = progress.all_steps - progress.steps
    assert read_progress(debian).all_steps < steps_left + STEPS_UNTIL_INTERRUPTION / 2
    require_tested(debian, *UPSTREAM_TESTS, *MORE_UPSTREAM_TESTS)
