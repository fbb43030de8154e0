import sys
from pathlib import Path
from typing import Any

import pytest

from core import process
from pytorch_build.build.execution import progress_in, record_metrics

# How far a build came


@pytest.mark.parametrize(
    ("output", "progress"),
    [
        pytest.param("", None, id="nothing"),
        pytest.param("running build_ext\ncopying a -> b\n", None, id="no ninja"),
        pytest.param("the count [3/4] within a line\n", None, id="within a line"),
        pytest.param(
            "[1/2] CC a.o\n[2/2] LD b\n[7/40] CXX c.o\n",
            {"done": 7, "total": 40, "failed": []},
            id="second call",
        ),
        pytest.param(
            "[9/40] CXX d.o\nFAILED: d.o \ncc: error\nFAILED: [code=1] /some/tmp/x/y/e.o\nFAILED: d.o\n",
            {"done": 9, "total": 40, "failed": ["d.o", "…/x/y/e.o"]},
            id="failed files",
        ),
        pytest.param("FAILED: only.o\n", {"failed": ["only.o"]}, id="no count"),
        pytest.param("FAILED: C:\\src\\torch\\a\\b.obj\n", {"failed": ["…/torch/a/b.obj"]}, id="Windows"),
    ],
)
def test_reads_how_far_a_build_came_from_ninjas_output(output: str, progress: object) -> None:
    assert progress_in(output) == progress


def test_keeps_a_bounded_part_of_what_failed() -> None:
    output = "".join(f"FAILED: {number}{'d' * 900}\n" for number in range(100))

    progress = progress_in(output)

    assert progress is not None
    assert 0 < len(str(progress)) < 2000


# What is kept of a build

NINJA_OUTPUT = """[1/3] Building CXX object a.o
[2/3] Building HIP object b.o
FAILED: [code=1] torch/b.o
b.hip:1:1: error: no such thing
ninja: build stopped: subcommand failed.
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a long log of a build that failed, whose beginning holds any bytes."""
    path = tmp_path / "build.log"
    path.write_bytes(b"\xff" * (5 << 20) + b"\n" + NINJA_OUTPUT.encode())
    return path


@pytest.mark.parametrize(
    "problem", [RuntimeError("no wheel"), KeyboardInterrupt()], ids=["failure", "Ctrl-C"]
)
def test_records_how_far_a_build_came_that_did_not_end_well(log: Path, problem: BaseException) -> None:
    details: dict[str, Any] = {}

    with pytest.raises(type(problem)), record_metrics(details, log):
        raise problem

    assert details["reached"] == {"done": 2, "total": 3, "failed": ["torch/b.o"]}


def test_records_no_progress_of_a_build_that_succeeded(log: Path) -> None:
    details: dict[str, Any] = {}

    with record_metrics(details, log):
        pass

    assert "reached" not in details


def test_records_no_progress_of_a_build_that_failed_before_ninja(tmp_path: Path) -> None:
    details: dict[str, Any] = {}

    with pytest.raises(ValueError, match="early"), record_metrics(details, tmp_path / "none.log"):
        raise ValueError("early")

    assert "reached" not in details


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="children are not measured there")
def test_records_the_memory_of_the_largest_process(log: Path) -> None:
    details: dict[str, Any] = {}

    with record_metrics(details, log):
        process.capture([sys.executable, "-c", "bytearray(150 << 20)"])

    assert 150 << 20 <= details["memory"]["peak"] <= details["memory"]["total"]
