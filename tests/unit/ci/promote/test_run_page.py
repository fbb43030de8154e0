"""The page of a run says what was decided on its wheels: staged, refused or promoted, and why."""

import json
from typing import Any

import pytest

from ci.report.stored_runs import page_key
from core.run.locations import distribution_store, run_buckets
from core.status import Pending, UpToDate
from tests.kit import runs
from tests.kit.front_doors import look_at_verb, run_ci
from tests.kit.release_desk import ReleaseDesk

FAMILY = "gfx94X-dcgpu"
OTHER_FAMILY = "gfx1151"
SET_NAME = f"torch-{runs.torch_version()}"
OVERRIDE = ("--override-by", "Release captain", "--override-reason", "The runner's driver is old.")


def run_options(desk: ReleaseDesk, run_id: str = "17") -> tuple[str, ...]:
    """Return the options that name a run, and where its wheels are staged."""
    stores = ("--store", desk.run_store.url, "--distribution-store", desk.bucket.url)
    return ("--run-id", run_id, *stores, "--against", "none")


def read_releases(desk: ReleaseDesk, *options: str, run_id: str = "17") -> list[dict[str, Any]]:
    """Return what the data of the run's page says of decisions."""
    desk.capsys.readouterr()
    assert run_ci("report", *run_options(desk, run_id), "--json", *options) == 0
    releases = json.loads(desk.capsys.readouterr().out)["releases"]
    assert isinstance(releases, list)
    return releases


def write_page(desk: ReleaseDesk) -> tuple[str, str]:
    """Write the run's page; return what is printed, and the page."""
    desk.read_messages()
    assert run_ci("report", *run_options(desk)) == 0
    return desk.read_messages(), desk.run_store.read(page_key(desk.run)).decode()


def fail_smoke_test(desk: ReleaseDesk, error: str = "3 of 22 failed.") -> None:
    """Leave the record of a smoke test that failed."""
    runs.write_record(
        desk.run_store,
        desk.run,
        step="test_smoke",
        family=FAMILY,
        python=runs.PYTHON,
        torch_ref=runs.TORCH_REF,
        error=error,
    )


def test_a_run_that_was_not_staged_has_no_release(desk: ReleaseDesk) -> None:
    desk.publish(FAMILY)

    printed, page = write_page(desk)

    assert read_releases(desk) == []
    assert "Releases" not in page
    assert "releases" not in printed


def test_a_staged_set_waits_for_its_decision(desk: ReleaseDesk) -> None:
    desk.stage_run(FAMILY)

    (release,) = read_releases(desk)

    assert (release["set_name"], release["group"], release["state"]) == (SET_NAME, FAMILY, "staged")
    assert release["by"] == ""


def test_says_by_whom_and_by_which_rule_a_set_was_promoted(desk: ReleaseDesk) -> None:
    desk.promote_run(FAMILY, OTHER_FAMILY)

    printed, page = write_page(desk)

    releases = read_releases(desk)
    assert {(release["group"], release["state"]) for release in releases} == {
        (FAMILY, "promoted"),
        (OTHER_FAMILY, "promoted"),
    }
    decision_key = desk.decision().key
    assert {release["decision"] for release in releases} == {decision_key}
    assert decision_key in page
    for text in (printed, page):
        assert SET_NAME in text
        assert "the release job" in text
        assert "tests" in text


def test_says_why_a_set_was_refused(desk: ReleaseDesk) -> None:
    desk.stage_run(FAMILY)
    fail_smoke_test(desk)
    desk.read_refusal()

    printed, page = write_page(desk)

    (release,) = read_releases(desk)
    assert release["state"] == "refused"
    for text in (printed, page):
        assert "refused" in text
        assert f"{FAMILY}, Python 3.12, on linux: test_smoke failed: 3 of 22 failed." in text


def test_says_what_was_overridden_by_whom_and_why(desk: ReleaseDesk) -> None:
    desk.stage_run(FAMILY)
    fail_smoke_test(desk)
    assert desk.promote(*OVERRIDE) == 0

    _printed, page = write_page(desk)

    (release,) = read_releases(desk)
    assert "override" in release["rules"]
    assert release["reasons"] == [
        "test_smoke failed: 3 of 22 failed.",
        "Release captain: The runner's driver is old.",
    ]
    assert "Release captain: The runner&#39;s driver is old." in page


def test_shows_words_of_a_test_as_text(desk: ReleaseDesk) -> None:
    desk.stage_run(FAMILY)
    fail_smoke_test(desk, error='<a href="https://example.org">x</a>')
    desk.read_refusal()

    _printed, page = write_page(desk)

    assert '<a href="https://example.org"' not in page


def test_a_run_says_nothing_of_the_decision_on_another_run(desk: ReleaseDesk) -> None:
    desk.promote_run(FAMILY)
    later_desk = desk.with_run("18")
    later_desk.publish(FAMILY, contents=runs.RunContents(rocm_version="7.10.0a20251122"))

    assert read_releases(desk, run_id="18") == []


def test_the_page_is_out_of_date_once_a_set_was_promoted(desk: ReleaseDesk) -> None:
    desk.stage_run(FAMILY)
    write_page(desk)
    assert isinstance(look_at_verb("ci", "report", *run_options(desk)), UpToDate)

    assert desk.promote() == 0

    assert isinstance(look_at_verb("ci", "report", *run_options(desk)), Pending)


def test_a_decision_that_cannot_be_read_is_a_problem_of_the_page(desk: ReleaseDesk) -> None:
    desk.promote_run(FAMILY)
    decision_key = desk.decision().key
    desk.bucket.put_bytes(decision_key, b"{", replace=True)

    printed, page = write_page(desk)

    for text in (printed, page):
        assert "decisions on its wheels" in text
        assert decision_key in text


def test_reads_the_folder_of_the_runs_release_type(
    desk: ReleaseDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.promote_run(FAMILY)
    nightly = run_buckets().distributions["nightly"].model_copy(update={"folder": desk.bucket.url})
    distributions = {**run_buckets().distributions, "nightly": nightly}
    data = run_buckets().model_copy(update={"distributions": distributions})
    monkeypatch.setattr("ci.report.releases.buckets", lambda: data)
    assert distribution_store(data, "nightly") == desk.bucket.url

    desk.read_messages()
    assert run_ci("report", "--run-id", "17", "--store", desk.run_store.url, "--text") == 0

    assert "the release job" in desk.capsys.readouterr().out
