from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.report import page_of
from ci.report.cells import cells_of, moment, time_line
from ci.report.facts import RunFacts
from ci.report.html import render
from ci.report.model import Cell, CellName, StageRun, TimeLine
from ci.report.text import markdown, tables
from ci.verbs.notify import failure
from core.run.records import Record
from tests.kit import page_runs as samples

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
        ([*builds(), smoke(status="failed"), smoke(grown=1)], "failed", "test_smoke failed"),
        ([*builds(), smoke(grown=1)], "untested", f"test_smoke: out of date: {OTHER}"),
        ([*builds(), smoke(details=PART)], "untested", "test_smoke: 1 of 91 tests ran"),
        ([*builds(), smoke(inputs={"installed": False})], "untested", "test_smoke: it tested what an "),
    ],
)
def test_a_cell_is_as_good_as_its_worst_stage(records: Sequence[Record], state: str, reason: str) -> None:
    one = cell(facts(*records))
    assert (one.name, one.state, one.reason[: len(reason) or 9]) == (NAME, state, reason)


def test_a_familys_own_stages_are_told_apart_by_their_python() -> None:
    first, second = (samples.record("test_rocm", GROUP, python=one) for one in ("cp311", "cp312"))
    page = page_of(facts(first, second.model_copy(update={"status": "failed"})))
    said = [("test_rocm cp311", "ok"), ("test_rocm cp312", "failed")]
    assert [(one.stage, one.state) for one in page.groups[0].stages] == said
    assert [render(page).count(f"</span> {one}") for one, _ in said] == [1, 1]


def test_what_is_missing_is_told_by_the_lock_else_by_other_cells() -> None:
    expected = ["build_apex", "test_smoke"]
    assert [run.stage for run in cell(facts(*builds("apex"))).stages if run.state == "missing"] == expected
    other = samples.build("apex", GROUP, REF, "cp313")
    page = page_of(facts(*builds("apex", "audio"), other, locked=False))
    missing = [run.stage for run in page.cells[0].stages if run.state == "missing"]
    assert missing == ["build_apex", "test_smoke"]


def test_a_changed_trees_run_lacks_nothing_that_it_did_not_build() -> None:
    torch = samples.build("torch", GROUP, REF, PYTHON)
    mine = torch.model_copy(update={"inputs": {**torch.inputs, "source": {"tree": "/mine", "commit": "1"}}})
    own = replace(facts(mine, smoke()), run_id="local-mine")
    assert "build_apex" not in cell(own).reason
    assert cell(replace(own, run_id="local")).reason.endswith("build_apex have no record")


def test_tests_that_failed_make_the_cell_fail() -> None:
    found = facts(*builds(), smoke())
    assert cells_of(found, (), {NAME: "2 tests failed"})[0].reason == "2 tests failed"
    said = "1 test of test_smoke failed"
    assert cells_of(facts(*builds(), smoke(status="failed")), (), {NAME: said})[0].reason == said
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
    # one that has gone is named, if the run has its cell
    other = samples.build("apex", GROUP, REF, "cp313")
    page = page_of(facts(*builds("apex")), facts(*builds(), other))
    assert [name.partition("-")[0] for name in page.gone] == ["apex"]


def test_device_code_is_shown_as_a_part_of_its_wheel() -> None:
    built = builds()
    (host,) = built[1].files
    device = samples.wheel(GROUP, "amd-torch-device-gfx900", host.version, PYTHON, 9)
    built[1] = built[1].model_copy(update={"files": (host, device), "details": {}})
    page = page_of(facts(*built, smoke()))
    at = [one.distribution for one in page.wheels].index("torch")
    torch, part = page.wheels[at : at + 2]
    assert (torch.part_of, torch.extra, part.part_of, part.extra) == ("", "device-all", "torch", "")
    # where a record names no commit the lock does
    assert part.commit == torch.commit == samples.lock(REF).projects["torch"].commit
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


