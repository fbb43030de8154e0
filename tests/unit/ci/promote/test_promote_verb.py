"""`promote` and what repairs releases, through their verbs."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ci.promote import documents
from core.data import merged
from core.errors import DataError, FatalError, MissingInputError, ServiceError, UsageError
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
ROCM_SET = f"rocm-{runs.ROCM_VERSION}"
TORCH_SET = f"torch-{TORCH_VERSION}"
BOTH_PYTHONS = RunContents(pythons=("cp311", "cp312"))
BOTH_PYTHONS_UNTESTED = RunContents(pythons=("cp311", "cp312"), is_tested=False)
OVERRIDE = ("--override-by", "A. Person", "--override-reason", "The runner's driver is old.")


def staged_wheel(desk: ReleaseDesk, *, name: str, family: str = GFX94) -> str:
    """Return the key of a staged wheel by the beginning of its name."""
    prefix = f"v2-staging/{family}"
    keys = [stored_object.key for stored_object in desk.bucket.list(prefix, recursive=False)]
    return next(key for key in keys if key.startswith(f"{prefix}/{name}") and key.endswith(".whl"))


def fail_step(
    desk: ReleaseDesk, step: str, *, family: str, python: str = runs.PYTHON, error: str = "It broke."
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
    assert {ruling.rule for ruling in decision.rulings} == {"tests"}
    assert desk.bucket.list(documents.INTENTS) == []


def test_names_the_records_and_reports_that_a_decision_rests_on(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)

    assert desk.promote() == 0

    evidence = [document for ruling in desk.decision().rulings for document in ruling.evidence]
    assert {document.stage for document in evidence} == {"test_rocm", "test_smoke", "test_torch"}
    for document in evidence:
        assert desk.run_store.digest(document.record.key) == document.record.sha256
        assert document.report is not None
        assert desk.run_store.digest(document.report.key) == document.report.sha256


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
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    fail_step(desk, "test_smoke", family=GFX94, python="cp311", error="3 of 22 failed.\nAgain: nox")
    fail_step(desk, "build_audio", family=NO_RUNNER, python="cp312")
    deleted_key = staged_wheel(desk, name="torch-", family=GFX1151)
    desk.bucket.delete(deleted_key)

    error = desk.read_refusal()

    reasons = reasons_by_cell(error)
    assert any("test_smoke" in reason for reason in reasons[f"{GFX94}, Python 3.11, on linux"])
    assert any("3 of 22 failed." in reason for reason in reasons[f"{GFX94}, Python 3.11, on linux"])
    for distribution in (f"torch {TORCH_VERSION}", f"torchaudio {AUDIO_VERSION}"):
        assert any(distribution in reason for reason in reasons[f"{GFX1151}, Python 3.12, on linux"])
    assert deleted_key.rpartition("/")[2] in "".join(reasons[f"{GFX1151}, Python 3.11, on linux"])
    assert "build_audio" in "".join(reasons[f"{NO_RUNNER}, Python 3.12, on linux"])
    assert "no test_smoke" in "".join(reasons[f"{NO_RUNNER}, Python 3.11, on linux"])
    # Nobody can decide a lost wheel away, so no override is proposed.
    assert "--override-by" not in error


def reasons_by_cell(error: str) -> dict[str, list[str]]:
    """Return the reasons of a refusal by the cell they stand below."""
    reasons: dict[str, list[str]] = {}
    cell = ""
    for line in error.splitlines():
        if line.startswith("    "):
            reasons[cell].append(line.strip())
        elif line.startswith("  "):
            cell = line.strip().removesuffix(":")
            reasons[cell] = []
    return reasons


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


def test_reads_a_bypass_from_a_named_file(desk: ReleaseDesk, bypassing_data: Path) -> None:
    desk.stage_run(NO_RUNNER, contents=runs.UNTESTED)

    assert desk.promote("--config-file", str(bypassing_data), "--dry-run") == 0


def test_reads_a_bypass_from_the_file_of_the_environment(
    desk: ReleaseDesk, bypassing_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI_CONFIG", str(bypassing_data))
    desk.stage_run(NO_RUNNER, contents=runs.UNTESTED)

    assert desk.promote() == 0

    assert {ruling.rule for ruling in desk.decision().rulings} == {"bypass"}


def test_requires_the_tests_that_a_users_file_names(desk: ReleaseDesk, tmp_path: Path) -> None:
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
    desk: ReleaseDesk, tmp_path: Path, row: str, suggestion: str
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
def test_rejects_an_override_without_a_name_and_a_reason(desk: ReleaseDesk, options: tuple[str, ...]) -> None:
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
def test_rejects_a_staged_wheel_that_was_overwritten(desk: ReleaseDesk, options: tuple[str, ...]) -> None:
    desk.stage_run(GFX94)
    key = staged_wheel(desk, name="torch-2")
    desk.bucket.put_bytes(key, b"other bytes")

    error = desk.read_refusal(*options)

    assert key.rpartition("/")[2] in error
    assert "replaced" in error
    assert desk.has_released_nothing()


@pytest.mark.parametrize("options", [(), OVERRIDE], ids=["by tests", "by a person"])
def test_rejects_a_wheel_that_was_overwritten_together_with_its_staging_record(
    desk: ReleaseDesk, options: tuple[str, ...]
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


def build_torch_from(desk: ReleaseDesk, source: Mapping[str, Any]) -> None:
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
    desk: ReleaseDesk, source: dict[str, Any], reason: str
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
    desk: ReleaseDesk, inputs: dict[str, Any], details: dict[str, Any], reason: str
) -> None:
    files = desk.publish(GFX94)
    runs.write_test_record(
        desk.run_store, desk.run, step="test_smoke", files=files, inputs=inputs, details=details
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
    desk: ReleaseDesk, changes: dict[str, Any], field: str
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
def test_names_a_damaged_test_record_and_its_field(desk: ReleaseDesk, field: str, value: object) -> None:
    desk.stage_run(GFX94)
    key = change_test_record(desk, {"details": {"tests": {field: value}}})

    assert desk.promote() == DataError.exit_code

    error = desk.read_messages()
    assert key in error
    assert f"details.tests.{field}" in error
    assert desk.has_released_nothing()


@pytest.mark.parametrize("name", ["test_smoke", "test_rocm", "build_torch", "source-lock", "staging"])
def test_damaged_documents_end_in_no_internal_error(desk: ReleaseDesk, name: str) -> None:
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


def change_test_record(desk: ReleaseDesk, changes: dict[str, Any]) -> str:
    """Change fields of the record of a smoke test; return its key."""
    store, key = document_named(desk, "test_smoke")
    document = json.loads(store.read(key))
    store.put_bytes(key, json.dumps(merged(document, changes)).encode())
    return key


def document_named(desk: ReleaseDesk, name: str) -> tuple[Store, str]:
    """Return a document of the run or of staging, and the store that it is in."""
    if name == "staging":
        return desk.bucket, documents.staging_record_key(GFX94, "17-linux")
    for stored in desk.run_store.list("17-linux/manifests"):
        if stored.key.rpartition("/")[2].startswith(name):
            return desk.run_store, stored.key
    raise AssertionError(name)


def leaf_paths(document: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value of a JSON document that holds no others."""
    if isinstance(document, dict) and document:
        for name, value in document.items():
            yield from leaf_paths(value, (*path, name))
    elif isinstance(document, list) and document:
        yield from leaf_paths(document[0], (*path, 0))
    else:
        yield path


