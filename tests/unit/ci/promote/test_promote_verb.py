"""`promote`: what it promotes and refuses, through its verb."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ci.promote import documents
from core.data import merge_tables
from core.errors import DataError, FatalError, ServiceError, UsageError
from core.run import key_name, records
from core.stores import Store
from tests.kit import release_desk, runs
from tests.kit.front_doors import run_ci
from tests.kit.group_cells import group_cell
from tests.kit.release_desk import ReleaseDesk
from tests.kit.runs import RunContents

GFX94, GFX1151, NO_RUNNER = "gfx94X-dcgpu", "gfx1151", "gfx900-dgpu"
TORCH_VERSION = runs.torch_version()
AUDIO_VERSION = runs.audio_version()
BOTH_PYTHONS = RunContents(pythons=("cp311", "cp312"))
BOTH_PYTHONS_UNTESTED = RunContents(pythons=("cp311", "cp312"), is_tested=False)
OVERRIDE = ("--override-by", "A. Person", "--override-reason", "The runner's driver is old.")


def staged_wheel(
    desk: ReleaseDesk,
    *,
    name: str,
    family: str = GFX94,
) -> str:
    """Return the key of a staged wheel by the beginning of its name."""
    prefix = f"v2-staging/{family}"
    (key,) = [
        key for key in release_desk.keys_in(desk.bucket, prefix) if re.fullmatch(f"{prefix}/{name}.*whl", key)
    ]
    return key


def fail_step(
    desk: ReleaseDesk,
    step: str,
    *,
    family: str,
    python: str = runs.PYTHON,
    error: str = "It broke.",
) -> None:
    """Leave the record of a step that failed."""
    runs.write_record(
        desk.run_store,
        desk.run,
        step=step,
        family=family,
        python=python,
        torch_ref=runs.TORCH_REF,
        error=error,
    )


# Promotion


def test_promotes_every_file_with_its_metadata_and_lists_it(desk: ReleaseDesk) -> None:
    files = desk.stage_run(GFX94, GFX1151, contents=BOTH_PYTHONS)

    assert desk.promote() == 0

    assert len(files) == 12
    for file in files:
        family = file.key.split("/")[2]
        page = desk.bucket.read(f"v2/{family}/index.html").decode()
        assert file.sha256 in page
        assert desk.bucket.digest(f"v2/{family}/{file.name}") == file.sha256
        if file.metadata_sha256:
            assert desk.bucket.digest(f"v2/{family}/{file.name}.metadata") == file.metadata_sha256
    for family in (GFX94, GFX1151):
        assert len(desk.released_wheels(family)) == 5


def test_leaves_a_decision_that_rests_on_the_tests(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94, GFX1151)

    assert desk.promote() == 0

    decision = desk.decision()
    assert decision.status == "promoted"
    assert decision.release_type == "nightly"
    assert decision.by == "the release job"
    assert len(decision.files) == 8
    assert desk.rules() == {"tests"}
    assert desk.bucket.list(documents.INTENTS) == []


def test_names_the_records_and_reports_that_a_decision_rests_on(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)

    assert desk.promote() == 0

    steps: set[str] = set()
    for ruling in desk.decision().rulings:
        for evidence in ruling.evidence:
            steps.add(evidence.stage)
            assert desk.run_store.digest(evidence.record.key) == evidence.record.sha256
            assert evidence.report is not None
            assert desk.run_store.digest(evidence.report.key) == evidence.report.sha256
    assert steps == {"test_rocm", "test_smoke", "test_torch"}


def test_changes_nothing_where_a_set_was_promoted_before(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94)
    objects_before = desk.bucket.list("")

    assert desk.promote() == 0

    assert desk.bucket.list("") == objects_before
    assert "already promoted by the release job" in desk.read_messages()


def test_dry_run_shows_the_decision_and_the_files(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)

    assert desk.promote("--dry-run") == 0

    messages = desk.read_messages()
    assert desk.has_released_nothing()
    assert re.search(rf"{GFX94} +linux +cp312 +2 +tests +test_smoke", messages)
    assert f"v2/{GFX94}/torch-{TORCH_VERSION}-cp312-cp312-linux_x86_64.whl" in messages
    assert "4 files" in messages


def test_a_dry_run_says_that_it_needs_the_bucket_which_it_cannot_read(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Nothing listens there.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")

    exit_code = run_ci("promote", "--release-type", "nightly", "--dry-run")

    assert exit_code == ServiceError.exit_code
    message = capsys.readouterr().err
    assert "s3://therock-nightly-python/manifests/v2-staging cannot be reached" in message
    assert "A dry run writes nothing, and still reads the bucket" in message


def test_dry_run_says_that_a_set_was_promoted_before(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94)

    assert desk.promote("--dry-run") == 0

    assert "already promoted" in desk.read_messages()


# Refusals


def test_names_every_reason_at_once_cell_by_cell(desk: ReleaseDesk) -> None:
    desk.publish(GFX94, contents=BOTH_PYTHONS)
    desk.publish(GFX1151, contents=RunContents(pythons=("cp311",)))
    desk.publish(NO_RUNNER, contents=BOTH_PYTHONS_UNTESTED)
    assert desk.stage() == 0
    fail_step(
        desk,
        "test_smoke",
        family=GFX94,
        python="cp311",
        error="3 of 22 failed.\nAgain: nox",
    )
    fail_step(desk, "build_audio", family=NO_RUNNER, python="cp312")
    deleted_key = staged_wheel(desk, name="torch-", family=GFX1151)
    desk.bucket.delete(deleted_key)

    error = desk.read_refusal()

    reasons = release_desk.reasons_by_cell(error)
    assert "test_smoke" in "".join(reasons[f"{GFX94}, Python 3.11, on linux"])
    assert "3 of 22 failed." in "".join(reasons[f"{GFX94}, Python 3.11, on linux"])
    for distribution in (f"torch {TORCH_VERSION}", f"torchaudio {AUDIO_VERSION}"):
        assert distribution in "".join(reasons[f"{GFX1151}, Python 3.12, on linux"])
    assert deleted_key.rpartition("/")[2] in "".join(reasons[f"{GFX1151}, Python 3.11, on linux"])
    assert "build_audio" in "".join(reasons[f"{NO_RUNNER}, Python 3.12, on linux"])
    assert "no test_smoke" in "".join(reasons[f"{NO_RUNNER}, Python 3.11, on linux"])
    # Nobody can decide a lost wheel away, so no override is proposed.
    assert "--override-by" not in error


def test_releases_nothing_where_one_cell_fails(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94, GFX1151)
    fail_step(desk, "test_smoke", family=GFX94)

    desk.read_refusal()

    assert desk.has_released_nothing()


def test_proposes_an_override_for_a_family_without_a_machine(desk: ReleaseDesk) -> None:
    desk.stage_run(NO_RUNNER, contents=runs.UNTESTED)

    error = desk.read_refusal()

    assert re.search(r"python -m ci promote .+ --override-by NAME --override-reason TEXT\n", error)
    assert desk.has_released_nothing()


@pytest.fixture
def bypassing_data(tmp_path: Path) -> Path:
    """Write a file that lets a family without a machine go out untested."""
    path = tmp_path / "mine.toml"
    path.write_text(f"[runners.families.{NO_RUNNER}.linux]\nbypass_tests_for_releases = true\n")
    return path


def test_reads_a_bypass_from_a_named_file(
    desk: ReleaseDesk,
    bypassing_data: Path,
) -> None:
    desk.stage_run(NO_RUNNER, contents=runs.UNTESTED)

    assert desk.promote("--config-file", str(bypassing_data), "--dry-run") == 0


def test_reads_a_bypass_from_the_file_of_the_environment(
    desk: ReleaseDesk,
    bypassing_data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI_CONFIG", str(bypassing_data))
    desk.stage_run(NO_RUNNER, contents=runs.UNTESTED)

    assert desk.promote() == 0

    assert desk.rules() == {"bypass"}


def test_requires_the_tests_that_a_users_file_names(
    desk: ReleaseDesk,
    tmp_path: Path,
) -> None:
    desk.stage_run(GFX1151)
    path = tmp_path / "mine.toml"
    path.write_text(
        "[[promotion.required]]\n"
        'platforms = ["linux"]\n'
        'release_types = ["nightly"]\n'
        'stage = "test_torch_distributed"\n'
    )

    assert "test_torch_distributed" in desk.read_refusal("--config-file", str(path))
    assert desk.has_released_nothing()


@pytest.mark.parametrize(
    ("row", "suggestion"),
    [('platform = ["linux"]', "'platforms'"), ('families = ["gfx1511"]', "'gfx1151'")],
    ids=["unknown criterion", "unknown family"],
)
def test_rejects_a_users_gate_with_a_misspelt_word(
    desk: ReleaseDesk,
    tmp_path: Path,
    row: str,
    suggestion: str,
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'[[promotion.required]]\nstage = "test_torch"\n{row}\n')
    desk.stage_run(GFX1151)

    assert desk.promote("--config-file", str(path)) == DataError.exit_code
    assert f"Did you mean {suggestion}" in desk.read_messages()
    assert desk.has_released_nothing()


@pytest.mark.parametrize(
    "options",
    [
        ("--override-by", "A. Person"),
        ("--override-reason", "because"),
        ("--override-by", " ", "--override-reason", "because"),
    ],
    ids=["no reason", "no name", "empty name"],
)
def test_rejects_an_override_without_a_name_and_a_reason(
    desk: ReleaseDesk,
    options: tuple[str, ...],
) -> None:
    desk.stage_run(GFX94)
    fail_step(desk, "test_smoke", family=GFX94)

    assert desk.promote(*options) == UsageError.exit_code
    assert desk.has_released_nothing()


def test_records_who_overrode_a_failed_test_and_why(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94, contents=BOTH_PYTHONS)
    fail_step(desk, "test_smoke", family=GFX94, python="cp311")

    assert desk.promote(*OVERRIDE) == 0

    decision = desk.decision()
    (overridden,) = [ruling for ruling in decision.rulings if ruling.rule == "override"]
    assert decision.override == documents.Override(by="A. Person", reason="The runner's driver is old.")
    assert overridden.python == "cp311"
    assert "test_smoke" in "".join(overridden.overridden)


@pytest.mark.parametrize("options", [(), OVERRIDE], ids=["by tests", "by a person"])
def test_rejects_a_staged_wheel_that_was_overwritten(
    desk: ReleaseDesk,
    options: tuple[str, ...],
) -> None:
    desk.stage_run(GFX94)
    key = staged_wheel(desk, name="torch-2")
    desk.bucket.put_bytes(key, b"other bytes")

    error = desk.read_refusal(*options)

    assert key.rpartition("/")[2] in error
    assert "replaced" in error
    assert desk.has_released_nothing()


@pytest.mark.parametrize("options", [(), OVERRIDE], ids=["by tests", "by a person"])
def test_rejects_a_wheel_that_was_overwritten_together_with_its_staging_record(
    desk: ReleaseDesk,
    options: tuple[str, ...],
) -> None:
    # Whoever can write a wheel can write the staging record, too; the run's own records disagree.
    desk.stage_run(GFX94)
    key = staged_wheel(desk, name="torch-2")
    desk.bucket.put_bytes(key, b"other bytes")
    record_key = documents.staging_record_key(GFX94, "17-linux")
    document = json.loads(desk.bucket.read(record_key))
    for file in document["files"]:
        if file["key"] == key:
            file["sha256"] = desk.bucket.digest(key)
            file["size"] = len(b"other bytes")
    desk.bucket.put_bytes(record_key, json.dumps(document).encode())

    error = desk.read_refusal(*options)

    assert key.rpartition("/")[2] in error
    assert "records" in error
    assert desk.has_released_nothing()


def build_torch_from(
    desk: ReleaseDesk,
    source: Mapping[str, Any],
) -> None:
    """Change what the record of torch's build says of its source."""
    key = desk.run.record_key(GFX94, key_name(f"build_torch-{runs.TORCH_REF}-{runs.PYTHON}"))
    record = json.loads(desk.run_store.read(key))
    record["details"] = {"source": {"tree": "/mine", "commit": "a" * 40, **source}}
    desk.run_store.put_bytes(key, json.dumps(record).encode())


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"diff": "d" * 64, "edited": 2}, "2 files differ"),
        ({"diff": "", "edited": 0, "commit": "b" * 40}, "bbbbbbbbbbbb"),
    ],
    ids=["edited", "another commit"],
)
def test_rejects_a_build_from_an_edited_tree_whoever_decides(
    desk: ReleaseDesk,
    source: dict[str, Any],
    reason: str,
) -> None:
    desk.stage_run(GFX94)
    build_torch_from(desk, source)

    assert reason in desk.read_refusal(*OVERRIDE)


