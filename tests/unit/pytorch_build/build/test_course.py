from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytorch_build.build import metrics
from pytorch_build.build.metrics import Course

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "# ninja log v6\n"
OLD = "0\t10\t1\told.o\taa\n"
PRINTED = """[1/3] Building CXX object a.o
[2/3] Building HIP object b.o
FAILED: [code=1] torch/b.o
b.hip:1:1: error: no such thing
ninja: build stopped: subcommand failed.
"""


@pytest.fixture
def meminfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 100 kB\nMemAvailable: 40 kB\n")
    monkeypatch.setattr(metrics, "watched", lambda watched=metrics.watched: watched(path))


def build_in(folder: Path, log: Path, problem: BaseException | None = None) -> None:
    with (folder / ".ninja_log").open("a") as stream:
        stream.write("0\t2000\t1\ta.o\tbb\n")
    log.write_bytes(b"\xff" * (5 << 20) + b"\n" + PRINTED.encode())
    if problem:
        raise problem


@pytest.mark.usefixtures("meminfo")
@pytest.mark.parametrize("problem", [RuntimeError("no wheel"), KeyboardInterrupt()])
def test_a_build_that_ends_early_is_known_as_far_as_it_came(tmp_path: Path, problem: BaseException) -> None:
    build, log = tmp_path / "build", tmp_path / "build.log"
    build.mkdir()
    (build / ".ninja_log").write_text(HEADER + OLD)
    course = Course()
    with pytest.raises(type(problem)), course.followed(build, log):
        build_in(build, log, problem)
    assert course.details["reached"] == {"done": 2, "total": 3, "failed": ["torch/b.o"]}
    assert [one[0] for one in course.details["ninja"][0]["slowest"]] == ["a.o"]
    assert course.details["memory"]["peak"] == 60 << 10


@pytest.mark.usefixtures("meminfo")
def test_a_build_that_ends_well_has_not_reached_but_done_it(tmp_path: Path) -> None:
    course = Course()
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / ".ninja_log").write_text(HEADER)
    with course.followed(tmp_path / "build", tmp_path / "build.log"):
        build_in(tmp_path / "build", tmp_path / "build.log")
    assert set(course.details) == {"ninja", "memory"}


def test_a_build_that_fails_before_its_first_command_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MEMINFO", tmp_path / "absent")
    course = Course()
    with pytest.raises(ValueError, match="early"), course.followed(tmp_path / "build", tmp_path / "none.log"):
        raise ValueError("early")
    assert "reached" not in course.details
    assert "ninja" not in course.details
