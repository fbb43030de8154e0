"""What an event does not say itself: changed files, labels. What cannot be asked has a safe default."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ci.plan.paths import Changes
from core import process
from core.errors import FatalError, InterruptedStageError, ProcessError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Protocol

    from ci.plan.events import Event

    class PullRequests(Protocol):
        """Where labels and files of a pull request are looked up (`ci.github.GitHub`)."""

        def labels(self, repository: str, number: int) -> Sequence[str]:
            """Give the labels of a pull request."""
            ...

        def changed_files(self, repository: str, number: int) -> Sequence[str]:
            """Give the files that a pull request changes."""
            ...


PATIENCE = 20.0  # seconds; a safe default is better than a run that waits
_GIT_SECONDS = 60.0


def pull_requests(env: Mapping[str, str]) -> PullRequests | None:
    """Give who is asked; None without a token, as nobody else would be answered for long."""
    if not (env.get("GITHUB_TOKEN") or env.get("GH_TOKEN")):
        return None
    from ci.github import from_environment

    return replace(from_environment(env), patience=PATIENCE)


def event_labels(event: Event, github: PullRequests | None) -> tuple[Sequence[str], str]:
    """Give an event's labels, and what people must know of them.

    Labels are the payload's, so that a run has the same ones at every attempt; only an event that
    has none of its own is asked for.
    """
    if event.labels is not None or event.name != "pull_request":
        return event.labels or (), ""
    if github is None:
        return (), "the event names no labels and there is no token to ask GitHub with, so none count"
    try:
        return github.labels(event.repository, event.number), ""
    except InterruptedStageError:
        raise
    except FatalError as problem:
        return (), f"the labels could not be asked for, so none count: {_line(problem)}"


def event_changes(event: Event, root: Path, github: PullRequests | None) -> Changes:
    """Give the files that an event changed, as git says, else as GitHub does; else all count as changed."""
    if event.name not in {"pull_request", "push"} or event.deleted:
        return Changes()
    try:
        return Changes(files=changed_by_git(event, root))
    except ProcessError as problem:
        note = f"git cannot say which files have changed ({_line(problem)})"
    if event.name == "pull_request" and event.number and github is not None:
        try:
            return Changes(files=github.changed_files(event.repository, event.number))
        except InterruptedStageError:
            raise
        except FatalError as problem:
            note += f", nor can GitHub ({_line(problem)})"
    return Changes(note=note)


def changed_by_git(event: Event, root: Path) -> Sequence[str]:
    """List the files that an event changed, both names of moved ones.

    Of a pull request that GitHub merged for the checkout, what the merge brings; else what differs
    from the event's base.
    """
    merge = event.name == "pull_request" and _is_merge(root)
    base = "HEAD^1" if merge else event.base
    if not base:
        raise ProcessError("the event names no commit to compare with")
    return difference(base, root)


def difference(base: str, root: Path) -> Sequence[str]:
    """List the files that differ between a commit and the checkout's."""
    command = ["git", "diff", "--name-only", "-z", "--no-renames", "--end-of-options", base, "HEAD", "--"]
    listed = process.capture(command, cwd=root, timeout=_GIT_SECONDS).stdout
    return [path for path in listed.split("\0") if path]


def _is_merge(root: Path) -> bool:
    asked = ["git", "rev-parse", "--verify", "--quiet", "HEAD^2"]
    return process.capture(asked, cwd=root, check=False, timeout=_GIT_SECONDS).returncode == 0


def _line(problem: FatalError) -> str:
    """Give the last line of what was said, which is git's own word."""
    return problem.message.strip().splitlines()[-1].rstrip(".")
