from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from ci.notices import Failure, RunResult
from ci.verbs import notify
from ci.verbs.notify import Places, Policy
from core import errors
from core.cli.frontdoor import Verb, main
from core.run.outputs import RunOutputs
from core.run.records import Cell, Record, write
from core.stores.location import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FAILED = RunResult(title="CI", failures=(Failure(name="build_torch"),))
VERBS = [Verb("notify", "ci.verbs.notify", "tell")]


class Slack(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append(json.loads(body))  # type: ignore[attr-defined]
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def slack() -> Iterator[Any]:
    server = HTTPServer(("127.0.0.1", 0), Slack)
    server.got, server.status = [], 200  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def address(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/hook"


def test_slack_is_told(slack: Any) -> None:
    notify.send(FAILED, Places(slack=address(slack)))
    assert slack.got[0]["text"] == "CI: 1 failed"


def test_a_refused_message_is_a_warning(slack: Any, capsys: pytest.CaptureFixture[str]) -> None:
    slack.status = 404
    notify.send(FAILED, Places(slack=address(slack)))
    assert "status 404" in capsys.readouterr().err


def test_nobody_is_told_where_nothing_is_configured(capsys: pytest.CaptureFixture[str]) -> None:
    notify.send(FAILED, Places())
    assert "nobody is told" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("event", "result", "told"),
    [
        ("schedule", FAILED, True),
        ("schedule", RunResult(title="CI"), False),
        ("pull_request", FAILED, False),
    ],
)
def test_failing_nightlies_are_told(event: str, result: RunResult, told: bool) -> None:  # noqa: FBT001 - a row
    assert notify.is_told(Policy(events=("schedule",)), {"GITHUB_EVENT_NAME": event}, result) is told


def test_addresses_are_read_from_the_environment() -> None:
    found = notify.places({"NOTIFY_EMAIL": "a@example.com, b@example.com,", "NOTIFY_SMTP_URL": "smtps://x"})
    assert found == Places(smtp="smtps://x", email=("a@example.com", "b@example.com"))


def test_a_mail_server_that_is_none_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    notify.send(FAILED, Places(smtp="https://mail", email=("a@example.com",)))
    assert "NOTIFY_SMTP_URL is no mail server" in capsys.readouterr().err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    for name in ("GITHUB_TOKEN", "GITHUB_EVENT_NAME", "GITHUB_RUN_ID", "GITHUB_REPOSITORY", "RUN_STORE"):
        monkeypatch.delenv(name, raising=False)
    failed = Record.model_validate(
        {
            "stage": "build_torch",
            "status": "failed",
            "error": "no compiler\nmore",
            "cell": Cell(python="cp312", torch_ref="nightly", gpu_family="gfx1151"),
            "run_id": "mine",
            "platform": "windows",
            "started": "2026-01-01T00:00:00Z",
            "seconds": 1,
        }
    )
    outputs = RunOutputs(run_id="mine", platform="windows")
    write(open_store(str(tmp_path), root=tmp_path), outputs, "gfx1151", failed)
    return ["notify", "--store", str(tmp_path), "--run-id", "mine"]


def test_the_runs_records_say_what_failed(
    run: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEEDS", '{"windows": {"result": "failure"}}')
    assert main("ci", "", VERBS, run) == 0
    assert main("ci", "", VERBS, [*run, "--require-success"]) == errors.CheckError.exit_code
    said = capsys.readouterr().err
    assert "build_torch gfx1151 nightly cp312  no compiler\n" in said


def test_a_good_run_passes(run: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEEDS", '{"linux": {"result": "success"}, "windows": {"result": "skipped"}}')
    assert main("ci", "", VERBS, [*run, "--require-success"]) == 0


def test_without_results_there_is_nothing_to_tell(run: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEEDS", raising=False)
    assert main("ci", "", VERBS, run) == errors.UsageError.exit_code
