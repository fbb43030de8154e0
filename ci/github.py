"""GitHub's REST API, as far as this project uses it: requests within its limits, and the search for a run.

API version 2022-11-28; https://docs.github.com/rest/actions/workflow-runs.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from types import MappingProxyType
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from core import console
from core.errors import FatalError, MissingInputError, ServiceError, UsageError
from core.http import Response, send_request

API = "https://api.github.com"

MOST_RUNS = 200
_PAGE_SIZE = 100
_FIRST_PAGE: Mapping[str, str] = {"per_page": str(_PAGE_SIZE)}
_NO_FIELDS: Mapping[str, str] = MappingProxyType({})
_MOST_FILES = 3000  # of a pull request, says GitHub
_LONGEST_LINE = 300

_MOST_ATTEMPTS = 6
_LONGEST_WAIT = 900.0
_SECONDARY_WAIT = 60.0  # GitHub's request where it names no time
_REQUEST_SECONDS = 30.0

_OK = 200
_UNAUTHORIZED = 401
_FORBIDDEN = 403
_NOT_FOUND = 404
_UNPROCESSABLE = 422
_TOO_MANY_REQUESTS = 429
_SERVER_ERROR = 500

_FAILED_CONCLUSIONS = ("failure", "timed_out", "startup_failure")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_COMMIT_LENGTH = 40
_SHORT_COMMIT = 12


# --- What GitHub answers


class _Answer(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        defer_build=True,
        populate_by_name=True,
    )


def _text_of(value: object) -> object:
    """Return "" for null, which GitHub has where there is no text."""
    return "" if value is None else value


_Text = Annotated[str, BeforeValidator(_text_of)]


class Run(_Answer):
    """One run of a workflow; `head` is "" once a fork is deleted."""

    run_id: Annotated[str, BeforeValidator(str)] = Field(validation_alias="id")
    commit: str = Field(validation_alias="head_sha")
    status: _Text = ""
    conclusion: _Text = ""
    created: str = Field(validation_alias="created_at")
    url: str = Field(validation_alias="html_url")
    path: str = ""  # of the workflow's file, with the branch behind an @ where it is another repository's
    head: str = Field("", validation_alias=AliasPath("head_repository", "full_name"))
    fork: bool = False
    workflow: str = ""

    @property
    def successful(self) -> bool:
        """Whether it succeeded."""
        return self.status == "completed" and self.conclusion == "success"


class _IssueLabel(_Answer):
    name: str


class _ChangedFile(_Answer):
    filename: str
    previous_filename: str | None = None


class _WorkflowJob(_Answer):
    id: int
    name: str
    conclusion: str | None = None
    html_url: str | None = None


class _Annotation(_Answer):
    annotation_level: str | None = None
    message: str | None = None


_Answered = TypeVar("_Answered")
_Element = TypeVar("_Element")
_Artifacts = TypeVar("_Artifacts")


# --- Requests


@dataclass(frozen=True, kw_only=True)
class RunQuery:
    """Which runs count: those of a commit, or of a branch."""

    repository: str
    workflow: str
    commit: str = ""
    branch: str = ""
    require_successful: bool = True

    def __post_init__(self) -> None:
        if self.commit and not _COMMIT.fullmatch(self.commit):
            raise UsageError(
                f"--commit {self.commit!r} is not a commit.",
                hint="Give 7 to 40 hex digits.",
            )

    def __str__(self) -> str:
        kind = "run"
        if self.require_successful:
            kind = "successful run"
        head = f"branch {self.branch}"
        if self.commit:
            head = f"commit {self.commit}"
        return f"{kind} of {self.workflow} for {head} in {self.repository}"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One job or cell that failed."""

    name: str
    error: str = ""
    url: str = ""