def test_accepts_a_build_from_an_unchanged_tree(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)
    build_torch_from(desk, {"diff": "", "edited": 0, "commit": "a" * 40})

    assert desk.promote() == 0


@pytest.mark.parametrize(
    ("inputs", "details", "reason"),
    [
        ({"installed": False}, {}, "held already"),
        ({"arguments": ["--pytorch-dir", "/mine"]}, {}, "--pytorch-dir /mine"),
        ({}, {"tests": runs.count_tests(1, existing=91)}, "1 of 91"),
        ({}, {"tests": runs.count_tests(91, skipped=90, unexplained=90)}, "90 of 91"),
        ({}, {"tests": {"tests": 1, "failures": 0}}, "which tests exist"),
        ({}, {"left_out": "59 of 60 test files did not run"}, "59 of 60 test files"),
        ({"gpu": []}, {}, "without a GPU"),
        ({}, {"report": {"key": "17-linux/reports/nowhere.xml", "sha256": "0" * 64}}, "is gone"),
        ({}, {"report": None}, "names no report"),
        ({}, {"tests": runs.count_tests(3, skipped=3)}, "no test passed"),
        ({}, {"tests": runs.count_tests(3, failures=1)}, "1 tests failed"),
        ({}, {"tests": None}, "no totals"),
        ({"files": {}}, {}, "names no torch-2"),
    ],
    ids=[
        "tested what was installed already",
        "tested another checkout",
        "few tests ran",
        "most tests were skipped",
        "unknown number of tests",
        "left files out",
        "no GPU",
        "its report is gone",
        "no report",
        "every test was skipped",
        "a test failed",
        "no totals",
        "names no wheel",
    ],
)
def test_rejects_a_test_that_proves_nothing(
    desk: ReleaseDesk,
    inputs: dict[str, Any],
    details: dict[str, Any],
    reason: str,
) -> None:
    files = desk.publish(GFX94)
    runs.write_test_record(
        desk.run_store,
        desk.run,
        step="test_smoke",
        files=files,
        inputs=inputs,
        details=details,
    )
    assert desk.stage() == 0

    error = desk.read_refusal()

    assert "test_smoke" in error
    assert reason in error
    assert desk.has_released_nothing()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        pytest.param({"run_id": "18"}, "run_id", id="another run's id"),
        pytest.param({"started": "9999-12-31T23:59:59+00:00"}, "started", id="the year 9999"),
        pytest.param({"inputs": {"gpu": ["gfx1151"]}}, "inputs.gpu", id="another family's GPU"),
        pytest.param({"inputs": {"gpu": None}}, "inputs.gpu", id="no GPU"),
    ],
)
def test_rejects_a_test_record_that_cannot_be_of_this_run(
    desk: ReleaseDesk,
    changes: dict[str, Any],
    field: str,
) -> None:
    desk.publish(GFX94)
    key = change_test_record(desk, changes)
    assert desk.stage() == 0

    error = desk.read_refusal()

    assert key in error
    assert f"'{field}'" in error
    assert "run the test again" in error
    assert desk.has_released_nothing()


