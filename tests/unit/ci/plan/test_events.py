"""Payloads: GitHub's, malformed ones, and any at all."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.plan import events, inputs
from ci.plan.events import Changes, parse, read_payload
from ci.plan.outputs import outputs, summary
from ci.plan.plan import plan
from core.errors import DataError, FatalError, UsageError
from tests.unit.ci.plan.planning import OURS, asked, known, pull_request, push

if TYPE_CHECKING:
    from pathlib import Path

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from([*events.EVENTS, "merge_group", ""])
LABELS = st.lists(
    st.sampled_from(
        [
            *inputs.known_labels(known()),
            *("bug", "ci:what", "gfx", "gfx94X-", "test:", "a b", "Build:PYTORCH", "test_runner:oem"),
        ]
    )
    | st.text(max_size=10),
    max_size=5,
)
PAYLOADS = st.fixed_dictionaries(
    {},
    optional={
        "ref": st.sampled_from(["refs/heads/main", "refs/tags/v1", "release/1", "refs/heads/$(x)"]) | JSON,
        "before": st.sampled_from(["0" * 40, "a" * 40]) | JSON,
        "deleted": st.booleans() | JSON,
        "pull_request": JSON,
        "inputs": st.dictionaries(
            st.sampled_from(["linux_amdgpu_families", "build_pytorch", "test_type", "release_type", "x"]),
            st.sampled_from(["all", "none", "", "true", "gfx1151", "full", "nightly"]) | JSON,
        )
        | JSON,
    },
)


def event(name: str, payload: dict[str, Any], **facts: Any) -> events.Event:
    return parse(name, payload, repository=OURS, **facts)


def test_a_pull_request() -> None:
    payload = pull_request("b", "a", base="release/1")
    payload["pull_request"]["updated_at"] = "2026-08-30T23:59:59Z"
    found = event("pull_request", payload)
    assert (found.branch, found.commit, found.base, found.number) == ("release/1", "a" * 40, "b" * 40, 7)
    assert found.labels == ("a", "b")
    assert found.day == date(2026, 8, 30)
    assert found.fork == ""


def test_forks_and_those_that_are_gone() -> None:
    assert event("pull_request", pull_request(head="x/TheRock")).fork == "x/TheRock"
    assert event("pull_request", pull_request(head=None)).fork == "deleted"


def test_a_payload_without_labels_says_so() -> None:
    payload = pull_request()
    del payload["pull_request"]["labels"]
    assert event("pull_request", payload).labels is None


@pytest.mark.parametrize(
    ("ref", "branch"),
    [
        ("refs/heads/main", "main"),
        ("refs/heads/refs/heads/x", "refs/heads/x"),
        ("refs/tags/v1", ""),
        ("refs/pull/7/merge", ""),
        ("main", "main"),
        ("refs/heads/`id`;$(x) y", "`id`;$(x) y"),
    ],
)
def test_the_branch_of_a_push(ref: str, branch: str) -> None:
    assert event("push", {"ref": ref}).branch == branch


@pytest.mark.parametrize("before", ["0" * 40, "", "--output=/etc/passwd", "HEAD", "A" * 40, "a" * 39])
def test_what_is_no_commit_is_not_given_to_git(before: str) -> None:
    assert event("push", push(before=before)).base == ""


def test_the_branch_of_a_schedule_is_the_environments() -> None:
    assert event("schedule", {}, ref_name="main").branch == "main"
    assert event("schedule", {}, ref_name="ma\udcffin").branch == "ma?in"


@pytest.mark.parametrize(
    ("name", "payload", "said"),
    [
        ("pull_request", {}, "pull_request: this key is missing"),
        ("pull_request", {"pull_request": None}, "pull_request"),
        ("pull_request", {"pull_request": {"head": {}}}, "pull_request.base: this key is missing"),
        ("pull_request", {"pull_request": {"head": 1, "base": {}}}, "pull_request.head"),
        (
            "pull_request",
            {"pull_request": {"head": {}, "base": {}, "labels": [{"nam": "x"}]}},
            "labels[0].name: this key is missing",
        ),
        ("push", {}, "ref: this key is missing"),
        ("push", {"ref": ["main"]}, "ref"),
        ("workflow_dispatch", {"inputs": [1]}, "inputs"),
    ],
)
def test_a_malformed_payload_is_named_where_it_is_wrong(name: str, payload: Any, said: str) -> None:
    with pytest.raises(DataError) as caught:
        event(name, payload)
    assert said in str(caught.value)
    assert f"the {name} event" in str(caught.value)


@pytest.mark.parametrize("repository", ["", "x", "a/b/c", "a b/c", "a/b;id"])
def test_a_repository_is_owner_and_name(repository: str) -> None:
    with pytest.raises(UsageError, match="owner/name"):
        parse("push", push(), repository=repository)


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "[" * 100_000, '{"a": 1} x'])
def test_a_file_that_is_no_event(tmp_path: Path, text: str) -> None:
    (tmp_path / "event.json").write_text(text)
    with pytest.raises(DataError, match="is not the event of a CI run"):
        read_payload(tmp_path / "event.json")


@given(NAMES, JSON.filter(lambda value: isinstance(value, dict)) | PAYLOADS, st.none() | st.lists(st.text()))
def test_any_payload_gives_the_same_plan_twice_or_an_error_of_ours(
    name: str, payload: Any, files: list[str] | None
) -> None:
    found = [_planned(name, payload, files) for _ in range(2)]
    assert found[0] == found[1]


@given(LABELS, st.sampled_from([OURS, "x/y", None]), st.lists(st.text(min_size=1), max_size=3))
def test_any_labels_give_the_same_plan_in_any_order_or_an_error_of_ours(
    names: list[str], head: str | None, files: list[str]
) -> None:
    one = _planned("pull_request", pull_request(*names, head=head), files)
    other = _planned("pull_request", pull_request(*reversed(names), head=head), files)
    assert one == other
    if isinstance(one, dict):
        assert (one["trusted"] == "true") == (head == OURS)
        assert head == OURS or one["aws_role"] == one["store"] == ""


def _planned(name: str, payload: Any, files: list[str] | None) -> object:
    try:
        made = plan(asked(name, payload, changes=Changes(files=files)))
    except FatalError as problem:
        return type(problem)
    said = summary(made)
    assert "### Plan" in said
    return {**outputs(made), "summary": said}
