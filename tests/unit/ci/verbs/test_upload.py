import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.publish import wheels
from ci.publish.folders import Digests
from ci.verbs import index, upload
from ci.verbs.upload import Folders
from core.archive import Member
from core.cli import options
from core.cli.options import Common
from core.errors import MissingInputError, StoreError, UsageError, WheelError
from core.run import RunOutputs, records
from core.run.job_files import JobFiles
from core.run.records import Cell, FileRecord, Record
from core.stores import Store
from core.stores.directory import DirectoryStore
from core.wheel import distributions
from core.wheel.writer import WheelSpec, write_wheel
from tests.conftest import MakeWheel
from tests.kit.front_doors import run_ci
from tests.unit.ci.conftest import Lab


def everything(store: Store) -> Sequence[tuple[str, str]]:
    return [(one.key, store.digest(one.key)) for one in store.list("")]


def upload_folder(common: Common, folder: Path, group: str) -> Sequence[FileRecord]:
    return upload.upload_folders(common, Folders(wheels=folder), group)[group]


def upload_group(common: Common, store: Store, group: str) -> Sequence[FileRecord]:
    source = wheels.Source(store=store, outputs=replace(common, store="out").outputs)
    return wheels.upload_group(common, source, group)


def test_other_bytes_in_an_immutable_run_are_refused_before_anything_is_written(lab: Lab) -> None:
    lab.make_wheel(lab.root / "first")
    lab.make_wheel(lab.root / "first", "rocm", "7.1")
    upload_folder(lab.common, lab.root / "first", "g")
    before = everything(lab.store)
    lab.make_wheel(lab.root / "second", content="other")
    lab.make_wheel(lab.root / "second", "apex", "1.10.0")
    with pytest.raises(StoreError, match=r"torch-.*with other bytes"):
        upload_folder(lab.common, lab.root / "second", "g")
    lab.make_wheel(lab.root / "second", "rocm", "7.1", content="other")
    with pytest.raises(StoreError, match=r"2 keys exist in .*nothing was uploaded:\n.*rocm-7.1.*\n.*torch-"):
        upload_folder(lab.common, lab.root / "second", "g")
    assert everything(lab.store) == before


def test_a_wheel_that_lies_about_itself_stops_the_whole_upload(lab: Lab) -> None:
    lab.make_wheel(lab.root / "mine", "apex", "1.10.0")
    metadata = "Metadata-Version: 2.1\nName: torch\nVersion: 2.0\n"
    spec = WheelSpec(distribution="torch", version="1.0", tag="py3-none-any", metadata=metadata)
    write_wheel(lab.root / "mine", spec, [Member(name="torch.py", source=b"")])
    with pytest.raises(WheelError, match=r"torch-1.0-.* says in its METADATA that it is torch 2.0"):
        upload_folder(lab.common, lab.root / "mine", "g")
    assert list(lab.store.list("")) == []


def test_the_local_run_may_be_uploaded_over(lab: Lab) -> None:
    local = Common(root=lab.root)
    store, outputs = local.open_store(), local.outputs
    built = distributions.publish(store, outputs, "g", lab.make_wheel(lab.root / "built"))
    records.write(store, outputs, "g", lab.record_of(built, run_id="local"))
    (one,) = upload_folder(local, lab.make_wheel(lab.root / "mine", content="x").parent, "g")
    assert one.sha256 != built.sha256
    assert index.write_pages(store, outputs, "g").files == 1
    elsewhere = Common(root=lab.root, store="elsewhere")
    assert [put.sha256 for put in upload_group(elsewhere, store, "g")] == [one.sha256]


def test_a_file_that_differs_from_its_record_is_not_uploaded(lab: Lab) -> None:
    one = lab.publish()
    lab.store.put_bytes(one.key, b"other")
    target = Common(root=lab.root, run_id="17", store="elsewhere")
    with pytest.raises(StoreError, match="is not the file that its record names"):
        upload_group(target, lab.store, "g")
    assert list(target.open_store().list("")) == []


def test_a_group_without_records_is_an_error(common: Common, store: Store) -> None:
    with pytest.raises(MissingInputError, match="No record of group g names a wheel"):
        upload_group(common, store, "g")


