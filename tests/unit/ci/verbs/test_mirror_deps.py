from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ci.install import dependencies
from ci.install.dependencies import Mirror, Source
from ci.verbs import mirror_deps
from core import files
from core.errors import StoreError
from core.packages import Offer
from core.packages.resolution import Resolved
from core.stores.directory import DirectoryStore
from tests.conftest import MakeWheel
from tests.kit.front_doors import run_ci
from tests.kit.mirrors import MIRROR


@pytest.fixture(name="index")
def index_fixture(tmp_path: Path, make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch) -> list[Source]:
    """A public index of two wheels, and what was fetched from it."""
    fetched: list[Source] = []
    paths = {
        name: make_wheel(tmp_path / "public", name, "1", fields=[("Requires-Python", ">=3.9")])
        for name in ("numpy", "pillow")
    }

    def resolve(question: Any) -> Sequence[Resolved]:
        offers = (
            Offer(name=path.name, distribution=name, version="1", sha256=files.sha256(path))
            for name, path in paths.items()
            if name in question.requirements
        )
        return [Resolved(name=one.distribution, version="1", files=(one,)) for one in offers]

    def download(_data: Mirror, batch: Sequence[Source], folder: Path) -> None:
        for one in batch:
            fetched.append(one)
            files.copy(tmp_path / "public" / one.name, folder / one.name)

    monkeypatch.setattr(dependencies, "configured", lambda: None)
    monkeypatch.setattr(dependencies, "resolve", resolve)
    monkeypatch.setattr(dependencies, "download", download)
    monkeypatch.setattr(mirror_deps, "mirror", lambda: MIRROR)
    return fetched


def front(store: Path, *words: str) -> int:
    return run_ci("mirror-deps", "--store", store, *words)


def test_a_dry_run_writes_nothing(
    tmp_path: Path, index: list[Source], capfd: pytest.CaptureFixture[str]
) -> None:
    assert front(tmp_path / "s", "--dry-run") == 0
    assert index == []
    assert DirectoryStore(tmp_path / "s").list("") == []
    assert "numpy-1-py3-none-any.whl" in capfd.readouterr().err


def test_what_an_interrupted_call_left_is_taken_as_it_is(tmp_path: Path, index: list[Source]) -> None:
    store = DirectoryStore(tmp_path / "s")
    wheel = tmp_path / "public/numpy-1-py3-none-any.whl"
    key = f"python-deps/{wheel.name}"
    store.put_file(key, wheel, sha256=files.sha256(wheel), replace=False)
    assert front(tmp_path / "s") == 0
    assert [one.distribution for one in index] == ["pillow"]
    assert store.find("python-deps/simple/numpy/index.html") is not None


@pytest.mark.parametrize("recorded", [True, False])
def test_other_bytes_under_a_mirrored_name_are_refused(
    tmp_path: Path, index: list[Source], make_wheel: MakeWheel, *, recorded: bool
) -> None:
    if recorded:
        assert front(tmp_path / "s") == 0
        index.clear()
        make_wheel(tmp_path / "public", "numpy", "1", content="CHANGED = True")
        # the fixture's digests are taken when it is asked
    else:
        DirectoryStore(tmp_path / "s").put_bytes("python-deps/numpy-1-py3-none-any.whl", b"another's")
    assert front(tmp_path / "s") == StoreError.exit_code
    assert index == []
