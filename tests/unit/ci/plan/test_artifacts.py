import io
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import pytest

from ci.plan import artifacts
from core.errors import ArtifactError, InterruptedStageError, MissingInputError, StoreError
from core.families import family
from core.stores.directory import DirectoryStore
from rocm_packaging.archives import ArchiveName, parse_name
from rocm_packaging.artifacts import scan
from tests.kit.artifact_archives import pack

PREFIX = "17-linux"
FAMILY = family("gfx110X-all")
NAMES = ("base_lib_generic", "blas_lib_gfx110X-all", "rand_lib_gfx1100", "blas_lib_gfx94X-dcgpu")
MINE = ["base_lib_generic", "blas_lib_gfx110X-all", "rand_lib_gfx1100"]


def put(root: Path, name: str, content: str = "library", suffix: str = ".tar.zst") -> Path:
    source = root / "source" / name
    (source / "a/stage").mkdir(parents=True, exist_ok=True)
    (source / "artifact_manifest.txt").write_text("a/stage\n", encoding="utf-8")
    (source / "a/stage" / name).write_text(content, encoding="utf-8")
    return pack(source, root / "store" / PREFIX, suffix=suffix)


@dataclass(frozen=True)
class Watched(DirectoryStore):
    """A store that notes what is opened, and breaks or blocks where a test says so."""

    opened: list[str] = field(default_factory=list)
    breaks: dict[str, int] = field(default_factory=dict)
    blocked: threading.Event = field(default_factory=threading.Event)

    def open(self, key: str) -> BinaryIO:
        name = Path(key).name.partition(".")[0]
        self.opened.append(name)
        if self.breaks.get(name, 0) > 0:
            self.breaks[name] -= 1
            return Broken(self.read(key)[:100])
        return super().open(key)


class Broken(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if not data:
            raise ConnectionResetError("reset by peer")
        return data


@pytest.fixture
def store(tmp_path: Path) -> Watched:
    for name in NAMES:
        put(tmp_path, name)
    return Watched(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    real = threading.Event.wait
    monkeypatch.setattr(threading.Event, "wait", lambda self, timeout=None: real(self, timeout and 0.01))


def planned(store: Watched, name: str = "gfx110X-all") -> artifacts.FetchPlan:
    chosen = artifacts.choose(artifacts.list_artifacts(store, PREFIX), family(name), where="here")
    return artifacts.plan(store, chosen, family(name))


def names(done: Sequence[artifacts.Fetched]) -> list[str]:
    return [one.artifact.name.stem for one in done]


def folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


# --- what there is -------------------------------------------------------------------------


def test_only_archives_directly_in_the_runs_folder_are_artifacts(store: Watched, tmp_path: Path) -> None:
    run = tmp_path / "store" / PREFIX
    for path in ("python/g/x_lib_generic.tar.zst", "tarballs/rocm.tar.xz", "index.html"):
        (run / path).parent.mkdir(parents=True, exist_ok=True)
        (run / path).write_text("x", encoding="utf-8")
    other = tmp_path / "store" / f"{PREFIX}2" / "other_lib_generic.tar.zst"
    other.parent.mkdir()
    other.write_text("x", encoding="utf-8")
    listed = artifacts.list_artifacts(store, PREFIX)
    assert [one.name.stem for one in listed] == sorted(NAMES)
    assert listed[0].key == "17-linux/base_lib_generic.tar.zst"
    assert listed[0].sidecar == "17-linux/base_lib_generic.tar.zst.sha256sum"
    assert listed[0].size == (run / "base_lib_generic.tar.zst").stat().st_size
    assert artifacts.list_artifacts(store, "18-linux") == ()


def test_zstd_is_preferred_where_a_whole_archive_of_it_is_there(store: Watched, tmp_path: Path) -> None:
    put(tmp_path, "base_lib_generic", suffix=".tar.xz")
    assert [one.name.suffix for one in artifacts.list_artifacts(store, PREFIX)] == [".tar.zst"] * len(NAMES)
    (tmp_path / "store" / PREFIX / "base_lib_generic.tar.zst").unlink()
    assert artifacts.list_artifacts(store, PREFIX)[0].name.suffix == ".tar.xz"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gfx110X-all", MINE),
        ("gfx1100", ["base_lib_generic", "rand_lib_gfx1100"]),
        ("gfx94X-dcgpu", ["base_lib_generic", "blas_lib_gfx94X-dcgpu"]),
        ("gfx94X-dcgpu;gfx1100", ["base_lib_generic", "blas_lib_gfx94X-dcgpu", "rand_lib_gfx1100"]),
    ],
)
def test_a_family_takes_its_own_targets_and_generic(store: Watched, name: str, expected: list[str]) -> None:
    assert [one.name.stem for one in planned(store, name).artifacts] == expected


