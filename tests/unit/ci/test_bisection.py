"""Which run is tested next, whatever is missing; what exit codes mean; what is said to differ."""

from math import ceil, log2
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.bisection import Facts, Point, Search, Verdict, between, day_in, end_of, facts_of, judged
from core.errors import CheckError, FatalError
from core.run.plan import RocmOrigin
from core.run.records import Record
from pytorch_build.lock.source_lock import LockedProject, SourceLock

OLD, NEW = "a" * 40, "b" * 40
GOOD, BAD, SKIP = (judged([code]) for code in (0, 1, 125))


def search(count: int, lacks: set[int] | None = None, **more: Any) -> Search:
    named = (Point(name=f"r{at}", lacks="none" * (at in (lacks or ()))) for at in range(count))
    return Search(question={}, points=tuple(named), **more)


@given(st.data())
def test_the_first_bad_one_is_found_in_few_tests_whatever_is_skipped_or_missing(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 200))
    inner = st.sets(st.integers(1, count - 2)) if count > 2 else st.just(set())
    skipped, lacks, build = data.draw(inner), data.draw(inner), data.draw(st.booleans())
    first = data.draw(st.integers(1, count - 1))
    now, tests, skips = search(count, lacks, build=build), 0, 0
    while point := now.next:
        at, promised = now.points.index(point), now.steps
        assert point.name not in now.verdicts
        skip = at in skipped
        now = now.told(point, SKIP if skip else BAD if at >= first else GOOD)
        tests, skips = tests + 1, skips + skip
        assert skip or now.steps < promised, "a test makes what is left shorter, as was said"
    good, bad = now.ends
    assert good < first <= bad
    untestable = skipped | (set() if build else lacks)
    assert untestable >= {*range(good + 1, bad)}, "nothing is left that could have been tested"
    assert tests <= 2 + (1 + build) * ceil(log2(count)) + skips


def test_what_must_be_built_is_tested_only_where_nothing_else_is_left() -> None:
    now = search(9, {1, 2, 3, 5, 6, 7}, build=True, verdicts={"r0": GOOD, "r8": BAD})
    assert now.next == now.points[4]
    assert now.told(now.points[4], BAD).next == now.points[2]
    assert search(9, {1, 2, 3, 4, 5, 6, 7}, verdicts={"r0": GOOD, "r8": BAD}).next is None
    lost = Verdict(result="skip", why="gone", lost=True)
    now = search(4, build=True, verdicts={"r0": GOOD, "r3": BAD})
    after = now.told(now.points[2], lost)
    assert (after.next, after.points[2].lacks) == (now.points[1], "gone")
    assert after.told(now.points[1], GOOD).next == after.points[2], "built, after all that need not be"
    assert after.told(after.points[2], lost).verdicts["r2"] == lost, "and once"


@pytest.mark.parametrize(("at", "verdict"), [(0, BAD), (0, SKIP), (8, GOOD)])
def test_an_end_that_is_not_what_it_is_said_to_be_ends_the_search(
    at: int, verdict: Verdict, tmp_path: Path
) -> None:
    now, log = search(9), tmp_path / "log"
    log.write_text("no module named torch\n")
    said = rf"r{at} should be (good|bad), and is not: .*{verdict.why[-3:]}.*\n.*\nno module named torch"
    with pytest.raises(CheckError, match=said):
        now.told(now.points[at], verdict.model_copy(update={"log": str(log)}))


def test_exit_codes_are_those_of_git_bisect_run() -> None:
    assert [judged([code]).result for code in (0, 1, 124, 125, 127)] == ["good", "bad", "bad", "skip", "bad"]
    assert judged([0, 125, 1]).result == "skip"
    flaky = judged([0, 1, 0])
    assert (flaky.result, flaky.why) == ("bad", "failed 1 of 3 times")
    now = search(3, verdicts={"r0": judged([0, 0, 0]), "r1": flaky, "r2": judged([1, 1, 1])})
    assert "failed 1 of 3 times at r1" in now.flaky
    assert "30% of cases" in now.flaky, "(2/3)^3"
    assert now.result["first_bad"] == "r1"
    assert search(2, verdicts={"r0": GOOD, "r1": BAD}).flaky == ""


