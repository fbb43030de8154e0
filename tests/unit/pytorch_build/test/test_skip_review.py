import datetime as dt
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import DataError, UsageError
from pytorch_build.test.plugin import Line, Session
from pytorch_build.test.skip_review import diff, evidence, explained, listing, pruned, review, silent
from pytorch_build.test.skip_rules import Rule, RuleTable, UnderTest, decide

HERE = UnderTest(gpu_targets=(), platform="linux", python="3.12.4", torch="2.10.1")
TODAY = dt.date(2026, 11, 21)
TESTS = ("test/a.py::TestA::test_x", "test/a.py::TestA::test_y[1]", "test/b.py::TestB::test_x")


def rule_with(key: str, **table: Any) -> Rule:
    """Return a rule; the table says which tests it takes."""
    return Rule(
        file=Path("mine.toml"), key=key, table=RuleTable.model_validate({"reason": "It fails.", **table})
    )


def decide_here(*rules: Rule) -> Any:
    """Decide which rules apply to torch on this platform."""
    return decide(rules, HERE, TODAY)


def session_of(*tests: str, **facts: Any) -> Session:
    """Return a session that collected tests."""
    return Session(began=Line(kind="session"), collected=tests, **facts)


LISTED_RULES = (
    rule_with("moon", tests=["test/a.py::test_x"], issue="a/b#1", expires="2026-12-31"),
    rule_with("elsewhere", patterns=["TestA::*"], os=["windows"], action="xfail"),
)
LISTED_MOON = ["mine.moon: skip: It fails. (a/b#1) (until 2026-12-31)", "    test/a.py::test_x"]


def test_the_listing_names_the_rules_that_apply() -> None:
    assert listing(decide_here(*LISTED_RULES), everything=False) == LISTED_MOON


def test_the_whole_listing_says_why_rules_do_not_apply() -> None:
    lines = listing(decide_here(*LISTED_RULES), everything=True)

    assert lines[:2] == LISTED_MOON
    assert lines[2] == "mine.elsewhere: xfail: It fails."
    assert "windows" in lines[3]
    assert lines[4] == "    TestA::*"


def explain(test: str, *rules: Rule) -> Sequence[str]:
    """Explain what rules do to a test."""
    return explained(test, decide_here(*rules))


def test_a_test_is_explained_by_the_rule_that_takes_it() -> None:
    lines = explain("test/a.py::TestA::test_x", rule_with("here", patterns=["TestA::test_x"], action="xfail"))

    assert lines == [
        "test/a.py::TestA::test_x: expected to fail, by mine.here",
        "  mine.here takes it: xfail: It fails.",
    ]


def test_a_test_is_explained_by_rules_that_apply_elsewhere() -> None:
    _first, takes, reason = explain(
        "test/a.py::TestA::test_x", rule_with("elsewhere", patterns=["TestA::*"], os=["windows"])
    )

    assert takes == "  mine.elsewhere takes it: skip: It fails."
    assert "windows" in reason


def test_a_test_is_explained_by_rules_that_nearly_take_it() -> None:
    near = rule_with("near", tests=["test/b.py::TestA::test_x"])
    far = rule_with("far", tests=["test/b.py::TestA::test_y"])

    lines = explain("test/a.py::TestA::test_x", near, far)

    assert "mine.near nearly takes it: test/b.py::TestA::test_x" in lines[1]
    assert not any("mine.far" in line for line in lines)


def test_a_skip_comes_before_an_expected_failure() -> None:
    xfail = rule_with("a", patterns=["::test_x"], action="xfail")
    skip = rule_with("b", patterns=["::test_x"])

    assert explain("a.py::test_x", xfail, skip)[0] == "a.py::test_x: skipped, by mine.b"


def test_a_test_that_no_rule_takes_runs() -> None:
    (line,) = explain("a.py::test_y", rule_with("a", patterns=["::test_x"]))

    assert line.startswith("a.py::test_y: runs")


def test_refuses_to_explain_text_that_is_not_an_id() -> None:
    with pytest.raises(UsageError, match="'test_x'"):
        explain("test_x")


def test_a_test_of_a_rule_that_is_gone_is_stale() -> None:
    rule = rule_with("part", tests=["test/a.py::TestA::test_x", "test/a.py::TestA::test_y"])

    (stale,) = review(decide_here(rule), evidence([session_of(*TESTS)])).stale

    assert stale.rule.name == "mine.part"
    assert stale.entries == ("test/a.py::TestA::test_y",)
    assert not stale.whole
    # The nearest test is named.
    assert "parameters" in stale.hints["test/a.py::TestA::test_y"]


