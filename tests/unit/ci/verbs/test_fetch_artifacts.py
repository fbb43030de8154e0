"""A run's artifacts of one GPU family, fetched to where they are packaged."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ci.plan import artifacts
from ci.verbs import fetch_artifacts
from core.cli import Verb, options, verb_parser
from core.cli.options import Common
from core.errors import ArtifactError, MissingInputError, UsageError
from core.files import digest_of
from core.run import RunOutputs, records, this_platform
from core.run.records import Record
from core.stores import Store, location
from core.stores.directory import DirectoryStore
from rocm_packaging.artifacts import scan
from tests.kit.artifact_archives import write_archive
from tests.kit.front_doors import use_checkout
from tests.kit.github_runs import FakeGitHub, github_run

VERB = Verb("fetch-artifacts", "ci.verbs.fetch_artifacts", "fetch")

FAMILY = "gfx110X-all"
NAMES = ("base_lib_generic", "blas_lib_gfx110X-all")

Fetch = Callable[..., Path]


@pytest.fixture
def opened_stores(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stores that are opened; a bucket is the folder ``buckets-NAME`` of the checkout."""
    opened: list[str] = []
    open_real_store = location.open_store

    def open_store(address: str, *, root: Path, dry_run: bool = False) -> Store:
        opened.append(address)
        return open_real_store(address.replace("s3://", "buckets-"), root=root, dry_run=dry_run)

    monkeypatch.setattr(options, "open_store", open_store)
    monkeypatch.setattr(artifacts, "open_store", open_store)
    return opened


