import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.report import page_of
from ci.report.cells import cells_of, moment, time_line
from ci.report.facts import RunFacts
from ci.report.html import render
from ci.report.model import Cell, CellName, Page, Problem, StageRun
from ci.report.text import markdown, tables
from ci.verbs.notify import failure
from core.run.records import Record
from tests import page_samples as samples

GROUP, REF, PYTHON = "gfx900", "nightly", "cp312"
NAME = CellName(group=GROUP, torch_ref=REF, python=PYTHON)


def facts(*records: Record, locked: bool = True, **more: Any) -> RunFacts:
    """Make a run of one group with these records."""
    whole = samples.run([GROUP], [REF], [PYTHON])
    keyed = tuple((f"k/{one.name}{'.failed' * (one.status != 'ok')}.json", one) for one in records)
    group = replace(whole.groups[0], records=keyed, tests=(), **more)
    return replace(whole, groups=(group,), locks=whole.locks if locked else {})


def builds(*without: str) -> list[Record]:
    names = (name for name in samples.BUILDS if name not in without)
    return [samples.build(name, GROUP, REF, PYTHON) for name in names]


def smoke(**facts: Any) -> Record:
    return samples.smoke(GROUP, REF, PYTHON, started=samples.at(20_000), **facts)


def failed(stage: str, code: int = 8, error: str = "It broke.") -> Record:
    return samples.record(stage, GROUP, REF, PYTHON, status="failed", exit_code=code, error=error)


PART = {"tests": {"tests": 1, "existing": 91, "unexplained": 0}}
OTHER = "it ran on other bytes than the run has of apex-1.10.0"


def cell(found: RunFacts) -> Cell:
    (one,) = page_of(found).cells
    return one


@pytest.mark.parametrize(
    ("records", "state", "reason"),
    [
        ([*builds(), smoke()], "passed", ""),
        (builds(), "untested", "test_smoke has no record"),
        ([*builds("apex"), smoke()], "incomplete", "build_apex has no record"),
        ([*builds("apex"), failed("build_apex", 130)], "interrupted", "build_apex was interrupted"),
        ([*builds("apex"), failed("build_apex")], "failed", "build_apex failed"),
        # the last attempt counts, whatever an earlier one left
        ([*builds(), smoke(), failed("build_torch")], "failed", "build_torch failed"),
        ([*builds(), smoke(grown=1)], "untested", f"test_smoke: out of date: {OTHER}"),
        ([*builds(), smoke(details=PART)], "untested", "test_smoke: 1 of 91 tests ran"),
        ([*builds(), smoke(inputs={"installed": False})], "untested", "test_smoke: it tested what an "),
    ],
)
def test_a_cell_is_as_good_as_its_worst_stage(records: Sequence[Record], state: str, reason: str) -> None:
    one = cell(facts(*records))
    assert (one.name, one.state, one.reason[: len(reason) or 9]) == (NAME, state, reason)


def test_what_is_missing_is_told_by_the_lock_else_by_other_cells() -> None:
    expected = ["build_apex", "test_smoke"]
    assert [run.stage for run in cell(facts(*builds("apex"))).stages if run.state == "missing"] == expected
    other = samples.build("apex", GROUP, REF, "cp313")
    page = page_of(facts(*builds("apex", "audio"), other, locked=False))
    missing = [run.stage for run in page.cells[0].stages if run.state == "missing"]
    assert missing == ["build_apex", "test_smoke"]
    assert (
        Problem(
            where=f"source lock of {REF}",
            what="The run has none, so commits are only known where a build's record names them.",
        )
        in page.problems
    )


def test_a_document_that_is_no_record_is_shown_and_hides_no_other() -> None:
    odd = StageRun(stage="build_apex", state="unreadable", error="Schema version 9.", key="k")
    told = Problem(where="k", what="Schema version 9.", hint="Update.")
    page = page_of(facts(*builds("apex"), smoke(), unreadable=((NAME, odd),), problems=(told,)))
    assert page.cells[0].state == "unreadable"
    assert page.cells[0].reason == "build_apex cannot be read"
    assert page.problems[0] == told
    assert len(page.wheels) == 4


def test_tests_that_failed_make_the_cell_fail() -> None:
    found = facts(*builds(), smoke())
    assert cells_of(found, (), {NAME: "2 tests failed"})[0].reason == "2 tests failed"
    whole = samples.run(["gfx900", "gfx901", "gfx902"], [REF])
    page = page_of(whole)
    bad = {run.cell for run in page.tests.runs if not run.passed}
    assert bad
    assert all(cell.state == "failed" for cell in page.cells if cell.name in bad)