@pytest.mark.parametrize("value", [None, "3", -1, float("inf")])
@pytest.mark.parametrize("field", ["tests", "failures", "skipped"])
def test_names_a_damaged_test_record_and_its_field(
    desk: ReleaseDesk,
    field: str,
    value: object,
) -> None:
    desk.stage_run(GFX94)
    key = change_test_record(desk, {"details": {"tests": {field: value}}})

    assert desk.promote() == DataError.exit_code

    error = desk.read_messages()
    assert key in error
    assert f"details.tests.{field}" in error
    assert desk.has_released_nothing()


@pytest.mark.parametrize("name", ["test_smoke", "test_rocm", "build_torch", "source-lock", "staging"])
def test_damaged_documents_end_in_no_internal_error(
    desk: ReleaseDesk,
    name: str,
) -> None:
    desk.stage_run(GFX94)
    store, key = document_named(desk, name)
    content = store.read(key)
    damage: Iterator[object] = itertools.cycle([None, "text", -1, float("inf"), [], {}])

    for path in leaf_paths(json.loads(content)):
        document = json.loads(content)
        replace_leaf(document, path, next(damage))
        store.put_bytes(key, json.dumps(document).encode())

        exit_code = desk.promote("--dry-run")

        assert exit_code != FatalError.exit_code, (path, desk.read_messages())


