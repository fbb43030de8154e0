"""GitHub's API, played by a server on this machine from recorded answers."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ci.github import MOST_RUNS, GitHub, RunQuery, find_run, from_environment, required_pause
from core.errors import MissingInputError, ServiceError, UsageError
from core.http import Response
from core.http_server import answering
from tests.kit.github_runs import FakeGitHub, github_run
from tests.kit.servers import Quiet

RECORDED = Path(__file__).with_name("recorded")
NOW = 1_787_000_000.0

QUERY = RunQuery(
    repository="ROCm/TheRock",
    workflow="multi_arch_ci.yml",
    branch="main",
    require_successful=False,
)
ARTIFACTS = "what a run has"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the server answers to one request."""

    body: bytes = b"{}"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the server was asked."""

    path: str
    query: Mapping[str, list[str]]
    authorization: str


@dataclass
class GitHubServer:
    """A server with answers to the requests to come; it notes them, and the pauses between them."""

    answers: list[Answer] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    address: str = ""

    @property
    def paths(self) -> list[str]:
        """What was asked for."""
        return [request.path for request in self.requests]

    def client(self, token: str = "") -> GitHub:
        """Return GitHub's API at this server."""
        return GitHub(
            address=self.address,
            token=token,
            sleep=self.pauses.append,
            clock=lambda: NOW,
        )


@pytest.fixture
def server() -> Iterator[GitHubServer]:
    server = GitHubServer()

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            authorization = self.headers.get("Authorization", "")
            request = Request(
                path=url.path,
                query=parse_qs(url.query),
                authorization=authorization,
            )
            server.requests.append(request)
            answer = server.answers.pop(0)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

    with answering(Handler) as server.address:
        yield server


def read_recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


def recorded_runs() -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(read_recorded("workflow_runs.json"))["workflow_runs"]
    return runs


def json_answer(value: object) -> Answer:
    return Answer(body=json.dumps(value).encode())


def page_of_runs(count: int) -> Answer:
    """Return a page of the runs of a workflow."""
    run = recorded_runs()[-1]
    runs = [{**run, "id": number} for number in range(count)]
    return json_answer({"total_count": 1000, "workflow_runs": runs})


ALL_RUNS = Answer(body=read_recorded("workflow_runs.json"))


# --- Runs ------------------------------------------------------------------------------------


def test_reads_the_runs_of_a_workflow(server: GitHubServer) -> None:
    server.answers = [ALL_RUNS]

    runs = list(server.client().runs(QUERY))

    assert [(run.run_id, run.conclusion, run.fork) for run in runs] == [
        ("17123441200", "", False),
        ("17123441190", "failure", False),
        # Its fork is deleted: head_repository is null.
        ("17123441180", "success", True),
        ("17123441170", "success", True),
        ("17123441166", "success", False),
    ]


def test_asks_for_the_runs_of_a_branch(server: GitHubServer) -> None:
    server.answers = [ALL_RUNS]

    list(server.client().runs(QUERY))

    (request,) = server.requests
    assert request.path == "/repos/ROCm/TheRock/actions/workflows/multi_arch_ci.yml/runs"
    assert request.query == {"branch": ["main"], "per_page": ["100"], "page": ["1"]}
    assert request.authorization == ""


def test_reads_a_run_by_its_number(server: GitHubServer) -> None:
    server.answers = [json_answer(recorded_runs()[1])]

    run = server.client().run("ROCm/TheRock", "17123441190")

    assert server.paths == ["/repos/ROCm/TheRock/actions/runs/17123441190"]
    assert run.run_id == "17123441190"
    assert run.workflow == "multi_arch_ci.yml"
    assert not run.successful


def test_reads_a_run_of_another_repositorys_workflow(server: GitHubServer) -> None:
    path = "ROCm/TheRock/.github/workflows/multi_arch_release.yml@refs/heads/main"
    server.answers = [json_answer({**recorded_runs()[1], "path": path})]

    run = server.client().run("ROCm/rockrel", "17123441190")

    assert run.workflow == "multi_arch_release.yml"


def test_refuses_a_run_that_does_not_exist(server: GitHubServer) -> None:
    server.answers = [Answer(status=404)]

    with pytest.raises(MissingInputError, match="/runs/17"):
        server.client().run("ROCm/TheRock", "17")


def test_finds_the_newest_successful_run_of_a_commit(server: GitHubServer) -> None:
    server.answers = [Answer(body=read_recorded("commit.json")), ALL_RUNS]
    query = replace(
        QUERY,
        branch="",
        commit="ddddddd",
        require_successful=True,
    )

    run, _artifacts = find_run(server.client("secret"), query, lambda run: None if run.fork else ARTIFACTS)

    assert run.run_id == "17123441166"
    assert server.paths[0] == "/repos/ROCm/TheRock/commits/ddddddd"
    assert server.requests[1].query["head_sha"] == ["d" * 40]
    assert server.requests[1].query["status"] == ["success"]
    assert {request.authorization for request in server.requests} == {"Bearer secret"}