def test_what_a_family_lacks_is_an_error(store: Watched, tmp_path: Path) -> None:
    put(tmp_path, "fft_lib_gfx942:xnack+")  # features of a target belong to it
    assert "fft_lib_gfx942:xnack+" in [one.name.stem for one in planned(store, "gfx94X-dcgpu").artifacts]
    (tmp_path / "store" / PREFIX / "fft_lib_gfx942:xnack+.tar.zst").unlink()
    (tmp_path / "store" / PREFIX / "fft_lib_gfx942:xnack+.tar.zst.sha256sum").unlink()
    with pytest.raises(MissingInputError, match="no artifacts of gfx110X-all in here"):
        artifacts.choose((), FAMILY, where="here")
    with pytest.raises(MissingInputError, match=r"no artifacts of gfx120X-all in here") as caught:
        planned(store, "gfx120X-all")
    assert "gfx1100, gfx110X-all, gfx94X-dcgpu" in caught.value.hint


def test_absent_targets_are_told(store: Watched, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned(store)  # the family has artifacts as a whole
    assert "warning" not in capsys.readouterr().err
    (tmp_path / "store" / PREFIX / "blas_lib_gfx110X-all.tar.zst").unlink()
    (tmp_path / "store" / PREFIX / "blas_lib_gfx110X-all.tar.zst.sha256sum").unlink()
    planned(store)
    assert "here has no artifacts of gfx1101, gfx1102, gfx1103" in capsys.readouterr().err


# --- fetching ------------------------------------------------------------------------------


def test_a_wrong_digest_fails_by_name_after_the_others(store: Watched, folder: Path, tmp_path: Path) -> None:
    sidecar = tmp_path / "store" / PREFIX / "blas_lib_gfx110X-all.tar.zst.sha256sum"
    right = sidecar.read_text(encoding="utf-8")
    sidecar.write_text("ab" * 32, encoding="utf-8")
    with pytest.raises(ArtifactError, match="1 of 3 artifacts could not be fetched") as caught:
        artifacts.fetch(store, planned(store), folder)
    assert "blas_lib_gfx110X-all.tar.zst has the SHA-256" in caught.value.message
    assert folders(folder) == ["base_lib_generic", "rand_lib_gfx1100"]
    with pytest.raises(ArtifactError, match="is incomplete"):
        scan(folder)
    sidecar.write_text(right, encoding="utf-8")
    store.opened.clear()
    artifacts.fetch(store, planned(store), folder)
    assert store.opened == ["blas_lib_gfx110X-all"]
    assert len(scan(folder)) == 3


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("rand_lib_gfx1100.tar.zst", "rand_lib_gfx1100.tar.zst is missing; only its .sha256sum exists"),
        ("rand_lib_gfx1100.tar.zst.sha256sum", "rand_lib_gfx1100.tar.zst has no .sha256sum"),
    ],
)
def test_a_lone_half_is_named(store: Watched, folder: Path, tmp_path: Path, gone: str, said: str) -> None:
    (tmp_path / "store" / PREFIX / gone).unlink()
    with pytest.raises(ArtifactError, match=said):
        artifacts.fetch(store, planned(store), folder)
    assert folders(folder) == ["base_lib_generic", "blas_lib_gfx110X-all"]
    assert not artifacts.is_current(planned(store), folder)


