"""GitHub's REST API, as far as this project uses it: a thin edge over HTTP, and the search for a run.

API version 2022-11-28; https://docs.github.com/rest/actions/workflow-runs.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Annotated, TypeVar
from urllib.parse import quote, urlencode

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from core import console
from core.errors import MissingInputError, ServiceError, UsageError
from core.http import Response, send_request

API = "https://api.github.com"
MOST_RUNS = 200
_PAGE = 100
_FAILED = ("failure", "timed_out", "startup_failure")
_LONGEST_LINE = 300
_MOST_FILES = 3000  # of a pull request, says GitHub
_TRIES = 6
_LONGEST_WAIT = 900.0
_SECONDARY_WAIT = 60.0  # GitHub's request where it names no time
_SECONDS = 30.0

_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _UNPROCESSABLE, _TOO_MANY, _SERVER = 401, 403, 404, 422, 429, 500
_OK = 200
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_WHOLE = 40


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True, populate_by_name=True)


_Text = Annotated[str, BeforeValidator(lambda said: said or "")]  # null is no text


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


@dataclass(frozen=True, kw_only=True)
class RunQuery:
    """Which runs count."""

    repository: str
    workflow: str
    commit: str = ""
    branch: str = ""
    require_successful: bool = True

    def __post_init__(self) -> None:
        if self.commit and not _COMMIT.fullmatch(self.commit):
            raise UsageError(f"--commit {self.commit!r} is not a commit.", hint="Give 7 to 40 hex digits.")

    @property
    def what(self) -> str:
        """The runs, in words."""
        kind = "successful run" if self.require_successful else "run"
        where = f"commit {self.commit}" if self.commit else f"branch {self.branch}"
        return f"{kind} of {self.workflow} for {where} in {self.repository}"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One job or cell that failed."""

    name: str
    error: str = ""
    url: str = ""


def first_line(text: str) -> str:
    """Return the first line that is not empty, cut to what a message holds."""
    line = next((one.strip() for one in text.splitlines() if one.strip()), "")
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"


class _Runs(_Answer):
    workflow_runs: tuple[Run, ...]


class _Commit(_Answer):
    sha: str


class _Label(_Answer):
    name: str


class _File(_Answer):
    filename: str
    previous_filename: str | None = None


class _Job(_Answer):
    id: int
    name: str
    conclusion: str | None = None
    html_url: str | None = None


class _Jobs(_Answer):
    jobs: tuple[_Job, ...]


class _Annotation(_Answer):
    annotation_level: str | None = None
    message: str | None = None


_AnyAnswer = TypeVar("_AnyAnswer")
_Item = TypeVar("_Item")


@dataclass(frozen=True, kw_only=True)
class GitHub:
    """The API."""

    address: str = API
    token: str = ""
    sleep: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.time
    patience: float = _LONGEST_WAIT

    def whole_commit(self, repository: str, commit: str) -> str:
        """Return all 40 digits of a commit."""
        return self._get(f"/repos/{repository}/commits/{commit}", {}, _Commit).sha

    def run(self, repository: str, run_id: str) -> Run:
        """Return one run."""
        return _as_run(self._get(f"/repos/{repository}/actions/runs/{run_id}", {}, Run), repository)

    def runs(self, query: RunQuery) -> Iterator[Run]:
        """Yield runs, the newest first, page by page."""
        fields = {
            "head_sha": query.commit,
            "branch": query.branch,
            "status": "success" if query.require_successful else "",
        }
        path = f"/repos/{query.repository}/actions/workflows/{quote(query.workflow, safe='')}/runs"
        given = {name: value for name, value in fields.items() if value}
        for run in self._pages(path, given, _Runs, lambda page: page.workflow_runs):
            yield _as_run(run, query.repository)

    def labels(self, repository: str, number: int) -> Sequence[str]:
        """Return the labels of a pull request as they are now, the first hundred."""
        path = f"/repos/{repository}/issues/{number}/labels"
        return [one.name for one in self._get(path, {"per_page": str(_PAGE)}, tuple[_Label, ...])]

    def changed_files(self, repository: str, number: int) -> Sequence[str]:
        """Return the files that a pull request changes, with the former names of moved ones."""
        path = f"/repos/{repository}/pulls/{number}/files"
        found = list(islice(self._pages(path, {}, tuple[_File, ...], lambda page: page), _MOST_FILES))
        if len(found) == _MOST_FILES:
            raise ServiceError(f"GitHub lists no more than {_MOST_FILES} files of a pull request.")
        return [name for one in found for name in (one.filename, one.previous_filename) if name]

    def failed_jobs(self, repository: str, run_id: str) -> Sequence[Failure]:
        """Return the jobs of a run's last attempt that failed, each with its first error."""
        path = f"/repos/{repository}/actions/runs/{run_id}/jobs"
        jobs = self._pages(path, {"filter": "latest"}, _Jobs, lambda page: page.jobs)
        return [
            Failure(name=one.name, error=self._first_error(repository, one.id), url=one.html_url or "")
            for one in list(jobs)
            if one.conclusion in _FAILED
        ]

    def _first_error(self, repository: str, job: int) -> str:
        path = f"/repos/{repository}/check-runs/{job}/annotations"
        found = self._get(path, {"per_page": str(_PAGE)}, tuple[_Annotation, ...])
        messages = (one.message or "" for one in found if one.annotation_level == "failure")
        return first_line(next(messages, ""))

    def _pages(
        self,
        path: str,
        fields: Mapping[str, str],
        kind: type[_AnyAnswer],
        items: Callable[[_AnyAnswer], Sequence[_Item]],
    ) -> Iterator[_Item]:
        """Yield the items of every page, as they are taken."""
        for page in count(1):
            found = items(self._get(path, {**fields, "per_page": str(_PAGE), "page": str(page)}, kind))
            yield from found
            if len(found) < _PAGE:
                return

    def _get(self, path: str, fields: Mapping[str, str], kind: type[_AnyAnswer]) -> _AnyAnswer:
        status, data = self._answered(path, fields)
        if status != _OK:
            raise _refusal(path, status, token=bool(self.token))
        try:
            return TypeAdapter(kind).validate_json(data)
        except ValidationError as problem:
            first = problem.errors(include_url=False)[0]
            where = ".".join(str(step) for step in first["loc"])
            raise ServiceError(
                f"GitHub's answer to {path} is not as documented: {where}: {first['msg']}."
            ) from problem

    def _answered(self, path: str, fields: Mapping[str, str]) -> tuple[int, bytes]:
        """Request until there is an answer that waiting would not change, or patience ends."""
        headers = {
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": "rocm-pytorch-wheels",
            **({"Authorization": f"Bearer {self.token}"} if self.token else {}),
        }
        waited, url = 0.0, f"{self.address}{path}?{urlencode(fields)}"
        for attempt in count(1):
            try:
                response = send_request(url, headers=headers, timeout=_SECONDS)
            except ServiceError as problem:
                wait, why = 2.0**attempt, f"cannot be reached: {problem.message.removesuffix('.')}"
            else:
                wait, why = pause(response, attempt, self.clock())
                if wait < 0:
                    return response.status, response.body
            if attempt == _TRIES or waited + wait > self.patience:
                raise ServiceError(
                    f"GitHub {why}: no answer to {path} after {attempt} tries "
                    f"(next one in {console.duration(wait)}).",
                    hint="Give a token in GITHUB_TOKEN (more requests are granted), or try again later.",
                )
            console.say(f"GitHub {why}; trying again in {console.duration(wait)}.")
            self.sleep(wait)
            waited += wait
        raise AssertionError


