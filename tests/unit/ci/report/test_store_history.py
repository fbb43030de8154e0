"""The last runs of a store, on the terminal and on a page."""

import json
import re
from pathlib import Path
from typing import Literal, get_args

import pytest

from core.cli.options import Common
from core.errors import MissingInputError, UsageError
from core.run import Platform, RunOutputs, records
from core.stores import Store
from tests.kit import page_runs
from tests.kit.front_doors import run_verb
from tests.kit.memory_store import MemoryStore

GROUP = "gfx900"
REF = "nightly"
PYTHON = "cp312"
CELL = (GROUP, REF, PYTHON)


def write_run(
    store: Store,
    run_id: str,
    *,
    release_type: Literal["ci", "nightly"] = "ci",
    platform: Platform = "linux",
    error: str = "",
) -> None:
    """Write a run of one cell with its page; with an error, its last build has failed."""
    outputs = RunOutputs(run_id=run_id, platform=platform)
    lock = page_runs.source_lock(REF).model_copy(update={"release_type": release_type})
    store.put_bytes(outputs.source_lock_key(REF), lock.model_dump_json().encode())
    store.put_bytes(f"{outputs.prefix}/reports/index.html", b"")

    builds = [page_runs.build_record(component, *CELL) for component in page_runs.BUILDS]
    if error:
        builds[-1] = page_runs.make_record(
            "build_apex",
            *CELL,
            status="failed",
            exit_code=8,
            error=error,
        )
    for build in builds:
        records.write(store, outputs, GROUP, build)


def history(store: Store, *options: object) -> int:
    return run_verb("ci", "report", "--history", "--store", store.url, *options)


def printed_runs(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the runs that were printed as JSON."""
    return [run["run_id"] for run in json.loads(capsys.readouterr().out)["runs"]]


# --- How much is read ------------------------------------------------------------------------


@pytest.fixture
def many_runs(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """A store of 30 runs, of which every fifth is a nightly release; it notes the requests."""
    first_run = MemoryStore()
    write_run(first_run, "1")
    first_release = MemoryStore()
    write_run(first_release, "5", release_type="nightly")

    store = MemoryStore()
    for number in range(1, 31):
        source = first_release if number % 5 == 0 else first_run
        for key, content in source.objects.items():
            store.objects[f"{number}{key[1:]}"] = content
    monkeypatch.setattr(Common, "open_store", lambda _: store)
    return store


def test_reads_the_last_runs_alone(many_runs: MemoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(many_runs, "--runs", "3", "--json") == 0

    assert printed_runs(capsys) == ["30", "29", "28"]
    # Runs of each platform are listed. Of each run, manifests are listed twice and read (a lock and five
    # records), and its page is looked for.
    assert len(many_runs.calls) == 2 + 3 * (2 + 6 + 1)


def test_reads_only_the_source_locks_of_runs_of_other_types(
    many_runs: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--release-type", "nightly", "--platform", "linux")

    assert history(many_runs, "--runs", "2", "--json", *options) == 0

    assert printed_runs(capsys) == ["30", "25"]
    # Of the six runs from 30 to 25, manifests are listed and the lock is read; two are read in full.
    assert len(many_runs.calls) == 1 + 6 * 2 + 2 * (1 + 6 + 1)


# --- What is printed and written -------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Common(root=tmp_path, store=str(tmp_path / "runs")).open_store()


@pytest.fixture
def runs(store: Store) -> Store:
    """A store whose runs 9 and 10 failed after run 7; a record of run 9 is unreadable."""
    write_run(store, "7")
    write_run(store, "9", error="Two.")
    write_run(store, "10", error="Two.")
    store.put_bytes(f"9-linux/manifests/{GROUP}/build_torch-nightly-cp312.json", b"{")
    write_run(store, "8", platform="windows")
    return store


def test_prints_runs_and_since_when_cells_fail(runs: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(runs, "--runs", "5") == 0

    printed = capsys.readouterr().err
    assert re.search(r"\b10 +2026-11-20 +1 failed", printed)
    assert re.search(r"gfx900 nightly cp312 +failed +9 +7 +build_apex: Two\.", printed)


def test_an_unreadable_record_hides_no_run(runs: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(runs, "--runs", "5") == 0

    assert "build_torch-nightly-cp312.json" in capsys.readouterr().err


def test_writes_a_page_for_each_platform_with_links_to_cells(runs: Store) -> None:
    assert history(runs, "--runs", "5") == 0

    page = runs.read("history/linux.html").decode()
    assert f'href="../10-linux/reports/index.html#cell-{GROUP}-nightly-cp312"' in page
    assert "8-windows" in runs.read("history/windows.html").decode()


def test_a_page_elsewhere_links_to_the_store(runs: Store, tmp_path: Path) -> None:
    page = tmp_path / "h.html"

    assert history(runs, "--runs", "5", "--platform", "linux", "-o", page) == 0

    assert f'href="{runs.url_of("10-linux/reports/index.html")}"' in page.read_text()


def test_says_that_a_cell_failed_as_far_as_the_page_goes_back(
    runs: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(runs, "--runs", "2", "--platform", "linux") == 0

    assert "9 or before" in capsys.readouterr().err


# --- What is not there -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "mention"),
    [
        (["--torch-ref", "sample"], "sample"),
        (["--gpu-family", "cpu", "--platform", "linux"], "cpu"),
        (["--release-type", "nightly"], "nightly"),
    ],
)
def test_names_what_no_run_has_and_where_it_looked(
    store: Store,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    mention: str,
) -> None:
    write_run(store, "7")

    assert history(store, *options) == MissingInputError.exit_code

    message = capsys.readouterr().err
    assert f"builds of {mention}" in message
    assert store.url in message


@pytest.mark.parametrize(
    ("options", "mention"),
    [
        (["--torch-ref", "nihgtly"], "'nightly'"),
        (["--gpu-family", "gfx94X"], "'gfx94X-dcgpu'"),
        (["--json"], "--platform"),
        (["--runs", "0"], "--runs"),
    ],
)
def test_refuses_options_that_name_no_runs(
    store: Store,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    mention: str,
) -> None:
    for platform in get_args(Platform):
        write_run(store, "7", platform=platform)

    assert history(store, *options) == UsageError.exit_code

    assert mention in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--run-id=7", "--text", "--brief", "--against=6"])
def test_refuses_options_of_one_run(store: Store, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(store, option) == UsageError.exit_code

    assert f"{option.partition('=')[0]} has no effect with --history" in capsys.readouterr().err
