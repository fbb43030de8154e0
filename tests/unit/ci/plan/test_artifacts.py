"""A run's artifacts: listed, chosen for a GPU family, and fetched into a folder."""

import io
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pytest

from ci.plan import artifacts
from core.errors import ArtifactError, InterruptedStageError, MissingInputError, StoreError
from core.families import family
from core.stores.directory import DirectoryStore
from rocm_packaging.archives import ArchiveName
from rocm_packaging.artifacts import scan
from tests.kit.artifact_archives import write_archive
from tests.kit.processes import ctrl_c_when

PREFIX = "17-linux"
FAMILY = "gfx110X-all"

GENERIC = "base_lib_generic"
OF_FAMILY = "blas_lib_gfx110X-all"
OF_TARGET = "rand_lib_gfx1100"
OF_OTHER_FAMILY = "blas_lib_gfx94X-dcgpu"

NAMES = (GENERIC, OF_FAMILY, OF_OTHER_FAMILY, OF_TARGET)
CHOSEN = (GENERIC, OF_FAMILY, OF_TARGET)


@dataclass(frozen=True)
class WatchedStore(DirectoryStore):
    """A store that notes which artifacts are opened, and lets some of these reads break off."""

    opened: list[str] = field(default_factory=list)
    broken_reads: dict[str, int] = field(default_factory=dict)

    def open(self, key: str) -> BinaryIO:
        """Open an artifact; as often as `broken_reads` says, it breaks off after 100 bytes."""
        name = Path(key).name.partition(".")[0]
        self.opened.append(name)
        if self.broken_reads.get(name, 0) > 0:
            self.broken_reads[name] -= 1
            return BrokenStream(self.read(key)[:100])
        return super().open(key)


class BrokenStream(io.BytesIO):
    """A connection that is reset at its end."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return what came before the connection was reset."""
        data = super().read(size)
        if not data:
            raise ConnectionResetError("reset by peer")
        return data


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """The folder of the run in the store, with its archives."""
    path = tmp_path / "store" / PREFIX
    for name in NAMES:
        write_archive(path, name)
    return path


@pytest.fixture
def store(run_folder: Path) -> WatchedStore:
    return WatchedStore(run_folder.parent)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that artifacts are fetched into."""
    return tmp_path / "artifacts"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between attempts."""
    wait = threading.Event.wait

    def wait_shortly(event: threading.Event, timeout: float | None = None) -> bool:
        return wait(event, None if timeout is None else 0.01)

    monkeypatch.setattr(threading.Event, "wait", wait_shortly)


def plan_fetch(store: WatchedStore, family_name: str = FAMILY) -> artifacts.FetchPlan:
    run_artifacts = artifacts.list_artifacts(store, PREFIX)
    family_artifacts = artifacts.choose_artifacts(run_artifacts, family(family_name), where="the run")
    return artifacts.plan_fetch(store, family_artifacts, family(family_name))


def stems(run_artifacts: Sequence[artifacts.Artifact]) -> list[str]:
    return [artifact.name.stem for artifact in run_artifacts]


def folder_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def delete_archive(run_folder: Path, name: str) -> None:
    for path in run_folder.glob(f"{name}.tar.zst*"):
        path.unlink()


# --- Listing and choosing --------------------------------------------------------------------


def test_lists_archives_of_the_runs_folder_alone(store: WatchedStore, run_folder: Path) -> None:
    for path in ("python/g/x_lib_generic.tar.zst", "tarballs/rocm.tar.xz", "index.html"):
        (run_folder / path).parent.mkdir(parents=True, exist_ok=True)
        (run_folder / path).write_text("x", encoding="utf-8")
    write_archive(run_folder.parent / f"{PREFIX}2", "other_lib_generic")

    run_artifacts = artifacts.list_artifacts(store, PREFIX)

    assert stems(run_artifacts) == sorted(NAMES)
    assert artifacts.list_artifacts(store, "18-linux") == ()


def test_lists_an_archive_with_its_key_digest_file_and_size(store: WatchedStore, run_folder: Path) -> None:
    artifact = artifacts.list_artifacts(store, PREFIX)[0]

    assert artifact.key == "17-linux/base_lib_generic.tar.zst"
    assert artifact.sidecar == "17-linux/base_lib_generic.tar.zst.sha256sum"
    assert artifact.size == (run_folder / "base_lib_generic.tar.zst").stat().st_size


def test_prefers_zstd_to_xz(store: WatchedStore, run_folder: Path) -> None:
    write_archive(run_folder, GENERIC, suffix=".tar.xz")

    run_artifacts = artifacts.list_artifacts(store, PREFIX)

    assert {artifact.name.suffix for artifact in run_artifacts} == {".tar.zst"}


