from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ci import github
from ci.plan import artifacts
from ci.verbs import fetch_artifacts
from core.cli import Verb, options, verb_parser
from core.cli.options import Common, common_from
from core.errors import ArtifactError, MissingInputError, UsageError
from core.files import digest_of
from core.run import RunOutputs, records, this_platform
from core.stores import Store, location
from core.stores.directory import DirectoryStore
from rocm_packaging.artifacts import scan
from tests.kit.artifact_archives import pack
from tests.unit.ci.plan.planning import RunsOfGitHub, made_run

VERB = Verb("fetch-artifacts", "ci.verbs.fetch_artifacts", "fetch")
FAMILY = "gfx110X-all"


def put(folder: Path, *names: str) -> None:
    for name in names:
        source = folder.parent / "source" / name
        (source / "a/stage").mkdir(parents=True, exist_ok=True)
        (source / "artifact_manifest.txt").write_text("a/stage\n", encoding="utf-8")
        (source / "a/stage" / name).write_text(name, encoding="utf-8")
        pack(source, folder)


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    values: dict[str, str] = {}
    monkeypatch.setattr(fetch_artifacts, "environment", lambda: values)
    return values


@pytest.fixture
def command(tmp_path: Path, env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Run the verb in a checkout of its own, and give the folder where build_rocm looks."""
    monkeypatch.setattr(
        fetch_artifacts, "common_from", lambda words: replace(common_from(words), root=tmp_path)
    )
    real = location.open_store

    def open_store(place: str, *, root: Path, dry_run: bool = False) -> Store:
        return real(place.replace("s3://", "buckets-"), root=root, dry_run=dry_run)

    for module in (options, artifacts):
        monkeypatch.setattr(module, "open_store", open_store)

    def run(*words: str, run_id: str = "17") -> Path:
        assert env is not None
        module, parser = verb_parser("ci", VERB)
        module.run(parser.parse_args([f"--gpu-family={FAMILY}", *words]))
        outputs = RunOutputs(run_id=run_id, platform=this_platform())
        return outputs.artifacts_folder(tmp_path / ".cache", FAMILY)

    return run


def run_folder(tmp_path: Path, run_id: str = "17", *, store: str = "out", external: str = "") -> Path:
    return tmp_path / store / f"{external}{run_id}-{this_platform()}"


def record(tmp_path: Path, name: str = "fetch_artifacts", run_id: str = "17") -> records.Record | None:
    outputs = RunOutputs(run_id=run_id, platform=this_platform())
    return records.read(DirectoryStore(tmp_path / "out"), outputs, FAMILY, name)


def test_a_runs_artifacts_go_where_build_rocm_looks(tmp_path: Path, command: Callable[..., Path]) -> None:
    put(run_folder(tmp_path), "base_lib_generic", "blas_lib_gfx110X-all", "blas_lib_gfx94X-dcgpu")
    folder = command("--run-id", "17")
    assert folder == tmp_path / ".cache/artifacts" / f"17-{this_platform()}" / FAMILY
    assert [one.path.name for one in scan(folder)] == ["base_lib_generic", "blas_lib_gfx110X-all"]
    said = record(tmp_path)
    assert said is not None
    expected = ["base_lib_generic.tar.zst", "blas_lib_gfx110X-all.tar.zst"]
    assert [one["name"] for one in said.details["artifacts"]] == expected
    assert said.cell.gpu_family == FAMILY


def test_a_dry_run_does_nothing_nor_does_a_second_run_unless_the_folder_changed(
    tmp_path: Path, command: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    put(run_folder(tmp_path), "base_lib_generic", "blas_lib_gfx110X-all")
    folder = command("--run-id", "17", "--dry-run")
    assert "blas_lib_gfx110X-all.tar.zst" in capsys.readouterr().err
    assert not folder.exists()
    assert record(tmp_path) is None
    command("--run-id", "17")
    before = (folder / "base_lib_generic").stat().st_ino
    capsys.readouterr()
    command("--run-id", "17")
    assert "unchanged" in capsys.readouterr().err
    (folder / "blas_lib_gfx110X-all/.archive.sha256").unlink()
    command("--run-id", "17")
    assert "unchanged" not in capsys.readouterr().err
    assert len(scan(folder)) == 2
    assert (folder / "base_lib_generic").stat().st_ino == before
    command("--run-id", "17", "--force")
    assert (folder / "base_lib_generic").stat().st_ino != before


def test_the_folder_and_the_store_can_be_chosen(tmp_path: Path, command: Callable[..., Path]) -> None:
    put(run_folder(tmp_path, "local"), "base_lib_generic", "blas_lib_gfx110X-all")
    assert len(scan(command(run_id="local"))) == 2
    put(run_folder(tmp_path, store="mirror"), "base_lib_generic", "blas_lib_gfx110X-all")
    command("--run-id=17", "--from", str(tmp_path / "mirror"), "--output-dir", str(tmp_path / "here"))
    assert len(scan(tmp_path / "here")) == 2
    assert record(tmp_path) is not None, "the record is written to our own store"
    assert not list((tmp_path / "mirror").rglob("*.json"))


def test_the_artifact_run_need_not_be_the_one_built(tmp_path: Path, command: Callable[..., Path]) -> None:
    put(run_folder(tmp_path, "17", store="there"), "base_lib_generic", "blas_lib_gfx110X-all")
    named = ("--artifact-run-id=17", "--artifact-store", str(tmp_path / "there"))
    folder = command("--run-id=9", *named, run_id="9")
    assert len(scan(folder)) == 2
    said = record(tmp_path, run_id="9")
    assert said is not None
    assert f"17-{this_platform()}" in said.inputs["from"]
    digest = digest_of({one["name"]: one["sha256"] for one in said.details["artifacts"]})
    command("--run-id=9", *named, f"--artifact-digest={digest}", run_id="9")
    with pytest.raises(ArtifactError, match="not those that the plan pinned"):
        command("--run-id=9", *named, f"--artifact-digest={'0' * 64}")
    with pytest.raises(UsageError, match="--artifact-run-id names the run already"):
        command("--artifact-run-id=17", "--latest")


def test_a_variants_artifacts_have_a_folder_and_a_record_of_their_own(
    tmp_path: Path, command: Callable[..., Path], source: RunsOfGitHub
) -> None:
    put(run_folder(tmp_path, "33"), "base_lib_generic", "blas_lib_gfx110X-all")
    folder = command("--latest", "--build-variant=asan", run_id="33")
    assert not folder.exists()
    assert len(scan(folder.with_name(f"{FAMILY}-asan"))) == 2
    assert source.asked[0].workflow == "multi_arch_ci_asan.yml"
    outputs = RunOutputs(run_id="33", platform=this_platform())
    said = records.read(DirectoryStore(tmp_path / "out"), outputs, f"{FAMILY}-asan", "fetch_artifacts")
    assert said is not None
    assert (said.cell.gpu_family, said.cell.build_variant) == (FAMILY, "asan")
    with pytest.raises(UsageError, match="No workflow of ROCm/TheRock is known to build the variant tsan"):
        command("--latest", "--build-variant=tsan")


def test_a_run_without_artifacts_is_an_error(tmp_path: Path, command: Callable[..., Path]) -> None:
    with pytest.raises(MissingInputError, match="Run 17 has no artifacts in"):
        command("--run-id", "17", "--store", str(tmp_path / "empty"))
    with pytest.raises(MissingInputError, match="Run local has no artifacts in"):
        command()
    put(run_folder(tmp_path), "base_lib_generic")
    with pytest.raises(MissingInputError, match="no artifacts of gfx110X-all"):
        command("--run-id", "17")
    with pytest.raises(UsageError, match="cpu has no ROCm artifacts"):
        fetch_artifacts.run(verb_parser("ci", VERB)[1].parse_args(["--gpu-family=cpu"]))


def test_a_run_that_is_not_here_is_found_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = location.open_store
    opened: list[str] = []

    def open_store(place: str, *, root: Path) -> object:
        opened.append(place)
        return real(place.replace("s3://", "buckets-"), root=root)

    for module in (options, artifacts):
        monkeypatch.setattr(module, "open_store", open_store)
    bucket = tmp_path / "buckets-therock-ci-artifacts-external" / f"ROCm-other/17-{this_platform()}"
    put(bucket, "base_lib_generic", "blas_lib_gfx110X-all")
    common = Common(root=tmp_path, run_id="17")
    found = artifacts.find_place(common, "", "ROCm/other", fork=False)
    assert (len(found.listed), found.prefix) == (2, f"ROCm-other/17-{this_platform()}")
    assert opened == ["out", "s3://therock-ci-artifacts-external"]
    opened.clear()
    with pytest.raises(MissingInputError, match=r"nor in .*buckets-therock-nightly-artifacts"):
        artifacts.find_place(replace(common, release_type="nightly"), "", "ROCm/other", fork=False)


# --- finding the run -----------------------------------------------------------------------


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> RunsOfGitHub:
    """GitHub with three runs, of which a test may put artifacts into the store."""
    recorded = RunsOfGitHub([made_run("33", ""), made_run("32", "", fork=True), made_run("31", "")])
    monkeypatch.setattr(github, "from_environment", lambda _env: recorded)
    return recorded


def test_the_newest_is_fetched(tmp_path: Path, command: Callable[..., Path], source: RunsOfGitHub) -> None:
    put(run_folder(tmp_path, "33"), "base_lib_generic", "blas_lib_gfx94X-dcgpu")
    put(run_folder(tmp_path, "31"), "base_lib_generic", "blas_lib_gfx110X-all")
    folder = command("--latest", "--branch", "release/x", run_id="31")
    assert len(scan(folder)) == 2
    assert record(tmp_path, run_id="31") is not None
    (one,) = source.asked
    assert (one.repository, one.workflow, one.branch) == ("ROCm/TheRock", "multi_arch_ci.yml", "release/x")
    assert one.require_successful


def test_a_forks_run_lies_in_the_shared_buckets_folder(
    tmp_path: Path, command: Callable[..., Path], source: RunsOfGitHub, env: dict[str, str]
) -> None:
    env["GITHUB_REPOSITORY"] = "ROCm/TheRock"
    put(run_folder(tmp_path, "32", external="ROCm-TheRock/"), "base_lib_generic", "blas_lib_gfx110X-all")
    folder = command("--commit", "0123456", "--no-require-successful", run_id="32")
    assert len(scan(folder)) == 2
    assert (source.asked[0].commit, source.asked[0].branch) == ("0123456".ljust(40, "d"), "")
    assert not source.asked[0].require_successful


def test_a_run_is_named_in_one_way(command: Callable[..., Path], source: RunsOfGitHub) -> None:
    with pytest.raises(UsageError, match="--run-id names the run already"):
        command("--run-id", "17", "--latest")
    with pytest.raises(UsageError, match="not allowed with"):
        command("--commit", "0123456", "--latest")
    with pytest.raises(MissingInputError, match="artifacts of none of the newest 3"):
        command("--latest")
    assert len(source.asked) == 1