def test_a_rule_that_takes_nothing_is_stale_as_a_whole() -> None:
    rule = rule_with("all", patterns=["test/a.py::TestC::*"])

    (stale,) = review(decide_here(rule), evidence([session_of(*TESTS)])).stale

    assert stale.entries == ("test/a.py::TestC::*",)
    assert stale.whole


def test_a_rule_that_takes_tests_is_not_stale() -> None:
    rule = rule_with("fine", patterns=["test/a.py::*::test_y[*]", "TestB::*"])

    found = review(decide_here(rule), evidence([session_of(*TESTS)]))

    assert found.stale == ()
    assert found.judged == 2
    assert found.unjudged == 0


BROKEN_FILE = Line(kind="collect", file="test/a.py", outcome="error", message="")


@pytest.mark.parametrize(
    "sessions",
    [
        pytest.param([session_of("test/b.py::test_x")], id="other files"),
        pytest.param([session_of(*TESTS, deselected=3)], id="deselected tests"),
        pytest.param([session_of("test/a.py::test_x", uncollected=(BROKEN_FILE,))], id="broken file"),
        pytest.param([], id="nothing"),
    ],
)
def test_a_test_is_not_gone_from_a_file_that_was_seen_in_part(sessions: list[Session]) -> None:
    rule = rule_with("gone", tests=["test/a.py::test_gone"])

    found = review(decide_here(rule), evidence(sessions))

    assert found.stale == ()
    assert found.judged == 0
    assert found.unjudged == 1


@pytest.mark.parametrize(
    "sessions",
    [
        pytest.param([session_of(*TESTS)], id="once"),
        # Shards run parts of what was collected before.
        pytest.param([session_of(*TESTS), session_of(TESTS[0], deselected=2)], id="once, and then in part"),
    ],
)
def test_a_test_is_gone_from_a_file_that_was_seen_whole(sessions: list[Session]) -> None:
    rule = rule_with("gone", tests=["test/a.py::test_gone"])

    assert review(decide_here(rule), evidence(sessions)).stale


def test_rules_that_took_nothing_in_a_run_are_silent_where_it_had_their_files() -> None:
    rules = (
        rule_with("took", tests=["test/a.py::test_x"]),
        rule_with("gone", patterns=["test/*.py::TestGone::*"]),
        rule_with("elsewhere", tests=["test/c.py::test_x"]),
        rule_with("anywhere", patterns=["TestGone::*"]),
    )

    assert [rule.name for rule in silent(rules, {"test/a.py"}, {"mine.took"})] == ["mine.gone"]


@pytest.mark.parametrize(
    ("deselected", "complete", "is_stale"),
    [
        pytest.param(0, False, False, id="incomplete evidence"),
        pytest.param(0, True, True, id="complete evidence"),
        pytest.param(1, True, False, id="deselected tests"),
    ],
)
def test_a_rule_that_names_no_file_is_judged_by_complete_evidence(
    deselected: int, *, complete: bool, is_stale: bool
) -> None:
    rule = rule_with("anywhere", patterns=["TestGone::*"])
    seen = evidence([session_of(*TESTS, deselected=deselected)], complete=complete)

    found = review(decide_here(rule), seen)

    assert bool(found.stale) is is_stale
    assert found.unjudged == int(not is_stale)


def test_rules_of_elsewhere_are_not_judged_and_expire_all_the_same() -> None:
    rule = rule_with("old", tests=["test/a.py::test_gone"], os=["windows"], expires="2026-11-20")

    found = review(decide_here(rule), evidence([session_of(*TESTS)], complete=True))

    assert found.stale == ()
    assert found.judged == 0
    assert [expired.name for expired in found.expired] == ["mine.old"]


def test_a_deselected_test_that_a_rule_took_is_there() -> None:
    test = "test/a.py::TestA::test_x"
    seen = evidence([session_of(deselected=3, rules={"mine.moon": (test,)})])

    found = review(decide_here(rule_with("moon", tests=[test])), seen)

    assert found.stale == ()
    assert found.judged == 1


# Files of rules without the stale ones.

FILE_NAME = Path("mine.toml")
FILE = """\
# Rules of ours.

# why the first
# is here
[rules.first]
tests = [
    "test/a.py::test_x",
    "test/a.py::test_y",  # since May
    'test/a.py::test_z["]',
]
reason = "[rules.second] is not this one."

[rules.second]  # its header
patterns = ["TestA::*"]
reason = "It fails, too."

# stays

# of the third
[rules."third"]
patterns = ["TestB::*"]
reason = "It fails."
"""