def test_ends_are_named_by_ids_versions_locks_and_days() -> None:
    days = [f"2026-11-0{at // 2 + 1}T0{at}:00" for at in range(6)]
    points = [Point(name=f"{at}", started=day, names=(f"v{at}",)) for at, day in enumerate(days)]
    found = [end_of(points, word).name for word in ("2", "v3", "2026-11-01", "20261102")]
    assert found == ["2", "3", "1", "3"]
    assert [one.name for one in between(points, "v1", "2026-11-02")] == ["1", "2", "3"]
    refused = {
        ("3", "1"): "swap the two",
        ("2", "v2"): "Name two",
        ("1", "7"): "no 7",
        ("1", "2026-12-01"): r"one of 2026-11-03\.",
        ("20261031", "2"): r"one of 2026-11-01\.",
    }
    for ends, said in refused.items():
        with pytest.raises(FatalError, match=said):
            between(points, *ends)
    assert [day_in(one) for one in ("2.10.0a0+rocm7.10.0a20261120", "2.9.1")] == ["2026-11-20", ""]


def facts(commit: str, code: str, rocm: str, *, origin: str = "https://github.com/o/torch.git") -> Facts:
    locked = LockedProject(project="torch", origin=origin, commit=commit, base_version="2.10.0")
    lock = SourceLock(torch_ref="mine", release_type="dev", rocm_version=rocm, projects={"torch": locked})
    source = RocmOrigin(platform="linux", artifact_group="g", run_id=rocm[-2:], repository="o/rocm")
    inputs = {"code": code, "version": commit, "flags": {}, "source": {}}
    run = {"run_id": "1", "platform": "linux", "started": "2026-11-01", "seconds": 1}
    rocm_details = {"families": ["gfx942", rocm]}
    made = [Record(stage="build_torch", inputs=inputs, **run)]
    made.append(Record(stage="build_rocm", details=rocm_details, **run))
    held = {"torch": f"2.10+{rocm}", "numpy": "2"}
    return facts_of(lock, [source], made).model_copy(update={"packages": held})


def test_commits_rules_and_packages_that_differ_are_told_and_nothing_else() -> None:
    def told(good: Facts, bad: Facts) -> dict[str, tuple[str, str, tuple[str, ...]]]:
        ends = (Verdict(result="good", why="", facts=good), Verdict(result="bad", why="", facts=bad))
        now = search(2, verdicts={"r0": ends[0], "r1": ends[1]})
        return {one.what: (one.good, one.bad, one.more) for one in now.changes}

    found = told(facts(OLD, "c" * 64, "7.10"), facts(NEW, "d" * 64, "7.11"))
    page = "https://github.com/o/torch/compare/aaaaaaaaaaaa...bbbbbbbbbbbb"
    assert found.pop("torch") == ("a" * 12, "b" * 12, ("git log --oneline aaaaaaaaaaaa..bbbbbbbbbbbb", page))
    assert {what: one[:2] for what, one in found.items() if "build rules" not in what} == {
        "ROCm": ("7.10", "7.11"),
        "origin of ROCm": ("o/rocm 10", "o/rocm 11"),
        "build_rocm: targets": ('["gfx942","7.10"]', '["gfx942","7.11"]'),
        "installed torch": ("2.10+7.10", "2.10+7.11"),
    }
    assert len(found["build_torch: build rules"][0]) == 12
    same = facts(OLD, "c", "7.10")
    assert told(same, same) == {}
    untested = same.model_copy(update={"packages": {}, "commits": {"torch": ("/t", NEW)}})
    assert told(untested, same) == {"torch": ("b" * 12, "a" * 12, ("https://github.com/o/torch.git",))}
    here = [facts(commit, "c", "7.10", origin="/my torch") for commit in (OLD, NEW)]
    assert told(*here)["torch"][2] == (f"git -C '/my torch' log --oneline {'a' * 12}..{'b' * 12}",)
