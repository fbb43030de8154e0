import json
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import process
from pytorch_build.build import metrics
from pytorch_build.build.metrics import MOST_SAMPLES, Edge, Metrics, memory_use, watched

HEADER = "# ninja log v{}"
LINES = (
    "0\t1000\t1700000000\ta.o\t1111111111111111",
    "0\t3000\t1700000000\tb.o\t2222222222222222",
    "3000\t4000\t1700000000\tlib.so\t3333333333333333",
    "3000\t4000\t1700000000\tlib.so.1\t3333333333333333",
)
EDGES = (
    Edge(output="a.o", start=0, end=1000),
    Edge(output="b.o", start=0, end=3000),
    Edge(output="lib.so", start=3000, end=4000),
)


def log(folder: Path, *lines: str, version: int = 5, name: str = ".") -> None:
    path = folder / name / metrics.NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([HEADER.format(version), *lines, ""]))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [HEADER.format(4), *LINES],
        [HEADER.format(8), *LINES],
        LINES,
        [HEADER.format(5), "0\t1000\t170000", "x\t1\t0\ta\tb", "-1\t1\t0\ta\tb", "5\t1\t0\ta\tb"],
        [HEADER.format(5), "٣\t٤\t0\ta\tb", f"0\t{'9' * 5000}\t0\ta\tb"],
    ],
)
def test_commands_of_known_versions_are_read(lines: list[str]) -> None:
    for version in (5, 6, 7):
        assert metrics.parse_log([HEADER.format(version), *LINES]) == EDGES, "one whatever its outputs"
    assert metrics.parse_log(lines) == ()


def test_a_logs_summary() -> None:
    said = metrics.summary(EDGES, folder="build")
    assert said["edges"] == 3
    assert said["seconds"] == 4.0
    assert said["busy_seconds"] == 5.0
    assert said["slowest"] == [["b.o", 3.0], ["a.o", 1.0], ["lib.so", 1.0]]
    assert len(said["parallelism"]) == metrics.MOST_PARTS
    assert said["parallelism"][0] == 2.0
    assert said["parallelism"][-1] == 1.0
    # several calls of ninja follow each other
    again = (*EDGES, Edge(output="c.o", start=10, end=500))
    assert metrics.in_sequence(again)[-1] == Edge(output="c.o", start=4010, end=4500)


def test_only_what_was_not_there_before_counts(tmp_path: Path) -> None:
    log(tmp_path, *LINES[:2])
    before = metrics.logs(tmp_path)
    assert metrics.summaries(tmp_path, before) == []
    # written anew in another order, with one file compiled again
    log(tmp_path, LINES[2], LINES[1], "0\t500\t1700000009\ta.o\t1111111111111111")
    (said,) = metrics.summaries(tmp_path, before)
    assert [name for name, _ in said["slowest"]] == ["lib.so", "a.o"]


def test_several_logs_the_one_with_most_work_first(tmp_path: Path) -> None:
    assert metrics.summaries(tmp_path / "absent", {}) == []
    log(tmp_path, LINES[0], name="temp.linux")
    log(tmp_path, *LINES, name="third_party/a", version=7)
    for at in range(5):
        log(tmp_path, LINES[0], name=f"more/{at}")
    found = metrics.summaries(tmp_path, {})
    assert len(found) == metrics.MOST_GRAPHS
    assert found[0]["folder"] == f"{tmp_path.name}/third_party/a"


def test_paths_are_told_without_the_machines_own_folders() -> None:
    outputs = ("/src/torch/build/x/a.o", "/home/me/elsewhere/deep/b.o", r"C:\src\c.obj", "d" * 900)
    edges = [Edge(output=output, start=0, end=9 - at) for at, output in enumerate(outputs)]
    said = [name for name, _ in metrics.summary(edges, folder="build", root="/src/torch/build")["slowest"]]
    assert said[:3] == ["x/a.o", "…/elsewhere/deep/b.o", "…/C:/src/c.obj"]
    assert len(said[3]) == metrics.MOST_LETTERS


moments = st.integers(0, 10**7)
edges = st.builds(
    lambda start, long, name: Edge(output=name, start=start, end=start + long),
    moments,
    st.integers(0, 10**6),
    st.text(max_size=300),
)


