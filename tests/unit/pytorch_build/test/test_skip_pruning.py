from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import DataError
from pytorch_build.test.skip_review import diff, pruned

if TYPE_CHECKING:
    from collections.abc import Collection

HERE = Path("mine.toml")
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
    text = pruned(FILE, {"first"}, {}, where=HERE)
    assert "why the first" not in text
    assert text.startswith("# Rules of ours.\n\n[rules.second]  # its header\n")
    assert "# stays\n\n# of the third\n" in text
    assert set(tomllib.loads(text)["rules"]) == {"second", "third"}


def test_the_last_rule_goes_and_the_comment_before_it_stays() -> None:
    text = pruned(FILE, {"third"}, {}, where=HERE)
    assert text.endswith('too."\n\n# stays\n')
    assert "of the third" not in text


def test_single_tests_go_with_their_line() -> None:
    gone = {"first": ["test/a.py::test_y", 'test/a.py::test_z["]']}
    text = pruned(FILE, (), gone, where=HERE)
    assert "since May" not in text
    assert tomllib.loads(text)["rules"]["first"]["tests"] == ["test/a.py::test_x"]
    assert diff(FILE, text, "mine.toml").count("\n-") == 2


def test_nothing_to_prune_leaves_every_byte() -> None:
    assert pruned(FILE, (), {}, where=HERE) == FILE
    assert diff(FILE, FILE, "mine.toml") == ""


def test_no_rule_left_is_no_file() -> None:
    assert pruned(FILE, {"first", "second", "third"}, {}, where=HERE) == ""


@pytest.mark.parametrize(
    ("text", "rules", "tests"),
    [
        ('rules.one = {reason = "x"}\nrules.two = {reason = "y"}\n', {"one"}, {}),
        ('[rules.one]\ntests = ["a", "b"]\n[rules.two]\nreason = "y"\n', (), {"one": ["a"]}),
        ('[rules.two]\nreason = """\n[rules.one]\n"""\n[rules.one]\nreason = "x"\n', {"one"}, {}),
    ],
)
def test_a_layout_that_cannot_be_followed_is_left_alone(
    text: str, rules: Collection[str], tests: dict[str, list[str]]
) -> None:
    with pytest.raises(DataError, match="cannot be pruned line by line"):
        pruned(text, rules, tests, where=HERE)


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
    after = pruned(text, gone, single, where=HERE)
    left = tomllib.loads(after).get("rules", {})
    assert list(left) == [key for key in keys if key not in gone]
    for key, table in left.items():
        assert table["tests"] == [one for one in before[key]["tests"] if one not in single[key]]
    if left:
        assert after.count("# apart") == text.count("# apart")