def replace_leaf(document: Any, path: tuple[str | int, ...], value: object) -> None:
    """Put another value in the place of one of a JSON document."""
    *outer_path, last_step = path
    for step in outer_path:
        document = document[step]
    document[last_step] = value


def test_rejects_a_test_whose_report_was_replaced(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)
    cell = group_cell(python_tag=runs.PYTHON, torch_ref=runs.TORCH_REF, gpu_family=GFX94)
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

    torch_file = next(file for file in files if file.distribution == "torch")
    assert f"tested {torch_file.name} with SHA-256 000000000000" in error
    assert f"{torch_file.sha256[:12]} is staged: test what is staged (--staged)" in error


def test_rejects_cells_that_were_built_from_different_commits(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)
    other_desk = desk.with_run("18")
    other_desk.publish(GFX1151)
    components = {"torch": runs.TORCH_BASE_VERSION, "audio": runs.AUDIO_BASE_VERSION}
    commits = dict.fromkeys(components, "b" * 40)
    runs.write_source_lock(desk.run_store, other_desk.run, base_versions=components, commits=commits)
    assert other_desk.stage() == 0

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


# Which cells, which version


@pytest.mark.parametrize(
    ("options", "cell", "distribution"),
    [
        (("--matrix", "release", "--platform", "linux"), "gfx950-dcgpu, on linux", "torch"),
        (("--matrix", "release", "--platform", "linux"), f"{GFX94}, Python 3.13, on linux", TORCH_VERSION),
        (("--gpu-family", f"{GFX94};gfx950-dcgpu"), "gfx950-dcgpu", TORCH_VERSION),
        (("--gpu-family", GFX94, "--pythons", "3.12,3.13"), f"{GFX94}, Python 3.13, on linux", TORCH_VERSION),
        (("--gpu-family", GFX94, "--platform", "windows"), "on windows", "torch"),
    ],
    ids=["family of a matrix", "Python of a matrix", "named family", "named Python", "named platform"],
)
def test_requires_every_cell_that_was_asked_for(
    desk: ReleaseDesk, options: tuple[str, ...], cell: str, distribution: str
) -> None:
    desk.stage_run(GFX94, GFX1151, contents=RunContents(torch_ref="nightly"))

    reasons = reasons_by_cell(desk.read_refusal(*options))

    assert any(distribution in reason for reason in reasons[cell])
    assert desk.has_released_nothing()


