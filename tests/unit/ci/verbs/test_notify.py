"""What people are told of a run: on Slack, by email, in a summary."""

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.github import Failure, first_line
from ci.verbs import notify
from core.errors import CheckError, DataError, UsageError
from core.http_server import answering
from core.run import RunOutputs
from core.stores.directory import DirectoryStore
from tests.kit.front_doors import run_verb
from tests.kit.runs import write_record
from tests.kit.servers import Quiet

SUCCEEDED = notify.RunResult(title="CI")
FAILED = notify.RunResult(title="CI", failures=(Failure(name="build_torch"),))
TWO_FAILED = notify.RunResult(
    title="CI of ROCm/TheRock",
    url="https://github.com/ROCm/TheRock/actions/runs/7",
    failures=(
        Failure(
            name="build torch, gfx1151",
            error="error: no <hip> & more",
            url="https://page/1",
        ),
        Failure(name="test_smoke"),
    ),
)


# --- How a run ended -------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", '{"setup": {}}', '{"setup": "success"}'])
def test_refuses_text_that_names_no_results_of_jobs(text: str) -> None:
    with pytest.raises(DataError):
        notify.read_needs(text)


@pytest.mark.parametrize(
    ("needs", "failed_jobs", "headline"),
    [
        ({"setup": "success", "windows": "skipped"}, (), "CI: succeeded"),
        # A job that is expected to fail does not count.
        ({"linux": "success"}, ("expected to fail",), "CI: succeeded"),
        ({"linux": ""}, (), "CI: succeeded"),
        ({"setup": "skipped", "linux": ""}, (), "CI: succeeded"),
        ({"linux": "cancelled"}, (), "CI: cancelled"),
        ({"setup": "skipped", "linux": "skipped"}, (), "CI: no job ran"),
        ({}, (), "CI: no job ran"),
    ],
)
def test_a_run_without_failures_has_the_results_of_its_jobs(
    needs: Mapping[str, str], failed_jobs: tuple[str, ...], headline: str
) -> None:
    result = notify.make_result("CI", needs, failed_jobs=[Failure(name=name) for name in failed_jobs])

    assert result.headline == headline
    assert result.ok == (headline == "CI: succeeded")
    assert result.failures == ()


@pytest.mark.parametrize(
    ("needs", "failed_jobs", "failure"),
    [({"linux": ""}, ("build_torch",), "build_torch"), ({"setup": "failure"}, (), "setup")],
)
def test_a_run_failed_where_a_job_or_a_record_says_so(
    needs: Mapping[str, str], failed_jobs: tuple[str, ...], failure: str
) -> None:
    result = notify.make_result("CI", needs, failed_jobs=[Failure(name=name) for name in failed_jobs])

    assert result.headline == "CI: 1 failed"
    assert not result.ok
    assert result.failures == (Failure(name=failure),)


# --- Messages --------------------------------------------------------------------------------


def test_slack_gets_a_link_to_the_run_and_to_each_failure() -> None:
    payload = notify.slack_payload(TWO_FAILED)

    assert payload["text"] == "CI of ROCm/TheRock: 2 failed"
    headline, first, second = [block["text"]["text"] for block in payload["blocks"]]
    assert headline == f"<{TWO_FAILED.url}|CI of ROCm/TheRock: 2 failed>"
    assert first.startswith("<https://page/1|build torch, gfx1151>\n")
    assert second == "*test_smoke*"


def test_slack_gets_no_markup_of_others() -> None:
    payload = notify.slack_payload(TWO_FAILED)

    assert "error: no &lt;hip&gt; &amp; more" in payload["blocks"][1]["text"]["text"]


def test_a_message_of_hundreds_of_failures_stays_readable() -> None:
    failures = tuple(Failure(name=f"cell {number}") for number in range(300))
    result = notify.RunResult(title="CI", failures=failures)

    # Slack takes no more blocks.
    assert len(notify.slack_payload(result)["blocks"]) <= 50
    assert "280 more" in notify.plain_text(result)


# One character of each kind that a header, a terminal or Slack treats differently.
texts = st.text(alphabet="ab\r\n\x0b\x85\u2028<!@>: \x00", max_size=12)


@given(texts, texts)
def test_no_error_adds_a_header_to_an_email_or_a_mention_to_slack(title: str, error: str) -> None:
    failure = Failure(name="build_torch", error=first_line(error))
    result = notify.RunResult(title=title, failures=(failure,))

    message = notify.email(result, sender="a@example.com", to=["b@example.com"])

    assert {"Subject", "From", "To"} <= set(message.keys())
    assert "Bcc" not in message
    assert "<!" not in json.dumps(notify.slack_payload(result))


