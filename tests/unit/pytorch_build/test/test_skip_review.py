import datetime as dt
import tomllib
from collections.abc import Collection
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
TESTS = ("test/a.py::TestA::test_x", "test/a.py::TestA::test_y[1]", "test/b.py::TestB::test_x")


def rule(key: str, **table: Any) -> Rule:
    return Rule(
        file=Path("mine.toml"), key=key, table=RuleTable.model_validate({"reason": "It fails.", **table})
    )


def decided(*rules: Rule) -> Any:
    return decide(rules, HERE, dt.date(2026, 11, 21))


def session(*tests: str, **facts: Any) -> Session:
    return Session(began=Line(kind="session"), collected=tests, **facts)


def test_the_listing_names_rules_with_their_tests_and_on_request_why_others_do_not_apply() -> None:
    decisions = decided(
        rule("one", tests=["test/a.py::test_x"], issue="a/b#1", expires="2026-12-31"),
        rule("two", patterns=["TestA::*"], os=["windows"], action="xfail"),
    )
    first = ["mine.one: skip: It fails. (a/b#1) (until 2026-12-31)", "    test/a.py::test_x"]
    assert listing(decisions, everything=False) == first
    assert listing(decisions, everything=True) == [
        *first,
        "mine.two: xfail: It fails.",
        "    does not apply: it is for windows, and this is linux",
        "    TestA::*",
    ]


def test_a_test_is_explained_by_what_takes_it_what_would_elsewhere_and_what_nearly_does() -> None:
    decisions = decided(
        rule("here", patterns=["TestA::test_x"], action="xfail"),
        rule("elsewhere", patterns=["TestA::*"], os=["windows"]),
        rule("near", tests=["test/b.py::TestA::test_x"]),
        rule("far", tests=["test/b.py::TestA::test_y"]),
    )
    assert explained("test/a.py::TestA::test_x", decisions) == [
        "test/a.py::TestA::test_x: expected to fail, by mine.here",
        "  mine.here takes it: xfail: It fails.",
        "  mine.elsewhere takes it: skip: It fails.",
        "    but it does not apply: it is for windows, and this is linux",
        "  mine.near nearly takes it: test/b.py::TestA::test_x: the file differs: it names test/b.py",
    ]

    # skip comes before xfail
    decisions = decided(rule("a", patterns=["::test_x"], action="xfail"), rule("b", patterns=["::test_x"]))
    assert explained("a.py::test_x", decisions)[0] == "a.py::test_x: skipped, by mine.b"
    assert explained("a.py::test_y", decisions) == ["a.py::test_y: runs, no rule applies to it"]
    with pytest.raises(UsageError, match="'test_x' is not a test id"):
        explained("test_x", decisions)


def test_what_matches_nothing_is_stale_and_the_nearest_test_is_named() -> None:
    decisions = decided(
        rule("part", tests=["test/a.py::TestA::test_x", "test/a.py::TestA::test_y"]),
        rule("all", patterns=["test/a.py::TestC::*"]),
        rule("fine", patterns=["test/a.py::*::test_y[*]", "TestB::*"]),
    )
    found = review(decisions, evidence([session(*TESTS)]))
    part, whole = found.stale
    assert (part.rule.name, part.entries, part.whole) == ("mine.part", ("test/a.py::TestA::test_y",), False)
    assert part.hints["test/a.py::TestA::test_y"].startswith(
        "test/a.py::TestA::test_y is there, but the parameters"
    )
    assert (whole.rule.name, whole.entries, whole.whole) == ("mine.all", ("test/a.py::TestC::*",), True)
    assert (found.judged, found.unjudged) == (5, 0)


def test_absence_is_believed_only_of_files_that_were_seen_whole() -> None:
    decisions = decided(rule("one", tests=["test/a.py::test_gone"]))
    gone = Line(kind="collect", file="test/a.py", outcome="error", message="")
    partly = (
        evidence([session("test/b.py::test_x")]),
        evidence([session(*TESTS, deselected=3)]),
        evidence([session("test/a.py::test_x", uncollected=(gone,))]),
        evidence([]),
    )
    for seen in partly:
        found = review(decisions, seen)
        assert (found.stale, found.judged, found.unjudged) == ((), 0, 1)
    # once whole is enough: shards run parts of what was collected before
    for seen in (evidence([session(*TESTS)]), evidence([session(*TESTS), session(TESTS[0], deselected=2)])):
        assert review(decisions, seen).stale


def test_rules_that_took_nothing_in_a_run_are_named_where_it_had_their_files() -> None:
    rules = (
        rule("took", tests=["test/a.py::test_x"]),
        rule("gone", patterns=["test/*.py::TestGone::*"]),
        rule("elsewhere", tests=["test/c.py::test_x"]),
        rule("anywhere", patterns=["TestGone::*"]),
    )
    assert [one.name for one in silent(rules, {"test/a.py"}, {"mine.took"})] == ["mine.gone"]