def test_accepts_a_set_with_every_cell_of_a_matrix(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94, GFX1151, contents=RunContents(torch_ref="nightly"))

    assert desk.promote("--matrix", "ci", "--platform", "linux", "--dry-run") == 0


def test_promotes_the_named_family_alone(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94, GFX1151)

    assert desk.promote("--gpu-family", GFX94, "--pythons", "3.12") == 0

    assert desk.released_wheels(GFX94)
    assert desk.bucket.list(f"v2/{GFX1151}") == []


def test_rejects_torch_without_the_rocm_packages_that_it_requires(desk: ReleaseDesk) -> None:
    desk.publish(GFX94)
    assert desk.stage("--distributions", "pytorch") == 0

    assert f"rocm[libraries]=={runs.ROCM_VERSION}" in desk.read_refusal()


def test_promotes_torch_on_rocm_packages_that_were_promoted_before(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)

    assert desk.promote("--rocm-version", runs.ROCM_VERSION) == 0
    assert desk.released_wheels(GFX94) == [f"rocm_sdk_core-{runs.ROCM_VERSION}-py3-none-linux_x86_64.whl"]

    assert desk.promote() == 0
    assert len(desk.released_wheels(GFX94)) == 3


def test_says_that_nothing_is_staged(desk: ReleaseDesk) -> None:
    assert desk.promote() == UsageError.exit_code
    assert "No torch versions are staged" in desk.read_messages()


@pytest.fixture
def desk_with_two_versions(desk: ReleaseDesk) -> ReleaseDesk:
    """Stage two versions of torch for one family."""
    desk.stage_run(GFX94)
    later_desk = desk.with_run("18")
    later_desk.publish(GFX94, contents=RunContents(rocm_version="7.10.0a20251121"))
    assert later_desk.stage() == 0
    desk.read_messages()
    return desk


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ((), UsageError, "2 torch versions"),
        (
            ("--torch-version", "2.10.0a0+rocm7.10.0a20251122"),
            MissingInputError,
            "Did you mean '2.10.0a0+rocm7.10.0a2025112",
        ),
        (("--torch-version", TORCH_VERSION, "--gpu-family", GFX1151), MissingInputError, GFX94),
        (("--torch-version", TORCH_VERSION, "--rocm-version", "7.10.0"), UsageError, "--rocm-version"),
    ],
    ids=["no version", "a version that is not staged", "a family without it", "two versions"],
)
def test_rejects_a_choice_among_several_versions_that_is_none(
    desk_with_two_versions: ReleaseDesk, options: tuple[str, ...], error: type[UsageError], words: str
) -> None:
    desk = desk_with_two_versions

    assert desk.promote(*options) == error.exit_code
    assert words in desk.read_messages()
    assert desk.has_released_nothing()


def test_promotes_the_named_one_of_several_versions(desk_with_two_versions: ReleaseDesk) -> None:
    desk = desk_with_two_versions

    assert desk.promote("--torch-version", TORCH_VERSION) == 0

    assert desk.decision().set_name == TORCH_SET


# Removing and yanking


def test_removing_a_set_changes_nothing_without_write(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94)
    objects_before = release_desk.etags_in(desk.bucket)

    assert desk.check_indexes("--remove", TORCH_SET) == 0

    assert release_desk.etags_in(desk.bucket) == objects_before
    assert "nothing is changed yet" in desk.read_messages()


def test_rejects_removing_a_set_that_was_never_released(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94)

    assert desk.check_indexes("--remove", "torch-2", "--write") == UsageError.exit_code
    assert f"Did you mean {TORCH_SET!r}?" in desk.read_messages()


