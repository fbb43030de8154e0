"""Events of GitHub: payloads of any shape, and the labels and changed files behind them.

Payloads: https://docs.github.com/webhooks/webhook-events-and-payloads.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import AliasPath, BaseModel, ConfigDict, Field

from ci.github import GitHub
from ci.plan.data import EventName
from core import process
from core.data import json_object, read_text, validated
from core.errors import FatalError, MissingInputError, ProcessError, ServiceError, UsageError, nearest
from core.run.locations import REPOSITORY
from pytorch_build.sources.git import git_reason

EVENTS: tuple[EventName, ...] = get_args(EventName)
PATIENCE = 20.0  # seconds; a safe default is better than a run that waits
DELETED_FORK = "deleted"  # in the place of a repository's name
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BRANCH = "refs/heads/"
_GIT_SECONDS = 60.0


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class _Payload(_Part):
    repository: str | None = Field(None, validation_alias=AliasPath("repository", "full_name"))


class _Label(_Part):
    name: str


class _PullRequest(_Part):
    number: int = Field(default=0, ge=0)
    labels: tuple[_Label, ...] | None = None
    head: dict[str, Any]
    head_commit: str = Field("", validation_alias=AliasPath("head", "sha"))
    # The head has none once a fork is deleted.
    head_repository: str = Field(DELETED_FORK, validation_alias=AliasPath("head", "repo", "full_name"))
    base: dict[str, Any]
    base_branch: str = Field("", validation_alias=AliasPath("base", "ref"))
    base_commit: str = Field("", validation_alias=AliasPath("base", "sha"))
    updated_at: datetime | None = None


class _PullRequestPayload(_Part):
    pull_request: _PullRequest


class _PushPayload(_Part):
    ref: str
    before: str = ""
    after: str = ""
    deleted: bool = False


class _MergeGroupPayload(_Part):
    base_ref: str = Field(validation_alias=AliasPath("merge_group", "base_ref"))
    base_sha: str = Field("", validation_alias=AliasPath("merge_group", "base_sha"))
    head_sha: str = Field("", validation_alias=AliasPath("merge_group", "head_sha"))


class _InputsPayload(_Part):
    ref: str = ""
    inputs: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Event:
    """What happened. None stands for what the payload does not have."""

    name: EventName
    repository: str
    branch: str | None = None
    commit: str | None = None
    number: int | None = None  # of the pull request
    labels: tuple[str, ...] | None = None
    fork: str | None = None  # the repository that the commits are from, where it is another one
    base: str | None = None
    deleted: bool = False
    inputs: Mapping[str, Any] = field(default_factory=dict)
    day: date | None = None

    @property
    def owner(self) -> str:
        """The owner of the repository."""
        return self.repository.partition("/")[0]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The files that an event changed; None where every file counts as changed, and a note says why."""

    files: Sequence[str] | None = None
    note: str | None = None

    @classmethod
    def all_files(cls, note: str | None = None) -> Self:
        """Return that every file counts as changed."""
        return cls(files=None, note=note)


def read_payload(path: Path) -> Mapping[str, Any]:
    """Read an event's file."""
    return json_object(read_text(path), where=f"{path}, the event of a CI run,")


def repository_of(payload: Mapping[str, Any]) -> str | None:
    """Return the repository that GitHub sent an event for; None where the payload names none."""
    return validated(payload, _Payload, where="the event").repository


def parse(
    name: str,
    payload: Mapping[str, Any],
    *,
    repository: str,
    ref_name: str | None = None,
) -> Event:
    """Read an event. `ref_name` is the branch of one whose payload names none."""
    if not REPOSITORY.fullmatch(repository):
        raise UsageError(f"Invalid repository {repository!r}.", hint="Write it as owner/name.")

    if ref_name is not None:
        # A variable may hold any bytes.
        ref_name = ref_name.encode(errors="replace").decode()

    match name:
        case "pull_request":
            return _pull_request(payload, repository)
        case "push":
            push = validated(payload, _PushPayload, where="the push event")
            return Event(
                name="push",
                repository=repository,
                branch=_branch(push.ref),
                commit=_commit(push.after),
                base=_commit(push.before),
                deleted=push.deleted,
            )
        case "merge_group":
            # What the branch would become, so it is planned as the push that would follow.
            group = validated(payload, _MergeGroupPayload, where="the merge_group event")
            return Event(
                name="push",
                repository=repository,
                branch=_branch(group.base_ref),
                commit=_commit(group.head_sha),
                base=_commit(group.base_sha),
            )
        case "schedule":
            return Event(name="schedule", repository=repository, branch=ref_name)
        case "workflow_dispatch" | "workflow_call":
            call = validated(payload, _InputsPayload, where=f"the {name} event")
            return Event(
                name=name,
                repository=repository,
                branch=_branch(call.ref) or ref_name,
                inputs=call.inputs or {},
            )
    raise UsageError(f"CI does nothing on the event {name!r}. {nearest(name, EVENTS)}")