@pytest.fixture
def fetch(
    tmp_path: Path,
    opened_stores: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Fetch:
    """Run the verb in a checkout of its own; return the folder where build_rocm looks."""
    use_checkout(monkeypatch, fetch_artifacts, tmp_path)

    def run(*arguments: str, run_id: str = "17") -> Path:
        opened_stores.clear()
        module, parser = verb_parser("ci", VERB)
        module.run(parser.parse_args([f"--gpu-family={FAMILY}", *arguments]))
        outputs = RunOutputs(run_id=run_id, platform=this_platform())
        return outputs.artifacts_folder(tmp_path / ".cache", FAMILY)

    return run


def put(checkout: Path, *names: str, run_id: str = "17", store: str = "out") -> None:
    """Put artifacts of a run into a store below the checkout."""
    folder = checkout / store / f"{run_id}-{this_platform()}"
    for name in names:
        write_archive(folder, name)


def read_record(
    checkout: Path,
    *,
    run_id: str = "17",
    group: str = FAMILY,
) -> Record | None:
    """Return the record that the verb left in our own store."""
    outputs = RunOutputs(run_id=run_id, platform=this_platform())
    return records.read(DirectoryStore(checkout / "out"), outputs, group, "fetch_artifacts")


def folder_names(folder: Path) -> list[str]:
    return [artifact.path.name for artifact in scan(folder)]


def test_fetches_a_familys_artifacts_to_where_build_rocm_looks(tmp_path: Path, fetch: Fetch) -> None:
    put(tmp_path, *NAMES, "blas_lib_gfx94X-dcgpu")

    folder = fetch("--run-id", "17")

    assert folder == tmp_path / ".cache" / "artifacts" / f"17-{this_platform()}" / FAMILY
    assert folder_names(folder) == list(NAMES)


def test_records_which_artifacts_were_fetched(tmp_path: Path, fetch: Fetch) -> None:
    put(tmp_path, *NAMES)

    fetch("--run-id", "17")

    record = read_record(tmp_path)
    assert record is not None
    names = [artifact["name"] for artifact in record.details["artifacts"]]
    assert names == [f"{name}.tar.zst" for name in NAMES]
    assert record.cell.gpu_family == FAMILY


def test_a_dry_run_lists_artifacts_and_fetches_none(
    tmp_path: Path,
    fetch: Fetch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(tmp_path, *NAMES)

    folder = fetch("--run-id", "17", "--dry-run")

    assert "blas_lib_gfx110X-all.tar.zst" in capsys.readouterr().err
    assert not folder.exists()
    assert read_record(tmp_path) is None


def test_does_nothing_where_all_is_fetched(
    tmp_path: Path,
    fetch: Fetch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(tmp_path, *NAMES)
    fetch("--run-id", "17")
    capsys.readouterr()

    fetch("--run-id", "17")

    assert "unchanged" in capsys.readouterr().err


def test_fetches_again_only_what_changed_in_the_folder(tmp_path: Path, fetch: Fetch) -> None:
    put(tmp_path, *NAMES)
    folder = fetch("--run-id", "17")
    inode = (folder / "base_lib_generic").stat().st_ino
    (folder / "blas_lib_gfx110X-all" / ".archive.sha256").unlink()

    fetch("--run-id", "17")

    assert len(scan(folder)) == 2
    assert (folder / "blas_lib_gfx110X-all" / ".archive.sha256").is_file()
    assert (folder / "base_lib_generic").stat().st_ino == inode


def test_fetches_all_again_when_forced(tmp_path: Path, fetch: Fetch) -> None:
    put(tmp_path, *NAMES)
    folder = fetch("--run-id", "17")
    inode = (folder / "base_lib_generic").stat().st_ino

    fetch("--run-id", "17", "--force")

    assert (folder / "base_lib_generic").stat().st_ino != inode


def test_fetches_from_the_local_run_by_default(tmp_path: Path, fetch: Fetch) -> None:
    put(tmp_path, *NAMES, run_id="local")

    assert folder_names(fetch(run_id="local")) == list(NAMES)


def test_fetches_from_another_store_into_another_folder(tmp_path: Path, fetch: Fetch) -> None:
    put(tmp_path, *NAMES, store="mirror")
    target = tmp_path / "target"

    fetch("--run-id=17", "--from", str(tmp_path / "mirror"), "--output-dir", str(target))

    assert folder_names(target) == list(NAMES)
    # The record is written to our own store.
    assert read_record(tmp_path) is not None
    assert list((tmp_path / "mirror").rglob("*.json")) == []


# --- Another run than the one that is built --------------------------------------------------


def test_fetches_artifacts_of_another_run(tmp_path: Path, fetch: Fetch) -> None:
    put(tmp_path, *NAMES, store="mirror")

    folder = fetch(
        "--run-id=9",
        "--artifact-run-id=17",
        "--artifact-store",
        str(tmp_path / "mirror"),
        run_id="9",
    )

    assert folder_names(folder) == list(NAMES)
    record = read_record(tmp_path, run_id="9")
    assert record is not None
    assert f"17-{this_platform()}" in record.inputs["from"]


def test_fetches_the_artifacts_that_the_plan_pinned(tmp_path: Path, fetch: Fetch) -> None:
    put(tmp_path, *NAMES)
    fetch("--run-id=17")
    record = read_record(tmp_path)
    assert record is not None
    digests = {artifact["name"]: artifact["sha256"] for artifact in record.details["artifacts"]}

    folder = fetch("--run-id=17", f"--artifact-digest={digest_of(digests)}", "--force")

    assert folder_names(folder) == list(NAMES)


def test_refuses_other_artifacts_than_the_plan_pinned(tmp_path: Path, fetch: Fetch) -> None:
    put(tmp_path, *NAMES)

    with pytest.raises(ArtifactError, match="pinned"):
        fetch("--run-id=17", f"--artifact-digest={'0' * 64}")


@pytest.mark.parametrize("option", ["--run-id", "--artifact-run-id"])
def test_refuses_a_run_beside_the_newest(fetch: Fetch, option: str) -> None:
    with pytest.raises(UsageError, match=option):
        fetch(option, "17", "--latest")


def test_refuses_a_commit_beside_the_newest(fetch: Fetch) -> None:
    with pytest.raises(UsageError, match="--commit"):
        fetch("--commit", "0123456", "--latest")


# --- What is missing -------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "run"), [(("--run-id", "17"), "Run 17"), ((), "Run local")])
def test_refuses_a_run_without_artifacts(
    fetch: Fetch,
    arguments: tuple[str, ...],
    run: str,
) -> None:
    with pytest.raises(MissingInputError, match=run):
        fetch(*arguments)


def test_refuses_a_run_without_artifacts_of_the_family(tmp_path: Path, fetch: Fetch) -> None:
    put(tmp_path, "base_lib_generic")

    with pytest.raises(MissingInputError, match=FAMILY):
        fetch("--run-id", "17")


def test_there_are_no_artifacts_for_cpu() -> None:
    module, parser = verb_parser("ci", VERB)

    with pytest.raises(UsageError, match="cpu"):
        module.run(parser.parse_args(["--gpu-family=cpu"]))


def test_finds_a_run_in_the_bucket_of_its_repository(tmp_path: Path, opened_stores: list[str]) -> None:
    bucket = "therock-ci-artifacts-external"
    put(tmp_path, *NAMES, store=f"buckets-{bucket}/ROCm-other")

    run_artifacts = artifacts.find_run_artifacts(
        Common(root=tmp_path, run_id="17"), None, "ROCm/other", fork=False
    )

    assert len(run_artifacts.artifacts) == 2
    assert run_artifacts.prefix == f"ROCm-other/17-{this_platform()}"
    assert opened_stores == ["out", f"s3://{bucket}"]


def test_looks_in_the_bucket_of_the_release_type(tmp_path: Path, opened_stores: list[str]) -> None:
    common = Common(root=tmp_path, run_id="17", release_type="nightly")

    with pytest.raises(MissingInputError):
        artifacts.find_run_artifacts(common, None, "ROCm/other", fork=False)

    assert opened_stores[1] == "s3://therock-nightly-artifacts"


# --- Finding the run -------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeGitHub:
    """GitHub with three runs, of which a test may put artifacts into the store."""
    runs = [github_run("33", ""), github_run("32", "", fork=True), github_run("31", "")]
    hub = FakeGitHub(runs)
    monkeypatch.setattr(fetch_artifacts, "from_environment", lambda _environment: hub)
    return hub


def test_fetches_from_the_newest_run_with_artifacts_of_the_family(
    tmp_path: Path,
    fetch: Fetch,
    hub: FakeGitHub,
) -> None:
    put(tmp_path, "base_lib_generic", "blas_lib_gfx94X-dcgpu", run_id="33")
    put(tmp_path, *NAMES, run_id="31")

    folder = fetch("--latest", "--branch", "release/x", run_id="31")

    assert folder_names(folder) == list(NAMES)
    assert read_record(tmp_path, run_id="31") is not None
    (query,) = hub.queries
    assert query.repository == "ROCm/TheRock"
    assert query.workflow == "multi_arch_ci.yml"
    assert query.branch == "release/x"
    assert query.require_successful


def test_fetches_a_forks_run_from_the_folder_of_the_repository(
    tmp_path: Path,
    fetch: Fetch,
    hub: FakeGitHub,
) -> None:
    put(tmp_path, *NAMES, run_id="32", store="out/ROCm-TheRock")

    folder = fetch("--commit", "0123456", "--no-require-successful", run_id="32")

    assert folder_names(folder) == list(NAMES)
    (query,) = hub.queries
    assert query.commit == "0123456".ljust(40, "d")
    assert query.branch == ""
    assert not query.require_successful


def test_a_build_variant_has_a_workflow_a_folder_and_a_record_of_its_own(
    tmp_path: Path,
    fetch: Fetch,
    hub: FakeGitHub,
) -> None:
    put(tmp_path, *NAMES, run_id="33")

    folder = fetch("--latest", "--build-variant=asan", run_id="33")

    assert not folder.exists()
    assert folder_names(folder.with_name(f"{FAMILY}-asan")) == list(NAMES)
    assert hub.queries[0].workflow == "multi_arch_ci_asan.yml"
    record = read_record(tmp_path, run_id="33", group=f"{FAMILY}-asan")
    assert record is not None
    assert record.cell.gpu_family == FAMILY
    assert record.cell.build_variant == "asan"


@pytest.mark.usefixtures("hub")
def test_refuses_a_build_variant_that_no_workflow_builds(fetch: Fetch) -> None:
    with pytest.raises(UsageError, match="tsan"):
        fetch("--latest", "--build-variant=tsan")


def test_refuses_where_none_of_the_newest_runs_has_artifacts(fetch: Fetch, hub: FakeGitHub) -> None:
    with pytest.raises(MissingInputError, match="newest 3"):
        fetch("--latest")

    assert len(hub.queries) == 1