def test_the_first_error_is_what_others_are_told_too() -> None:
    run = samples.broken()
    assert page_of(run).problems[0].what == failure(run.groups[0].records[-1][1]).error


def test_a_failed_build_says_first_how_far_it_came() -> None:
    details = {"reached": {"done": 4100, "total": 6000, "failed": ["aten/a.o", "aten/b.o"]}}
    broken = failed("build_torch").model_copy(update={"details": details})
    page = page_of(facts(broken, *builds("torch")))
    assert [one.failed for one in page.builds] == [True, *(False for _ in page.builds[1:])]
    (table,) = (one for one in tables(page) if one.title == "the longest builds")
    assert (table.columns[-1], table.rows[0][1][:12]) == ("failed", "failed after")
    assert table.rows[0][-1] == "at command 4100 of 6000 making aten/a.o, aten/b.o"
    assert f"It failed {table.rows[0][-1]}." in render(page)
    # where no build failed no column says so
    (table,) = (one for one in tables(page_of(facts(*builds()))) if one.title == "the longest builds")
    assert table.columns[-1] == "slowest file"


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
    assert [shown.count("edited tree, 3 files differ") for shown in (render(page), markdown(page))] == [2, 1]
    # one that failed has no more than its inputs, and no wheel
    ended = failed("build_torch").model_copy(update={"inputs": {"source": {**source, "edited": 1}}})
    assert "edited tree, 1 file differs" in render(page_of(facts(ended)))


def test_no_command_lacks_what_the_wheels_need_nor_installs_what_is_older_than_a_failure() -> None:
    built = builds()
    assert "pip install torch==" in render(page_of(facts(*built, smoke())))
    rocm = {"rocm": ["7.2.4", "split", {"rocm-7.2.4.tar.gz": "a" * 64}]}
    options = ["--extra-index-url", "https://rocm.example/v2/gfx900/"]
    built[1] = built[1].model_copy(update={"inputs": rocm})
    shown = render(page_of(facts(*built)))
    assert "pip install" not in shown
    assert "<code>rocm-7.2.4.tar.gz</code>, which this run does not hold" in shown
    assert "does not hold" not in render(page_of(facts(*built, failed("build_torch"))))
    built[1] = built[1].model_copy(update={"details": {"rocm_options": options}})
    assert f"</var> {' '.join(options)}</pre>" in render(page_of(facts(*built)))
    for stage, code in (("build_torch", 8), ("build_audio", 130)):
        page = page_of(facts(*builds(), smoke(), failed(stage, code)))
        assert page.cells[0].requirements == ()
        assert "pip install torch" not in render(page)
    # nor is it said what a wheel lacks that nobody is to install
    built[1] = built[1].model_copy(update={"details": {}})
    assert "To be installed" not in render(page_of(facts(*built, failed("build_torch"))))


def test_what_was_borrowed_took_none_of_the_runs_time() -> None:
    there = {"details": {"borrowed": "7"}, "started": "2020-01-01T00:00:00Z", "log": "7-linux/logs/g/x.log"}
    page = page_of(facts(builds()[0].model_copy(update=there), *builds("triton")))
    # its log is not beside this page
    assert "x.log" not in render(page)
    assert page.elapsed < 86400
    assert page.started > samples.at(0)
    for drawn in (page.cells[0].line.bars, page.builds):
        assert "build_triton" not in [one.stage for one in drawn]
    assert render(page).count("taken from run 7") == 2


def test_what_failed_is_told_before_what_was_only_stopped() -> None:
    ended = (failed("build_triton", 130, "Stopped."), failed("build_torch"))
    assert [one.what for one in page_of(facts(*ended)).problems] == ["It broke.", "Stopped."]


