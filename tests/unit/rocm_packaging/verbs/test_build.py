import argparse
import json
import zipfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from core.cli import main
from core.cli.options import Common, common_from
from core.errors import MissingInputError, UsageError
from core.run import RunOutputs, records
from core.run.records import Record
from core.status import Pending, UpToDate
from core.stores import Store
from rocm_packaging.__main__ import VERBS
from rocm_packaging.verbs import build as verb
from tests.kit.artifacts import (
    read_sdist_member,
    write_artifact,
    write_base_artifact,
    write_split_set,
    write_unsplit_set,
)
from tests.kit.front_doors import look_at_verb
from tests.kit.runs import write_record

COMMIT = "a" * 40
FAMILY = "gfx94X-dcgpu"
BOTH_FAMILIES = "gfx94X-dcgpu;gfx110X-all"


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A folder that stands for the checkout, with unsplit artifacts, and a store."""

    root: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def artifacts(self) -> Path:
        """The artifacts of ROCm 10.1.0."""
        return self.root / "artifacts"

    @property
    def common(self) -> Common:
        """The run that the verb writes to."""
        return Common(root=self.root, store=str(self.root / "store"), platform="linux")

    @property
    def store(self) -> Store:
        """The store of the run."""
        return self.common.open_store()

    def call(self, *options: str) -> int:
        """Call ``rocm_packaging build``; return its exit code."""
        command = ["build", "--store", self.common.store, "--platform", self.common.platform]
        return main("rocm_packaging", "", VERBS, [*command, *options])

    def build(self, *options: str, family: str = FAMILY) -> None:
        """Package the artifacts."""
        exit_code = self.call("--artifact-dir", str(self.artifacts), "--gpu-family", family, *options)
        assert exit_code == 0, self.capsys.readouterr().err

    def refuse(self, *options: str, family: str = FAMILY) -> str:
        """Return the message with which packaging the artifacts is refused for how it is called."""
        exit_code = self.call("--artifact-dir", str(self.artifacts), "--gpu-family", family, *options)
        assert exit_code == UsageError.exit_code
        return self.capsys.readouterr().err

    def plan_version(self, *options: str) -> str:
        """Return the version of the packages that a dry run plans."""
        self.capsys.readouterr()
        self.build("--dry-run", "--json", *options)
        output = self.capsys.readouterr().out
        plan, _end = json.JSONDecoder().raw_decode(output[output.index("{") :])
        return str(plan["version"])

    def record(self, group: str = FAMILY) -> Record:
        """Return the record of the packages of a group."""
        record = records.read(self.store, self.common.outputs, group, "build_rocm")
        assert record is not None
        return record

    def fetch(self, name: str, *, group: str = FAMILY) -> Path:
        """Return a package of a group, by how its name begins."""
        (file,) = [file for file in self.record(group).files if file.name.startswith(name)]
        return self.store.fetch(file.key, self.root / "fetched" / group)


@pytest.fixture
def checkout(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Checkout:
    """Return a folder that the verb takes for the checkout."""

    def common_in_folder(arguments: argparse.Namespace) -> Common:
        return replace(common_from(arguments), root=tmp_path)

    monkeypatch.setattr(verb, "common_from", common_in_folder)
    checkout = Checkout(root=tmp_path, capsys=capsys)
    write_unsplit_set(checkout.artifacts)
    write_base_artifact(
        checkout.artifacts,
        targets=("gfx942", "gfx1100"),
        is_split=False,
        version="10.1.0",
        commit=COMMIT,
    )
    return checkout


def test_a_look_finds_nothing_to_do_where_the_same_was_packaged(
    checkout: Checkout,
) -> None:
    options = [
        "--store",
        checkout.common.store,
        "--artifact-dir",
        str(checkout.artifacts),
    ]
    options += ["--gpu-family", FAMILY, "--platform", "linux", "--without", "*"]
    checkout.build("--without", "*")

    assert look_at_verb("rocm_packaging", "build", *options) == UpToDate()

    status = look_at_verb("rocm_packaging", "build", *options, "--version", "5.2.3")
    assert isinstance(status, Pending)
    assert any("5.2.3" in reason for reason in status.reasons)


# Versions


@pytest.mark.parametrize(
    ("options", "version"),
    [
        pytest.param([], f"10.1.0.dev0+{COMMIT}", id="CI"),
        pytest.param(
            ["--release-type", "prerelease", "--rc", "3"],
            "10.1.0rc3",
            id="prerelease",
        ),
        pytest.param(["--version", "5.2.3"], "5.2.3", id="named"),
    ],
)
def test_makes_the_version_by_release_type_unless_one_is_named(
    checkout: Checkout, options: list[str], version: str
) -> None:
    assert checkout.plan_version("--without", "*", *options) == version


@pytest.mark.parametrize(
    ("version", "is_told"),
    [
        pytest.param("5.2.3", True, id="another release"),
        pytest.param("10.1.0rc2", False, id="same release"),
    ],
)
def test_tells_of_a_version_that_the_artifacts_do_not_lead_to(
    checkout: Checkout, version: str, *, is_told: bool
) -> None:
    exit_code = checkout.call(
        "--artifact-dir",
        str(checkout.artifacts),
        "--gpu-family",
        FAMILY,
        "--without",
        "*",
        "--version",
        version,
    )

    assert exit_code == 0
    assert ("are of ROCm 10.1.0" in checkout.capsys.readouterr().err) is is_told


def test_puts_the_day_into_the_version_of_a_nightly(checkout: Checkout) -> None:
    before = datetime.now(UTC)

    version = checkout.plan_version("--without", "*", "--release-type", "nightly")

    # The day may end meanwhile.
    assert version in {f"10.1.0a{moment:%Y%m%d}" for moment in (before, datetime.now(UTC))}


def test_asks_for_the_number_of_a_prerelease(checkout: Checkout) -> None:
    assert "--rc" in checkout.refuse("--release-type", "prerelease")


@pytest.mark.parametrize(
    ("options", "option_without_effect"),
    [
        pytest.param(("--json",), "--json", id="JSON of no plan"),
        pytest.param(("--version=10.1.0", "--rc=2"), "--rc", id="two versions"),
    ],
)
def test_refuses_an_option_that_has_no_effect(
    checkout: Checkout, options: tuple[str, ...], option_without_effect: str
) -> None:
    assert f"{option_without_effect} has no effect" in checkout.refuse(*options)


@pytest.mark.parametrize(
    ("run_id", "options", "is_recorded"),
    [
        pytest.param("17", [], True, id="same run"),
        pytest.param("18", [], False, id="another run"),
        pytest.param("17", ["--version", "5.2.3"], False, id="named version"),
    ],
)
def test_keeps_the_version_of_a_runs_packages(
    checkout: Checkout, run_id: str, options: list[str], *, is_recorded: bool
) -> None:
    recorded_version = "10.1.0a20260822"
    run = RunOutputs(run_id="17", platform="linux")
    details = {"version": recorded_version}
    write_record(checkout.store, run, step="build_rocm", family=FAMILY, details=details)

    version = checkout.plan_version(
        "--without", "*", "--release-type", "nightly", "--run-id", run_id, *options
    )

    assert (version == recorded_version) is is_recorded


def test_keeps_the_version_of_a_build_variants_packages(checkout: Checkout) -> None:
    recorded_version = "10.1.0a20260822"
    run = RunOutputs(run_id="17", platform="linux")
    details = {"version": recorded_version}
    write_record(
        checkout.store,
        run,
        step="build_rocm",
        family=f"{FAMILY}-asan",
        details=details,
    )
    of_a_nightly = ("--without", "*", "--release-type", "nightly", "--run-id", "17")

    version = checkout.plan_version(*of_a_nightly, "--build-variant", "asan")

    assert version == recorded_version


# Options


def test_builds_with_its_options(checkout: Checkout) -> None:
    checkout.build(
        *("--without", "*", "--compression-level", "0", "--version-suffix", "_x"),
        *(
            "--linux-amdgpu-families",
            "gfx942,gfx1100",
            "--wheel-platform-tag",
            "linux_x86_64",
        ),
    )

    core = checkout.fetch("rocm_sdk_core")
    assert core.name.endswith("-linux_x86_64.whl")
    with zipfile.ZipFile(core) as archive:
        members = archive.infolist()
    assert "_rocm_sdk_core_x/bin/hipcc" in {member.filename for member in members}
    assert {member.compress_type for member in members} == {zipfile.ZIP_STORED}
    dist_info = read_sdist_member(checkout.fetch("rocm-"), "src/rocm_sdk/_dist_info.py")
    assert b"LINUX_TARGET_FAMILIES = ['gfx94X-dcgpu', 'gfx942', 'gfx1100']" in dist_info


def test_builds_with_its_variables(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCM_SDK_WHEEL_PLATFORM_TAG", "manylinux_2_28_x86_64")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")

    checkout.build("--without", "*")

    core = checkout.fetch("rocm_sdk_core")
    assert core.name.endswith("-manylinux_2_28_x86_64.whl")
    with zipfile.ZipFile(core) as archive:
        times = {member.date_time for member in archive.infolist()}
    assert times == {(2023, 11, 14, 22, 13, 20)}


def test_prefers_a_named_platform_tag_to_the_variable(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCM_SDK_WHEEL_PLATFORM_TAG", "manylinux_2_28_x86_64")

    checkout.build("--without", "*", "--wheel-platform-tag", "linux_x86_64")

    assert checkout.fetch("rocm_sdk_core").name.endswith("-linux_x86_64.whl")


def test_packages_the_artifacts_of_windows_on_any_machine(checkout: Checkout) -> None:
    checkout.build("--without", "*", "--platform", "windows")

    windows_run = RunOutputs(run_id="local", platform="windows")
    record = records.read(checkout.store, windows_run, FAMILY, "build_rocm")
    assert record is not None
    wheels = [file.name for file in record.files if file.name.endswith(".whl")]
    assert wheels
    assert all(name.endswith("-win_amd64.whl") for name in wheels)


def test_refuses_a_time_that_is_no_number(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")

    assert "SOURCE_DATE_EPOCH=yesterday" in checkout.refuse("--without", "*")


def test_refuses_an_unknown_family_of_the_other_platform(
    checkout: Checkout,
) -> None:
    assert "gfx94" in checkout.refuse("--windows-amdgpu-families", "gfx94")


# Records and groups


def test_records_which_build_of_rocm_was_packaged(checkout: Checkout) -> None:
    checkout.build("--without", "*")

    details = checkout.record().details
    assert details["commit"] == COMMIT
    assert details["artifact_dir"] == str(checkout.artifacts)


def test_records_no_commit_where_the_artifacts_name_none(
    checkout: Checkout,
) -> None:
    write_base_artifact(checkout.artifacts, is_split=False)

    checkout.build("--without", "*", "--version", "1.0.0")

    assert "commit" not in checkout.record().details


def test_packages_families_together(checkout: Checkout) -> None:
    checkout.build("--without", "*", family=BOTH_FAMILIES)

    record = checkout.record("gfx94X-dcgpu-gfx110X-all")
    assert record.cell.gpu_family == BOTH_FAMILIES


def test_packages_families_apart_that_contradict_each_other(
    checkout: Checkout,
) -> None:
    write_artifact(checkout.artifacts, "blas_dev_gfx110X-all", {"include/hipblas.h": "other"})

    checkout.build("--without", "*", family=BOTH_FAMILIES)

    warning = " ".join(checkout.capsys.readouterr().err.split())
    for family in ("gfx94X-dcgpu", "gfx110X-all"):
        assert str(Path(f"blas_dev_{family}/x/stage/include/hipblas.h")) in warning
        names = [file.name.partition("-10.1")[0] for file in checkout.record(family).files]
        libraries = f"rocm_sdk_libraries_{family.lower().replace('-', '_')}"
        assert sorted(names) == [
            "rocm",
            "rocm_sdk_core",
            "rocm_sdk_devel",
            libraries,
        ]
        dist_info = read_sdist_member(checkout.fetch("rocm-", group=family), "src/rocm_sdk/_dist_info.py")
        assert f"DEFAULT_TARGET_FAMILY = '{family}'".encode() in dist_info


@pytest.mark.parametrize(
    ("family", "group"),
    [("gfx110X-all", "gfx110X-all"), ("gfx110X-all,gfx942", "gfx110X-all-gfx942")],
)
def test_packages_what_was_fetched_for_the_run_and_family(
    checkout: Checkout, family: str, group: str
) -> None:
    fetched_folder = checkout.common.outputs.artifacts_folder(checkout.common.cache, group)
    write_split_set(fetched_folder)

    exit_code = checkout.call("--gpu-family", family, "--without", "*")

    assert exit_code == 0
    assert checkout.record(group).details["artifact_dir"] == str(fetched_folder)


def test_asks_to_fetch_artifacts_where_there_are_none(checkout: Checkout) -> None:
    exit_code = checkout.call("--gpu-family", FAMILY)

    assert exit_code == MissingInputError.exit_code
    message = checkout.capsys.readouterr().err
    assert FAMILY in message
    assert "nox -s fetch_artifacts" in message


def test_packages_lie_in_the_group_where_their_family_has_its_pytorch_wheels(
    checkout: Checkout,
) -> None:
    checkout.build("--without", "*")

    (file,) = [file for file in checkout.record().files if file.name.startswith("rocm_sdk_core")]
    assert file.key == f"local-linux/python/{FAMILY}/{file.name}"