def test_wheels_know_their_sources_their_sizes_and_how_they_grew() -> None:
    now = samples.run([GROUP], [REF], [PYTHON], grown=1000)
    before = samples.run([GROUP], [REF], [PYTHON], run_id="122")
    page = page_of(now, before)
    torch = next(one for one in page.wheels if one.distribution == "torch")
    assert torch.commit == samples.digest(REF, "torch")[:40]
    assert torch.origin == samples.ORIGIN
    assert torch.grown == 1000
    assert torch.path == f"../python/{GROUP}/{torch.name.replace('+', '%2B')}"
    lib = next(folder for folder in torch.folders if folder.path == "torch/lib")
    assert lib.grown == 1000 * 8 // 10 + 1000
    assert (page.against, page.gone) == ("122", ())
    assert page_of(now).wheels[0].grown is None
    # one that has gone is named, and commits come from the lock where a record names none
    page = page_of(facts(*builds("apex")), facts(*builds()))
    assert [name.partition("-")[0] for name in page.gone] == ["apex"]
    one = samples.build("torch", GROUP, REF, PYTHON).model_copy(update={"details": {}})
    (wheel,) = page_of(facts(one)).wheels
    assert (wheel.commit, wheel.folders) == (samples.lock(REF).projects["torch"].commit, ())


def test_device_code_is_shown_as_a_part_of_its_wheel() -> None:
    def with_device(one: Record) -> Record:
        (host,) = one.files
        (gpu,) = (samples.wheel(GROUP, "amd-torch-device-gfx900", host.version, PYTHON, 9),)
        return one.model_copy(update={"files": (host, gpu), "details": {}})

    built = [with_device(one) if one.stage == "build_torch" else one for one in builds()]
    page = page_of(facts(*built, smoke()))
    names = [one.distribution for one in page.wheels]
    assert names[names.index("torch") + 1] == "amd-torch-device-gfx900"
    torch, device = (page.wheels[names.index(one)] for one in ("torch", "amd-torch-device-gfx900"))
    assert (torch.part_of, device.part_of) == ("", "torch")
    assert (torch.extra, device.extra) == ("device-all", "")
    assert device.commit == torch.commit == samples.lock(REF).projects["torch"].commit
    html = render(page)
    assert f"part of torch: </span>{device.name}" in html
    assert f"torch[device-all]=={torch.version}" in html
    assert f"torch[device-all]=={torch.version}" in page.cells[0].requirements


def test_sources_of_two_runs_are_compared() -> None:
    now, before = facts(*builds()), facts(*builds())
    changed = replace(before, locks={REF: samples.lock(REF, seed="other")}, run_id="122")
    by_name = {one.project: one for one in page_of(now, changed).sources}
    assert {name for name, one in by_name.items() if one.changed} == {"torch"}
    torch = by_name["torch"]
    assert torch.compare == f"{samples.ORIGIN}/compare/{torch.commit_before}...{torch.commit}"
    assert by_name["audio"].compare == ""


def test_builds_say_what_their_records_say_and_nonsense_is_a_problem() -> None:
    page = page_of(facts(*builds()))
    torch = page.builds[0]
    assert (torch.stage, torch.graphs[0].edges, len(torch.graphs[0].slowest)) == ("build_torch", 6000, 25)
    assert torch.graphs[0].mean == pytest.approx(14.2)
    assert torch.memory is not None
    assert torch.memory.peak == 96 << 30
    odd = samples.build("torch", GROUP, REF, PYTHON).model_copy(update={"details": {"ninja": "many"}})
    page = page_of(facts(odd))
    assert page.builds[0].graphs == ()
    assert "details.ninja" in page.problems[-1].what


def test_the_first_error_stands_above_the_matrix_with_a_link_and_is_what_others_are_told() -> None:
    run = samples.broken()
    page, broken = page_of(run), run.groups[0].records[-1][1]
    json.dumps(asdict(page))
    shown = render(page)
    at = shown.index("aten/ops.cpp:25: error: &#39;no_such_function&#39;")
    assert (
        at
        < shown.index("25 |   at::Tensor")
        < shown.index("-P 3.12 -- --torch-ref")
        < shown.index('id="cells"')
    )
    assert 'href="../logs/gfx900/build_torch.log"' in shown[at:]
    assert page.problems[0].what == failure(broken).error


def test_a_failed_build_says_first_how_far_it_came() -> None:
    reached = {"done": 4100, "total": 6000, "failed": ["aten/a.o", "aten/b.o"]}
    ended = samples.build("torch", GROUP, REF, PYTHON).details
    details = {"ninja": ended["ninja"], "reached": reached}
    broken = failed("build_torch").model_copy(update={"details": details})
    page = page_of(facts(broken, *builds("torch")))
    first = page.builds[0]
    assert (first.stage, first.failed, first.graphs[0].edges) == ("build_torch", True, 6000)
    assert first.reached is not None
    assert str(first.reached) == "at command 4100 of 6000 making aten/a.o, aten/b.o"
    assert not any(one.failed for one in page.builds[1:])
    table = next(one for one in tables(page) if one.title == "the longest builds")
    assert (table.columns[-1], table.rows[0][-1]) == ("failed", str(first.reached))
    assert table.rows[0][1].startswith("failed after")
    shown = render(page)
    assert "It failed at command 4100 of 6000 making aten/a.o, aten/b.o." in shown
    assert "failed after" in shown
    # where no build failed no column says so
    table = next(one for one in tables(page_of(facts(*builds()))) if one.title == "the longest builds")
    assert table.columns[-1] == "slowest file"
    assert all(len(row) == len(table.columns) for row in table.rows)


