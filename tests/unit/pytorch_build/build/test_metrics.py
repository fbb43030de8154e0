import json
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import process
from pytorch_build.build import metrics
from pytorch_build.build.metrics import Edge, Metrics, memory_use, watched

HEADER = "# ninja log v{}"
A_O = "0\t1000\t1700000000\ta.o\t1111111111111111"
B_O = "0\t3000\t1700000000\tb.o\t2222222222222222"
LIB_SO = "3000\t4000\t1700000000\tlib.so\t3333333333333333"
LIB_SO_1 = "3000\t4000\t1700000000\tlib.so.1\t3333333333333333"
LINES = (A_O, B_O, LIB_SO, LIB_SO_1)
# A command with two outputs is one edge.
EDGES = (
    Edge(output="a.o", start=0, end=1000),
    Edge(output="b.o", start=0, end=3000),
    Edge(output="lib.so", start=3000, end=4000),
)
GIB = 1 << 30


def write_log(folder: Path, *lines: str, version: int = 5) -> None:
    """Write ninja's log into a build folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / metrics.NAME).write_text("\n".join([HEADER.format(version), *lines, ""]))


# Reading ninja's log


@pytest.mark.parametrize("version", [5, 6, 7])
def test_reads_commands_of_known_log_versions(version: int) -> None:
    assert metrics.parse_log([HEADER.format(version), *LINES]) == EDGES


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([], id="empty"),
        pytest.param([HEADER.format(4), *LINES], id="older version"),
        pytest.param([HEADER.format(8), *LINES], id="newer version"),
        pytest.param(LINES, id="no header"),
        pytest.param([HEADER.format(5), "0\t1000\t170000"], id="cut off"),
        pytest.param([HEADER.format(5), "x\t1\t0\ta\tb"], id="no number"),
        pytest.param([HEADER.format(5), "-1\t1\t0\ta\tb"], id="negative"),
        pytest.param([HEADER.format(5), "5\t1\t0\ta\tb"], id="ends before it starts"),
        pytest.param([HEADER.format(5), "٣\t٤\t0\ta\tb"], id="other digits"),
        pytest.param([HEADER.format(5), f"0\t{'9' * 5000}\t0\ta\tb"], id="too large"),
    ],
)
def test_reads_no_command_from_an_unknown_or_damaged_log(lines: Sequence[str]) -> None:
    assert metrics.parse_log(lines) == ()


@given(st.lists(st.text(max_size=40) | st.sampled_from(LINES) | st.just(HEADER.format(5))))
def test_reads_any_lines(lines: list[str]) -> None:
    for edge in metrics.parse_log(lines):
        assert 0 <= edge.start <= edge.end


# Summaries


def test_summarises_a_log() -> None:
    summary = metrics.summary(EDGES, folder="build")

    assert summary["edges"] == 3
    assert summary["seconds"] == 4.0
    assert summary["busy_seconds"] == 5.0
    assert summary["slowest"] == [["b.o", 3.0], ["a.o", 1.0], ["lib.so", 1.0]]


def test_summarises_how_many_commands_ran_at_a_time() -> None:
    parallelism = metrics.summary(EDGES, folder="build")["parallelism"]

    assert len(parallelism) == metrics.MOST_PARTS
    assert parallelism[0] == 2.0
    assert parallelism[-1] == 1.0


def test_puts_several_calls_of_ninja_behind_each_other() -> None:
    next_call = Edge(output="c.o", start=10, end=500)

    edges = metrics.in_sequence((*EDGES, next_call))

    assert edges[-1] == Edge(output="c.o", start=4010, end=4500)


def test_shows_paths_without_the_machines_own_folders() -> None:
    outputs = ["/src/torch/build/x/a.o", "/home/me/elsewhere/deep/b.o", r"C:\src\c.obj"]
    edges = [Edge(output=output, start=0, end=9 - number) for number, output in enumerate(outputs)]

    slowest = metrics.summary(edges, folder="build", root="/src/torch/build")["slowest"]

    assert [path for path, _seconds in slowest] == ["x/a.o", "…/elsewhere/deep/b.o", "…/C:/src/c.obj"]


def test_shortens_a_long_path() -> None:
    edge = Edge(output="d" * 900, start=0, end=9)

    ((path, _seconds),) = metrics.summary([edge], folder="build")["slowest"]

    assert len(path) == metrics.MOST_LETTERS


def build_edge(start: int, duration: int, output: str) -> Edge:
    """Return an edge that takes so many milliseconds."""
    return Edge(output=output, start=start, end=start + duration)


MANY_EDGES = st.lists(
    st.builds(build_edge, st.integers(0, 10**7), st.integers(0, 10**6), st.text(max_size=20)),
    min_size=1,
    max_size=30,
)


@given(MANY_EDGES)
def test_a_summary_adds_up(edges: list[Edge]) -> None:
    summary = metrics.summary(edges, folder="build")

    parallelism = summary["parallelism"]
    assert len(parallelism) <= metrics.MOST_PARTS
    if parallelism:
        part_seconds = summary["seconds"] / len(parallelism)
        # Each part is rounded to hundredths, which are seconds in a build of hours.
        tolerance = 0.005 * summary["seconds"] + 1
        busy_seconds = pytest.approx(summary["busy_seconds"], rel=0.02, abs=tolerance)
        assert sum(parallelism) * part_seconds == busy_seconds
        assert max(parallelism) <= len(edges) + 0.01


def test_a_summary_is_bounded() -> None:
    edges = [Edge(output="ä" * 300, start=number, end=10**6) for number in range(1000)]

    summary = metrics.summary(edges, folder="f" * 500)

    assert len(json.dumps(summary)) < 60_000


# Logs of a build folder


def test_summarises_only_what_was_not_there_before(tmp_path: Path) -> None:
    write_log(tmp_path, A_O, B_O)
    logs_before = metrics.logs(tmp_path)

    # Written anew in another order, with one file compiled again.
    write_log(tmp_path, LIB_SO, B_O, "0\t500\t1700000009\ta.o\t1111111111111111")

    (summary,) = metrics.summaries(tmp_path, logs_before)
    assert [output for output, _seconds in summary["slowest"]] == ["lib.so", "a.o"]


def test_summarises_nothing_where_nothing_was_done(tmp_path: Path) -> None:
    write_log(tmp_path, A_O, B_O)

    assert metrics.summaries(tmp_path, metrics.logs(tmp_path)) == []
    assert metrics.summaries(tmp_path / "absent", {}) == []


def test_summarises_the_logs_with_most_work(tmp_path: Path) -> None:
    write_log(tmp_path / "temp.linux", A_O)
    write_log(tmp_path / "third_party/a", *LINES, version=7)
    for number in range(5):
        write_log(tmp_path / f"deps/{number}", A_O)

    summaries = metrics.summaries(tmp_path, {})

    assert len(summaries) == metrics.MOST_GRAPHS
    assert summaries[0]["folder"] == f"{tmp_path.name}/third_party/a"


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
    ],
)
def test_reads_how_far_a_build_came_from_ninjas_output(output: str, progress: object) -> None:
    assert metrics.reached(output) == progress


# Memory


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=30))
def test_keeps_the_peak_of_memory_samples(used: list[int]) -> None:
    details = metrics.memory_details([(sample, 1 << 40) for sample in used])

    assert details is not None
    assert details["peak"] == max(used)
    assert details["peak"] == max(details["used"])
    assert details["total"] == 1 << 40


def test_keeps_a_bounded_number_of_memory_samples() -> None:
    sample_count = 3 * metrics.MOST_SAMPLES

    details = metrics.memory_details([(number, GIB) for number in range(sample_count)])

    assert details is not None
    assert 0 < len(details["used"]) <= metrics.MOST_SAMPLES
    assert max(details["used"]) == sample_count - 1


def test_reads_the_memory_in_use() -> None:
    meminfo = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    4096 kB\n"

    assert memory_use(meminfo) == ((16384 - 4096) * 1024, 16384 * 1024)


@pytest.mark.parametrize("meminfo", ["MemTotal: 5 kB\n", ""])
def test_reads_no_memory_in_use_from_an_incomplete_file(meminfo: str) -> None:
    assert memory_use(meminfo) is None


def test_records_no_memory_where_it_cannot_be_seen(tmp_path: Path) -> None:
    with watched(tmp_path / "absent") as samples:
        pass

    assert metrics.memory_details(samples) is None


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="children are not measured there")
def test_measures_one_compilers_memory_in_a_new_build_folder(tmp_path: Path) -> None:
    process.capture([sys.executable, "-c", "bytearray(150 << 20)"])

    assert metrics.peak_of_one(tmp_path, begun=False) >= 150 << 20


def test_measures_no_memory_in_a_build_folder_of_unknown_builds(tmp_path: Path) -> None:
    assert metrics.peak_of_one(tmp_path, begun=True) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="children are not measured there")
def test_keeps_the_highest_memory_of_earlier_builds_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / metrics.PEAK).write_text(str(1 << 50))

    assert metrics.peak_of_one(tmp_path, begun=True) == 1 << 50


# Following a build

NINJA_OUTPUT = """[1/3] Building CXX object a.o
[2/3] Building HIP object b.o
FAILED: [code=1] torch/b.o
b.hip:1:1: error: no such thing
ninja: build stopped: subcommand failed.
"""


def follow_build(folder: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException | None) -> Metrics:
    """Follow a build that compiles a file and then ends with a problem or without; return what is known."""
    meminfo = folder / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable: 40 kB\n")
    monkeypatch.setattr(metrics, "watched", lambda: watched(meminfo))
    # A busy machine would start it too late, and it takes samples beside the first one.
    monkeypatch.setattr(threading.Thread, "run", lambda _thread: None)
    build_folder = folder / "build"
    log = folder / "build.log"
    write_log(build_folder, A_O)

    build_metrics = Metrics()
    with suppress(type(problem)) if problem else nullcontext(), build_metrics.followed(build_folder, log):
        with (build_folder / metrics.NAME).open("a") as stream:
            stream.write("0\t2000\t1\tnew.o\tbb\n")
        # Only the end of a long log is read, whatever its bytes.
        log.write_bytes(b"\xff" * (5 << 20) + b"\n" + NINJA_OUTPUT.encode())
        if problem is not None:
            raise problem
    return build_metrics


@pytest.mark.parametrize(
    "problem", [None, RuntimeError("no wheel"), KeyboardInterrupt()], ids=["success", "failure", "Ctrl-C"]
)
def test_follows_a_build_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException | None
) -> None:
    details = follow_build(tmp_path, monkeypatch, problem).details

    assert [output for output, _seconds in details["ninja"][0]["slowest"]] == ["new.o"]
    assert details["memory"]["peak"] == 60 << 10


def test_records_how_far_a_build_came_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    details = follow_build(tmp_path, monkeypatch, RuntimeError("no wheel")).details

    assert details["reached"] == {"done": 2, "total": 3, "failed": ["torch/b.o"]}


def test_records_no_progress_of_a_build_that_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "reached" not in follow_build(tmp_path, monkeypatch, None).details


def test_records_nothing_of_a_build_that_failed_before_ninja(tmp_path: Path) -> None:
    build_metrics = Metrics()

    following = build_metrics.followed(tmp_path / "build", tmp_path / "none.log")
    with pytest.raises(ValueError, match="early"), following:
        raise ValueError("early")

    assert not {"reached", "ninja"} & build_metrics.details.keys()