def change_test_record(
    desk: ReleaseDesk,
    changes: dict[str, Any],
) -> str:
    """Change fields of the record of a smoke test; return its key."""
    store, key = document_named(desk, "test_smoke")
    document = json.loads(store.read(key))
    store.put_bytes(key, json.dumps(merge_tables(document, changes)).encode())
    return key


def document_named(
    desk: ReleaseDesk,
    name: str,
) -> tuple[Store, str]:
    """Return a document of the run or of staging, and the store that it is in."""
    if name == "staging":
        return desk.bucket, documents.staging_record_key(GFX94, "17-linux")
    for stored in desk.run_store.list("17-linux/manifests"):
        if stored.key.rpartition("/")[2].startswith(name):
            return desk.run_store, stored.key
    raise AssertionError(name)


def leaf_paths(
    document: object,
    path: tuple[str | int, ...] = (),
) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value of a JSON document that holds no others."""
    if isinstance(document, dict) and document:
        for name, value in document.items():
            yield from leaf_paths(value, (*path, name))
    elif isinstance(document, list) and document:
        yield from leaf_paths(document[0], (*path, 0))
    else:
        yield path


def replace_leaf(
    document: Any,
    path: tuple[str | int, ...],
    value: object,
) -> None:
    """Put another value in the place of one of a JSON document."""
    *outer_path, last_step = path
    for step in outer_path:
        document = document[step]
    document[last_step] = value


def test_rejects_a_test_whose_report_was_replaced(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)
    cell = group_cell(
        python_tag=runs.PYTHON,
        torch_ref=runs.TORCH_REF,
        gpu_family=GFX94,
    )
    report = f"{records.record_name('test_smoke', cell)}.xml"
    desk.run_store.put_bytes(f"{desk.run.reports_prefix(GFX94)}/{report}", b"<testsuites/>")

    error = desk.read_refusal()

    assert report in error
    assert "replaced" in error


def test_rejects_a_test_of_other_bytes(desk: ReleaseDesk) -> None:
    files = desk.stage_run(GFX94)
    other_files = [file.model_copy(update={"sha256": "0" * 64}) for file in files]
    runs.write_test_record(desk.run_store, desk.run, step="test_smoke", files=other_files)

    error = desk.read_refusal()

    torch_file = release_desk.by_distribution(files)["torch"]
    assert f"tested {torch_file.name} with SHA-256 000000000000" in error
    assert f"{torch_file.sha256[:12]} is staged: test what is staged (--staged)" in error


COMPONENTS = {"torch": runs.TORCH_BASE_VERSION, "audio": runs.AUDIO_BASE_VERSION}
OTHER_COMMITS = dict.fromkeys(COMPONENTS, "b" * 40)


def test_rejects_cells_that_were_built_from_different_commits(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)
    other_desk = desk.with_run("18")
    other_desk.publish(GFX1151)
    runs.write_source_lock(desk.run_store, other_desk.run, base_versions=COMPONENTS, commits=OTHER_COMMITS)
    assert other_desk.stage() == 0

    error = desk.read_refusal()

    assert "aaaaaaaaaaaa" in error
    assert "bbbbbbbbbbbb" in error
    assert desk.has_released_nothing()


def test_rejects_pythons_that_two_runs_built_from_different_commits(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)
    other_desk = desk.with_run("18")
    other_desk.publish(GFX94, contents=runs.RunContents(pythons=("cp313",)))
    runs.write_source_lock(desk.run_store, other_desk.run, base_versions=COMPONENTS, commits=OTHER_COMMITS)
    assert other_desk.stage() == 0

    error = desk.read_refusal()

    assert "aaaaaaaaaaaa" in error
    assert "bbbbbbbbbbbb" in error
    assert desk.has_released_nothing()


def test_rejects_pythons_that_two_refs_built_from_different_commits(desk: ReleaseDesk) -> None:
    other_ref = "release/2.10"
    desk.publish(GFX94)
    desk.publish(GFX94, contents=runs.RunContents(pythons=("cp313",), torch_ref=other_ref))
    runs.write_source_lock(
        desk.run_store,
        desk.run,
        torch_ref=other_ref,
        base_versions=COMPONENTS,
        commits=OTHER_COMMITS,
    )
    assert desk.stage() == 0

    error = desk.read_refusal()

    assert "aaaaaaaaaaaa" in error
    assert "bbbbbbbbbbbb" in error
    assert desk.has_released_nothing()


def test_rejects_a_run_whose_records_are_gone(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)
    for stored_object in desk.run_store.list("17-linux/manifests"):
        desk.run_store.delete(stored_object.key)

    error = desk.read_refusal()

    assert "run 17" in error
    assert desk.run_store.url in error
    assert desk.has_released_nothing()
