"""GitHub's API, played by a server on this machine from recorded answers."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ci.github import MOST_RUNS, GitHub, RunQuery, find_run, from_environment, pause
from core.errors import MissingInputError, ServiceError, UsageError
from core.http import answering
from tests.kit.servers import Quiet
from tests.unit.ci.plan.planning import RunsOfGitHub, made_run

RECORDED = Path(__file__).with_name("recorded")
QUERY = RunQuery(
    repository="ROCm/TheRock", workflow="multi_arch_ci.yml", branch="main", require_successful=False
)
NOW = 1_787_000_000.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    body: bytes = b"{}"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Played:
    """The server's script, and what was asked of it."""

    answers: list[Answer] = field(default_factory=list)
    asked: list[tuple[str, dict[str, list[str]], str]] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    address: str = ""

    def hub(self, token: str = "") -> GitHub:
        return GitHub(address=self.address, token=token, sleep=self.slept.append, clock=lambda: NOW)


@pytest.fixture
def played() -> Iterator[Played]:
    script = Played()

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            script.asked.append((url.path, parse_qs(url.query), self.headers.get("Authorization", "")))
            answer = script.answers.pop(0)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

    with answering(Handler) as script.address:
        yield script


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


def page(count: int) -> bytes:
    one: dict[str, Any] = json.loads(recorded("workflow_runs.json"))["workflow_runs"][-1]
    runs = [one | {"id": number} for number in range(count)]
    return json.dumps({"total_count": 1000, "workflow_runs": runs}).encode()


def test_recorded_runs_are_read(played: Played) -> None:
    played.answers = [Answer(body=recorded("workflow_runs.json"))]
    found = list(played.hub().runs(QUERY))
    assert [(run.run_id, run.conclusion, run.fork) for run in found] == [
        ("17123441200", "", False),
        ("17123441190", "failure", False),
        ("17123441180", "success", True),  # its fork is deleted: head_repository is null
        ("17123441170", "success", True),
        ("17123441166", "success", False),
    ]
    path, query, authorization = played.asked[0]
    assert path == "/repos/ROCm/TheRock/actions/workflows/multi_arch_ci.yml/runs"
    assert query == {"branch": ["main"], "per_page": ["100"], "page": ["1"]}
    assert authorization == ""


def test_one_run_is_asked_for_by_its_number(played: Played) -> None:
    red = json.loads(recorded("workflow_runs.json"))["workflow_runs"][1]
    elsewhere = red | {"path": "ROCm/TheRock/.github/workflows/multi_arch_release.yml@refs/heads/main"}
    played.answers = [Answer(body=json.dumps(one).encode()) for one in (red, elsewhere)]
    run = played.hub().run("ROCm/TheRock", "17123441190")
    assert (run.run_id, run.successful, run.workflow) == ("17123441190", False, "multi_arch_ci.yml")
    assert played.asked[0][0] == "/repos/ROCm/TheRock/actions/runs/17123441190"
    assert played.hub().run("ROCm/rockrel", "17123441190").workflow == "multi_arch_release.yml"
    played.answers = [Answer(status=404)]
    with pytest.raises(MissingInputError, match="nothing at /repos/ROCm/TheRock/actions/runs/17"):
        played.hub().run("ROCm/TheRock", "17")


def test_the_newest_successful_run_is_found(played: Played) -> None:
    played.answers = [Answer(body=recorded("commit.json")), Answer(body=recorded("workflow_runs.json"))]
    query = replace(QUERY, branch="", commit="ddddddd", require_successful=True)
    found = find_run(played.hub("secret"), query, lambda run: not run.fork)
    assert found.run_id == "17123441166"
    assert [asked[0] for asked in played.asked] == [
        "/repos/ROCm/TheRock/commits/ddddddd",
        "/repos/ROCm/TheRock/actions/workflows/multi_arch_ci.yml/runs",
    ]
    assert played.asked[1][1]["head_sha"] == ["d" * 40]
    assert played.asked[1][1]["status"] == ["success"]
    assert {asked[2] for asked in played.asked} == {"Bearer secret"}


