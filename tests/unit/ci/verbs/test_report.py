"""The report of a run: tables on the terminal, a summary, and a page beside the run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ci.report.stored_runs import page_key
from core.cli.options import Common
from core.errors import MissingInputError, StoreError, UsageError
from core.run import Platform, RunOutputs, this_platform
from core.run.records import FileRecord
from core.status import Pending, UpToDate
from core.stores import Store
from core.stores.directory import DirectoryStore
from tests.kit.front_doors import look_at_verb, run_ci, run_verb
from tests.kit.runs import publish_torch, torch_version, write_record
from tests.kit.small_runs import GROUP, publish_wheel


@pytest.fixture
def run_options(common: Common, store: Store) -> list[str]:
    """The options that name the run."""
    return ["--run-id", common.run_id, "--store", store.url]


@pytest.fixture
def wheel(store: Store, outputs: RunOutputs, tmp_path: Path) -> FileRecord:
    """A wheel in the run, beside a build that failed."""
    write_step(store, outputs, "build_apex", error="Two wheels.")
    return publish_wheel(store, outputs, tmp_path)


def write_step(
    store: Store,
    outputs: RunOutputs,
    step: str = "build_torch",
    *,
    python: str = "cp312",
    error: str = "",
) -> None:
    """Write the record of a step, which failed where there is an error."""
    write_record(
        store,
        outputs,
        step=step,
        family=GROUP,
        python=python,
        torch_ref="nightly",
        error=error or None,
    )


# --- What is printed and written -------------------------------------------------------------


def test_prints_wheels_failures_and_counts(
    wheel: FileRecord, run_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb("ci", "report", *run_options) == 0

    printed = capsys.readouterr().err
    assert wheel.sha256[:12] in printed
    assert "build_apex g nightly cp312: Two wheels." in printed
    assert "1 cell (1 failed), 1 file, 1 problem" in printed


@pytest.mark.usefixtures("wheel")
def test_prints_where_wheels_and_the_page_are(
    store: Store,
    outputs: RunOutputs,
    run_options: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_verb("ci", "report", *run_options) == 0

    printed = capsys.readouterr().err
    assert f"{store.url}/{outputs.python_prefix(GROUP)}/\n" in printed
    assert f"{store.url_of(page_key(outputs))}\n" in printed


def test_writes_the_page_beside_the_run(
    wheel: FileRecord,
    store: Store,
    outputs: RunOutputs,
    run_options: list[str],
) -> None:
    assert run_verb("ci", "report", *run_options) == 0

    page = store.read(page_key(outputs)).decode()
    assert wheel.sha256 in page
    assert "Two wheels." in page


def test_writes_the_summary_of_a_job(
    wheel: FileRecord,
    run_options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))

    assert run_verb("ci", "report", *run_options) == 0

    assert wheel.sha256[:12] in summary.read_text(encoding="utf-8")


def test_a_brief_report_prints_no_wheels_and_writes_the_same_page(
    wheel: FileRecord,
    store: Store,
    outputs: RunOutputs,
    run_options: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_verb("ci", "report", *run_options) == 0
    page = store.read(page_key(outputs))
    capsys.readouterr()

    assert run_verb("ci", "report", *run_options, "--brief") == 0

    assert wheel.sha256[:12] not in capsys.readouterr().err
    assert store.read(page_key(outputs)) == page


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize("option", ["--text", "--json", "--dry-run"])
def test_writes_no_page_where_only_text_is_wanted(
    store: Store,
    outputs: RunOutputs,
    run_options: list[str],
    option: str,
) -> None:
    assert run_verb("ci", "report", *run_options, option) == 0

    assert store.find(page_key(outputs)) is None


@pytest.mark.usefixtures("wheel")
def test_a_look_finds_nothing_to_do_where_the_page_says_what_the_run_is(
    store: Store, outputs: RunOutputs, run_options: list[str]
) -> None:
    assert isinstance(look_at_verb("ci", "report", *run_options), Pending)
    run_verb("ci", "report", *run_options)

    assert look_at_verb("ci", "report", *run_options, "--brief") == UpToDate()

    write_step(store, outputs, "build_audio")
    assert isinstance(look_at_verb("ci", "report", *run_options), Pending)


def refuse(*_arguments: object, **_options: object) -> None:
    raise StoreError("Access denied.")


def test_prints_the_report_where_the_page_cannot_be_written(
    wheel: FileRecord,
    run_options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(DirectoryStore, "put_bytes", refuse)

    assert run_verb("ci", "report", *run_options) == StoreError.exit_code

    printed = capsys.readouterr().err
    assert wheel.name in printed
    assert "Access denied." in printed


@pytest.fixture
def run_of_other_platform(store: Store, outputs: RunOutputs) -> RunOutputs:
    other: Platform = "linux" if outputs.platform == "windows" else "windows"
    run = replace(outputs, platform=other)
    write_step(store, run, error="No compiler.")
    return run


def test_reports_a_run_of_another_platform(
    store: Store,
    run_of_other_platform: RunOutputs,
    run_options: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_verb("ci", "report", *run_options, "--platform", run_of_other_platform.platform) == 0

    assert "No compiler." in capsys.readouterr().err
    assert store.find(page_key(run_of_other_platform)) is not None


@pytest.mark.usefixtures("run_of_other_platform")
def test_does_not_take_a_run_of_another_platform_for_this_ones(run_options: list[str]) -> None:
    assert run_verb("ci", "report", *run_options) == MissingInputError.exit_code


# --- The run that it is held against ---------------------------------------------------------


def write_run(
    store: Store,
    run_id: str,
    step: str = "build_torch",
    *,
    python: str = "cp312",
) -> None:
    """Write a run of one step."""
    outputs = RunOutputs(run_id=run_id, platform=this_platform())
    error = "It broke." if step == "build_apex" else ""
    write_step(store, outputs, step, python=python, error=error)


def compared_run(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return the run that a report is held against; "" for none."""
    assert run_verb("ci", "report", "--json", *options) == 0
    return str(json.loads(capsys.readouterr().out)["against"])