def pause(response: Response, attempt: int, now: float) -> tuple[float, str]:
    """Return how long to wait before another request, and why; -1 for an answer that counts."""
    headers, status = response.headers, response.status
    after, left = headers.get("retry-after", ""), headers.get("x-ratelimit-remaining", "")
    if status in {_TOO_MANY, _FORBIDDEN}:
        if after.isdigit():
            return float(after), "limits our requests"
        reset = headers.get("x-ratelimit-reset", "")
        if left == "0" and reset.isdigit():
            return max(float(reset) - now, 0.0) + 1.0, "has no requests left for us"
        if status == _TOO_MANY or b"rate limit" in response.body.lower():
            return _SECONDARY_WAIT * attempt, "limits our requests"
    elif status >= _SERVER:
        return float(after) if after.isdigit() else 2.0**attempt, f"has a fault (status {status})"
    return -1.0, ""


def _refusal(path: str, status: int, *, token: bool) -> ServiceError | MissingInputError:
    if status in {_NOT_FOUND, _UNPROCESSABLE}:
        hint = "" if token else "If the repository is private, give a token in GITHUB_TOKEN."
        return MissingInputError(f"GitHub has nothing at {path}.", hint=hint)
    if status == _UNAUTHORIZED:
        return ServiceError("GitHub refuses the token.", hint="Renew or unset GITHUB_TOKEN (or GH_TOKEN).")
    return ServiceError(f"GitHub refuses {path}: status {status}.")


def _as_run(run: Run, repository: str) -> Run:
    fork = run.head.casefold() != repository.casefold()
    workflow = run.path.partition("@")[0].rpartition("/")[2]
    return run.model_copy(update={"fork": fork, "workflow": workflow})


def find_run(hub: GitHub, query: RunQuery, holds_artifacts: Callable[[Run], bool]) -> Run:
    """Find the newest run that counts and has artifacts."""
    if query.commit and len(query.commit) < _WHOLE:
        query = replace(query, commit=hub.whole_commit(query.repository, query.commit))
    looked_at = 0
    for run in islice(hub.runs(query), MOST_RUNS):
        if query.require_successful and not run.successful:
            continue
        looked_at += 1
        if holds_artifacts(run):
            console.say(f"run {run.run_id} of {run.created}: commit {run.commit[:12]}  {run.url}")
            return run
    if not looked_at:
        hint = "Wait for it to end, or take another one with --no-require-successful."
        raise MissingInputError(f"There is no {query.what}.", hint=hint if query.require_successful else "")
    raise MissingInputError(
        f"The store has artifacts of none of the newest {looked_at}: no {query.what} counts.",
        hint="Their artifacts may be gone: name a newer run, or another store with --from.",
    )


def from_environment(env: Mapping[str, str]) -> GitHub:
    """Make the edge from a front door's variables: ``GITHUB_TOKEN`` or ``GH_TOKEN``, ``GITHUB_API_URL``."""
    address = env.get("GITHUB_API_URL", "").rstrip("/") or API
    return GitHub(address=address, token=env.get("GITHUB_TOKEN") or env.get("GH_TOKEN") or "")