def test_pages_are_asked_for_as_they_are_needed(played: Played) -> None:
    played.answers = [Answer(body=page(100)), Answer(body=page(100)), Answer(body=page(7))]
    runs = played.hub().runs(QUERY)
    for _ in range(100):
        next(runs)
    assert len(played.asked) == 1
    assert len(list(runs)) == 107
    assert [asked[1]["page"] for asked in played.asked] == [["1"], ["2"], ["3"]]


def test_limits_and_faults_are_waited_for(played: Played) -> None:
    played.answers = [
        Answer(status=429, headers={"Retry-After": "7"}),
        Answer(status=403, headers={"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(NOW) + 30)}),
        Answer(status=500),
        Answer(status=403, body=b'{"message": "You have exceeded a secondary rate limit"}'),
        Answer(body=recorded("workflow_runs.json")),
    ]
    assert len(list(played.hub().runs(QUERY))) == 5
    assert played.slept == [7.0, 31.0, 8.0, 240.0]
    past = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW) - 100)}
    assert pause(403, past, b"", 1, NOW)[0] == 1.0


def test_patience_ends(played: Played) -> None:
    played.answers = [Answer(status=502) for _ in range(9)]
    with pytest.raises(ServiceError, match=r"has a fault \(status 502\).* after 6 tries"):
        list(played.hub().runs(QUERY))
    assert len(played.asked) == 6
    played.answers = [Answer(status=429, headers={"Retry-After": "3600"})]
    with pytest.raises(ServiceError, match=r"limits our requests.*next one in 1 h") as caught:
        list(played.hub().runs(QUERY))
    assert "GITHUB_TOKEN" in caught.value.hint


def test_refusals_are_not_asked_again(played: Played) -> None:
    played.answers = [Answer(status=404), Answer(status=401), Answer(status=403), Answer(status=422)]
    with pytest.raises(MissingInputError, match="GitHub has nothing at /repos/ROCm/TheRock"):
        list(played.hub().runs(QUERY))
    with pytest.raises(ServiceError, match="refuses the token"):
        list(played.hub().runs(QUERY))
    with pytest.raises(ServiceError, match="status 403"):
        list(played.hub().runs(QUERY))
    with pytest.raises(MissingInputError):
        played.hub().whole_commit("ROCm/TheRock", "abcdef0")
    assert (len(played.asked), played.slept) == (4, [])


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"workflow_runs": [{"id": 1}]}'])
def test_an_answer_of_another_form_is_an_error(played: Played, body: bytes) -> None:
    played.answers = [Answer(body=body)]
    with pytest.raises(ServiceError, match="not as documented"):
        list(played.hub().runs(QUERY))


def test_the_token_stays_with_the_api(played: Played) -> None:
    elsewhere = played.address.replace("127.0.0.1", "localhost")
    played.answers = [
        Answer(status=301, headers={"Location": f"{elsewhere}/moved"}),
        Answer(body=recorded("workflow_runs.json")),
    ]
    assert len(list(played.hub("secret").runs(QUERY))) == 5
    assert [asked[2] for asked in played.asked] == ["Bearer secret", ""]


def test_an_address_without_a_server_is_an_error() -> None:
    slept: list[float] = []
    hub = GitHub(address="http://127.0.0.1:1", sleep=slept.append)
    with pytest.raises(ServiceError, match="cannot be reached"):
        list(hub.runs(QUERY))
    assert slept == [2.0, 4.0, 8.0, 16.0, 32.0]


def test_the_environment_says_where_and_as_whom() -> None:
    assert from_environment({}).address == "https://api.github.com"
    tokens = {"GITHUB_TOKEN": "a", "GH_TOKEN": "b"}
    assert [from_environment(env).token for env in ({}, {"GH_TOKEN": "b"}, tokens)] == ["", "b", "a"]
    env = {"GITHUB_API_URL": "https://ghe.example.com/api/v3/"}
    assert from_environment(env).address == "https://ghe.example.com/api/v3"