@pytest.mark.usefixtures("wheel")
def test_the_first_run_is_held_against_none(
    run_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert compared_run(capsys, *run_options) == ""


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize(
    ("requested", "mention"), [("previous", "None of the last 25 runs"), ("16", "Run 16")]
)
def test_refuses_a_run_to_compare_with_that_is_not_there(
    run_options: list[str],
    capsys: pytest.CaptureFixture[str],
    requested: str,
    mention: str,
) -> None:
    exit_code = run_verb("ci", "report", "--json", *run_options, "--against", requested)

    assert exit_code == MissingInputError.exit_code
    assert mention in capsys.readouterr().err


@pytest.fixture
def other_runs(store: Store, wheel: FileRecord) -> Store:
    """Runs before and after run 17, of its cell and of another one, and the local run."""
    assert wheel.size > 0
    write_run(store, "9")
    write_run(store, "10")
    # What failed before is compared, too: what fails newly is seen beside it.
    write_run(store, "12", "build_apex")
    write_run(store, "13", python="cp313")
    write_run(store, "18")
    write_run(store, "local")
    return store


@pytest.mark.usefixtures("other_runs")
@pytest.mark.parametrize(
    ("options", "run_id"),
    [([], "12"), (["--against", "previous"], "12"), (["--against", "none"], ""), (["--against", "9"], "9")],
    ids=["by default", "previous", "none", "9"],
)
def test_a_run_of_ci_is_held_against_the_last_one_with_its_cells(
    run_options: list[str],
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    run_id: str,
) -> None:
    assert compared_run(capsys, *run_options, *options) == run_id


@pytest.mark.parametrize(("options", "run_id"), [([], ""), (["--against", "previous"], "9")])
def test_the_local_run_is_compared_only_when_asked(
    store: Store,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    run_id: str,
) -> None:
    write_run(store, "local")
    write_run(store, "9")

    assert compared_run(capsys, "--store", store.url, *options) == run_id


def test_text_is_printed_on_standard_output(
    wheel: FileRecord, run_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb("ci", "report", *run_options, "--text") == 0

    printed = capsys.readouterr().out
    assert wheel.sha256[:12] in printed
    assert "Two wheels." in printed


@pytest.mark.usefixtures("wheel")
def test_reports_without_another_run_where_the_store_cannot_be_listed(
    run_options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DirectoryStore, "folders", refuse)

    assert run_verb("ci", "report", *run_options, "--text") == 0

    assert "Access denied." in capsys.readouterr().err


@pytest.mark.usefixtures("wheel")
def test_fails_where_a_requested_comparison_cannot_be_made(
    run_options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DirectoryStore, "folders", refuse)

    exit_code = run_verb("ci", "report", *run_options, "--text", "--against", "previous")

    assert exit_code == StoreError.exit_code


# --- Options ---------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--runs=5", "--output=page.html"])
def test_the_page_of_a_run_takes_no_options_of_a_history(
    run_options: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb("ci", "report", *run_options, option) == UsageError.exit_code

    assert f"{option.partition('=')[0]} has no effect without --history" in capsys.readouterr().err


def test_a_report_has_one_form(run_options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb("ci", "report", *run_options, "--text", "--json") == UsageError.exit_code

    assert "--text and --json" in capsys.readouterr().err


def test_prints_the_versions_of_wheels_and_the_path_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = DirectoryStore(tmp_path / "out")
    publish_torch(store, RunOutputs(run_id="local", platform="linux"), tmp_path)

    status = run_ci("report", "--platform", "linux", "--store", tmp_path / "out")

    printed = "".join(capsys.readouterr())
    assert status == 0
    # once as part of the wheel's file name, once as its version
    assert printed.count(torch_version()) > printed.count(f"torch-{torch_version()}-")
    assert str(tmp_path / "out" / "local-linux" / "reports" / "index.html") in printed