def test_a_rule_that_names_no_file_is_judged_by_complete_evidence_alone() -> None:
    decisions = decided(rule("one", patterns=["TestGone::*"]))
    assert review(decisions, evidence([session(*TESTS)])).unjudged == 1
    assert review(decisions, evidence([session(*TESTS)], complete=True)).stale
    assert review(decisions, evidence([session(*TESTS, deselected=1)], complete=True)).unjudged == 1


def test_rules_of_elsewhere_are_not_judged_but_expire_all_the_same() -> None:
    decisions = decided(rule("one", tests=["test/a.py::test_gone"], os=["windows"], expires="2026-11-20"))
    found = review(decisions, evidence([session(*TESTS)], complete=True))
    assert (found.stale, found.judged) == ((), 0)
    assert [one.name for one in found.expired] == ["mine.one"]
    # what an expression deselected counts where a rule took it
    seen = evidence([session(deselected=3, rules={"mine.one": ("test/a.py::TestA::test_x",)})])
    found = review(decided(rule("one", tests=["test/a.py::TestA::test_x"])), seen)
    assert (found.stale, found.judged) == ((), 1)


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


def test_a_rule_goes_with_its_comment_and_the_others_keep_theirs() -> None:
    text = pruned(FILE, {"first"}, {}, where=FILE_NAME)
    assert "why the first" not in text
    assert text.startswith("# Rules of ours.\n\n[rules.second]  # its header\n")
    assert "# stays\n\n# of the third\n" in text
    assert set(tomllib.loads(text)["rules"]) == {"second", "third"}
    text = pruned(FILE, {"third"}, {}, where=FILE_NAME)
    assert text.endswith('too."\n\n# stays\n')
    assert "of the third" not in text
    # single tests go with their line
    gone = {"first": ["test/a.py::test_y", 'test/a.py::test_z["]']}
    text = pruned(FILE, (), gone, where=FILE_NAME)
    assert "since May" not in text
    assert tomllib.loads(text)["rules"]["first"]["tests"] == ["test/a.py::test_x"]
    assert diff(FILE, text, "mine.toml").count("\n-") == 2
    # nothing to prune leaves every byte, and no rule left is no file
    assert pruned(FILE, (), {}, where=FILE_NAME) == FILE
    assert diff(FILE, FILE, "mine.toml") == ""
    assert pruned(FILE, {"first", "second", "third"}, {}, where=FILE_NAME) == ""


@pytest.mark.parametrize(
    ("text", "rules", "tests"),
    [
        ('rules.one = {reason = "x"}\nrules.two = {reason = "y"}\n', {"one"}, {}),
        ('[rules.one]\ntests = ["a", "b"]\n[rules.two]\nreason = "y"\n', (), {"one": ["a"]}),
        ('[rules.two]\nreason = """\n[rules.one]\n"""\n[rules.one]\nreason = "x"\n', {"one"}, {}),
    ],
)
def test_odd_layouts_are_left_alone(text: str, rules: Collection[str], tests: dict[str, list[str]]) -> None:
    with pytest.raises(DataError, match="cannot be pruned line by line"):
        pruned(text, rules, tests, where=FILE_NAME)


KEYS = st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,6}", fullmatch=True), min_size=1, max_size=5, unique=True)


@given(KEYS, st.data())
def test_what_is_left_is_what_was_there_less_what_was_to_go(keys: list[str], data: st.DataObject) -> None:
    blocks = []
    for key in keys:
        comment = data.draw(
            st.sampled_from(["", "# of this rule\n", "# apart\n\n", "# apart\n\n# of this rule\n"])
        )
        tests = data.draw(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True))
        listed = "".join(f'    "t.py::{name}",\n' for name in tests)
        blocks.append(f'{comment}[rules.{key}]\ntests = [\n{listed}]\nreason = "It fails."\n')
    text = data.draw(st.sampled_from(["", "# a file\n\n"])) + "\n".join(blocks)
    before = tomllib.loads(text)["rules"]
    gone = set(data.draw(st.lists(st.sampled_from(keys), unique=True)))
    single = {
        key: data.draw(
            st.lists(st.sampled_from(table["tests"]), unique=True, max_size=len(table["tests"]) - 1)
        )
        for key, table in before.items()
        if key not in gone
    }
    after = pruned(text, gone, single, where=FILE_NAME)
    left = tomllib.loads(after).get("rules", {})
    assert list(left) == [key for key in keys if key not in gone]
    for key, table in left.items():
        assert table["tests"] == [one for one in before[key]["tests"] if one not in single[key]]
    if left:
        assert after.count("# apart") == text.count("# apart")
