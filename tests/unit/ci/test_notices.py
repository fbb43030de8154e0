from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci import notices
from ci.notices import Failure, RunResult
from core.errors import DataError
from core.run.records import Cell, Record

FAILED = RunResult(
    title="CI of ROCm/TheRock",
    url="https://github.com/ROCm/TheRock/actions/runs/7",
    failures=(
        Failure(name="build torch, gfx1151", error="error: no <hip> & more", url="https://page/1"),
        Failure(name="test_smoke"),
    ),
)


def needs(**results: str) -> str:
    return json.dumps({name: {"result": result, "outputs": None} for name, result in results.items()})


def record(stage: str, status: str, error: str = "") -> Record:
    cell = Cell(python="cp312", torch_ref="nightly", gpu_family="gfx1151")
    fields = {"stage": stage, "status": status, "error": error, "cell": cell}
    return Record.model_validate(
        {**fields, "run_id": "7", "platform": "linux", "started": "2026-01-01T00:00:00Z", "seconds": 1}
    )


def test_needs_are_jobs_to_results() -> None:
    assert notices.read_needs(needs(setup="success", linux="failure")) == {
        "setup": "success",
        "linux": "failure",
    }


@pytest.mark.parametrize("written", ["", "[]", "{}", "nonsense", '{"setup": {}}', '{"setup": "success"}'])
def test_what_names_no_results_is_refused(written: str) -> None:
    with pytest.raises(DataError):
        notices.read_needs(written)


def test_records_say_what_failed_and_its_first_line() -> None:
    found = notices.of_records(
        [record("build_torch", "ok"), record("build_audio", "failed", "\n  it broke\nmore")]
    )
    assert found == [Failure(name="build_audio gfx1151 nightly cp312", error="it broke")]


def test_a_run_whose_jobs_succeeded_or_were_skipped_is_good() -> None:
    result = notices.result_of("CI", {"setup": "success", "windows": "skipped"}, jobs=[])
    assert result.ok
    assert notices.headline(result) == "CI: succeeded"


def test_failures_that_do_not_count_do_not_fail_the_run() -> None:
    expected = notices.result_of("CI", {"linux": "success"}, jobs=[Failure(name="expected to fail")])
    assert expected.ok


def test_where_nobody_says_how_a_job_ended_records_do() -> None:
    assert notices.result_of("CI", {"linux": ""}, jobs=[]).ok
    assert not notices.result_of("CI", {"linux": ""}, jobs=[Failure(name="build_torch")]).ok


def test_a_job_without_known_cells_is_named_itself() -> None:
    result = notices.result_of("CI", {"setup": "failure"}, jobs=[])
    assert result.failures == (Failure(name="setup"),)


def test_a_cancelled_run_did_not_succeed() -> None:
    result = notices.result_of("CI", {"linux": "cancelled"}, jobs=[])
    assert not result.ok
    assert notices.headline(result) == "CI: cancelled"


def test_slack_gets_links_and_no_markup_of_others() -> None:
    payload = notices.slack(FAILED)
    assert payload["text"] == "CI of ROCm/TheRock: 2 failed"
    head, first, second = [block["text"]["text"] for block in payload["blocks"]]
    assert head == f"<{FAILED.url}|CI of ROCm/TheRock: 2 failed>"
    assert first == "<https://page/1|build torch, gfx1151>\nerror: no &lt;hip&gt; &amp; more"
    assert second == "*test_smoke*"


def test_a_message_stays_readable_with_hundreds_of_failures() -> None:
    many = RunResult(title="CI", failures=tuple(Failure(name=f"cell {n}") for n in range(300)))
    assert len(notices.slack(many)["blocks"]) <= 50  # Slack takes no more
    assert "and 280 more" in notices.plain(many)


@given(st.text(), st.text())
def test_no_error_adds_a_header_to_an_email_or_a_mention_to_slack(title: str, error: str) -> None:
    clean = title.encode(errors="replace").decode()
    result = RunResult(title=clean, failures=(Failure(name="one", error=notices.first_line(error)),))
    message = notices.email(result, sender="a@example.com", to=["b@example.com"])
    assert set(message.keys()) >= {"Subject", "From", "To"}
    assert "Bcc" not in message
    assert "<!" not in json.dumps(notices.slack(result))


def test_the_summary_names_every_failure() -> None:
    written = notices.markdown(FAILED)
    assert "(<https://page/1>)" in written
    assert "test\\_smoke" in written
    assert notices.markdown(RunResult(title="CI")).strip() == "### CI: succeeded"
