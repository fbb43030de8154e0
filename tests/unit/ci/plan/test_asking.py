from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from ci.plan import events
from ci.plan.events import Event, parse
from core import process
from core.errors import InterruptedStageError, ProcessError, ServiceError
from tests.unit.ci.plan.planning import OURS, pull_request, push

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


@dataclass
class Hub:
    """Answers as GitHub would, or raises."""

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
    return Hub(**facts)


def event(name: str = "pull_request", **facts: Any) -> Event:
    payload = pull_request() if name == "pull_request" else push()
    return replace(parse(name, payload, repository=OURS), **facts)


def no_git(*_words: Any, **_options: Any) -> Any:
    raise ProcessError("git diff ended with status 128:\nfatal: bad object bbbb")


LIMIT = ServiceError("GitHub limits our requests: it is left unanswered.")


def test_the_payloads_labels_are_taken_as_they_are() -> None:
    hub: Any = Hub()
    assert events.event_labels(event(labels=("x",)), hub) == (("x",), "")
    assert events.event_labels(event("push"), hub) == ((), "")
    assert hub.asked == []


def test_labels_that_the_payload_lacks_are_asked_for() -> None:
    assert events.event_labels(event(labels=None), hub_of()) == (["build:pytorch"], "")


@pytest.mark.parametrize("hub", [None, Hub(problem=LIMIT)])
def test_without_an_answer_no_label_counts_and_that_is_said(hub: Any) -> None:
    words, note = events.event_labels(event(labels=None), hub)
    assert words == ()
    assert "so none count" in note
    assert hub is None or "left unanswered" in note


def test_files_are_asked_of_github_where_git_cannot_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process, "capture", no_git)
    found = events.event_changes(event(), tmp_path, hub_of())
    assert (found.files, found.note) == (["a.py"], "")


def test_everything_counts_where_nobody_can_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "capture", no_git)
    found = events.event_changes(event(), tmp_path, hub_of(problem=LIMIT))
    assert found.files is None
    assert found.note == (
        "git cannot tell which files have changed (fatal: bad object bbbb), nor can GitHub "
        "(GitHub limits our requests: it is left unanswered)"
    )
    assert events.event_changes(event(), tmp_path, None).files is None
    pushed = events.event_changes(event("push"), tmp_path, hub_of())
    assert "bad object" in pushed.note
    assert events.event_changes(event("push", base=""), tmp_path, None).note.endswith(
        "no commit to compare with)"
    )


def test_ctrl_c_is_no_safe_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "capture", no_git)
    hub: Any = Hub(problem=InterruptedStageError("stopped"))
    with pytest.raises(InterruptedStageError):
        events.event_changes(event(), tmp_path, hub)
    with pytest.raises(InterruptedStageError):
        events.event_labels(event(labels=None), hub)


def test_other_events_and_deleted_branches_ask_nobody(tmp_path: Path) -> None:
    assert events.event_changes(Event(name="schedule", repository=OURS), tmp_path, None).files is None
    assert events.event_changes(event("push", deleted=True), tmp_path, None).note == ""


def test_github_is_asked_with_a_token_only_and_not_for_long() -> None:
    assert events.github_service({}) is None
    hub: Any = events.github_service({"GITHUB_TOKEN": "x"})
    assert hub.patience == events.PATIENCE < 60


@pytest.mark.processes
def test_git_says_what_a_push_and_a_merge_bring(tmp_path: Path, commit_files: Callable[..., str]) -> None:
    repository = tmp_path / "checkout"
    first = commit_files(repository, {"a.py": "1", "kept.md": ""})
    second = commit_files(repository, {"new name é.txt": "", "docs/b.md": ""})
    pushed = events.changed_by_git(event("push", base=first), repository)
    assert sorted(pushed) == ["docs/b.md", "new name é.txt"]

    def git(*words: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
        process.capture(["git", *identity, *words], cwd=repository)

    git("checkout", "-q", "-b", "topic", first)
    git("mv", "a.py", "moved.py")
    git("commit", "-q", "-m", "move")
    git("checkout", "-q", "--detach", second)
    git("merge", "-q", "--no-ff", "-m", "merge", "topic")
    assert sorted(events.changed_by_git(event(base="c" * 40), repository)) == ["a.py", "moved.py"]
    with pytest.raises(ProcessError):
        events.changed_by_git(event("push", base="d" * 40), repository)
    with pytest.raises(ProcessError):
        events.difference("--output=x", repository)
    assert not (repository / "x").exists()