def _pull_request(payload: Mapping[str, Any], repository: str) -> Event:
    event = validated(payload, _PullRequestPayload, where="the pull_request event")
    pull_request = event.pull_request

    labels = None
    if pull_request.labels is not None:
        labels = tuple(sorted(label.name for label in pull_request.labels))

    is_fork = pull_request.head_repository.casefold() != repository.casefold()

    updated_at = pull_request.updated_at
    return Event(
        name="pull_request",
        repository=repository,
        branch=pull_request.base_branch or None,
        commit=_commit(pull_request.head_commit),
        number=pull_request.number or None,
        labels=labels,
        fork=pull_request.head_repository if is_fork else None,
        base=_commit(pull_request.base_commit),
        day=None if updated_at is None else updated_at.date(),
    )


def _branch(ref: str) -> str | None:
    """Return the branch of ``refs/heads/NAME`` or a bare name; None for a tag."""
    if ref.startswith(_BRANCH):
        return ref.removeprefix(_BRANCH) or None
    if "refs/" in ref:
        return None
    return ref or None


def _commit(text: str) -> str | None:
    """Return a commit; None for any other text, such as the zeros that stand for a branch's beginning."""
    is_commit = _COMMIT.fullmatch(text) and text.strip("0")
    return text if is_commit else None


def github_service(env: Mapping[str, str]) -> GitHub | None:
    """Return GitHub's API; None without a token, as its limits for anonymous requests are too low."""
    if not (env.get("GITHUB_TOKEN") or env.get("GH_TOKEN")):
        return None
    from ci.github import from_environment

    return replace(from_environment(env), patience=PATIENCE)


def event_labels(event: Event, github: GitHub | None) -> tuple[Sequence[str], str | None]:
    """Return an event's labels, and a note for people where they could not be queried.

    Labels are the payload's, so that a run has the same ones at every attempt; GitHub's are queried where
    the payload has none.
    """
    if event.labels is not None:
        return event.labels, None
    if event.name != "pull_request":
        return (), None
    if event.number is None:
        return (), "the event names neither labels nor the pull request's number, so none count"
    if github is None:
        return (), "the event names no labels, and without a token GitHub is not queried, so none count"

    try:
        return github.labels(event.repository, event.number), None
    except (ServiceError, MissingInputError) as problem:
        return (), f"could not query the labels, so none count: {_last_line(problem)}"


def event_changes(event: Event, root: Path, github: GitHub | None) -> Changes:
    """Return the files that an event changed, by git, else by GitHub; else all count as changed."""
    if event.name not in {"pull_request", "push"} or event.deleted:
        return Changes.all_files()

    try:
        return Changes(files=changed_by_git(event, root))
    except ProcessError as problem:
        note = f"git cannot tell which files have changed ({git_reason(problem).rstrip('.')})"

    if event.number is None or github is None:
        return Changes.all_files(note)
    try:
        return Changes(files=github.changed_files(event.repository, event.number))
    except (ServiceError, MissingInputError) as problem:
        return Changes.all_files(f"{note}, nor can GitHub ({_last_line(problem)})")


def changed_by_git(event: Event, root: Path) -> Sequence[str]:
    """Return the files that an event changed, both names of moved ones.

    Those of a push differ between its two commits. A pull request's are those that its own commits change:
    what its base has got meanwhile does not count.
    """
    if event.name == "pull_request" and _is_merge_of(event, root):
        return difference("HEAD^1", root)
    if event.base is None:
        raise ProcessError("the event names no commit to compare with")

    commit = event.commit or "HEAD"
    base = event.base
    if event.name == "pull_request":
        base = _git(root, "merge-base", base, commit).strip()
    return difference(base, root, commit=commit)


def _is_merge_of(event: Event, root: Path) -> bool:
    """Return whether GitHub's merge of a pull request is checked out.

    Its head may be a merge itself, of its base or of another branch, and be checked out in GitHub's place.
    """
    command = ["git", "rev-parse", "--verify", "--quiet", "HEAD^2"]
    completed = process.capture(command, cwd=root, check=False, timeout=_GIT_SECONDS)
    return completed.stdout.strip() == event.commit


def difference(base: str, root: Path, *, commit: str = "HEAD") -> Sequence[str]:
    """Return the files that differ between two commits."""
    # Outside a repository `git diff` compares folders, and says how to call it so.
    options = ["-r", "--name-only", "-z", "--no-renames", "--end-of-options"]
    output = _git(root, "diff-tree", *options, base, commit, "--")
    return [path for path in output.split("\0") if path]


def _git(root: Path, *arguments: str) -> str:
    return process.capture(["git", *arguments], cwd=root, timeout=_GIT_SECONDS).stdout


def _last_line(problem: FatalError) -> str:
    """Return the last line of a message, which is GitHub's own."""
    lines = problem.message.strip().splitlines()
    return lines[-1].rstrip(".")