@given(st.lists(edges, min_size=1, max_size=60))
def test_a_summary_is_bounded_and_adds_up(found: list[Edge]) -> None:
    said = metrics.summary(found, folder="f" * 500)
    assert len(json.dumps(said)) < 60_000
    assert len(said["parallelism"]) <= metrics.MOST_PARTS
    if said["parallelism"]:
        width = said["seconds"] / len(said["parallelism"])
        # each part is rounded to hundredths, which are seconds in a build of hours
        rounded = 0.005 * said["seconds"] + 1
        assert sum(said["parallelism"]) * width == pytest.approx(said["busy_seconds"], rel=0.02, abs=rounded)
        assert max(said["parallelism"]) <= len(found) + 0.01


@given(st.lists(st.one_of(st.text(max_size=40), st.sampled_from(LINES), st.just(HEADER.format(5)))))
def test_no_text_is_too_much_for_the_parser(lines: list[str]) -> None:
    for edge in metrics.parse_log(lines):
        assert 0 <= edge.start <= edge.end


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("", None),
        ("running build_ext\ncopying a -> b\n", None),
        ("[1/2] CC a.o\n[2/2] LD b\n[7/40] CXX c.o\n", {"done": 7, "total": 40, "failed": []}),
        (
            "[9/40] CXX d.o\nFAILED: d.o \ncc: error\nFAILED: [code=1] /some/tmp/x/y/e.o\nFAILED: d.o\n",
            {"done": 9, "total": 40, "failed": ["d.o", "…/x/y/e.o"]},
        ),
        ("FAILED: only.o\n", {"failed": ["only.o"]}),
        ("the count [3/4] within a line\n", None),
    ],
)
def test_what_ninja_printed_says_how_far_it_came(output: str, said: object) -> None:
    assert metrics.reached(output) == said


SAID = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    4096 kB\n"


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=3 * MOST_SAMPLES))
def test_samples_are_bounded_and_keep_the_peak(used: list[int]) -> None:
    details = metrics.memory_details([(one, 1 << 40) for one in used])
    assert details is not None
    assert details["peak"] == max(used) == max(details["used"])
    assert 0 < len(details["used"]) <= MOST_SAMPLES
    assert details["total"] == 1 << 40


PRINTED = """[1/3] Building CXX object a.o
[2/3] Building HIP object b.o
FAILED: [code=1] torch/b.o
b.hip:1:1: error: no such thing
ninja: build stopped: subcommand failed.
"""


def build_in(folder: Path, log: Path, problem: BaseException | None = None) -> None:
    with (folder / ".ninja_log").open("a") as stream:
        stream.write("0\t2000\t1\tnew.o\tbb\n")
    log.write_bytes(b"\xff" * (5 << 20) + b"\n" + PRINTED.encode())
    if problem:
        raise problem


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="children are not measured there")
def test_one_compilers_memory_is_of_all_that_made_the_folder(tmp_path: Path) -> None:
    process.capture([sys.executable, "-c", "bytearray(150 << 20)"])
    assert metrics.peak_of_one(tmp_path, begun=True) == 0, "who made the rest is not known"
    assert metrics.peak_of_one(tmp_path, begun=False) >= 150 << 20
    (tmp_path / metrics.PEAK).write_text(str(1 << 50))
    assert metrics.peak_of_one(tmp_path, begun=True) == 1 << 50


@pytest.mark.parametrize("problem", [RuntimeError("no wheel"), KeyboardInterrupt(), None])
def test_a_build_is_followed_however_it_ends(
    tmp_path: Path, problem: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 40 kB\n")
    monkeypatch.setattr(metrics, "watched", lambda: watched(tmp_path / "meminfo"))
    monkeypatch.setattr(threading.Thread, "run", lambda _: None)  # a busy machine starts it too late
    build, printed = tmp_path / "build", tmp_path / "build.log"
    log(build, LINES[0])
    found = Metrics()
    with pytest.raises(type(problem)) if problem else nullcontext(), found.followed(build, printed):
        build_in(build, printed, problem)
    assert [one[0] for one in found.details["ninja"][0]["slowest"]] == ["new.o"]
    assert found.details["memory"]["peak"] == 60 << 10
    reached = {"done": 2, "total": 3, "failed": ["torch/b.o"]} if problem else None
    assert found.details.get("reached") == reached


def test_what_cannot_be_seen_is_not_said(tmp_path: Path) -> None:
    found = Metrics()
    with pytest.raises(ValueError, match="early"), found.followed(tmp_path / "build", tmp_path / "none.log"):
        raise ValueError("early")
    assert not {"reached", "ninja"} & found.details.keys()
    assert memory_use(SAID) == ((16384 - 4096) * 1024, 16384 * 1024)
    assert memory_use("MemTotal: 5 kB\n") is memory_use("") is None
    with watched(tmp_path / "absent") as samples:
        pass
    assert metrics.memory_details(samples) is None
