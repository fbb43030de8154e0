"""The documents of a store keep their bytes when the types that are written to them are renamed.

`stored/` has a document of each kind. Digests, times and sizes differ from run to run, so they are masked.
"""

import json
import re
from pathlib import Path

import pytest

from ci.plan.outputs import outputs
from ci.promote import documents
from core.run import RunOutputs, records
from core.run.plan import Plan
from core.stores import Store
from core.stores.directory import DirectoryStore
from tests.kit import page_runs, planning, runs
from tests.kit.front_doors import run_ci
from tests.kit.memory_store import MemoryStore
from tests.kit.release_desk import ReleaseDesk, Snapshots, open_desk
from tests.kit.runs import RunContents
from tests.kit.stores import list_keys

STORED = Path(__file__).with_name("stored")
FAMILY = "gfx94X-dcgpu"
MASKS = (
    (re.compile(r"\b[0-9a-f]{16,64}\b"), "DIGEST"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"), "TIME"),
    (re.compile(r'"size": \d+'), '"size": 0'),
    (re.compile(r'"store": "[^"]*"'), '"store": "STORE"'),
)


def masked(content: bytes) -> str:
    """Return a document without what differs from run to run."""
    text = content.decode()
    for pattern, replacement in MASKS:
        text = pattern.sub(replacement, text)
    return text


def stored_text(name: str) -> str:
    """Return a document as it was stored before."""
    return (STORED / name).read_text(encoding="utf-8")


def only_document(store: Store, prefix: str) -> bytes:
    """Return the only JSON document below a prefix."""
    (key,) = [key for key in list_keys(store, prefix) if key.endswith(".json")]
    return store.read(key)


# Records


def test_the_record_of_a_build_keeps_its_json() -> None:
    record = runs.write_record(
        MemoryStore(),
        runs.run_outputs(),
        step="build_torch",
        family=FAMILY,
        python="cp313t",
        torch_ref="release/2.10",
    )

    assert records.serialize(record).decode() == stored_text("record.json")


def test_the_record_of_no_family_keeps_its_json() -> None:
    record = runs.write_record(MemoryStore(), runs.run_outputs(), step="upload-1", family="")

    assert records.serialize(record).decode() == stored_text("record-of-no-family.json")


def test_a_record_that_names_one_of_several_families_is_written_as_it_was_read() -> None:
    content = stored_text("record-of-one-of-several-families.json")

    record = records.parse(content, where="a test")

    assert records.serialize(record).decode() == content
    assert record.name == "test_smoke-nightly-cp312-gfx942"


# Plans


@pytest.fixture
def plan() -> Plan:
    """A plan of two Pythons, in which upstream's tests run in several parts."""
    return planning.plan_dispatch(
        linux_amdgpu_families=FAMILY,
        windows_amdgpu_families="gfx1151",
        pytorch_python_versions="3.12;3.13t",
        pytorch_git_refs="nightly",
        build_variants="release;asan",
        test_type="full",
    )


def test_a_plan_keeps_its_json(plan: Plan, tmp_path: Path) -> None:
    plan.write(tmp_path / "plan.json")

    assert (tmp_path / "plan.json").read_text(encoding="utf-8") == stored_text("plan.json")
    assert Plan.read(STORED / "plan.json") == plan


def test_reads_an_older_plan_that_does_not_say_which_machines_are_hosted(plan: Plan) -> None:
    older_content = re.sub(r'\n *"hosted": (true|false),', "", stored_text("plan.json"))
    assert "hosted" not in older_content

    older_plan = Plan.model_validate_json(older_content)

    assert [job.key for job in older_plan.jobs] == [job.key for job in plan.jobs]


def test_the_outputs_of_a_plan_keep_their_json(plan: Plan) -> None:
    assert json.dumps(outputs(plan), indent=2) + "\n" == stored_text("plan-outputs.json")


# Releases


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> ReleaseDesk:
    """A desk that has promoted a family although a test of one Python failed."""
    desk_folder = tmp_path / "desk"
    desk_folder.mkdir()
    snapshots = Snapshots(desk_folder=desk_folder, kept_folder=tmp_path / "snapshots")
    release_desk = open_desk(snapshots, capsys)
    files = release_desk.publish(FAMILY, contents=RunContents(pythons=("cp312", "cp313")))
    runs.write_test_record(
        release_desk.run_store,
        release_desk.run,
        step="test_torch",
        files=files,
        family=FAMILY,
        python="cp313",
        failures=2,
    )
    assert release_desk.stage() == 0
    override = ("--override-by", "A. Person", "--override-reason", "The runner's driver is old.")
    assert release_desk.promote(*override) == 0
    return release_desk


def test_a_staging_record_keeps_its_json(desk: ReleaseDesk) -> None:
    assert masked(only_document(desk.bucket, "manifests/v2-staging")) == stored_text("staging-record.json")


def test_a_decision_keeps_its_json(desk: ReleaseDesk) -> None:
    content = only_document(desk.bucket, documents.DECISIONS)

    assert masked(content) == stored_text("decision.json")
    assert documents.serialized(desk.decision()) == content


def test_a_release_record_keeps_its_json(desk: ReleaseDesk) -> None:
    assert masked(only_document(desk.bucket, "manifests/v2/")) == stored_text("release-record.json")


# Reports


def write_builds(store: Store, run: RunOutputs, *, grown: int = 0) -> None:
    """Write the records of the builds of a group, and that of a failed build of another family."""
    ref = page_runs.REFS[0]
    facts = page_runs.make_run(("gfx942-gfx1100",), (ref,), ("cp313t",), run_id=run.run_id, grown=grown)
    for group in facts.groups:
        for record in group.records:
            records.write(store, run, group.name, record)

    failure = page_runs.make_record(
        "build_audio",
        "gfx1151",
        ref,
        "cp312",
        status="failed",
        exit_code=4,
        error="It broke.",
    )
    records.write(store, run, "gfx1151", failure)


@pytest.fixture
def report_options(tmp_path: Path) -> tuple[str, ...]:
    """The options that compare a run with the run before it, whose wheels were smaller."""
    store = DirectoryStore(tmp_path / "runs")
    write_builds(store, runs.run_outputs("16"))
    write_builds(store, runs.run_outputs("17"), grown=50_000_000)
    return ("--run-id", "17", "--store", store.url, "--against", "16", "--platform", "linux")


def test_a_report_keeps_its_json(report_options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_ci("report", "--json", *report_options) == 0

    assert capsys.readouterr().out == stored_text("report.json")


def test_a_history_keeps_its_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = DirectoryStore(tmp_path / "runs")
    write_builds(store, runs.run_outputs("17"))

    assert run_ci("report", "--history", "--json", "--store", store.url, "--platform", "linux") == 0

    assert capsys.readouterr().out == stored_text("history.json")