def test_a_dry_run_writes_nothing_and_refuses_the_same(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    dry = Common(root=lab.common.root, run_id="17", dry_run=True)
    path = lab.make_wheel(lab.root / "mine")
    upload_folder(dry, path.parent, "g")
    assert list(lab.store.list("")) == []
    assert not (lab.root / "out").exists()
    said = capsys.readouterr().err
    assert f"/python/g/{path.name}  (" in said
    assert "upload: 1 files would be put in" in said
    upload_folder(lab.common, path.parent, "g")
    lab.make_wheel(lab.root / "mine", content="other")
    with pytest.raises(StoreError, match="with other bytes"):
        upload_folder(dry, path.parent, "g")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--input-dir", "mine"], UsageError.exit_code),
        (["--input-dir", "mine", "--gpu-family", "gfx942;gfx1100"], 0),
        (["--packages-dir", "mine", "--artifact-group", "gfx942-debug"], 0),
        (["--input-packages-dir", "nothing", "--gpu-family", "cpu"], MissingInputError.exit_code),
    ],
)
def test_folders_need_a_group(lab: Lab, words: list[str], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lab.root)
    lab.make_wheel(lab.root / "mine")
    assert run_ci("upload", "--store", str(lab.root / "s"), *words) == code
    groups = {one.key.split("/")[2] for one in DirectoryStore(lab.root / "s").list("")}
    assert groups == ({words[-1].replace(";", "-")} if code == 0 else set())