@dataclass(frozen=True, kw_only=True)
class Pause:
    """How long to wait before another request, and why."""

    seconds: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class GitHub:
    """The API. `patience` is how many seconds are waited for one answer in all."""

    address: str = API
    token: str = ""
    sleep: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.time
    patience: float = _LONGEST_WAIT

    def whole_commit(self, repository: str, commit: str) -> str:
        """Return all 40 digits of a commit."""
        path = f"/repos/{repository}/commits/{commit}"
        return self._get(path, str, key="sha")

    def run(self, repository: str, run_id: str) -> Run:
        """Return one run."""
        path = f"/repos/{repository}/actions/runs/{run_id}"
        return _fill_in_fork_and_workflow(self._get(path, Run), repository)

    def runs(self, query: RunQuery) -> Iterator[Run]:
        """Yield runs, the newest first, page by page."""
        fields: dict[str, str] = {}
        if query.commit:
            fields["head_sha"] = query.commit
        if query.branch:
            fields["branch"] = query.branch
        if query.require_successful:
            fields["status"] = "success"

        workflow = quote(query.workflow, safe="")
        path = f"/repos/{query.repository}/actions/workflows/{workflow}/runs"
        for run in self._pages(path, tuple[Run, ...], key="workflow_runs", fields=fields):
            yield _fill_in_fork_and_workflow(run, query.repository)

    def labels(self, repository: str, number: int) -> Sequence[str]:
        """Return the labels of a pull request as they are now, the first hundred."""
        path = f"/repos/{repository}/issues/{number}/labels"
        labels = self._get(path, tuple[_IssueLabel, ...], fields=_FIRST_PAGE)
        return [label.name for label in labels]

    def changed_files(self, repository: str, number: int) -> Sequence[str]:
        """Return the files that a pull request changes, with the former names of moved ones."""
        path = f"/repos/{repository}/pulls/{number}/files"
        files = list(islice(self._pages(path, tuple[_ChangedFile, ...]), _MOST_FILES))
        if len(files) == _MOST_FILES:
            raise ServiceError(f"GitHub lists no more than {_MOST_FILES} files of a pull request.")

        names: list[str] = []
        for file in files:
            names.append(file.filename)
            if file.previous_filename:
                names.append(file.previous_filename)
        return names

    def failed_jobs(self, repository: str, run_id: str) -> Sequence[Failure]:
        """Return the jobs of a run's last attempt that failed, each with its first error."""
        path = f"/repos/{repository}/actions/runs/{run_id}/jobs"
        jobs = list(self._pages(path, tuple[_WorkflowJob, ...], key="jobs", fields={"filter": "latest"}))
        failures: list[Failure] = []
        for job in jobs:
            if job.conclusion in _FAILED_CONCLUSIONS:
                error = self._first_error(repository, job.id)
                failures.append(
                    Failure(
                        name=job.name,
                        error=error,
                        url=job.html_url or "",
                    )
                )
        return failures

    def _first_error(self, repository: str, job_id: int) -> str:
        path = f"/repos/{repository}/check-runs/{job_id}/annotations"
        annotations = self._get(path, tuple[_Annotation, ...], fields=_FIRST_PAGE)
        for annotation in annotations:
            if annotation.annotation_level == "failure":
                return first_line(annotation.message or "")
        return ""

    def _pages(
        self,
        path: str,
        answer_type: type[tuple[_Element, ...]],
        *,
        key: str | None = None,
        fields: Mapping[str, str] = _NO_FIELDS,
    ) -> Iterator[_Element]:
        """Yield the elements of every page, as they are taken."""
        for number in count(1):
            fields_of_page = {**fields, **_FIRST_PAGE, "page": str(number)}
            elements = self._get(path, answer_type, key=key, fields=fields_of_page)
            yield from elements
            if len(elements) < _PAGE_SIZE:
                return

    def _get(
        self,
        path: str,
        answer_type: type[_Answered],
        *,
        key: str | None = None,
        fields: Mapping[str, str] = _NO_FIELDS,
    ) -> _Answered:
        """Return what is at a path, or what that has under a key, as a value of a type.

        Raises:
            MissingInputError: There is nothing.
            ServiceError: GitHub refuses, or gives no answer that can be read.
        """
        response = self._request(path, fields)
        if response.status != _OK:
            raise _refusal(path, response.status, has_token=bool(self.token))
        try:
            if key is None:
                return TypeAdapter(answer_type).validate_json(response.body)
            answer = TypeAdapter(dict[str, Any]).validate_json(response.body)
            return TypeAdapter(answer_type).validate_python(answer.get(key))
        except ValidationError as problem:
            first_error = problem.errors(include_url=False)[0]
            location = ".".join(str(step) for step in first_error["loc"])
            message = first_error["msg"]
            raise ServiceError(
                f"GitHub's answer to {path} is not as documented: {location}: {message}."
            ) from problem

    def _request(self, path: str, fields: Mapping[str, str]) -> Response:
        """Request until there is an answer that waiting would not change, or patience ends."""
        seconds_waited = 0.0
        for attempt in count(1):
            answer = self._request_once(path, fields, attempt)
            if isinstance(answer, Response):
                return answer

            wait = console.duration(answer.seconds)
            seconds_waited += answer.seconds
            if attempt == _MOST_ATTEMPTS or seconds_waited > self.patience:
                raise ServiceError(
                    f"GitHub {answer.reason}: no answer to {path} after {attempt} tries "
                    f"(next one in {wait}).",
                    hint="Give a token in GITHUB_TOKEN (more requests are granted), or try again later.",
                )
            console.say(f"GitHub {answer.reason}; trying again in {wait}.")
            self.sleep(answer.seconds)
        raise AssertionError

    def _request_once(self, path: str, fields: Mapping[str, str], attempt: int) -> Response | Pause:
        headers = {
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": "rocm-pytorch-wheels",
        }
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        query = urlencode(fields)
        url = f"{self.address}{path}?{query}"
        try:
            response = send_request(url, headers=headers, timeout=_REQUEST_SECONDS)
        except ServiceError as problem:
            reason = problem.message.removesuffix(".")
            return Pause(seconds=2.0**attempt, reason=f"cannot be reached: {reason}")
        return required_pause(response, attempt, self.clock()) or response