def test_labels_and_changed_files_of_a_pull_request(played: Played) -> None:
    played.answers = [
        Answer(body=b'[{"name": "build:pytorch", "color": "fff"}, {"name": "a b"}]'),
        Answer(body=json.dumps([{"filename": f"{number}.py"} for number in range(100)]).encode()),
        Answer(body=b'[{"filename": "new.py", "previous_filename": "old.py"}]'),
    ]
    hub = played.hub()
    assert hub.labels("a/b", 7) == ["build:pytorch", "a b"]
    files = hub.changed_files("a/b", 7)
    assert (len(files), files[-2:]) == (102, ["new.py", "old.py"])
    expected = ["/repos/a/b/issues/7/labels", *["/repos/a/b/pulls/7/files"] * 2]
    assert [path for path, _, _ in played.asked] == expected
    played.answers = [Answer(body=json.dumps([{"filename": "x"}] * 100).encode())] * 30
    with pytest.raises(ServiceError, match="no more than 3000 files"):
        hub.changed_files("a/b", 7)


@pytest.mark.parametrize("status", [403, 429, 500, 503])
def test_patience_ends_soon_where_there_is_a_safe_default(played: Played, status: int) -> None:
    played.answers = [Answer(status=status, headers={"Retry-After": "40"})] * 6
    with pytest.raises(ServiceError):
        replace(played.hub(), patience=20.0).labels("a/b", 7)
    assert sum(played.slept) <= 20


# -- which run to take artifacts from --------------------------------------------------------

RUNS = RunQuery(repository="ROCm/TheRock", workflow="multi_arch_ci.yml", branch="main")
GOOD = made_run("1")
recorded_runs: Any = RunsOfGitHub


def test_the_newest_run_with_artifacts_counts() -> None:
    source = recorded_runs([made_run(str(number)) for number in (5, 4, 3)])
    assert find_run(source, RUNS, lambda run: run.run_id in {"4", "3"}).run_id == "4"
    assert source.given == 2


@pytest.mark.parametrize(
    ("status", "conclusion"), [("completed", "failure"), ("in_progress", ""), ("completed", "cancelled")]
)
def test_only_successful_runs_count_unless_others_may(status: str, conclusion: str) -> None:
    source = recorded_runs([made_run("2", status=status, conclusion=conclusion), GOOD])
    assert find_run(source, RUNS, lambda _: True).run_id == "1"
    assert find_run(source, replace(RUNS, require_successful=False), lambda _: True).run_id == "2"


def test_a_short_commit_is_made_whole_first() -> None:
    source = recorded_runs([GOOD])
    find_run(source, replace(RUNS, branch="", commit="ddddddd"), lambda _: True)
    assert source.asked[0].commit == "d" * 40
    whole = replace(RUNS, branch="", commit="e" * 40)
    find_run(source, whole, lambda _: True)
    assert source.asked[1] == whole


def test_no_run_and_no_artifacts_are_told_apart() -> None:
    with pytest.raises(MissingInputError, match=r"no successful run of multi_arch_ci.yml for branch main"):
        find_run(recorded_runs([]), RUNS, lambda _: True)
    with pytest.raises(MissingInputError, match="artifacts of none of the newest 2"):
        find_run(recorded_runs([GOOD, GOOD]), RUNS, lambda _: False)


def test_the_search_ends() -> None:
    source = recorded_runs([GOOD] * (MOST_RUNS + 50))
    with pytest.raises(MissingInputError, match=f"newest {MOST_RUNS}"):
        find_run(source, RUNS, lambda _: False)
    assert source.given == MOST_RUNS


@pytest.mark.parametrize("commit", ["main", "abc", "g" * 40, "a" * 41, "../../x"])
def test_other_words_are_no_commit(commit: str) -> None:
    with pytest.raises(UsageError, match="is not a commit"):
        replace(RUNS, commit=commit)
