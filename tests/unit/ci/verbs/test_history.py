import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from core.cli.options import Common
from core.errors import MissingInputError, UsageError
from core.run import Platform, RunOutputs, records
from core.stores import Store
from tests.kit import page_runs as samples
from tests.kit.front_doors import run_ci
from tests.kit.memory_store import MemoryStore

GROUP, CELL = "gfx900", ("nightly", "cp312")


def leave(
    store: Store, run_id: str, *, kind: str = "ci", platform: Platform = "linux", **failed: Any
) -> None:
    """Leave a run of one cell with its page, the last build of which may have failed."""
    outputs = RunOutputs(run_id=run_id, platform=platform)
    lock = samples.lock("nightly").model_copy(update={"release_type": kind})
    store.put_bytes(outputs.source_lock_key("nightly"), lock.model_dump_json().encode())
    store.put_bytes(f"{outputs.prefix}/reports/index.html", b"")
    builds = [samples.build(name, GROUP, *CELL) for name in samples.BUILDS]
    builds[-1] = samples.record("build_apex", GROUP, *CELL, **failed) if failed else builds[-1]
    for one in builds:
        records.write(store, outputs, GROUP, one)


def history(store: str, *words: str) -> int:
    return run_ci("history", "--store", store, *words)


def test_only_the_last_are_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    store = MemoryStore()
    leave(store, "0")
    leave(store, "5", kind="nightly")
    made = dict(store.objects)
    for number in range(1, 1001):
        one = (item for item in made.items() if item[0][0] == ("0" if number % 5 else "5"))
        store.objects |= {f"{number}{key[1:]}": data for key, data in one}
    monkeypatch.setattr(Common, "open_store", lambda _: store)
    store.calls.clear()
    assert history("s3://runs", "--runs", "3", "--json") == 0
    assert [run["run_id"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["1000", "999", "998"]
    # each platform's runs are looked for; a run's manifests are listed and read, its page is looked for
    assert len(store.calls) == 2 + 3 * (2 + 6 + 1)
    store.calls.clear()
    nightly = ("--release-type", "nightly", "--platform", "linux")
    assert history("s3://runs", "--runs", "2", "--json", *nightly) == 0
    assert [run["run_id"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["1000", "995"]
    # of those between, the listing and the source lock
    assert len(store.calls) == 1 + 6 * 2 + 2 * (1 + 6 + 1)


def test_what_is_unreadable_hides_no_other_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = Common(root=tmp_path, store=str(tmp_path / "runs"))
    store = common.open_store()
    leave(store, "7")
    for run_id in ("9", "10"):
        leave(store, run_id, status="failed", exit_code=8, error="Two.")
    store.put_bytes(f"9-linux/manifests/{GROUP}/build_torch-nightly-cp312.json", b"{")
    leave(store, "8", platform="windows")
    assert history(store.url, "--runs", "5") == 0
    said = capsys.readouterr().err
    assert re.search(r"\b10 +2026-11-20 +1 failed", said)
    assert "build_torch-nightly-cp312.json: record: Invalid JSON" in said
    assert re.search(r"gfx900 nightly cp312 +failed +9 +7 +build_apex: Two\.", said)
    page = store.read("history/linux.html").decode()
    assert f'href="../10-linux/reports/index.html#cell-{GROUP}-nightly-cp312"' in page
    assert "8-windows" in store.read("history/windows.html").decode()
    # the same page, from elsewhere
    assert history(store.url, "--runs", "2", "--platform", "linux", "-o", str(tmp_path / "h.html")) == 0
    assert "9 or before" in capsys.readouterr().err, "as far as the page goes back"
    assert f'href="{store.url_of("10-linux/reports/index.html")}"' in (tmp_path / "h.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--torch-ref", "sample"], "no run for linux or windows with records of builds of sample"),
        (["--gpu-family", "cpu", "--platform", "linux"], "no run for linux with records of builds of cpu"),
        (["--torch-ref", "nihgtly"], "Unknown torch ref 'nihgtly'. Did you mean 'nightly'?"),
        (["--gpu-family", "gfx94X"], "Did you mean 'gfx94X-all' or 'gfx94X-dcgpu'?"),
        (["--release-type", "nightly"], "of builds of nightly"),
        (["--json"], "Name one: --platform linux"),
        (["--runs", "0"], "Give 1 or more"),
    ],
)
def test_no_runs_are_an_error_that_says_where_it_looked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    store = Common(root=tmp_path, store=str(tmp_path / "runs")).open_store()
    for platform in get_args(Platform):
        leave(store, "7", platform=platform)
    code = (MissingInputError if "of builds of" in said else UsageError).exit_code
    assert history(store.url, *words) == code
    assert said in capsys.readouterr().err
