from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest

from core.cli import verb_parser
from core.cli.options import Common, common_from
from core.errors import MissingInputError, UsageError
from core.run import records
from rocm_packaging.__main__ import VERBS
from rocm_packaging.packages.build import BuildRequest, BuiltPackages
from rocm_packaging.verbs import build as verb
from tests.kit.artifact_sets import write_base


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    write_base(tmp_path, split=False, rocm_version="10.1.0", the_rock_commit="a" * 40)
    return tmp_path


def request(artifacts: Path, *words: str) -> BuildRequest:
    _, parser = verb_parser("rocm_packaging", VERBS[0])
    arguments = parser.parse_args(["--artifact-dir", str(artifacts), *words])
    version = arguments.version
    return verb._request(arguments, common_from(arguments), artifacts, version, "gfx942;gfx1100")


def test_the_release_type_makes_the_version_unless_one_is_given(artifacts: Path) -> None:
    today = f"{datetime.now(UTC):%Y%m%d}"
    assert request(artifacts).version == f"10.1.0.dev0+{'a' * 40}"
    assert request(artifacts, "--release-type", "nightly").version >= f"10.1.0a{today}"
    assert request(artifacts, "--release-type", "prerelease", "--rc", "3").version == "10.1.0rc3"
    assert request(artifacts, "--version", "5.2.3").version == "5.2.3"
    with pytest.raises(UsageError, match="--rc N"):
        request(artifacts, "--release-type", "prerelease")


def test_a_run_has_one_version_of_rocm(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = str(tmp_path_factory.mktemp("store"))
    words, run = ("--release-type", "nightly", "--store", store), Common(run_id="17", store=store)
    details = {"version": "10.1.0a20260822"}
    record = records.Record(
        stage="build_rocm", run_id="17", platform="linux", started="x", seconds=0, details=details
    )
    records.write(run.open_store(), run.outputs, "gfx942-gfx1100", record)
    assert request(artifacts, *words, "--run-id", "17").version == details["version"]
    assert request(artifacts, *words, "--run-id", "18").version > details["version"]
    assert request(artifacts, *words, "--run-id", "17", "--version", "5.2.3").version == "5.2.3"


def test_options_arrive(artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = request(artifacts)
    assert (plain.level, plain.suffix, plain.platform_tag, plain.epoch) == (None, "", "", None)
    assert plain.families == ("gfx942", "gfx1100")
    words = "--compression-level 1 --version-suffix _x --linux-amdgpu-families gfx942,gfx1100"
    chosen = request(artifacts, *words.split())
    assert (chosen.level, chosen.suffix, chosen.linux_families) == (1, "_x", ("gfx942", "gfx1100"))
    monkeypatch.setenv("ROCM_SDK_WHEEL_PLATFORM_TAG", "manylinux_2_28_x86_64")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    told = request(artifacts)
    assert (told.platform_tag, told.epoch) == ("manylinux_2_28_x86_64", 1_700_000_000)
    assert request(artifacts, "--wheel-platform-tag", "linux_x86_64").platform_tag == "linux_x86_64"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH=yesterday"):
        request(artifacts)


def test_families_of_the_other_platform_must_exist(artifacts: Path) -> None:
    with pytest.raises(UsageError, match="gfx94"):
        request(artifacts, "--windows-amdgpu-families", "gfx94")


def test_the_record_says_which_build_of_rocm_it_was(artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Mock(distribution=Mock(version="10.1.0"), built=("gfx942",), unused=(), lacking=())
    built = BuiltPackages(plan=plan, files=())
    monkeypatch.setattr("rocm_packaging.packages.build.build", lambda _request: built)
    details = verb._made(request(artifacts)).details
    assert (details["commit"], details["artifact_dir"]) == ("a" * 40, str(artifacts))
    overlay = artifacts / "base_lib_generic" / "base/aux-overlay/stage/share/therock"
    (overlay / "therock_manifest.json").write_text('{"flags": {"KPACK_SPLIT_ARTIFACTS": false}}', "utf-8")
    assert "commit" not in verb._made(request(artifacts, "--version", "1")).details


@pytest.mark.parametrize(
    ("family", "group"), [("gfx110X-all", "gfx110X-all"), ("gfx110X-all,gfx1151", "gfx110X-all-gfx1151")]
)
def test_what_was_fetched_for_the_run_and_family_is_packaged(tmp_path: Path, family: str, group: str) -> None:
    common = Common(root=tmp_path, run_id="17", gpu_family=family)
    folder = common.outputs.artifacts_folder(tmp_path / ".cache", group)
    with pytest.raises(MissingInputError, match=f"no artifacts were fetched into .*/{group}") as caught:
        verb._fetched(common)
    assert "nox -s fetch_artifacts" in caught.value.hint
    folder.mkdir(parents=True)
    assert verb._fetched(common) == (folder, family.replace(",", ";"))
