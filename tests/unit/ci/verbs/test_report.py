import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from ci.verbs import report
from core.cli.options import Common
from core.errors import MissingInputError, StoreError
from core.run import Platform, RunOutputs, records, this_platform
from core.run.records import Cell, FileRecord, Record
from core.stores import Store
from core.stores.directory import DirectoryStore
from tests.kit.front_doors import run_ci
from tests.unit.ci.conftest import Lab


@pytest.fixture(name="words")
def words_fixture(common: Common, store: Store) -> list[str]:
    return ["report", "--run-id", common.run_id, "--store", store.url]


@pytest.fixture(name="built")
def built_fixture(
    store: Store, outputs: RunOutputs, publish: Callable[..., FileRecord], record_of: Callable[..., Record]
) -> FileRecord:
    """Leave a wheel, and a build that failed."""
    one = publish()
    failed = record_of(stage="build_apex", status="failed", exit_code=8, error="Two wheels.")
    records.write(store, outputs, "g", failed)
    return one


def test_the_verb_prints_tables_failures_and_paths_and_writes_the_page(
    lab: Lab,
    built: FileRecord,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(lab.common.root / "summary.md"))
    assert run_ci(*words) == 0
    said = capsys.readouterr().err
    assert built.sha256[:12] in said
    assert "build_apex g nightly cp312: Two wheels." in said
    assert f"wheels   {lab.store.url}/{lab.outputs.python_prefix('g')}/\n" in said
    assert "1 cell (1 failed), 1 file, 1 problem" in said
    assert built.sha256[:12] in (lab.common.root / "summary.md").read_text()
    page = lab.store.read(report.page_key(lab.outputs)).decode()
    assert f"page     {lab.store.url_of(report.page_key(lab.outputs))}\n" in said
    assert built.sha256 in page
    assert "Two wheels." in page
    capsys.readouterr()
    assert run_ci(*words, "--brief") == 0
    assert built.sha256[:12] not in capsys.readouterr().err
    assert lab.store.read(report.page_key(lab.outputs)).decode() == page


@pytest.mark.parametrize("option", ["--text", "--json", "--dry-run"])
def test_who_only_asks_leaves_nothing(lab: Lab, option: str, built: FileRecord, words: list[str]) -> None:
    assert built.size > 0
    assert run_ci(*words, option) == 0
    assert lab.store.find(report.page_key(lab.outputs)) is None


def refuse(*_: object, **__: object) -> None:
    raise StoreError("Access denied.")


def test_a_store_that_takes_no_page_still_leaves_the_summary(
    built: FileRecord, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DirectoryStore, "put_bytes", refuse)
    assert run_ci(*words) == StoreError.exit_code
    said = capsys.readouterr().err
    assert built.name in said
    assert "Access denied." in said


def leave_run(store: Store, run_id: str, record: Record, *, failed: bool = False) -> None:
    status = {"status": "failed", "exit_code": 8} if failed else {}
    there = RunOutputs(run_id=run_id, platform=this_platform())
    records.write(store, there, "g", record.model_copy(update={"run_id": run_id, "files": (), **status}))


def test_a_run_of_ci_is_held_against_the_last_one_before_with_its_cells(
    lab: Lab, built: FileRecord, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def against(*more: str) -> str:
        assert run_ci(*words, "--json", *more) == 0
        return str(json.loads(capsys.readouterr().out)["against"])

    assert built.size > 0
    assert against() == ""
    assert run_ci(*words, "--against", "previous") == MissingInputError.exit_code
    assert "None of the last 25 runs" in capsys.readouterr().err
    assert run_ci(*words, "--against", "16") == MissingInputError.exit_code
    assert "Run 16 has no records" in capsys.readouterr().err
    for run_id in ("9", "10"):
        leave_run(lab.store, run_id, lab.record_of())
    leave_run(lab.store, "12", lab.record_of(stage="build_apex"), failed=True)
    leave_run(lab.store, "13", lab.record_of(cell=Cell(python="cp313", torch_ref="nightly")))
    leave_run(lab.store, "18", lab.record_of())
    leave_run(lab.store, "local", lab.record_of())
    # one that failed at them, too: what fails newly is seen beside it
    assert against() == against("--against", "previous") == "12"
    assert against("--against", "none") == ""
    assert against("--against", "9") == "9"


def test_a_store_that_cannot_be_listed_leaves_the_report_without_another_run(
    built: FileRecord, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert built.size > 0
    monkeypatch.setattr(DirectoryStore, "folders", refuse)
    assert run_ci(*words, "--text") == 0
    assert "No previous run was looked for: Access denied." in capsys.readouterr().err
    assert run_ci(*words, "--text", "--against", "previous") == StoreError.exit_code


def test_the_local_run_is_compared_with_none_unasked(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    leave_run(lab.store, "local", lab.record_of())
    leave_run(lab.store, "9", lab.record_of())
    words = ["report", "--store", lab.store.url, "--json"]
    assert lab.common.run_id != "local"
    for more, run_id in (([], ""), (["--against", "previous"], "9")):
        assert run_ci(*words, *more) == 0
        assert json.loads(capsys.readouterr().out)["against"] == run_id


def test_other_platforms_are_reported(lab: Lab, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    other: Platform = "linux" if lab.outputs.platform == "windows" else "windows"
    there = replace(lab.outputs, platform=other)
    failed = lab.record_of(stage="build_torch", status="failed", exit_code=8, error="No compiler.")
    records.write(lab.store, there, "g", failed)
    assert run_ci(*words) == MissingInputError.exit_code
    assert run_ci(*words, "--platform", other) == 0
    assert "No compiler." in capsys.readouterr().err
    assert lab.store.find(report.page_key(there)) is not None
    assert lab.store.find(report.page_key(lab.outputs)) is None
