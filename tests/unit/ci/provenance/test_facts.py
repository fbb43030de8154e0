from typing import Any

import pytest
from packageurl import PackageURL

from ci.__main__ import VERBS
from ci.provenance import facts
from core.cli.options import ROOT
from core.errors import DataError
from docs.command_tables import all_sessions
from tests.kit import provenance as samples
from tests.kit.page_runs import digest


def of(run: Any, name: str) -> facts.MadeFile:
    return next(one for one in facts.made_files(run) if one.file.name == name)


def material(made: facts.MadeFile, name: str) -> facts.Material:
    return next(one for one in made.materials if one.name == name)


def test_every_file_is_listed_once_by_name() -> None:
    found = facts.made_files(samples.run())
    expected = sorted(one.name for one in (samples.ROCM, samples.CORE, samples.TRITON, samples.TORCH))
    assert [one.file.name for one in found] == expected
    assert {one.by.record.stage for one in found} == {"build_rocm", "build_triton", "build_torch"}
    assert facts.made_files(samples.run(), "cpu") == ()
    apex = samples.file("apex-1.whl", "apex", "1")
    failed = samples.record("build_apex", apex, status="failed", exit_code=130)
    assert [one.file.name for one in facts.made_files(samples.run(failed))] == expected


def test_rocm_packages_come_from_a_commit_and_the_artifacts_that_were_fetched_for_them() -> None:
    made = of(samples.run(), samples.CORE.name)
    assert material(made, "rocm").digest == {"gitCommit": samples.ROCM_COMMIT}
    assert material(made, "blas_lib_gfx94X.tar.zst").digest == {"sha256": digest("blas")}
    fetched, built = samples.rocm_records()
    elsewhere = built.model_copy(update={"details": {**built.details, "artifact_dir": "/elsewhere"}})
    group = {samples.GROUP: (samples.recorded(fetched), samples.recorded(elsewhere))}
    other = of(facts.RunRecords(prefix=samples.OUTPUTS.prefix, groups=group), samples.CORE.name)
    assert "blas_lib_gfx94X.tar.zst" not in {one.name for one in other.materials}


def test_what_an_index_gave_has_a_version_and_no_digest() -> None:
    torch = samples.torch_record(
        rocm=["7.10.0", "split", "the release index"],
        dependencies={"triton": {"requirement": "triton==3.5.1"}, "torch": {"digest": digest("gone")}},
    )
    made = of(samples.run(torch=torch), samples.TORCH.name)
    assert material(made, "rocm").uri == "pkg:pypi/rocm@7.10.0"
    assert material(made, "rocm").annotations == {"from": "the release index"}
    assert material(made, "triton==3.5.1").uri == "pkg:pypi/triton@3.5.1"
    # a wheel that no record of the run names any more
    assert made.materials[-1] == facts.Material(name="torch", digest={"sha256": digest("gone")})


def test_of_two_records_a_build_counts_more_than_an_upload_and_later_bytes_more_than_earlier() -> None:
    upload = samples.record("upload-1", samples.TORCH, python="", ref="", started="2026-11-21T00:00:00+00:00")
    assert of(samples.run(upload), samples.TORCH.name).by.record.stage == "build_torch"
    other = samples.TORCH.model_copy(update={"sha256": digest("other")})
    replaced = upload.model_copy(update={"files": (other,)})
    made = of(samples.run(replaced), samples.TORCH.name)
    assert (made.by.record.stage, made.build_type, made.materials) == ("upload-1", "", ())


@pytest.mark.parametrize(
    ("inputs", "where"),
    [({"rocm": "7.1"}, "rocm"), ({"source": []}, "source"), ({"dependencies": {"torch": 3}}, "dependencies")],
)
def test_inputs_of_another_form_are_named(inputs: dict[str, Any], where: str) -> None:
    with pytest.raises(DataError, match=rf"build_torch-release-2\.10-cp312\.json, inputs: {where}"):
        facts.made_files(samples.run(torch=samples.torch_record(**inputs)))


def test_times_are_utc_to_the_second() -> None:
    record = samples.record("build_torch", started="2026-11-20T23:30:00+02:00", seconds=0.2)
    assert facts.times(samples.recorded(record)) == ("2026-11-20T21:30:00Z", "2026-11-20T21:30:01Z")
    with pytest.raises(DataError, match="'yesterday' is not a time"):
        facts.times(samples.recorded(record.model_copy(update={"started": "yesterday"})))


COMMIT = "1" * 40


def test_every_stage_that_makes_wheels_has_a_build_type_that_the_docs_explain() -> None:
    assert facts.names().build_types.keys() <= {one.name for one in all_sessions()}
    assert any(verb.name == "provenance" for verb in VERBS)
    page = (ROOT / "docs" / "provenance.md").read_text(encoding="utf-8")
    # GitHub's anchors: lower case, no punctuation, hyphens for spaces
    headings = {
        line.lstrip("# ").lower().replace("'", "").replace(" ", "-")
        for line in page.splitlines()
        if line.startswith("#")
    }
    for uri in (*facts.names().build_types.values(), facts.names().builders["local"]):
        address, _, anchor = uri.partition("#")
        assert address.endswith("/docs/provenance.md")
        assert anchor in headings


def test_a_package_url_is_one_that_others_read() -> None:
    written = facts.package_url(
        "rocm-sdk-core", "7.10.0a1+x.1", "rocm_sdk_core-7.10.0a1+x.1-py3-none-any.whl"
    )
    read = PackageURL.from_string(written)
    assert (read.type, read.name, read.version) == ("pypi", "rocm-sdk-core", "7.10.0a1+x.1")
    assert read.qualifiers == {"file_name": "rocm_sdk_core-7.10.0a1+x.1-py3-none-any.whl"}
    assert facts.package_url("torch", "") == "pkg:pypi/torch"


@pytest.mark.parametrize(
    ("origin", "uri"),
    [
        ("https://github.com/pytorch/pytorch", f"git+https://github.com/pytorch/pytorch@{COMMIT}"),
        ("https://me:secret@example.com:8443/a.git", f"git+https://example.com:8443/a.git@{COMMIT}"),
        ("ssh://git@example.com/a", f"git+ssh://example.com/a@{COMMIT}"),
        ("/home/dev/my torch", f"git+file:///home/dev/my%20torch@{COMMIT}"),
        ("sample:torch", f"sample:torch@{COMMIT}"),
    ],
)
def test_a_commit_has_a_uri_without_secrets(origin: str, uri: str) -> None:
    assert facts.commit_uri(origin, COMMIT) == uri