def test_takes_xz_where_the_zstd_archive_is_missing(store: WatchedStore, run_folder: Path) -> None:
    write_archive(run_folder, GENERIC, suffix=".tar.xz")
    (run_folder / f"{GENERIC}.tar.zst").unlink()

    run_artifacts = artifacts.list_artifacts(store, PREFIX)

    assert run_artifacts[0].name.filename == f"{GENERIC}.tar.xz"


@pytest.mark.parametrize(
    ("family_name", "expected"),
    [
        (FAMILY, [GENERIC, OF_FAMILY, OF_TARGET]),
        ("gfx1100", [GENERIC, OF_TARGET]),
        ("gfx94X-dcgpu", [GENERIC, OF_OTHER_FAMILY]),
        ("gfx94X-dcgpu;gfx1100", [GENERIC, OF_OTHER_FAMILY, OF_TARGET]),
    ],
)
def test_chooses_generic_artifacts_and_those_of_the_family(
    store: WatchedStore, family_name: str, expected: list[str]
) -> None:
    assert stems(plan_fetch(store, family_name).artifacts) == expected


def test_features_of_a_target_belong_to_it(store: WatchedStore, run_folder: Path) -> None:
    write_archive(run_folder, "fft_lib_gfx942:xnack+")

    assert "fft_lib_gfx942:xnack+" in stems(plan_fetch(store, "gfx94X-dcgpu").artifacts)


def test_refuses_a_run_without_artifacts_of_the_family(store: WatchedStore) -> None:
    with pytest.raises(MissingInputError, match="gfx120X-all") as caught:
        plan_fetch(store, "gfx120X-all")

    for target in ("gfx1100", "gfx110X-all", "gfx94X-dcgpu"):
        assert target in caught.value.hint


def test_refuses_a_run_without_any_artifacts() -> None:
    with pytest.raises(MissingInputError, match=FAMILY):
        artifacts.choose_artifacts((), family(FAMILY), where="the run")