def test_a_summary_names_every_failure() -> None:
    summary = notify.markdown(TWO_FAILED)

    assert "(<https://page/1>)" in summary
    assert "test\\_smoke" in summary


def test_a_summary_of_a_success_is_a_headline() -> None:
    assert notify.markdown(SUCCEEDED).strip() == "### CI: succeeded"


# --- Who is told -----------------------------------------------------------------------------


class Slack(Quiet, BaseHTTPRequestHandler):
    """A webhook of Slack."""

    messages: ClassVar[list[Any]]
    status: ClassVar[int]

    def do_POST(self) -> None:
        """Note a message."""
        self.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.status)
        self.end_headers()


def send_to_slack(status: int) -> list[str]:
    """Send a message to a Slack that answers with a status; return what it got."""
    Slack.messages = []
    Slack.status = status
    with answering(Slack) as address:
        notify.send(FAILED, notify.Recipients(slack=f"{address}/hook"))
    return [message["text"] for message in Slack.messages]


def test_tells_slack_of_a_failed_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert send_to_slack(200) == ["CI: 1 failed"]

    assert "warning" not in capsys.readouterr().err


def test_warns_that_slack_refuses_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert send_to_slack(404) == ["CI: 1 failed"]

    assert "404" in capsys.readouterr().err


def test_warns_of_an_address_that_is_no_mail_server(capsys: pytest.CaptureFixture[str]) -> None:
    notify.send(FAILED, notify.Recipients(smtp="https://mail", email=("a@example.com",)))

    assert "NOTIFY_SMTP_URL" in capsys.readouterr().err


def test_tells_nobody_where_nothing_is_configured(capsys: pytest.CaptureFixture[str]) -> None:
    notify.send(FAILED, notify.Recipients())

    assert "nothing is sent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("event", "result", "expected"),
    [
        ("schedule", FAILED, True),
        ("schedule", SUCCEEDED, False),
        ("schedule", notify.RunResult(title="CI", idle=True), True),
        ("pull_request", FAILED, False),
    ],
    ids=["failed", "succeeded", "idle", "of another event"],
)
def test_tells_of_failed_and_idle_runs_of_chosen_events(
    event: str, result: notify.RunResult, *, expected: bool
) -> None:
    policy = notify.NotifyPolicy(events=("schedule",))

    assert notify.should_send(policy, {"GITHUB_EVENT_NAME": event}, result) is expected


# --- The verb --------------------------------------------------------------------------------


@pytest.fixture
def run_options(tmp_path: Path) -> list[str]:
    """The options that name a run in which a build failed."""
    write_record(
        DirectoryStore(tmp_path),
        RunOutputs(run_id="mine", platform="windows"),
        step="build_torch",
        family="gfx1151",
        python="cp312",
        torch_ref="nightly",
        error="no compiler\nmore",
    )
    return ["--store", str(tmp_path), "--run-id", "mine"]


def set_results(monkeypatch: pytest.MonkeyPatch, **results: str) -> None:
    """Set the results of jobs as a workflow hands them on."""
    monkeypatch.setenv("NEEDS", json.dumps({job: {"result": result} for job, result in results.items()}))


def test_names_what_failed_by_the_runs_records(
    run_options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_results(monkeypatch, windows="failure")

    assert run_verb("ci", "notify", *run_options) == 0

    assert "build_torch gfx1151 nightly cp312  no compiler\n" in capsys.readouterr().err


def test_fails_where_success_is_required(run_options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    set_results(monkeypatch, windows="failure")

    assert run_verb("ci", "notify", *run_options, "--require-success") == CheckError.exit_code


def test_a_success_of_one_job_is_enough(run_options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    set_results(monkeypatch, linux="success", windows="skipped")

    assert run_verb("ci", "notify", *run_options, "--require-success") == 0


def test_a_run_without_any_job_is_no_success(run_options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    set_results(monkeypatch, linux="skipped", windows="skipped")

    assert run_verb("ci", "notify", *run_options, "--require-success") == CheckError.exit_code


def test_refuses_to_tell_anything_without_results(run_options: list[str]) -> None:
    assert run_verb("ci", "notify", *run_options) == UsageError.exit_code