@pytest.mark.parametrize(
    "contents", ["x", {"torch": 1}, {}, None, [1], {"no": {"a": "b"}}, {"no": {"a": [1, "2", 3]}}]
)
def test_contents_that_make_no_sense_are_not_shown(contents: object) -> None:
    one = samples.build("torch", GROUP, REF, PYTHON)
    details = {"contents": {one.files[0].name: contents}}
    assert page_of(facts(one.model_copy(update={"details": details}))).wheels[0].folders == ()
    assert page_of(facts(one.model_copy(update={"details": {"contents": contents}}))).wheels[0].folders == ()


def test_the_same_test_of_several_cells_is_told_once() -> None:
    page = page_of(samples.run(["gfx900", "gfx901", "gfx902"], [REF]))
    (flaky,) = page.tests.flaky
    assert len(flaky.cells) == 9
    assert len(page.tests.slowest) == 10
    assert {len(one.cells) for one in page.tests.failures} == {sum(not run.passed for run in page.tests.runs)}


def test_results_of_other_bytes_and_of_a_part_are_shown_and_count_for_nothing() -> None:
    entry = samples.tested(GROUP, REF, PYTHON).model_copy(update={"stage": "test_smoke", "passed": True})
    found = facts(*builds(), smoke(grown=1))
    page = page_of(replace(found, groups=(replace(found.groups[0], tests=(entry,)),)))
    assert page.tests.runs[0].missing.startswith("out of date")
    assert (page.cells[0].state, len(page.problems)) == ("untested", 0)
    assert "out of date: it ran on other bytes than the run has of apex" in render(page)
    # of a failed test, too; and what is of the bytes is no longer said to have failed
    old = smoke(grown=1, status="failed", error="No.")
    assert page_of(facts(*builds(), old)).cells[0].state == "untested"


def test_a_wheel_of_an_edited_tree_says_so() -> None:
    built = builds()
    source = {"tree": "/mine", "commit": "a" * 40, "diff": "b" * 64, "edited": 3}
    built[1] = built[1].model_copy(update={"details": {"source": source}})
    page = page_of(facts(*built, smoke()))
    assert [one.edited for one in page.wheels if one.edited] == ["edited tree, 3 files differ"]
    for shown in (render(page), markdown(page)):
        assert shown.count("edited tree, 3 files differ") == 1
    one = built[1].model_copy(update={"details": {"source": {**source, "edited": 1}}})
    assert one.edited == "edited tree, 1 file differs"


def test_no_command_lacks_what_the_wheels_need_nor_installs_what_is_older_than_a_failure() -> None:
    built = builds()
    assert "pip install torch==" in render(page_of(facts(*built, smoke())))
    rocm = {"rocm": ["7.2.4", "split", {"rocm-7.2.4.tar.gz": "a" * 64}]}
    options = ["--extra-index-url", "https://rocm.example/v2/gfx900/"]
    built[1] = built[1].model_copy(update={"inputs": rocm})
    shown = render(page_of(facts(*built)))
    assert "pip install" not in shown
    assert "<code>rocm-7.2.4.tar.gz</code>, which this run does not hold" in shown
    built[1] = built[1].model_copy(update={"details": {"rocm_options": options}})
    assert f"</var> {' '.join(options)}</pre>" in render(page_of(facts(*built)))
    for stage, code in (("build_torch", 8), ("build_audio", 130)):
        page = page_of(facts(*builds(), smoke(), failed(stage, code)))
        assert page.cells[0].requirements == ()
        assert "pip install torch" not in render(page)


def test_what_was_borrowed_took_none_of_the_runs_time() -> None:
    lent = builds()[0].model_copy(
        update={"details": {"borrowed": "7"}, "started": "2020-01-01T00:00:00+00:00"}
    )
    page = page_of(facts(lent, *builds("triton")))
    assert page.elapsed < 86400
    assert "build_triton" not in [bar.stage for bar in page.cells[0].line.bars]
    assert "taken from run 7" in render(page)


