import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.github import Failure, first_line
from ci.verbs import notify
from core import errors
from core.http import answering
from core.run import RunOutputs
from core.run.records import Cell, Record, write
from core.stores.location import open_store
from tests.kit.front_doors import run_ci
from tests.kit.servers import Quiet

FAILED = notify.RunResult(title="CI", failures=(Failure(name="build_torch"),))


LISTED = notify.RunResult(
    title="CI of ROCm/TheRock",
    url="https://github.com/ROCm/TheRock/actions/runs/7",
    failures=(
        Failure(name="build torch, gfx1151", error="error: no <hip> & more", url="https://page/1"),
        Failure(name="test_smoke"),
    ),
)


@pytest.mark.parametrize("written", ["", "[]", "{}", "nonsense", '{"setup": {}}', '{"setup": "success"}'])
def test_what_names_no_results_is_refused(written: str) -> None:
    with pytest.raises(errors.DataError):
        notify.read_needs(written)


@pytest.mark.parametrize(
    ("needs", "jobs", "failures", "headline"),
    [
        ({"setup": "success", "windows": "skipped"}, (), (), "CI: succeeded"),
        ({"linux": "success"}, ("expected to fail",), (), "CI: succeeded"),
        ({"linux": ""}, (), (), "CI: succeeded"),
        ({"linux": ""}, ("build_torch",), ("build_torch",), "CI: 1 failed"),
        ({"setup": "failure"}, (), ("setup",), "CI: 1 failed"),
        ({"linux": "cancelled"}, (), (), "CI: cancelled"),
        ({"setup": "skipped", "linux": "skipped"}, (), (), "CI: no job ran"),
        ({}, (), (), "CI: no job ran"),
        ({"setup": "skipped", "linux": ""}, (), (), "CI: succeeded"),
    ],
)
def test_a_run_ended_as_the_jobs_that_count_or_where_unknown_its_records(
    needs: dict[str, str], jobs: tuple[str, ...], failures: tuple[str, ...], headline: str
) -> None:
    result = notify.result_of("CI", needs, jobs=[Failure(name=one) for one in jobs])
    assert result.failures == tuple(Failure(name=one) for one in failures)
    assert (result.headline, result.ok) == (headline, headline.endswith("succeeded"))


def test_slack_gets_links_and_no_markup_of_others() -> None:
    payload = notify.slack(LISTED)
    assert payload["text"] == "CI of ROCm/TheRock: 2 failed"
    head, first, second = [block["text"]["text"] for block in payload["blocks"]]
    assert head == f"<{LISTED.url}|CI of ROCm/TheRock: 2 failed>"
    assert first == "<https://page/1|build torch, gfx1151>\nerror: no &lt;hip&gt; &amp; more"
    assert second == "*test_smoke*"


def test_a_message_stays_readable_with_hundreds_of_failures() -> None:
    many = notify.RunResult(title="CI", failures=tuple(Failure(name=f"cell {n}") for n in range(300)))
    assert len(notify.slack(many)["blocks"]) <= 50  # Slack takes no more
    assert "and 280 more" in notify.plain(many)


@given(st.text(), st.text())
def test_no_error_adds_a_header_to_an_email_or_a_mention_to_slack(title: str, error: str) -> None:
    clean = title.encode(errors="replace").decode()
    result = notify.RunResult(title=clean, failures=(Failure(name="one", error=first_line(error)),))
    message = notify.email(result, sender="a@example.com", to=["b@example.com"])
    assert set(message.keys()) >= {"Subject", "From", "To"}
    assert "Bcc" not in message
    assert "<!" not in json.dumps(notify.slack(result))


def test_the_summary_names_every_failure() -> None:
    written = notify.markdown(LISTED)
    assert "(<https://page/1>)" in written
    assert "test\\_smoke" in written
    assert notify.markdown(notify.RunResult(title="CI")).strip() == "### CI: succeeded"


class Slack(Quiet, BaseHTTPRequestHandler):
    got: ClassVar[list[Any]]
    status: ClassVar[int]

    def do_POST(self) -> None:
        self.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.status)
        self.end_headers()


@pytest.mark.parametrize("status", [200, 404])
def test_slack_is_told_and_a_refusal_is_a_warning(status: int, capsys: pytest.CaptureFixture[str]) -> None:
    Slack.got, Slack.status = [], status
    with answering(Slack) as address:
        notify.send(FAILED, notify.Places(slack=f"{address}/hook"))
    assert [one["text"] for one in Slack.got] == ["CI: 1 failed"]
    assert ("status 404" in capsys.readouterr().err) is (status == 404)


def test_nobody_is_told_where_nothing_is_configured(capsys: pytest.CaptureFixture[str]) -> None:
    notify.send(FAILED, notify.Places())
    assert "nothing is sent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("event", "result", "told"),
    [
        ("schedule", FAILED, True),
        ("schedule", notify.RunResult(title="CI"), False),
        ("schedule", notify.RunResult(title="CI", idle=True), True),
        ("pull_request", FAILED, False),
    ],
)
def test_failing_nightlies_are_told(event: str, result: notify.RunResult, told: bool) -> None:  # noqa: FBT001 - a row
    assert notify.is_sent(notify.Policy(events=("schedule",)), {"GITHUB_EVENT_NAME": event}, result) is told


def test_a_mail_server_that_is_none_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    notify.send(FAILED, notify.Places(smtp="https://mail", email=("a@example.com",)))
    assert "NOTIFY_SMTP_URL is not a mail server" in capsys.readouterr().err


@pytest.fixture
def run(tmp_path: Path) -> list[str]:
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
    assert run_ci(*run) == 0
    assert run_ci(*run, "--require-success") == errors.CheckError.exit_code
    said = capsys.readouterr().err
    assert "build_torch gfx1151 nightly cp312  no compiler\n" in said


@pytest.mark.parametrize(("linux", "code"), [("success", 0), ("skipped", errors.CheckError.exit_code)])
def test_one_green_job_counts(run: list[str], monkeypatch: pytest.MonkeyPatch, linux: str, code: int) -> None:
    needs = {"linux": {"result": linux}, "windows": {"result": "skipped"}}
    monkeypatch.setenv("NEEDS", json.dumps(needs))
    assert run_ci(*run, "--require-success") == code


def test_without_results_there_is_nothing_to_tell(run: list[str]) -> None:
    assert run_ci(*run) == errors.UsageError.exit_code