def test_asks_for_pages_as_they_are_needed(server: GitHubServer) -> None:
    server.answers = [page_of_runs(100), page_of_runs(100), page_of_runs(7)]

    runs = server.client().runs(QUERY)
    for _ in range(100):
        next(runs)
    requests_of_first_page = len(server.requests)

    assert requests_of_first_page == 1
    assert len(list(runs)) == 107
    assert [request.query["page"] for request in server.requests] == [["1"], ["2"], ["3"]]


# --- Pull requests ---------------------------------------------------------------------------


def test_reads_the_labels_of_a_pull_request(server: GitHubServer) -> None:
    server.answers = [json_answer([{"name": "build:pytorch", "color": "fff"}, {"name": "a b"}])]

    assert server.client().labels("a/b", 7) == ["build:pytorch", "a b"]
    assert server.paths == ["/repos/a/b/issues/7/labels"]


def test_reads_the_files_of_a_pull_request_with_both_names_of_a_moved_one(server: GitHubServer) -> None:
    server.answers = [
        json_answer([{"filename": f"{number}.py"} for number in range(100)]),
        json_answer([{"filename": "new.py", "previous_filename": "old.py"}]),
    ]

    files = server.client().changed_files("a/b", 7)

    assert len(files) == 102
    assert files[-2:] == ["new.py", "old.py"]
    assert server.paths == ["/repos/a/b/pulls/7/files", "/repos/a/b/pulls/7/files"]


def test_refuses_a_pull_request_with_more_files_than_github_lists(server: GitHubServer) -> None:
    server.answers = [json_answer([{"filename": "x"}] * 100)] * 30

    with pytest.raises(ServiceError, match="3000 files"):
        server.client().changed_files("a/b", 7)


# --- Limits and faults -----------------------------------------------------------------------


def test_waits_as_long_as_github_asks(server: GitHubServer) -> None:
    limit = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(NOW) + 30)}
    server.answers = [
        Answer(status=429, headers={"Retry-After": "7"}),
        Answer(status=403, headers=limit),
        Answer(status=500),
        Answer(status=403, body=b'{"message": "You have exceeded a secondary rate limit"}'),
        ALL_RUNS,
    ]

    assert len(list(server.client().runs(QUERY))) == 5
    assert server.pauses == [7.0, 31.0, 8.0, 240.0]


def test_waits_a_second_for_a_limit_that_is_past() -> None:
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW) - 100)}

    pause = required_pause(
        Response(
            status=403,
            headers=headers,
            body=b"",
        ),
        1,
        NOW,
    )

    assert pause is not None
    assert pause.seconds == 1.0


def test_gives_up_after_six_faults(server: GitHubServer) -> None:
    server.answers = [Answer(status=502)] * 9

    with pytest.raises(ServiceError, match="502"):
        list(server.client().runs(QUERY))

    assert len(server.requests) == 6


def test_does_not_wait_for_a_limit_of_an_hour(server: GitHubServer) -> None:
    server.answers = [Answer(status=429, headers={"Retry-After": "3600"})]

    with pytest.raises(ServiceError, match="1 h") as caught:
        list(server.client().runs(QUERY))

    assert "GITHUB_TOKEN" in caught.value.hint


@pytest.mark.parametrize("status", [403, 429, 500, 503])
def test_waits_no_longer_than_its_patience(server: GitHubServer, status: int) -> None:
    server.answers = [Answer(status=status, headers={"Retry-After": "40"})] * 6

    with pytest.raises(ServiceError):
        replace(server.client(), patience=20.0).labels("a/b", 7)

    assert sum(server.pauses) <= 20


@pytest.mark.parametrize(
    ("status", "error", "mention"),
    [
        (404, MissingInputError, "/repos/ROCm/TheRock"),
        (401, ServiceError, "token"),
        (403, ServiceError, "403"),
    ],
)
def test_does_not_ask_again_after_a_refusal(
    server: GitHubServer,
    status: int,
    error: type[Exception],
    mention: str,
) -> None:
    server.answers = [Answer(status=status)]

    with pytest.raises(error, match=mention):
        list(server.client().runs(QUERY))

    assert len(server.requests) == 1
    assert server.pauses == []


def test_refuses_a_commit_that_does_not_exist(server: GitHubServer) -> None:
    server.answers = [Answer(status=422)]

    with pytest.raises(MissingInputError, match="abcdef0"):
        server.client().whole_commit("ROCm/TheRock", "abcdef0")

    assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"workflow_runs": [{"id": 1}]}'])