def test_the_same_error_of_several_cells_is_told_once_and_failed_tests_are_named() -> None:
    found = facts(
        failed("build_torch"),
        samples.record("build_torch", GROUP, REF, "cp313", status="failed", error="It broke."),
    )
    (one,) = page_of(found).problems
    assert (one.where, one.also) == (f"build_torch {NAME}", (f"build_torch {GROUP} {REF} cp313",))
    page = page_of(samples.run(["gfx900", "gfx901", "gfx902"], [REF]))
    (tested,) = (one for one in page.problems if one.where.startswith("test_torch"))
    assert tested.what == "test_nn.py::TestNN::test_conv0: AssertionError: Tensors differ"
    assert tested.again == "nox -s test_torch -- --run-id 123 -k test_conv0"
    assert page.state == "failed"


@pytest.mark.parametrize("change", [lambda run: run, lambda run: replace(run, groups=run.groups[::-1])])
def test_the_same_records_make_the_same_page(change: Callable[[RunFacts], RunFacts]) -> None:
    run = samples.run(["gfx900", "gfx901"], ["nightly", "release/2.10"], [PYTHON])
    first, second = page_of(run), page_of(change(run))
    assert isinstance(first, Page)
    assert (first.cells, first.wheels, first.sources) == (second.cells, second.wheels, second.sources)


BEGAN = datetime(2026, 11, 21, tzinfo=UTC)


def timed(name: str, start: float, seconds: float) -> StageRun:
    started = (BEGAN + timedelta(seconds=start)).isoformat()
    return StageRun(stage=name, state="ok", started=started, seconds=seconds)


def test_the_critical_path_is_what_the_end_waited_for() -> None:
    line = time_line(
        [
            timed("build_rocm", 0, 100),
            timed("build_triton", 100, 20),
            timed("build_torch", 121, 500),
            timed("build_audio", 622, 30),
            timed("build_vision", 622, 60),
            timed("test_smoke", 690, 10),
        ]
    )
    assert [(step.stage, step.waited) for step in line.path] == [
        ("build_rocm", 0),
        ("build_triton", 0),
        ("build_torch", 1),
        ("build_vision", 1),
        ("test_smoke", 8),
    ]
    assert [bar.stage for bar in line.bars if not bar.critical] == ["build_audio"]
    assert line.elapsed == 700
    assert line.idle == ()
    # shards of a configuration wait as their stage does
    line = time_line([timed("test_smoke", 0, 5), timed("test_torch_distributed-2-of-6", 6, 9)])
    assert [step.stage for step in line.path] == ["test_smoke", "test_torch_distributed-2-of-6"]
    # a stage that ran again after those that need it is not part of their path
    line = time_line([timed("build_torch", 50, 10), timed("test_smoke", 20, 100)])
    assert [step.stage for step in line.path] == ["test_smoke"]
    # a stage without a start is not drawn
    assert time_line([StageRun(stage="build_torch", state="missing")]).bars == ()
    assert moment("yesterday") is moment("") is None


def test_long_idle_times_are_folded_and_a_longer_one_is_wider() -> None:
    line = time_line([timed("build_rocm", 0, 60), timed("build_torch", 89, 60), timed("test_smoke", 329, 60)])
    assert (line.elapsed, line.busy) == (389, 180)
    assert [cut.seconds for cut in line.idle] == [180]
    # 29 s are drawn as they were
    assert line.bars[1].start == 89
    line = time_line([timed("build_rocm", 0, 20), timed("build_torch", 49, 20), timed("test_smoke", 249, 20)])
    first, second = line.idle
    assert (first.seconds, second.seconds) == (29, 180)
    assert first.width * 1.5 < second.width < 20
    # each stretch has a clock of its own, and marks at round times
    starts = [0, first.start + first.width, second.start + second.width]
    assert [at for at, label in line.ticks if label == "0"] == pytest.approx(starts)
    assert [label for _, label in line.ticks] == ["0", "20 s"] * 3
    assert time_line([timed("build_torch", 0, 4 * 3600)]).ticks[-1][1] == "4 h"


spans = st.tuples(
    st.sampled_from(["build_rocm", "build_torch", "build_audio", "test_smoke", "x"]),
    st.floats(0, 1e7),
    st.floats(0, 1e6),
)


@given(st.lists(spans, min_size=1, max_size=9, unique_by=lambda one: one[0]))
def test_every_bar_lies_within_the_drawing(found: list[tuple[str, float, float]]) -> None:
    line = time_line([timed(*one) for one in found])
    assert len(line.bars) == len(found)
    for bar in line.bars:
        assert bar.start >= -0.01
        assert bar.start + bar.seconds <= line.length + 0.1
    assert line.length <= line.elapsed + 10
    assert line.busy <= line.elapsed + 0.1
    assert all(0 <= at <= line.length + 0.1 for at, _ in line.ticks)
    assert len(line.ticks) <= 8 + len(line.idle)
    names = [step.stage for step in line.path]
    assert 0 < len(names) == len(set(names))
