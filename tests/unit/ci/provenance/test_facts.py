"""What a run's records say of each file: which step made it, and from what."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from packageurl import PackageURL

from ci.provenance import facts
from ci.provenance.facts import ResourceDescriptor, RunFile, RunRecords, materials_of
from core.cli.options import ROOT
from core.errors import DataError
from core.run.records import FileRecord
from tests.kit import provenance as samples
from tests.kit.provenance import digest_of

COMMIT = "1" * 40


Materials = Mapping[str, ResourceDescriptor]


def find_file(run: RunRecords, file: FileRecord) -> RunFile:
    """Return a file of the run with its record."""
    files = {run_file.file.name: run_file for run_file in facts.run_files(run)}
    return files[file.name]


def read_materials(run: RunRecords, file: FileRecord) -> Materials:
    """Return what a file of the run was made from, by name."""
    return {material.name: material for material in materials_of(run, find_file(run, file))}


# Files and the steps that made them


def test_lists_every_file_once_by_name() -> None:
    run_files = facts.run_files(samples.run_records())

    files = (samples.ROCM, samples.CORE, samples.TRITON, samples.TORCH)
    assert [run_file.file.name for run_file in run_files] == sorted(file.name for file in files)
    assert {run_file.record.stage for run_file in run_files} == {
        "build_rocm",
        "build_triton",
        "build_torch",
    }


def test_lists_no_file_of_another_group() -> None:
    assert facts.run_files(samples.run_records(), "cpu") == ()


def test_lists_no_file_of_a_failed_step() -> None:
    run = samples.run_records(samples.apex_record(status="failed"))

    assert [run_file.file.name for run_file in facts.run_files(run)] == [
        run_file.file.name for run_file in facts.run_files(samples.run_records())
    ]


def test_prefers_a_build_to_an_upload_of_the_same_bytes() -> None:
    upload = samples.step_record("upload-1", samples.TORCH, python="", torch_ref="")

    assert find_file(samples.run_records(upload), samples.TORCH).record.stage == "build_torch"


def test_prefers_later_bytes_to_a_build_of_earlier_ones() -> None:
    other_bytes = samples.TORCH.model_copy(update={"sha256": digest_of("other")})
    upload = samples.step_record(
        "upload-1",
        other_bytes,
        python="",
        torch_ref="",
        started="2026-11-21T00:00:00+00:00",
    )

    run = samples.run_records(upload)
    run_file = find_file(run, samples.TORCH)

    assert run_file.record.stage == "upload-1"
    assert run_file.build_type is None
    assert materials_of(run, run_file) == ()


# Materials


def test_rocm_packages_come_from_a_commit_and_the_artifacts_that_were_fetched_for_them() -> None:
    materials = read_materials(samples.run_records(), samples.CORE)

    assert materials["rocm"].digest == {"gitCommit": samples.ROCM_COMMIT}
    assert materials[samples.ARTIFACT].digest == {"sha256": digest_of("blas")}


def test_names_no_artifacts_that_were_fetched_into_another_folder() -> None:
    built_elsewhere = samples.rocm_record(artifact_folder="/elsewhere")
    records = tuple(samples.recorded(record) for record in (samples.fetch_record(), built_elsewhere))
    run = RunRecords(prefix=samples.RUN.prefix, groups={samples.GROUP: records})

    assert samples.ARTIFACT not in read_materials(run, samples.CORE)


@pytest.fixture
def torch_from_indexes() -> Materials:
    """Return the materials of a torch whose dependencies no build of the run made."""
    inputs = {
        "rocm": ["7.10.0", "split", "the release index"],
        "dependencies": {"triton": {"requirement": "triton==3.5.1"}, "torch": {"digest": digest_of("gone")}},
    }
    run = samples.run_records(torch=samples.torch_record(inputs))
    return read_materials(run, samples.TORCH)


def test_names_packages_of_an_index_by_version(torch_from_indexes: Materials) -> None:
    rocm = torch_from_indexes["rocm"]

    assert rocm.uri == "pkg:pypi/rocm@7.10.0"
    assert rocm.annotations == {"from": "the release index"}
    assert torch_from_indexes["triton==3.5.1"].uri == "pkg:pypi/triton@3.5.1"


def test_names_a_wheel_that_no_record_names_by_its_digest(torch_from_indexes: Materials) -> None:
    expected = ResourceDescriptor(name="torch", digest={"sha256": digest_of("gone")})
    assert torch_from_indexes["torch"] == expected


@pytest.mark.parametrize(
    ("inputs", "key"),
    [({"rocm": "7.1"}, "rocm"), ({"source": []}, "source"), ({"dependencies": {"torch": 3}}, "dependencies")],
)
def test_names_the_inputs_of_a_record_that_it_cannot_read(
    inputs: dict[str, Any],
    key: str,
) -> None:
    run = samples.run_records(torch=samples.torch_record(inputs))

    with pytest.raises(DataError) as raised:
        read_materials(run, samples.TORCH)

    assert "build_torch-release-2.10-cp312.json" in raised.value.message
    assert f"inputs: {key}" in raised.value.message


# Times, names and addresses


def test_gives_times_in_utc_to_the_second() -> None:
    record = samples.step_record("build_torch", started="2026-11-20T23:30:00+02:00", seconds=0.2)

    assert facts.times(samples.recorded(record)) == ("2026-11-20T21:30:00Z", "2026-11-20T21:30:01Z")


def test_rejects_a_time_that_is_none() -> None:
    record = samples.step_record("build_torch", started="yesterday")

    with pytest.raises(DataError, match="'yesterday'"):
        facts.times(samples.recorded(record))


@pytest.mark.parametrize(
    ("step", "build_type"),
    [
        ("build_rocm", facts.ROCM_BUILD_TYPE),
        ("build_torch", facts.PYTORCH_BUILD_TYPE),
        ("build_apex", facts.PYTORCH_BUILD_TYPE),
        ("upload-0123", None),
        ("test_rocm", None),
    ],
)
def test_only_our_own_builds_have_a_build_type(step: str, build_type: str | None) -> None:
    stored_record = samples.recorded(samples.step_record(step))
    run_file = facts.RunFile(group=samples.GROUP, file=samples.TORCH, stored_record=stored_record)

    assert run_file.build_type == build_type


@pytest.mark.parametrize("uri", [facts.ROCM_BUILD_TYPE, facts.PYTORCH_BUILD_TYPE, facts.LOCAL_BUILDER])
def test_the_docs_explain_every_build_type_and_builder(uri: str) -> None:
    page = (ROOT / "docs" / "provenance.md").read_text(encoding="utf-8")
    headings = [line.lstrip("# ") for line in page.splitlines() if line.startswith("#")]
    # GitHub's anchors: lower case, no punctuation, hyphens for spaces.
    anchors = [heading.lower().replace("'", "").replace(" ", "-") for heading in headings]

    address, _, anchor = uri.partition("#")

    assert address.endswith("/docs/provenance.md")
    assert anchor in anchors


def test_writes_a_package_url_that_others_read() -> None:
    filename = "rocm_sdk_core-7.10.0a1+x.1-py3-none-any.whl"

    url = PackageURL.from_string(facts.package_url("rocm-sdk-core", "7.10.0a1+x.1", filename))

    assert (url.type, url.name, url.version) == ("pypi", "rocm-sdk-core", "7.10.0a1+x.1")
    assert url.qualifiers == {"file_name": filename}


def test_writes_a_package_url_without_a_version() -> None:
    assert facts.package_url("torch", "") == "pkg:pypi/torch"


@pytest.mark.parametrize(
    ("origin", "uri"),
    [
        ("https://github.com/pytorch/pytorch", f"git+https://github.com/pytorch/pytorch@{COMMIT}"),
        ("https://me:secret@example.com:8443/a.git", f"git+https://example.com:8443/a.git@{COMMIT}"),
        ("ssh://git@example.com/a", f"git+ssh://example.com/a@{COMMIT}"),
        ("/home/dev/my torch", f"git+file:///home/dev/my%20torch@{COMMIT}"),
        ("C:\\dev\\my torch", f"git+file:///C:/dev/my%20torch@{COMMIT}"),
        ("sample:torch", f"sample:torch@{COMMIT}"),
    ],
    ids=["https", "with a password", "ssh", "folder", "folder of Windows", "sample"],
)
def test_names_a_commit_by_an_address_without_secrets(
    origin: str,
    uri: str,
) -> None:
    assert facts.commit_uri(origin, COMMIT) == uri


# The sources that a statement names


def read_locks(*, locked_commit: str) -> Sequence[ResourceDescriptor]:
    """Return the source locks that torch was made from, where the run's lock holds a commit."""
    run = replace(samples.run_records(), locks={samples.TORCH_REF: samples.locked(commit=locked_commit)})
    materials = read_materials(run, samples.TORCH).values()
    return [material for material in materials if "source-lock" in material.name]


def test_a_statement_names_the_source_lock_with_its_digest() -> None:
    _, document = samples.locked()

    (lock,) = read_locks(locked_commit=samples.TORCH_COMMIT)

    assert lock.digest == {"sha256": document.sha256}


def test_a_statement_does_not_name_a_source_lock_that_holds_another_commit() -> None:
    assert read_locks(locked_commit="f" * 40) == []
