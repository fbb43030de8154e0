from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.plan.globs import matches
from ci.plan.paths import Changes, relevance
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


def test_no_pattern_matches_nothing() -> None:
    assert not matches("", [])
    assert not matches("x", [])


@given(st.text(), st.lists(st.text(), max_size=5))
def test_any_pattern_is_a_pattern(name: str, patterns: list[str]) -> None:
    assert matches(name, patterns) in {True, False}
    assert matches(name, [*patterns, "**"])


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
    assert not relevance(Changes(files=[path]), RULES).builds


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
    found = relevance(Changes(files=["docs/x.md", path]), RULES)
    assert found.builds
    assert path[:20] in found.reason


def test_what_is_not_known_counts_as_changed_and_nothing_as_nothing() -> None:
    assert relevance(Changes(note="git fell over"), RULES).builds
    assert relevance(Changes(note="git fell over"), RULES).reason == "git fell over"
    assert not relevance(Changes(files=[]), RULES).builds


def test_a_huge_list_is_read_in_time() -> None:
    files = [f"docs/{number}/page.md" for number in range(100_000)]
    started = time.process_time()
    assert not relevance(Changes(files=files), RULES).builds
    assert time.process_time() - started < 3


def test_a_name_that_somebody_chose_stays_on_its_line() -> None:
    reason = relevance(Changes(files=["a\n::set-output name=x::\x1b[2J" + "y" * 300]), RULES).reason
    assert "\n" not in reason
    assert "\x1b" not in reason
    assert len(reason) < 100