def words_in_index(desk: ReleaseDesk, area: str, family: str) -> str:
    """Return the flat page and the keys of an index as one text."""
    page = desk.bucket.read(f"{area}/{family}/index.html").decode()
    keys = [stored_object.key for stored_object in desk.bucket.list(f"{area}/{family}")]
    return "\n".join([page, *keys])


def test_removes_a_set_from_the_release_index_and_from_staging(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94, GFX1151)

    assert desk.check_indexes("--remove", TORCH_SET, "--write") == 0
    assert desk.check_indexes() == 0

    messages = desk.read_messages()
    assert re.search(rf"{re.escape(TORCH_SET)} is removed, \d+ files; \d+ pages", messages)
    for family in (GFX94, GFX1151):
        released = words_in_index(desk, "v2", family)
        assert "torch" not in released
        assert "rocm_sdk_core" not in released
        staged = words_in_index(desk, "v2-staging", family)
        assert "torch" not in staged
        assert "rocm_sdk_core" in staged


def test_completes_a_removal_that_was_interrupted(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94, GFX1151)
    (record,) = desk.bucket.list(f"manifests/v2/{GFX94}")
    desk.bucket.delete(record.key)
    assert desk.check_indexes("--write") == 0

    assert desk.check_indexes("--remove", TORCH_SET, "--write") == 0
    assert desk.check_indexes() == 0

    for family in (GFX94, GFX1151):
        assert "torch" not in words_in_index(desk, "v2", family)


def test_says_which_rocm_packages_stay_staged_after_a_removal(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94)
    assert desk.check_indexes("--remove", TORCH_SET, "--write") == 0

    assert desk.promote() == UsageError.exit_code

    messages = desk.read_messages()
    assert "No torch versions are staged" in messages
    assert f"--rocm-version {runs.ROCM_VERSION}" in messages


def test_keeps_files_of_a_removed_set_that_another_set_has(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)
    assert desk.promote("--rocm-version", runs.ROCM_VERSION) == 0
    assert desk.promote() == 0

    assert desk.check_indexes("--remove", TORCH_SET, "--write") == 0

    released = words_in_index(desk, "v2", GFX94)
    assert "torch" not in released
    assert "rocm_sdk_core" in released


def test_removing_the_last_set_leaves_no_wheel(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)
    assert desk.promote("--rocm-version", runs.ROCM_VERSION) == 0
    assert desk.promote() == 0
    assert desk.check_indexes("--remove", TORCH_SET, "--write") == 0

    assert desk.check_indexes("--remove", ROCM_SET, "--write") == 0
    assert desk.check_indexes() == 0

    keys = [stored_object.key for stored_object in desk.bucket.list("")]
    assert [key for key in keys if key.endswith((".whl", ".tar.gz"))] == []


@pytest.mark.parametrize(
    "options",
    [
        ("--yank", f"torch=={TORCH_VERSION}", "--write"),
        ("--yank", "torch==2", "--reason", "x"),
    ],
    ids=["no reason", "a version that was never released"],
)
def test_rejects_a_yank_without_a_reason_or_a_released_version(
    desk: ReleaseDesk, options: tuple[str, ...]
) -> None:
    desk.promote_run(GFX94)
    objects_before = release_desk.etags_in(desk.bucket)

    assert desk.check_indexes(*options) == UsageError.exit_code
    assert release_desk.etags_in(desk.bucket) == objects_before


def test_proposes_the_released_version_for_a_yank(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94)

    desk.check_indexes("--yank", "torch==2", "--reason", "x")

    assert f"Did you mean 'torch=={TORCH_VERSION}'?" in desk.read_messages()


def test_yanks_a_version_in_every_index_that_has_it(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94, GFX1151)
    requirement = f"torch=={TORCH_VERSION}"

    # The second reason takes the place of the first, and is text in a page.
    for reason in ("wrong sums", "wrong <results>"):
        assert desk.check_indexes("--yank", requirement, "--reason", reason, "--write") == 0
        assert f"{requirement} is yanked" in desk.read_messages()

    for family in (GFX94, GFX1151):
        page = desk.bucket.read(f"v2/{family}/simple/torch/index.html").decode()
        assert 'data-yanked="wrong &lt;results&gt;"' in page
        assert desk.bucket.list(f"v2-staging/{family}/yanked.json") == []
    assert desk.check_indexes() == 0