def test_all_that_fail_are_named(store: Watched, folder: Path, tmp_path: Path) -> None:
    before = planned(store)
    for name in ("rand_lib_gfx1100", "base_lib_generic"):
        (tmp_path / "store" / PREFIX / f"{name}.tar.zst").write_bytes(b"broken")
    (tmp_path / "store" / PREFIX / "blas_lib_gfx110X-all.tar.zst.sha256sum").write_text("?", encoding="utf-8")
    with pytest.raises(ArtifactError, match="3 of 3") as caught:
        artifacts.fetch(store, planned(store), folder)
    assert all(name in caught.value.message for name in MINE)
    (tmp_path / "store" / PREFIX / "rand_lib_gfx1100.tar.zst").unlink()  # meanwhile
    with pytest.raises(ArtifactError, match=r"rand_lib_gfx1100.tar.zst is not in the store"):
        artifacts.fetch(store, before, folder)


def test_reading_that_breaks_off_begins_again_and_fails_in_the_end(store: Watched, folder: Path) -> None:
    store.breaks["base_lib_generic"] = 2
    artifacts.fetch(store, planned(store), folder)
    assert store.opened.count("base_lib_generic") == 3
    assert folders(folder) == MINE
    store.opened.clear()
    store.breaks["base_lib_generic"] = 99
    with pytest.raises(ArtifactError, match="broke off after 100 bytes: reset by peer"):
        artifacts.fetch(store, planned(store), folder, force=True)
    assert store.opened.count("base_lib_generic") == 3


def test_what_the_run_has_no_longer_is_taken_away(store: Watched, folder: Path, tmp_path: Path) -> None:
    artifacts.fetch(store, planned(store), folder)
    artifacts.fetch(store, planned(store, "gfx94X-dcgpu"), folder)  # another family's may stay beside it
    (folder / "mine_lib_generic").mkdir()
    half = folder / ".blas_lib_generic.abc.part"
    half.mkdir()
    for path in (tmp_path / "store" / PREFIX).glob("rand*"):
        path.unlink()
    assert not artifacts.is_current(planned(store), folder)
    artifacts.fetch(store, planned(store), folder)
    assert folders(folder) == [
        *("base_lib_generic", "blas_lib_gfx110X-all", "blas_lib_gfx94X-dcgpu", "mine_lib_generic")
    ]


def test_ctrl_c_stops_what_is_going_on(store: Watched, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def stopped_in_the_middle(_stream: BinaryIO, name: ArchiveName, *_: Path, **options: object) -> None:
        on_bytes = options["on_bytes"]
        assert callable(on_bytes)
        if name.stem == "base_lib_generic":
            raise KeyboardInterrupt
        try:
            while True:
                on_bytes(1)
                time.sleep(0.001)
        except InterruptedStageError:
            ended.append(name.stem)
            raise

    monkeypatch.setattr("rocm_packaging.archives.extract", stopped_in_the_middle)
    with pytest.raises(KeyboardInterrupt):
        artifacts.fetch(store, planned(store), folder)
    assert set(ended) <= {"blas_lib_gfx110X-all", "rand_lib_gfx1100"}
    with pytest.raises(ArtifactError, match="is incomplete"):
        scan(folder)


def test_a_store_error_of_the_listing_is_not_hidden(store: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: object, _key: str) -> bytes:
        raise StoreError("no access")

    chosen = artifacts.choose(artifacts.list_artifacts(store, PREFIX), FAMILY, where="here")
    monkeypatch.setattr(DirectoryStore, "read", refuse)
    found = artifacts.plan(store, chosen, FAMILY)
    assert found.artifacts == ()
    assert set(found.problems.values()) == {"no access"}


def test_windows_folders_count_as_the_artifacts_they_are(tmp_path: Path, store: Watched) -> None:
    name = parse_name("fft_lib_gfx1100:xnack+.tar.zst")
    old = tmp_path / "artifacts" / name.folder("windows")
    old.mkdir(parents=True)
    (old / ".archive.sha256").write_text("ab" * 32, encoding="ascii")
    assert artifacts._outdated(planned(store), tmp_path / "artifacts") == [old]
    empty = replace(planned(store), targets=frozenset())
    assert artifacts._outdated(empty, tmp_path / "artifacts") == []