def prune(
    text: str = FILE, *, rules: Collection[str] = (), tests: Mapping[str, Collection[str]] | None = None
) -> str:
    """Remove rules, and single tests by rule, from a file."""
    return pruned(text, rules, {key: list(names) for key, names in (tests or {}).items()}, where=FILE_NAME)


def test_a_rule_goes_with_its_comment() -> None:
    text = prune(rules={"first"})

    assert text.startswith("# Rules of ours.\n\n[rules.second]  # its header\n")
    assert "why the first" not in text
    assert set(tomllib.loads(text)["rules"]) == {"second", "third"}


def test_other_comments_stay() -> None:
    assert "# stays\n\n# of the third\n" in prune(rules={"first"})

    text = prune(rules={"third"})
    assert text.endswith('too."\n\n# stays\n')
    assert "of the third" not in text


def test_a_single_test_goes_with_its_line() -> None:
    text = prune(tests={"first": ["test/a.py::test_y", 'test/a.py::test_z["]']})

    assert "since May" not in text
    assert tomllib.loads(text)["rules"]["first"]["tests"] == ["test/a.py::test_x"]
    assert diff(FILE, text, "mine.toml").count("\n-") == 2


def test_nothing_to_prune_leaves_every_byte() -> None:
    assert prune() == FILE
    assert diff(FILE, FILE, "mine.toml") == ""


def test_no_rule_is_no_text() -> None:
    assert prune(rules={"first", "second", "third"}) == ""


@pytest.mark.parametrize(
    ("text", "rules", "tests"),
    [
        pytest.param(
            'rules.one = {reason = "x"}\nrules.two = {reason = "y"}\n', {"one"}, {}, id="inline tables"
        ),
        pytest.param(
            '[rules.one]\ntests = ["a", "b"]\n[rules.two]\nreason = "y"\n',
            (),
            {"one": ["a"]},
            id="tests in one line",
        ),
        pytest.param(
            '[rules.two]\nreason = """\n[rules.one]\n"""\n[rules.one]\nreason = "x"\n',
            {"one"},
            {},
            id="header in a string",
        ),
    ],
)
def test_refuses_to_prune_an_odd_layout(
    text: str, rules: Collection[str], tests: dict[str, list[str]]
) -> None:
    with pytest.raises(DataError, match="line by line"):
        prune(text, rules=rules, tests=tests)


COMMENTS = st.sampled_from(["", "# of this rule\n", "# apart\n\n", "# apart\n\n# of this rule\n"])
KEYS = st.lists(st.sampled_from(["a", "b", "ab", "a-b"]), min_size=1, unique=True)
RULE_TESTS = st.lists(st.sampled_from(["t.py::a", "t.py::b", "t.py::ab"]), min_size=1, unique=True)


@st.composite
def rule_files(draw: st.DrawFn) -> str:
    """Return a file of rules, each of which may have comments before it."""
    blocks: list[str] = []
    for key in draw(KEYS):
        lines = "".join(f'    "{test}",\n' for test in draw(RULE_TESTS))
        comment = draw(COMMENTS)
        blocks.append(f'{comment}[rules.{key}]\ntests = [\n{lines}]\nreason = "It fails."\n')
    return draw(st.sampled_from(["", "# a file\n\n"])) + "\n".join(blocks)


@given(rule_files(), st.data())
def test_pruning_leaves_all_other_rules_and_tests(text: str, data: st.DataObject) -> None:
    rules = tomllib.loads(text)["rules"]
    stale_rules = data.draw(st.sets(st.sampled_from(sorted(rules))))
    stale_tests: dict[str, set[str]] = {}
    for key, table in rules.items():
        # A rule keeps one test: one without any would be stale itself.
        if key not in stale_rules:
            count = data.draw(st.integers(1, len(table["tests"])))
            stale_tests[key] = set(data.draw(st.permutations(table["tests"]))[count:])

    pruned_text = prune(text, rules=stale_rules, tests=stale_tests)

    pruned_rules = tomllib.loads(pruned_text).get("rules", {})
    assert list(pruned_rules) == [key for key in rules if key not in stale_rules]
    for key, table in pruned_rules.items():
        assert table["tests"] == [test for test in rules[key]["tests"] if test not in stale_tests[key]]
    if pruned_rules:
        assert pruned_text.count("# apart") == text.count("# apart")
