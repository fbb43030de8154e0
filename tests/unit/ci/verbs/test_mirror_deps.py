"""The mirror of dependencies, filled from a public index that is made up."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ci.install import dependencies
from ci.install.dependencies import MirrorData
from ci.verbs import mirror_deps
from core import files
from core.cell import Cell
from core.errors import StoreError
from core.packages.candidates import Candidate
from core.packages.resolution import ResolvedPackage, ResolverQuery
from core.stores.directory import DirectoryStore
from tests.kit import wheels
from tests.kit.front_doors import run_verb
from tests.kit.mirrors import MIRROR

NUMPY = "numpy-1-py3-none-any.whl"

PublicIndex = Callable[[str], list[str]]


@pytest.fixture
def public_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PublicIndex:
    """Return a function that gives a public index of numpy and pillow with some content.

    What it returns are the names of the files that are downloaded from then on.
    """

    def give(content: str) -> list[str]:
        folder = tmp_path / f"public-{content}"
        downloaded: list[str] = []
        paths: dict[str, Path] = {}
        for name in ("numpy", "pillow"):
            paths[name] = wheels.write_wheel(
                folder,
                name=name,
                version="1",
                files={f"{name}.py": content},
                metadata_fields=[("Requires-Python", ">=3.9")],
            )

        def resolve(question: ResolverQuery) -> Sequence[ResolvedPackage]:
            resolved: list[ResolvedPackage] = []
            for name, path in paths.items():
                if name in question.requirements:
                    digest = wheels.sha256(path)
                    offer = Candidate(name=path.name, distribution=name, version="1", sha256=digest)
                    resolved.append(ResolvedPackage(name=name, version="1", files=(offer,)))
            return resolved

        def download(
            _data: MirrorData,
            _cell: Cell,
            batch: Sequence[Candidate],
            target: Path,
        ) -> None:
            for file in batch:
                downloaded.append(file.name)
                files.copy(folder / file.name, target / file.name)

        monkeypatch.setattr(dependencies, "resolve", resolve)
        monkeypatch.setattr(dependencies, "download", download)
        return downloaded

    monkeypatch.setattr(dependencies, "configured_sources", lambda: None)
    monkeypatch.setattr(mirror_deps, "mirror", lambda: MIRROR)
    return give


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


def mirror(store: DirectoryStore, *options: str) -> int:
    return run_verb("ci", "mirror-deps", "--store", store.root, *options)


def test_a_dry_run_names_files_and_writes_nothing(
    store: DirectoryStore,
    public_index: PublicIndex,
    capfd: pytest.CaptureFixture[str],
) -> None:
    downloaded = public_index("first")

    assert mirror(store, "--dry-run") == 0

    assert NUMPY in capfd.readouterr().err
    assert downloaded == []
    assert store.list("") == []


def test_takes_what_an_interrupted_call_left(
    store: DirectoryStore,
    public_index: PublicIndex,
    tmp_path: Path,
) -> None:
    downloaded = public_index("first")
    wheel = tmp_path / "public-first" / NUMPY
    store.put_file(f"python-deps/{NUMPY}", wheel, sha256=wheels.sha256(wheel), replace=False)

    assert mirror(store) == 0

    assert downloaded == ["pillow-1-py3-none-any.whl"]
    assert store.find("python-deps/simple/numpy/index.html") is not None


def test_refuses_other_bytes_of_a_mirrored_file(store: DirectoryStore, public_index: PublicIndex) -> None:
    public_index("first")
    assert mirror(store) == 0
    downloaded = public_index("changed")

    assert mirror(store) == StoreError.exit_code

    assert downloaded == []


def test_refuses_other_bytes_of_a_file_that_no_record_names(
    store: DirectoryStore,
    public_index: PublicIndex,
) -> None:
    downloaded = public_index("first")
    store.put_bytes(f"python-deps/{NUMPY}", b"another's")

    assert mirror(store) == StoreError.exit_code

    assert downloaded == []