def test_refuses_an_answer_of_another_form(server: GitHubServer, body: bytes) -> None:
    server.answers = [Answer(body=body)]

    with pytest.raises(ServiceError, match="not as documented"):
        list(server.client().runs(QUERY))


def test_a_redirection_to_another_host_does_not_get_the_token(server: GitHubServer) -> None:
    other_host = server.address.replace("127.0.0.1", "localhost")
    server.answers = [Answer(status=301, headers={"Location": f"{other_host}/moved"}), ALL_RUNS]

    assert len(list(server.client("secret").runs(QUERY))) == 5

    assert [request.authorization for request in server.requests] == ["Bearer secret", ""]


def test_tries_to_reach_a_server_for_a_minute() -> None:
    pauses: list[float] = []
    # Nobody listens on port 1.
    hub = GitHub(address="http://127.0.0.1:1", sleep=pauses.append)

    with pytest.raises(ServiceError, match=r"127\.0\.0\.1"):
        list(hub.runs(QUERY))

    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0]


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({}, "https://api.github.com"),
        ({"GITHUB_API_URL": "https://ghe.example.com/api/v3/"}, "https://ghe.example.com/api/v3"),
    ],
)
def test_the_environment_names_the_address(variables: Mapping[str, str], address: str) -> None:
    assert from_environment(variables).address == address


@pytest.mark.parametrize(
    ("variables", "token"),
    [({}, ""), ({"GH_TOKEN": "b"}, "b"), ({"GITHUB_TOKEN": "a", "GH_TOKEN": "b"}, "a")],
)
def test_the_environment_has_the_token(variables: Mapping[str, str], token: str) -> None:
    assert from_environment(variables).token == token


# --- Which run to take artifacts from --------------------------------------------------------

SUCCESSFUL = replace(QUERY, require_successful=True)


def hub_of(*run_ids: str) -> Any:
    return FakeGitHub([github_run(run_id) for run_id in run_ids])


def test_takes_the_newest_run_with_artifacts() -> None:
    hub = hub_of("5", "4", "3")

    run, artifacts = find_run(hub, SUCCESSFUL, lambda run: {"4": "four", "3": "three"}.get(run.run_id))

    assert (run.run_id, artifacts) == ("4", "four")
    assert hub.listed == 2


@pytest.mark.parametrize(
    ("status", "conclusion"), [("completed", "failure"), ("in_progress", ""), ("completed", "cancelled")]
)
def test_takes_other_runs_than_successful_ones_only_when_asked(status: str, conclusion: str) -> None:
    hub: Any = FakeGitHub([github_run("2", status=status, conclusion=conclusion), github_run("1")])

    successful_run, _artifacts = find_run(hub, SUCCESSFUL, lambda _: ARTIFACTS)
    newest_run, _artifacts = find_run(hub, QUERY, lambda _: ARTIFACTS)

    assert (successful_run.run_id, newest_run.run_id) == ("1", "2")


def test_asks_for_the_whole_of_a_short_commit() -> None:
    hub = hub_of("1")

    find_run(hub, replace(SUCCESSFUL, branch="", commit="ddddddd"), lambda _: ARTIFACTS)

    assert hub.queries[0].commit == "d" * 40


def test_asks_for_a_whole_commit_as_it_is() -> None:
    hub = hub_of("1")
    query = replace(SUCCESSFUL, branch="", commit="e" * 40)

    find_run(hub, query, lambda _: ARTIFACTS)

    assert hub.queries == [query]


def test_refuses_where_there_is_no_run() -> None:
    with pytest.raises(MissingInputError, match=r"multi_arch_ci\.yml") as caught:
        find_run(hub_of(), SUCCESSFUL, lambda _: ARTIFACTS)

    assert "branch main" in caught.value.message


def test_refuses_where_no_run_has_artifacts() -> None:
    with pytest.raises(MissingInputError, match="newest 2"):
        find_run(hub_of("2", "1"), SUCCESSFUL, lambda _: None)


def test_looks_at_a_limited_number_of_runs() -> None:
    hub = hub_of(*["1"] * (MOST_RUNS + 50))

    with pytest.raises(MissingInputError, match=f"newest {MOST_RUNS}"):
        find_run(hub, SUCCESSFUL, lambda _: None)

    assert hub.listed == MOST_RUNS


@pytest.mark.parametrize("commit", ["main", "abc", "g" * 40, "a" * 41, "../../x"])
def test_rejects_text_that_is_not_a_commit(commit: str) -> None:
    with pytest.raises(UsageError, match="--commit"):
        replace(QUERY, commit=commit)
