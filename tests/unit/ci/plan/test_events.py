"""Payloads: GitHub's, malformed ones, and any at all."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.plan import events, inputs
from ci.plan.outputs import outputs, summary
from ci.plan.plan import plan
from core import process
from core.errors import DataError, FatalError, InterruptedStageError, ProcessError, ServiceError, UsageError
from tests.unit.ci.plan.planning import OURS, asked, known, pull_request, push

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
    return events.parse(name, payload, repository=OURS, **facts)


def test_a_pull_request() -> None:
    payload = pull_request("b", "a", base="release/1")
    payload["pull_request"]["updated_at"] = "2026-08-30T23:59:59Z"
    found = event("pull_request", payload)
    assert (found.branch, found.commit, found.base, found.number) == ("release/1", "a" * 40, "b" * 40, 7)
    assert found.labels == ("a", "b")
    assert found.day == date(2026, 8, 30)
    assert (found.fork, found.owner) == ("", "ROCm")
    assert event("pull_request", pull_request(head="x/TheRock")).fork == "x/TheRock"
    assert event("pull_request", pull_request(head=None)).fork == "deleted"
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


@pytest.mark.parametrize(
    ("name", "payload", "facts"),
    [
        ("push", push(deleted=True), {"commit": "b" * 40, "base": "a" * 40, "deleted": True}),
        ("schedule", {}, {"branch": "ma?in"}),
        ("workflow_dispatch", {"ref": "refs/heads/main", "inputs": {"x": 1}}, {"inputs": {"x": 1}}),
        ("workflow_call", {"inputs": None}, {"branch": "ma?in"}),
    ],
)
def test_what_an_event_says(name: Any, payload: Any, facts: Any) -> None:
    expected = events.Event(**{"name": name, "repository": OURS, "branch": "main", **facts})
    # where the payload has no branch, it is the environment's
    assert event(name, payload, ref_name="ma\udcffin") == expected
    assert event("schedule", {}).branch == ""


@pytest.mark.parametrize("before", ["0" * 40, "", "--output=/etc/passwd", "HEAD", "A" * 40, "a" * 39])
def test_what_is_no_commit_is_not_given_to_git(before: str) -> None:
    assert event("push", push(before=before)).base == ""


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
    assert str(caught.value).startswith(f"the {name} event")


@pytest.mark.parametrize("repository", ["", "x", "a/b/c", "a b/c", "a/b;id"])
def test_a_repository_is_owner_and_name(repository: str) -> None:
    with pytest.raises(
        UsageError, match=f"^Invalid repository {re.escape(repr(repository))}.\nWrite it as owner/name.$"
    ):
        events.parse("push", push(), repository=repository)
    with pytest.raises(UsageError, match=r"on the event 'pul'\. .*pull_request"):
        event("pul", {})
    with pytest.raises(UsageError, match="CI does nothing on the event 'pull_request_target'"):
        event("pull_request_target", pull_request())


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "[" * 100_000, '{"a": 1} x'])
def test_a_file_that_is_no_event(tmp_path: Path, text: str) -> None:
    (tmp_path / "event.json").write_text(text)
    with pytest.raises(DataError, match="the event of a CI run, is not"):
        events.read_payload(tmp_path / "event.json")


@dataclass
class FakeGitHub:
    problem: BaseException | None = None
    asked: list[str] = field(default_factory=list)

    def labels(self, repository: str, number: int) -> Sequence[str]:
        return self._answer(f"labels of {repository} {number}", ["build:pytorch"])

    def changed_files(self, repository: str, number: int) -> Sequence[str]:
        return self._answer(f"files of {repository} {number}", ["a.py"])

    def _answer(self, asked: str, value: Sequence[str]) -> Sequence[str]:
        self.asked.append(asked)
        if self.problem:
            raise self.problem
        return value


def hub_of(**facts: Any) -> Any:
    return FakeGitHub(**facts)


def happened(name: str = "pull_request", **facts: Any) -> events.Event:
    payload = pull_request() if name == "pull_request" else push()
    return replace(events.parse(name, payload, repository=OURS), **facts)


def no_git(*_words: Any, **_options: Any) -> Any:
    raise ProcessError("git diff ended with status 128:\nfatal: bad object bbbb")


LIMIT = ServiceError("GitHub limits our requests: it is left unanswered.")


def test_labels_that_the_payload_lacks_are_queried() -> None:
    hub: Any = hub_of()
    assert events.event_labels(happened(labels=("x",)), hub) == (("x",), "")
    assert events.event_labels(happened("push"), hub) == ((), "")
    assert hub.asked == []
    assert events.event_labels(happened(labels=None), hub) == (["build:pytorch"], "")
    assert hub.asked == [f"labels of {OURS} 7"]


@pytest.mark.parametrize("hub", [None, hub_of(problem=LIMIT)])
def test_without_an_answer_no_label_counts_and_that_is_said(hub: Any) -> None:
    words, note = events.event_labels(happened(labels=None), hub)
    assert words == ()
    assert note == (
        "could not query the labels, so none count: GitHub limits our requests: it is left unanswered"
        if hub
        else "the event names no labels, and without a token GitHub is not queried, so none count"
    )


def test_files_are_asked_of_github_if_git_cannot_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "capture", no_git)
    hub: Any = hub_of()
    assert events.event_changes(happened(), tmp_path, hub) == events.Changes(files=["a.py"])
    assert hub.asked == [f"files of {OURS} 7"]


def test_everything_counts_where_nobody_can_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "capture", no_git)
    found = events.event_changes(happened(), tmp_path, hub_of(problem=LIMIT))
    assert found.files is None
    assert found.note == (
        "git cannot tell which files have changed (fatal: bad object bbbb), nor can GitHub "
        "(GitHub limits our requests: it is left unanswered)"
    )
    assert events.event_changes(happened(), tmp_path, None).files is None
    pushed = events.event_changes(happened("push"), tmp_path, hub_of())
    assert "bad object" in pushed.note
    assert events.event_changes(happened("push", base=""), tmp_path, None).note.endswith(
        "no commit to compare with)"
    )


def test_ctrl_c_is_no_safe_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "capture", no_git)
    hub: Any = hub_of(problem=InterruptedStageError("stopped"))
    with pytest.raises(InterruptedStageError):
        events.event_changes(happened(), tmp_path, hub)
    with pytest.raises(InterruptedStageError):
        events.event_labels(happened(labels=None), hub)


def test_other_events_and_deleted_branches_need_no_query(tmp_path: Path) -> None:
    assert events.event_changes(events.Event(name="schedule", repository=OURS), tmp_path, None).files is None
    assert events.event_changes(happened("push", deleted=True), tmp_path, None).note == ""


def test_github_is_asked_with_a_token_only_and_not_for_long() -> None:
    assert events.github_service({}) is None
    for name in ("GITHUB_TOKEN", "GH_TOKEN"):
        hub: Any = events.github_service({name: "x"})
        assert hub.patience == events.PATIENCE < 60


@pytest.mark.processes
def test_git_says_what_a_push_and_a_merge_bring(tmp_path: Path, commit_files: Callable[..., str]) -> None:
    repository = tmp_path / "checkout"
    first = commit_files(repository, {"a.py": "1", "kept.md": ""})
    second = commit_files(repository, {"new name é.txt": "", "docs/b.md": ""})
    for one in (happened("push", base=first), happened(base=first)):  # nor is the latter a merge
        pushed = events.event_changes(one, repository, None)
        assert sorted(pushed.files or ()) == ["docs/b.md", "new name é.txt"]

    def git(*words: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
        process.capture(["git", *identity, *words], cwd=repository)

    git("checkout", "-q", "-b", "topic", first)
    git("mv", "a.py", "moved.py")
    git("commit", "-q", "-m", "move")
    git("checkout", "-q", "--detach", second)
    git("merge", "-q", "--no-ff", "-m", "merge", "topic")
    assert sorted(events.changed_by_git(happened(base="c" * 40), repository)) == ["a.py", "moved.py"]
    with pytest.raises(ProcessError):
        events.changed_by_git(happened("push", base="d" * 40), repository)
    with pytest.raises(ProcessError):
        events.difference("--output=x", repository)
    assert not (repository / "x").exists()


@given(NAMES, JSON.filter(lambda value: isinstance(value, dict)) | PAYLOADS, st.none() | st.lists(st.text()))
def test_any_payload_gives_one_plan_or_our_error(name: str, payload: Any, files: list[str] | None) -> None:
    found = [_planned(name, payload, files) for _ in range(2)]
    assert found[0] == found[1]


@given(LABELS, st.sampled_from([OURS, "x/y", None]), st.lists(st.text(min_size=1), max_size=3))
def test_any_labels_give_one_plan_or_our_error(names: list[str], head: str | None, files: list[str]) -> None:
    one = _planned("pull_request", pull_request(*names, head=head), files)
    other = _planned("pull_request", pull_request(*reversed(names), head=head), files)
    assert one == other
    if isinstance(one, dict):
        assert (one["trusted"] == "true") == (head == OURS)
        assert head == OURS or one["aws_role"] == one["store"] == ""


def _planned(name: str, payload: Any, files: list[str] | None) -> object:
    try:
        made = plan(asked(name, payload, changes=events.Changes(files=files)))
    except FatalError as problem:
        return type(problem)
    said = summary(made)
    assert "### Plan" in said
    return {**outputs(made), "summary": said}