def test_does_not_warn_of_targets_that_artifacts_of_the_family_cover(
    store: WatchedStore, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_fetch(store)

    assert "warning" not in capsys.readouterr().err


def test_warns_of_targets_without_artifacts(
    store: WatchedStore, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    delete_archive(run_folder, OF_FAMILY)

    plan_fetch(store)

    messages = capsys.readouterr().err
    assert "gfx1101, gfx1102, gfx1103" in messages
    assert "gfx1100" not in messages


# --- Fetching --------------------------------------------------------------------------------


def test_names_an_artifact_with_a_wrong_digest(store: WatchedStore, folder: Path, run_folder: Path) -> None:
    (run_folder / f"{OF_FAMILY}.tar.zst.sha256sum").write_text("ab" * 32, encoding="utf-8")

    with pytest.raises(ArtifactError, match=f"{OF_FAMILY}.tar.zst"):
        artifacts.fetch(store, plan_fetch(store), folder)

    assert folder_names(folder) == [GENERIC, OF_TARGET]


def test_nothing_packages_a_folder_that_lacks_artifacts(
    store: WatchedStore, folder: Path, run_folder: Path
) -> None:
    (run_folder / f"{OF_FAMILY}.tar.zst.sha256sum").write_text("ab" * 32, encoding="utf-8")

    with pytest.raises(ArtifactError):
        artifacts.fetch(store, plan_fetch(store), folder)

    with pytest.raises(ArtifactError, match="incomplete"):
        scan(folder)


def test_fetches_only_what_failed_before(store: WatchedStore, folder: Path, run_folder: Path) -> None:
    sidecar = run_folder / f"{OF_FAMILY}.tar.zst.sha256sum"
    correct_digest = sidecar.read_text(encoding="utf-8")
    sidecar.write_text("ab" * 32, encoding="utf-8")
    with pytest.raises(ArtifactError):
        artifacts.fetch(store, plan_fetch(store), folder)
    sidecar.write_text(correct_digest, encoding="utf-8")
    store.opened.clear()

    artifacts.fetch(store, plan_fetch(store), folder)

    assert store.opened == [OF_FAMILY]
    assert len(scan(folder)) == 3


@pytest.mark.parametrize("deleted_name", [f"{OF_TARGET}.tar.zst", f"{OF_TARGET}.tar.zst.sha256sum"])
def test_names_an_artifact_without_its_archive_or_its_digest(
    store: WatchedStore, folder: Path, run_folder: Path, deleted_name: str
) -> None:
    (run_folder / deleted_name).unlink()

    with pytest.raises(ArtifactError, match=f"{OF_TARGET}.tar.zst"):
        artifacts.fetch(store, plan_fetch(store), folder)

    assert folder_names(folder) == [GENERIC, OF_FAMILY]
    assert not artifacts.is_current(plan_fetch(store), folder)


def test_names_every_artifact_that_failed(store: WatchedStore, folder: Path, run_folder: Path) -> None:
    for name in (OF_TARGET, GENERIC):
        (run_folder / f"{name}.tar.zst").write_bytes(b"broken")
    (run_folder / f"{OF_FAMILY}.tar.zst.sha256sum").write_text("?", encoding="utf-8")

    with pytest.raises(ArtifactError, match="3 of 3") as caught:
        artifacts.fetch(store, plan_fetch(store), folder)

    for name in CHOSEN:
        assert name in caught.value.message


def test_names_an_artifact_that_went_after_it_was_listed(
    store: WatchedStore, folder: Path, run_folder: Path
) -> None:
    fetch_plan = plan_fetch(store)
    (run_folder / f"{OF_TARGET}.tar.zst").unlink()

    with pytest.raises(ArtifactError, match=f"{OF_TARGET}.tar.zst"):
        artifacts.fetch(store, fetch_plan, folder)


def test_reads_again_what_broke_off(store: WatchedStore, folder: Path) -> None:
    store.broken_reads[GENERIC] = 2

    artifacts.fetch(store, plan_fetch(store), folder)

    assert store.opened.count(GENERIC) == 3
    assert folder_names(folder) == list(CHOSEN)


def test_gives_up_reading_what_always_breaks_off(store: WatchedStore, folder: Path) -> None:
    store.broken_reads[GENERIC] = 99

    with pytest.raises(ArtifactError, match="reset by peer"):
        artifacts.fetch(store, plan_fetch(store), folder)

    assert store.opened.count(GENERIC) == 3


def test_removes_artifacts_that_the_run_no_longer_has(
    store: WatchedStore, folder: Path, run_folder: Path
) -> None:
    artifacts.fetch(store, plan_fetch(store), folder)
    delete_archive(run_folder, OF_TARGET)
    fetch_plan = plan_fetch(store)
    was_current = artifacts.is_current(fetch_plan, folder)

    artifacts.fetch(store, fetch_plan, folder)

    assert not was_current
    assert folder_names(folder) == [GENERIC, OF_FAMILY]


def test_keeps_artifacts_of_another_family_and_folders_of_the_user(store: WatchedStore, folder: Path) -> None:
    artifacts.fetch(store, plan_fetch(store, "gfx94X-dcgpu"), folder)
    (folder / "mine_lib_generic").mkdir()

    artifacts.fetch(store, plan_fetch(store), folder)

    assert {OF_OTHER_FAMILY, "mine_lib_generic"} <= set(folder_names(folder))


def test_removes_what_an_interrupted_fetch_left(store: WatchedStore, folder: Path) -> None:
    (folder / ".blas_lib_generic.abc.part").mkdir(parents=True)

    artifacts.fetch(store, plan_fetch(store), folder)

    assert folder_names(folder) == list(CHOSEN)


def test_an_interrupt_stops_every_fetch(
    store: WatchedStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    fetching = threading.Event()
    stopping = threading.Event()
    monkeypatch.setattr("ci.plan.artifacts.STOPPING", stopping)
    monkeypatch.setattr("core.parallel.STOPPING", stopping)

    def extract(_stream: BinaryIO, name: ArchiveName, *_: Path, **options: object) -> None:
        on_bytes = options["on_bytes"]
        assert callable(on_bytes)
        fetching.set()
        try:
            while True:
                on_bytes(1)
                time.sleep(0.001)
        except InterruptedStageError:
            stopped.append(name.stem)
            raise

    monkeypatch.setattr("rocm_packaging.archives.extract", extract)

    with pytest.raises(KeyboardInterrupt), ctrl_c_when(fetching.is_set):
        artifacts.fetch(store, plan_fetch(store), folder)

    assert stopping.is_set()
    assert set(stopped) <= {GENERIC, OF_FAMILY, OF_TARGET}
    with pytest.raises(ArtifactError, match="incomplete"):
        scan(folder)


def test_reports_that_digests_could_not_be_read(store: WatchedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_store: object, _key: str) -> bytes:
        raise StoreError("no access")

    monkeypatch.setattr(DirectoryStore, "read", refuse)

    fetch_plan = plan_fetch(store)

    assert fetch_plan.artifacts == ()
    assert set(fetch_plan.problems.values()) == {"no access"}


def test_removes_an_outdated_artifact_whose_folder_was_named_on_windows(
    store: WatchedStore, folder: Path
) -> None:
    # A folder on Windows has no colon in its name.
    outdated = folder / "fft_lib_gfx1100~xnack+"
    outdated.mkdir(parents=True)
    (outdated / ".archive.sha256").write_text("ab" * 32, encoding="ascii")

    artifacts.fetch(store, plan_fetch(store, "gfx94X-dcgpu"), folder)
    kept_by_another_family = outdated.exists()
    artifacts.fetch(store, plan_fetch(store), folder)

    assert kept_by_another_family
    assert not outdated.exists()
