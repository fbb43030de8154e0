from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.plan.decisions import matches, relevance
from ci.plan.events import Changes
from tests.unit.ci.plan.planning import known

RULES = known().triggers.paths


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("main", "main", True),
        ("release/7.12", "release/**", True),
        ("release/a/b", "release/**", True),
        ("release/a/b", "release/*", False),
        ("README.md", "**/*.md", True),
        ("a/b/README.md", "**/*.md", True),
        ("a/b.mdx", "**/*.md", False),
        ("docs/a/b", "docs/**", True),
        ("docs", "docs/**", False),
        ("axb", "a.b", False),
        ("a.b", "a.b", True),
        ("x(1)[2]+", "x(1)[2]+", True),
        ("ab", "a?", True),
        ("a/", "a?", False),
        ("two\nlines", "**", True),
    ],
)
def test_patterns(name: str, pattern: str, *, expected: bool) -> None:
    assert matches(name, [pattern]) is expected


@given(st.text(), st.lists(st.text(), max_size=5))
def test_any_pattern_is_a_pattern(name: str, patterns: list[str]) -> None:
    assert matches(name, patterns) in {True, False}
    assert matches(name, [*patterns, "**"])
    assert not matches(name, [])


@pytest.mark.parametrize(
    "path",
    [
        "docs/x.md",
        "README.md",
        "a/deep/NOTES.md",
        "LICENSE",
        "docker/Dockerfile",
        "tests/unit/x.py",
        ".github/workflows/unit_tests.yml",
        ".github/workflows/promote.yml",
    ],
)
def test_files_that_build_nothing(path: str) -> None:
    assert not relevance(Changes(files=[path]), RULES)[0].value


@pytest.mark.parametrize(
    "path",
    [
        "ci/verbs/cells.py",
        "noxfile.py",
        "docs2/x",
        "rocm_packaging/packages/packages.toml",
        ".github/workflows/ci_linux.yml",
        ".github/workflows/build_portable_linux_pytorch_wheels.yml",
        ".github/actions/x/action.yml",
    ],
)
def test_files_that_are_built(path: str) -> None:
    found, _ = relevance(Changes(files=["docs/x.md", path]), RULES)
    assert found.value
    assert path[:20] in found.reason


def test_what_is_not_known_counts_as_changed_and_nothing_as_nothing() -> None:
    found, _ = relevance(Changes(note="git fell over"), RULES)
    assert (found.value, found.reason) == (True, "git fell over")
    assert not relevance(Changes(files=[]), RULES)[0].value


def test_a_name_that_somebody_chose_stays_on_its_line() -> None:
    reason = relevance(Changes(files=["a\n::set-output name=x::\x1b[2J" + "y" * 300]), RULES)[0].reason
    assert "\n" not in reason
    assert "\x1b" not in reason
    assert len(reason) < 100