def test_the_same_error_of_several_cells_is_told_once_and_failed_tests_are_named() -> None:
    other = samples.record("build_torch", GROUP, REF, "cp313", status="failed", error="It broke.")
    (one,) = page_of(facts(failed("build_torch"), other)).problems
    assert (one.where, one.also) == (f"build_torch {NAME}", (f"build_torch {GROUP} {REF} cp313",))
    page = page_of(samples.run(["gfx900", "gfx901", "gfx902"], [REF]))
    (tested,) = (one for one in page.problems if one.where.startswith("test_torch"))
    assert tested.what == "test_nn.py::TestNN::test_conv0: AssertionError: Tensors differ"
    assert tested.again == "nox -s test_torch -- --run-id 123 -k test_conv0"
    assert page.state == "failed"


def test_the_same_records_make_the_same_page_in_any_order() -> None:
    run = samples.run(["gfx900", "gfx901"], ["nightly", "release/2.10"], [PYTHON])
    first, second = page_of(run), page_of(replace(run, groups=run.groups[::-1]))
    assert (first.cells, first.wheels, first.sources) == (second.cells, second.wheels, second.sources)


BEGAN = datetime(2026, 11, 21, tzinfo=UTC)


def timed(name: str, start: float, seconds: float) -> StageRun:
    started = (BEGAN + timedelta(seconds=start)).isoformat()
    return StageRun(stage=name, state="ok", started=started, seconds=seconds)


def line_of(**stages: tuple[float, float]) -> TimeLine:
    return time_line([timed(name, *one) for name, one in stages.items()])


def test_the_critical_path_is_what_the_end_waited_for() -> None:
    builds = {"build_rocm": (0, 100), "build_triton": (100, 20), "build_torch": (121, 500)}
    line = line_of(**builds, build_audio=(622, 30), build_vision=(622, 60), test_smoke=(690, 10))
    waited = {"build_rocm": 0, "build_triton": 0, "build_torch": 1, "build_vision": 1, "test_smoke": 8}
    assert [(step.stage, step.waited) for step in line.path] == list(waited.items())
    assert [bar.stage for bar in line.bars if not bar.critical] == ["build_audio"]
    assert line.elapsed == 700
    assert line.idle == ()
    # shards of a configuration wait as their stage does
    line = line_of(test_smoke=(0, 5), **{"test_torch_distributed-2-of-6": (6, 9)})
    assert [step.stage for step in line.path] == ["test_smoke", "test_torch_distributed-2-of-6"]
    # a stage that ran again after those that need it is not part of their path
    line = line_of(build_torch=(50, 10), test_smoke=(20, 100))
    assert [step.stage for step in line.path] == ["test_smoke"]
    # a stage without a start is not drawn
    assert time_line([StageRun(stage="build_torch", state="missing")]).bars == ()
    assert moment("yesterday") is moment("") is None


def test_long_idle_times_are_folded_and_a_longer_one_is_wider() -> None:
    line = line_of(build_rocm=(0, 60), build_torch=(89, 60), test_smoke=(329, 60))
    assert (line.elapsed, line.busy) == (389, 180)
    assert [cut.seconds for cut in line.idle] == [180]
    # 29 s are drawn as they were
    assert line.bars[1].start == 89
    line = line_of(build_rocm=(0, 20), build_torch=(49, 20), test_smoke=(249, 20))
    first, second = line.idle
    assert (first.seconds, second.seconds) == (29, 180)
    assert first.width * 1.5 < second.width < 20
    # each stretch has a clock of its own, and marks at round times
    starts = [0, first.start + first.width, second.start + second.width]
    assert [at for at, label, _ in line.ticks if label == "0"] == pytest.approx(starts)
    assert [tick[1:] for tick in line.ticks] == [("0", "start"), ("20 s", "end")] * 3
    assert line_of(build_torch=(0, 4 * 3600)).ticks[-1][1:] == ("4 h", "end")
    # the last label would lie on the one before it
    assert [label for _, label, _ in line_of(build_torch=(0, 306)).ticks][-2:] == ["4 min", ""]


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
    assert all(0 <= at <= line.length + 0.1 for at, *_ in line.ticks)
    assert len(line.ticks) <= 8 + len(line.idle)
    names = [step.stage for step in line.path]
    assert 0 < len(names) == len(set(names))
