"""Skip rules on real upstream test files (--sources DIR --torch PYTHON)."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytorch_build.test import skip_questions, skip_review, skip_rules
from pytorch_build.test.ids import Pattern, TestId, exact
from pytorch_build.test.plugin import Session
from pytorch_build.test.skip_rules import Decision, UnderTest, decide

CPU = UnderTest(gpu_targets=(), platform="linux", python="3.11.7", torch="2.13.0+cpu")
RULES = Path(__file__).with_name("texts").joinpath("skip-rules.toml").read_text()


@pytest.fixture(scope="module")
def decisions(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Decision]:
    file = tmp_path_factory.mktemp("rules") / "mine.toml"
    file.write_text(RULES)
    return decide(skip_rules.load(folder=file), CPU, dt.date(2026, 11, 21))


@pytest.fixture(scope="module")
def collected(torch_sources: Path, torch_python: Path, decisions: Sequence[Decision]) -> Sequence[Session]:
    trial = skip_questions.Trial(
        python=torch_python, tree=torch_sources, rules=tuple(one.rule.planned() for one in decisions)
    )
    files = skip_questions.named_files(torch_sources, decisions)
    assert files == ["test/test_type_info.py", "test/test_unary_ufuncs.py"]
    return list(skip_questions.sessions(trial, files, "collect"))


def test_a_pattern_takes_just_the_tests_that_it_means(collected: Sequence[Session]) -> None:
    (session,) = (one for one in collected if any("unary" in test for test in one.collected))
    start = "test/test_unary_ufuncs.py::TestUnaryUfuncsCPU::test_reference_numerics_"
    meant = {test for test in session.collected if test.startswith(start) and "_special_airy_ai_cpu_" in test}
    assert len(session.collected) > 10_000
    assert set(session.rules["mine.airy"]) == meant
    assert 5 < len(meant) < 100


def test_every_real_id_is_an_exact_one_and_a_pattern_for_itself(collected: Sequence[Session]) -> None:
    for test in collected[0].collected + collected[1].collected[::50]:
        assert Pattern.parse(exact(test)).matches(test)
        assert TestId.parse(test).names


def test_finds_the_rules_whose_tests_are_gone(
    collected: Sequence[Session], decisions: Sequence[Decision]
) -> None:
    found = skip_review.review(decisions, skip_review.evidence(collected))
    assert [one.rule.name for one in found.stale] == ["mine.gone"]
    assert (found.judged, found.unjudged) == (4, 0)


def test_tests_that_rules_hide_are_tried(
    torch_sources: Path, torch_python: Path, decisions: Sequence[Decision]
) -> None:
    trial = skip_questions.Trial(
        python=torch_python, tree=torch_sources, rules=tuple(one.rule.planned() for one in decisions)
    )
    (session,) = skip_questions.sessions(trial, ["test/test_type_info.py"], "try")
    assert {one.test.rpartition("::")[2]: (one.outcome, one.rule) for one in session.results} == {
        "test_finfo": ("passed", "mine.finfo"),
        "test_iinfo": ("passed", "mine.iinfo"),
    }


def test_the_embedded_rules_name_files_that_there_are(torch_sources: Path) -> None:
    """A file that upstream renamed takes its rules along, unseen."""
    missing = set()
    files = [path.relative_to(torch_sources).as_posix() for path in (torch_sources / "test").rglob("*.py")]
    assert files
    for rule in skip_rules.load():
        for entry in rule.entries:
            if Pattern.parse(entry).path and not any(map(skip_review.files_of([entry]).fullmatch, files)):
                missing.add(entry)
    assert missing <= {
        # since torch 2.12
        "test/inductor/test_control_flow.py::ScanTests::test_cond_in_scan*",
    }
