"""PyTorch's whole tree through the front door, in a Debian root (`--torch-root`).

Upstream's `setup.py`, CMake, ninja, code generators and installation are real, and so is all of the
project. The compiler is real where CMake tries it, and for one file; for the others a launcher
(`torch_root/prebuilt.sh`) puts the libraries that Debian made of the same tree in their places.
`--compile` compiles them all, with clang.
"""

import re
import signal
from collections.abc import Iterator
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

EDITED = "c10/core/DeviceType.cpp"
OPTIONS = ("--gpu-family", "cpu")
OWN = ("--pytorch-dir", TREE)
# where little is compiled, less disk is enough
SOME = ("build_torch", *OPTIONS, *OWN, "--ignore-needs")
LOG = ".cache/logs/*/cpu/build_torch-*.log"
STEP = re.compile(r"^\[(\d+)/(\d+)\]", re.MULTILINE)
BEFORE = 300  # steps are done, and there is an interruption
# upstream's tests, inductor's among them
FILES = (
    *("test_type_info", "test_comparison_utils", "test_shape_ops", "test_view_ops"),
    "inductor/test_minifier",
)


@pytest.fixture(name="debian", scope="module")
def debian_fixture(torch_root: Path) -> Machine:
    return machine(torch_root)


@pytest.fixture(name="mistake")
def mistake_fixture(debian: Machine) -> Iterator[int]:
    """Put a mistake into a source file, and tell its line."""
    file = debian.path(TREE) / EDITED
    before = file.read_text()
    file.write_text(f"{before}int mistake = missing_name;\n")
    yield before.count("\n") + 1
    file.write_text(before)


def cached(debian: Machine) -> dict[str, str]:
    (cache,) = debian.path(PROJECT).glob("src/.own/torch-*/build/CMakeCache.txt")
    return dict(re.findall(r"^(\w+):\w+=(.*)$", cache.read_text(), re.MULTILINE))


def require_configured(debian: Machine, compiler: str) -> None:
    """Hold that the compiler was asked for flags, took those that it knows, and got something to do."""
    (log,) = debian.path(PROJECT).glob(LOG)
    checks = flag_checks(log.read_text())
    assert len(checks) > 30
    assert sum(checks.values()) > len(checks) / 2, checks
    assert all(checks[f"COMPILER_SUPPORTS_HIDDEN_{what}"] for what in ("VISIBILITY", "INLINE_VISIBILITY"))
    assert checks["HAS_FNO_MATH_ERRNO"]
    assert checks["HAS_WERROR_RETURN_TYPE"]
    settings = cached(debian)
    assert Path(settings["CMAKE_CXX_COMPILER"]).name == compiler
    assert settings["CMAKE_BUILD_TYPE"] == "Release"
    assert steps(debian)[1] > 1000


def require_tested(debian: Machine, *files: str) -> None:
    """Check the wheel, write its page, and test what is installed from there."""
    for session in ("check_wheels", "index", "test_smoke"):
        debian.nox(session, *OPTIONS)
    included = [f"--include={name}" for name in files]
    debian.nox("test_torch", *OPTIONS, *OWN, *included)


def test_a_mistake_in_the_tree_ends_with_the_compilers_line(debian: Machine, mistake: int) -> None:
    done = debian.nox(*SOME, env={**SETTINGS, **PREBUILT, **CLANG}, check=False)
    assert done.returncode != 0
    assert f"error: {EDITED}:{mistake}:" in done.stderr, done.stderr
    assert "undeclared identifier 'missing_name'" in done.stderr
    require_configured(debian, "clang++-19")


def test_all_but_the_compile_is_real(debian: Machine) -> None:
    """After clang's build, so that the compilers are others than those of the folder that is there."""
    debian.nox(*SOME, env={**SETTINGS, **PREBUILT, **GCC})
    require_configured(debian, "g++")
    require_tested(debian, *FILES[:2])


def test_a_whole_compile_goes_on_after_an_interruption(
    debian: Machine, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    """With a compiler cache in the root, so that the second of these is one of minutes."""
    if not pytestconfig.getoption("--compile"):
        pytest.skip("--compile compiles everything: 40 to 100 minutes on two cores")
    # with clang torch finds libomp, and leaves it out where it links
    linked = "-fuse-ld=lld -Wl,--no-as-needed -L/usr/lib/llvm-19/lib -lomp"
    env = {**SETTINGS, **CLANG, "LDFLAGS": linked, "CCACHE_DEPEND": "1"}
    env["CMAKE_PROJECT_INCLUDE"] = f"{SCRIPTS}/one.cmake"
    words = ["nox", "-s", "build_torch", "-P", "3.13", "--", *OPTIONS, *OWN, "--compiler-cache", "ccache"]
    output, outside = tmp_path / "said", process.inherited()
    child = process.start(debian.words(*words, env=env), cwd=tmp_path, env=outside, output=output)
    try:
        while child.wait(5) is None and steps(debian)[0] < BEFORE:
            pass
        assert steps(debian)[0] >= BEFORE, output.read_text()
        require_configured(debian, "clang++-19")
        child.signal(signal.SIGTERM)
        assert child.wait(60) not in {0, None}
    finally:
        child.kill()
    done, whole = steps(debian)
    debian.run(*words, env=env)
    # what was compiled is not compiled again, but for what was at work
    assert steps(debian)[1] < whole - done + BEFORE / 2
    require_tested(debian, *FILES)


def steps(debian: Machine) -> tuple[int, int]:
    logs = debian.path(PROJECT).glob(LOG)
    told = [found for log in logs for found in STEP.findall(log.read_text())]
    return (int(told[-1][0]), int(told[-1][1])) if told else (0, 0)