def required_pause(response: Response, attempt: int, current_time: float) -> Pause | None:
    """Return how long an answer asks to wait; None for one that counts.

    https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api
    """
    retry_after = response.headers.get("retry-after", "")
    if response.status >= _SERVER_ERROR:
        seconds = 2.0**attempt
        if retry_after.isdigit():
            seconds = float(retry_after)
        return Pause(seconds=seconds, reason=f"has a fault (status {response.status})")
    if response.status not in {_TOO_MANY_REQUESTS, _FORBIDDEN}:
        return None

    limit = "limits our requests"
    if retry_after.isdigit():
        return Pause(seconds=float(retry_after), reason=limit)
    remaining_requests = response.headers.get("x-ratelimit-remaining", "")
    reset_time = response.headers.get("x-ratelimit-reset", "")
    if remaining_requests == "0" and reset_time.isdigit():
        seconds_to_reset = max(float(reset_time) - current_time, 0.0)
        return Pause(seconds=seconds_to_reset + 1.0, reason="has no requests left for us")
    is_limit = b"rate limit" in response.body.lower()
    if is_limit or response.status == _TOO_MANY_REQUESTS:
        return Pause(seconds=_SECONDARY_WAIT * attempt, reason=limit)
    return None


def _refusal(path: str, status: int, *, has_token: bool) -> FatalError:
    if status in {_NOT_FOUND, _UNPROCESSABLE}:
        hint = ""
        if not has_token:
            hint = "If the repository is private, give a token in GITHUB_TOKEN."
        return MissingInputError(f"GitHub has nothing at {path}.", hint=hint)
    if status == _UNAUTHORIZED:
        return ServiceError(
            "GitHub refuses the token.",
            hint="Renew or unset GITHUB_TOKEN (or GH_TOKEN).",
        )
    return ServiceError(f"GitHub refuses {path}: status {status}.")


def _fill_in_fork_and_workflow(run: Run, repository: str) -> Run:
    """Return a run with whether it is a fork's, and with the file name of its workflow."""
    path, _, _ = run.path.partition("@")
    _, _, workflow = path.rpartition("/")
    is_fork = run.head.casefold() != repository.casefold()
    return run.model_copy(update={"fork": is_fork, "workflow": workflow})


def first_line(text: str) -> str:
    """Return the first line that is not empty, cut to what a message holds."""
    lines = text.strip().splitlines()
    if not lines:
        return ""
    line = lines[0].strip()
    if len(line) > _LONGEST_LINE:
        return f"{line[: _LONGEST_LINE - 1]}…"
    return line


# --- The search for a run


def find_run(
    hub: GitHub,
    query: RunQuery,
    find_artifacts: Callable[[Run], _Artifacts | None],
) -> tuple[Run, _Artifacts]:
    """Return the newest run that counts and has artifacts, with these; `find_artifacts` has None for none."""
    if query.commit and len(query.commit) < _COMMIT_LENGTH:
        whole_commit = hub.whole_commit(query.repository, query.commit)
        query = replace(query, commit=whole_commit)

    run_count = 0
    for run in islice(hub.runs(query), MOST_RUNS):
        if query.require_successful and not run.successful:
            continue
        run_count += 1
        artifacts = find_artifacts(run)
        if artifacts is not None:
            commit = run.commit[:_SHORT_COMMIT]
            console.say(f"run {run.run_id} of {run.created}: commit {commit}  {run.url}")
            return run, artifacts

    if run_count > 0:
        raise MissingInputError(
            f"The store has artifacts of none of the newest {run_count}: no {query} counts.",
            hint="Their artifacts may be gone: name a newer run, or another store with --from.",
        )
    hint = ""
    if query.require_successful:
        hint = "Wait for it to end, or take another one with --no-require-successful."
    raise MissingInputError(f"There is no {query}.", hint=hint)


def from_environment(env: Mapping[str, str]) -> GitHub:
    """Return the API by a front door's variables: ``GITHUB_TOKEN`` or ``GH_TOKEN``, ``GITHUB_API_URL``."""
    address = env.get("GITHUB_API_URL", "").rstrip("/")
    token = env.get("GITHUB_TOKEN") or env.get("GH_TOKEN") or ""
    return GitHub(address=address or API, token=token)