def test_without_a_folder_the_local_run_is_put_with_locks(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.publish(group="cpu")
    lab.publish(group="gfx110X-all")
    lab.store.put_bytes(lab.outputs.source_lock_key("nightly"), b"{}")
    target = Common(root=lab.common.root, run_id="17", store="elsewhere")

    def common_of(_arguments: Any) -> Common:
        return target

    monkeypatch.setattr(options, "common_from", common_of)
    assert run_ci("upload") == 0
    there = target.open_store()
    for group in ("cpu", "gfx110X-all"):
        assert there.find(f"{lab.outputs.python_prefix(group)}/index.html")
    pages = [one for one in everything(there) if "/simple/" in one[0] or one[0].endswith("/index.html")]
    assert [one for one in everything(there) if one not in pages] == everything(lab.store)
    # what stages of a run took their commits from never changes
    lab.store.put_bytes(lab.outputs.source_lock_key("nightly"), b"{ }")
    assert run_ci("upload") == StoreError.exit_code
    assert there.read(lab.outputs.source_lock_key("nightly")) == b"{}"


def test_an_uploaded_file_is_a_copy_that_a_later_write_in_the_folder_cannot_change(lab: Lab) -> None:
    common = Common(run_id="42", root=lab.root)
    wheel = lab.make_wheel(lab.root / "mine")
    (one,) = upload_folder(common, wheel.parent, "g")
    stored = lab.root / "out" / one.key
    before = stored.read_bytes()
    with wheel.open("ab") as stream:  # as cp and editors do: the same file, other bytes
        stream.write(b"other bytes")
    assert stored.read_bytes() == before
    with pytest.raises(StoreError, match="exists in"):
        upload_folder(common, wheel.parent, "g")


def test_what_tests_left_in_out_replaces_a_failure(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = Common(root=lab.root, run_id="17"), Common(root=lab.root, run_id="17", store="there")
    target, outputs = there.open_store(), there.outputs
    source = wheels.Source(store=here.open_store(), outputs=here.outputs)
    records.write(target, outputs, "g", lab.record_of(stage="test_smoke", status="failed", error="No GPU."))
    passed = lab.record_of(stage="test_smoke", details={"tests": {"tests": 3}})
    records.write(source.store, source.outputs, "g", passed)
    records.write(
        source.store, source.outputs, "g", lab.record_of(stage="test_torch-1-of-2", status="failed")
    )
    records.write(source.store, source.outputs, "g", lab.record_of(stage="build_torch"))
    report = f"{source.outputs.reports_prefix('g')}/smoke.xml"
    source.store.put_bytes(report, b"<testsuites/>")
    put = wheels.upload_run(there, source, ("logs", "reports", "tests"), "g", Digests())
    assert put == {}
    assert target.read(report) == b"<testsuites/>"
    found = {(one.stage, one.status) for one in records.read_all(target, outputs, "g")}
    # a build's record goes with its wheels
    assert found >= {("test_smoke", "ok"), ("test_torch-1-of-2", "failed")}
    assert not {one for one in found if one[0] == "build_torch" or one == ("test_smoke", "failed")}
    # tested again, as a job is run again: the newer record counts
    again = lab.record_of(stage="test_torch-1-of-2", details={"tests": {"tests": 4}})
    records.write(source.store, source.outputs, "g", again)
    wheels.upload_run(there, source, ("tests",), "g", Digests())
    found = {(one.stage, one.status) for one in records.read_all(target, outputs, "g")}
    assert ("test_torch-1-of-2", "ok") in found
    assert ("test_torch-1-of-2", "failed") not in found
    assert capsys.readouterr()


def test_what_a_build_hands_over_says_nothing_of_tests_and_nothing_of_other_groups(lab: Lab) -> None:
    here, there = Common(root=lab.root, run_id="17"), Common(root=lab.root, run_id="17", store="there")
    source = wheels.Source(store=here.open_store(), outputs=here.outputs)
    for group in ("g", "other"):
        for stage, status in (("test_smoke", "ok"), ("test_rocm", "failed"), ("build_torch", "failed")):
            records.write(source.store, source.outputs, group, lab.record_of(stage=stage, status=status))
    wheels.upload_run(there, source, ("manifests",), "g", Digests())
    found = {
        (group, one.stage)
        for group in ("g", "other")
        for one in records.read_all(there.open_store(), there.outputs, group)
    }
    assert found == {("g", "build_torch")}


@pytest.fixture(name="attempt")
def attempt_fixture(
    tmp_path: Path, make_wheel: MakeWheel, record_of: Callable[..., Record]
) -> Callable[..., Sequence[FileRecord]]:
    """Build triton on a machine of its own, and upload it to the store of all."""

    def attempt(number: int, ref: str = "nightly", digest: str = "same", **content: str) -> Any:
        here = Common(root=tmp_path / str(number), run_id="17")
        path = make_wheel(here.root / "dist", "triton", "3.6.0", **content)
        one = distributions.publish(here.open_store(), here.outputs, "g", path)
        cell = Cell(python="cp312", torch_ref=ref)
        record = record_of(one, stage="build_triton", cell=cell, input_digest=digest)
        records.write(here.open_store(), here.outputs, "g", record)
        target = replace(here, store=str(tmp_path / "shared"))
        return upload_group(target, here.open_store(), "g")

    return attempt


def test_of_what_is_made_from_the_same_inputs_the_first_stands(
    attempt: Callable[..., Sequence[FileRecord]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = attempt(1, content="one")
    shared = Common(root=tmp_path, run_id="17", store="shared")
    before = everything(shared.open_store())
    assert attempt(2, content="another attempt") == first
    assert everything(shared.open_store()) == before
    assert attempt(3, ref="release/2.13", content="another ref") == first
    said = "release-2.13-cp312: the run has it, made from the same inputs by build_triton-nightly-cp312"
    assert said in capsys.readouterr().err
    found = records.read_all(shared.open_store(), shared.outputs, "g")
    expected = {"build_triton-nightly-cp312": tuple(first), "build_triton-release-2.13-cp312": tuple(first)}
    assert {one.name: one.files for one in found} == expected
    assert index.write_pages(shared.open_store(), shared.outputs, "g").files == 1


def test_what_is_made_from_other_inputs_is_refused(attempt: Callable[..., Sequence[FileRecord]]) -> None:
    attempt(1, content="one")
    for digest in ("other", ""):
        with pytest.raises(StoreError, match=r"triton-3\.6\.0.*with other bytes"):
            attempt(2, digest=digest, content="other")


def test_a_wheel_of_another_platform_is_refused_before_anything_is_written(lab: Lab) -> None:
    lab.make_wheel(lab.root / "mine")
    lab.make_wheel(lab.root / "mine", tag="cp312-cp312-win_amd64")
    words = ["upload", "--input-dir", str(lab.root / "mine"), "--artifact-group", "g", "--run-id", "17"]
    with pytest.raises(WheelError, match=r"win_amd64.*not for linux"):
        upload_folder(lab.common, lab.root / "mine", "g")
    assert list(lab.store.list("")) == []
    (lab.root / "mine" / "torch-2.10.0+rocm7.1-py3-none-any.whl").unlink(missing_ok=True)
    assert run_ci(*words, "--store", lab.store.url, "--platform", "windows") == 0
    assert {one.key.split("/")[0] for one in lab.store.list("")} == {"17-windows"}


def test_a_dry_run_without_the_store_lists_keys_and_pages(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(upload, "answers", lambda _: False)
    path = lab.make_wheel(lab.root / "mine")
    words = ["--input-dir", str(path.parent), "--artifact-group", "g", "--run-id", "17"]
    assert run_ci("upload", "--store", "s3://nobody", "--dry-run", *words) == 0
    said = capsys.readouterr().err
    assert "s3://nobody cannot be read: this is what would be uploaded to an empty store." in said
    prefix = "s3://nobody/17-linux/python/g"
    written = [line.split()[2] for line in said.splitlines() if line.startswith("would write")]
    assert written[:2] == [f"{prefix}/{path.name}", f"{prefix}/{path.name}.metadata"]
    assert written[2].startswith("s3://nobody/17-linux/manifests/g/upload-")
    assert written.index(f"{prefix}/simple/torch/index.html") < written.index(f"{prefix}/index.html")
    assert "index: 1 file, 7 pages would change" in said
    assert "package_find_links_url" not in said


def test_pages_of_a_server_are_waited_for_before_their_address_is_told(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(index, "left_to_server", lambda _: True)
    monkeypatch.setattr(upload, "_SERVER_SECONDS", 0.0)
    path = lab.make_wheel(lab.root / "mine")
    words = ["--input-dir", str(path.parent), "--artifact-group", "g", "--run-id", "17"]
    argv = ["upload", "--store", lab.store.url, *words]
    assert run_ci(*argv) == MissingInputError.exit_code
    said = capsys.readouterr().err
    assert "it does not exist; it should list torch-" in said
    assert "package_find_links_url" not in said
    index.write_pages(lab.store, lab.outputs, "g")
    assert run_ci(*argv) == 0
    assert "package_find_links_url: file://" in capsys.readouterr().err


OUTPUTS = RunOutputs(run_id="17", platform="linux", address="https://b.s3.amazonaws.com")


def wheel_record(name: str, version: str = "1.0+rocm7.1") -> FileRecord:
    filename = f"{name}-{version}-py3-none-any.whl"
    key = f"{OUTPUTS.python_prefix('g')}/{filename}"
    return FileRecord(name=filename, key=key, size=5, sha256="0" * 64, distribution=name, version=version)


def test_the_summary_links_wheels_and_pins_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    upload.summarize(OUTPUTS, "g", [wheel_record("apex"), wheel_record("torch")])
    text = (tmp_path / "summary").read_text()
    page = "https://b.s3.amazonaws.com/17-linux/python/g/index.html"
    assert f"pip install 'torch==1.0+rocm7.1' --find-links '{page}'" in text
    assert "(<https://b.s3.amazonaws.com/17-linux/python/g/apex-1.0%2Brocm7.1-py3-none-any.whl>)" in text
    devices = [wheel_record(f"{kind}-device-gfx942") for kind in ("amd-torch", "rocm-sdk")]
    for name, extras in (("torch", "device-all"), ("rocm", "libraries,device-all")):
        upload.summarize(OUTPUTS, "g", [wheel_record(name), *devices])
        assert f"pip install '{name}[{extras}]==1.0+rocm7.1'" in (tmp_path / "summary").read_text()
    upload.summarize(OUTPUTS, "g", [wheel_record(f"a{number}") for number in range(250)])
    assert "and 50 more" in (tmp_path / "summary").read_text()


def test_an_index_that_is_not_served_has_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    upload.set_outputs(JobFiles(outputs=tmp_path / "outputs"), OUTPUTS, ["g"], index=False)
    upload.summarize(OUTPUTS, "g", [wheel_record("torch")], index=False)
    assert "package_index_url" not in (tmp_path / "outputs").read_text()
    assert "/simple/" not in (tmp_path / "summary").read_text()


def test_one_group_has_an_address_and_several_have_a_map(tmp_path: Path) -> None:
    for groups, file in ((["g"], "one"), (["g", "h"], "two")):
        upload.set_outputs(JobFiles(outputs=tmp_path / file), OUTPUTS, groups, index=True)
    one, two = ((tmp_path / file).read_text().splitlines() for file in ("one", "two"))
    flat = {group: OUTPUTS.python_find_links_url(group) for group in "gh"}
    assert (one[1], one[4]) == (flat["g"], OUTPUTS.python_index_url("g"))
    assert json.loads(two[1]) == flat
