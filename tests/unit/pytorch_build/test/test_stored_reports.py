from dataclasses import dataclass
from pathlib import Path

import pytest

from core.errors import MissingInputError
from core.run import RunOutputs, records
from core.stores import Store
from core.stores.directory import DirectoryStore
from pytorch_build.test.cell_results import merge_reports
from pytorch_build.test.junit.document import Outcome
from pytorch_build.test.junit.reader import read_junit
from pytorch_build.test.junit.writer import write_junit
from pytorch_build.test.report import Report, ReportOrigin
from pytorch_build.test.shards import Shard
from pytorch_build.test.stored_reports import find_tested_groups, put_report, read_reports_in_folder
from tests.kit.builds import LocalRun
from tests.kit.group_cells import group_cell
from tests.kit.runs import run_outputs
from tests.kit.torch_halves import FIRST_HALF, ORIGIN, record_of_half
from tests.kit.torch_results import document_of

GROUP = "gfx94X-dcgpu"
OUTPUTS = run_outputs("17")


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def test_a_report_is_filed_with_its_totals(store: DirectoryStore) -> None:
    document = document_of("passed", "crashed", "xfailed", "flaky", "failed")
    report = Report(origin=ORIGIN, document=document, shard=Shard(index=2, count=6))

    details = put_report(store, OUTPUTS, "gfx942", report)

    key = "17-linux/reports/gfx942/torch-nightly-cp312-2-of-6.xml"
    assert details["tests"] == {"tests": 5, "failures": 1, "errors": 1, "skipped": 1}
    assert details["outcomes"] == {"passed": 1, "xfailed": 1, "flaky": 1, "failed": 1, "crashed": 1}
    assert details["report"] == {"key": key, "sha256": store.digest(key)}
    assert read_junit(store.read(key)).properties["shard"] == "2/6"


# Reports and records of a run, in which the same tests ran in several numbers of shards.

OTHER_ORIGINS = (
    ReportOrigin(stage="test_torch", torch_ref="nightly", python="cp313"),
    ReportOrigin(stage="test_smoke"),
)


@dataclass(frozen=True, kw_only=True)
class ShardedRun:
    """A run's outputs in a store, whose tests all pass."""

    store: Store
    outputs: RunOutputs

    def put(self, origin: ReportOrigin, shard: Shard) -> None:
        """Leave what a shard leaves; a single one is the whole."""
        report = Report(
            origin=origin, document=document_of("passed"), shard=shard if shard.count > 1 else None
        )
        put_report(self.store, self.outputs, "cpu", report)
        stage = origin.stage_name(shard)
        cell = group_cell(torch_ref=origin.torch_ref, python_tag=origin.python)
        record = record_of_half(FIRST_HALF).model_copy(update={"stage": stage, "cell": cell})
        records.write(self.store, self.outputs, "cpu", record)

    def names(self, prefix: str) -> list[str]:
        """Return the names of reports or records of the torch ref."""
        keys = [stored.key for stored in self.store.list(prefix)]
        return [key.rpartition("/")[2].partition(".")[0] for key in keys if "nightly-cp312" in key]

    def has(self, name: str) -> bool:
        """Return whether there is a record."""
        return records.read(self.store, self.outputs, "cpu", name) is not None


@pytest.fixture
def sharded_run(store: DirectoryStore, request: pytest.FixtureRequest) -> ShardedRun:
    """Return a run (parameter: its id) whose tests ran as a whole, and then in three and two shards."""
    run = ShardedRun(store=store, outputs=run_outputs(request.param))
    for origin in (*OTHER_ORIGINS, ORIGIN):
        run.put(origin, Shard())
    run.put(ORIGIN, Shard(index=1, count=3))
    run.put(ORIGIN, FIRST_HALF)
    return run


@pytest.mark.parametrize("sharded_run", ["local"], indirect=True)
def test_another_number_of_local_shards_replaces_the_last(sharded_run: ShardedRun) -> None:
    outputs = sharded_run.outputs

    assert sharded_run.names(outputs.reports_prefix("cpu")) == ["torch-nightly-cp312-1-of-2"]
    assert sharded_run.names(outputs.manifests_prefix("cpu")) == ["test_torch-1-of-2-nightly-cp312"]


@pytest.mark.parametrize("sharded_run", ["local"], indirect=True)
def test_a_local_whole_replaces_its_shards(sharded_run: ShardedRun) -> None:
    sharded_run.put(ORIGIN, Shard())

    assert sharded_run.has("test_torch-nightly-cp312")
    assert not sharded_run.has("test_torch-1-of-2-nightly-cp312")


@pytest.mark.parametrize("sharded_run", ["17"], indirect=True)
def test_other_runs_keep_every_number_of_shards(sharded_run: ShardedRun) -> None:
    outputs = sharded_run.outputs

    assert len(sharded_run.names(outputs.reports_prefix("cpu"))) == 3
    assert len(sharded_run.names(outputs.manifests_prefix("cpu"))) == 3


@pytest.mark.parametrize("sharded_run", ["local", "17"], indirect=True)
def test_shards_replace_nothing_of_other_tests(sharded_run: ShardedRun) -> None:
    assert sharded_run.has("test_torch-nightly-cp313")
    assert sharded_run.has("test_smoke")


def test_a_run_without_reports_is_a_missing_input(run: LocalRun) -> None:
    run.store.put_bytes(f"local-linux/reports/{GROUP}/findings.json", b"{}")

    with pytest.raises(MissingInputError):
        find_tested_groups(run.common())


# Reports of a folder.


def test_a_folder_without_reports_is_a_missing_input(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")

    with pytest.raises(MissingInputError):
        read_reports_in_folder(tmp_path)


def write_report(path: Path, *outcomes: Outcome) -> None:
    """Write a report that says nothing of itself."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(write_junit(document_of(*outcomes)))


def test_reports_of_a_folder_are_attempts(tmp_path: Path) -> None:
    write_report(tmp_path / "a" / "1.xml", "failed")
    write_report(tmp_path / "a" / "2.xml", "passed")

    (cell_results,) = merge_reports(read_reports_in_folder(tmp_path))

    assert cell_results.origin.folder == "a"
    assert cell_results.outcomes["flaky"] == 1
    assert cell_results.passed


def test_a_torn_report_of_a_folder_is_a_problem(tmp_path: Path) -> None:
    write_report(tmp_path / "b" / "1.xml", "passed")
    (tmp_path / "b" / "torn.xml").write_bytes(b"<testsuites><testsuite>")

    (cell_results,) = merge_reports(read_reports_in_folder(tmp_path))

    assert not cell_results.passed
    assert cell_results.document.problems[0].startswith("b/torn.xml: ")
