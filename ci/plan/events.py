"""Events of GitHub, as far as a plan follows from them, read from payloads that anybody may have shaped.

Payloads: https://docs.github.com/webhooks/webhook-events-and-payloads.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ConfigDict, Field

from ci.plan.data import EventName
from core.data import read_text, validated
from core.errors import DataError, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

REPOSITORY = re.compile(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+")
EVENTS: tuple[EventName, ...] = get_args(EventName)
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class _Repository(_Part):
    full_name: str


class _Side(_Part):
    ref: str = ""
    sha: str = ""
    repo: _Repository | None = None  # null once a fork is deleted


class _Label(_Part):
    name: str


class _PullRequest(_Part):
    number: int = Field(default=0, ge=0)
    labels: tuple[_Label, ...] | None = None
    head: _Side
    base: _Side
    updated_at: str | None = None


class _PullRequestPayload(_Part):
    pull_request: _PullRequest


class _PushPayload(_Part):
    ref: str
    before: str = ""
    after: str = ""
    deleted: bool = False


class _InputsPayload(_Part):
    ref: str = ""
    inputs: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Event:
    """What happened."""

    name: EventName
    repository: str
    branch: str = ""
    commit: str = ""
    number: int = 0
    labels: tuple[str, ...] | None = None
    fork: str = ""
    base: str = ""
    deleted: bool = False
    inputs: Mapping[str, Any] = field(default_factory=dict)
    day: date | None = None

    @property
    def owner(self) -> str:
        """The owner of the repository."""
        return self.repository.partition("/")[0]


def read_payload(path: Path) -> Mapping[str, Any]:
    """Read an event's file."""
    text = read_text(path)
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{path} is not the event of a CI run: {problem}.") from problem
    if not isinstance(payload, dict):
        raise DataError(f"{path} is not the event of a CI run: it holds no object.")
    return payload


def parse(name: str, payload: Mapping[str, Any], *, repository: str, ref_name: str = "") -> Event:
    """Read an event."""
    # what is no text (a variable may hold any bytes) is shown with question marks
    ref_name = ref_name.encode(errors="replace").decode()
    if not REPOSITORY.fullmatch(repository):
        raise UsageError(f"{repository!r} is no repository.", hint="Write it as owner/name.")
    match name:
        case "pull_request":
            return _pull_request(payload, repository)
        case "push":
            return _push(payload, repository)
        case "schedule":
            return Event(name="schedule", repository=repository, branch=ref_name)
        case "workflow_dispatch" | "workflow_call":
            given = validated(payload, _InputsPayload, where=f"the {name} event")
            branch = _branch(given.ref) or ref_name
            return Event(name=name, repository=repository, branch=branch, inputs=given.inputs or {})
    raise UsageError(f"CI does nothing on the event {name!r}. {nearest(name, EVENTS)}")


def _pull_request(payload: Mapping[str, Any], repository: str) -> Event:
    found = validated(payload, _PullRequestPayload, where="the pull_request event").pull_request
    head = found.head.repo
    fork = ""
    if head is None:
        fork = "deleted"
    elif head.full_name.casefold() != repository.casefold():
        fork = head.full_name
    return Event(
        name="pull_request",
        repository=repository,
        branch=found.base.ref,
        commit=_commit(found.head.sha),
        number=found.number,
        labels=None if found.labels is None else tuple(sorted(one.name for one in found.labels)),
        fork=fork,
        base=_commit(found.base.sha),
        day=_day(found.updated_at),
    )


def _push(payload: Mapping[str, Any], repository: str) -> Event:
    found = validated(payload, _PushPayload, where="the push event")
    return Event(
        name="push",
        repository=repository,
        branch=_branch(found.ref),
        commit=_commit(found.after),
        base=_commit(found.before),
        deleted=found.deleted,
    )


def _branch(ref: str) -> str:
    """Take the branch out of ``refs/heads/NAME``; a tag is none, and a bare name is a branch's."""
    return ref.removeprefix("refs/heads/") if ref.startswith("refs/heads/") or "refs/" not in ref else ""


def _commit(text: str) -> str:
    """Give a commit; "" for what is none, such as the zeros that stand for a branch's beginning."""
    return text if _COMMIT.fullmatch(text) and text.strip("0") else ""


def _day(text: str | None) -> date | None:
    try:
        return datetime.fromisoformat(text).date() if text else None
    except ValueError:
        return None
