from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.errors import SourceError
from pytorch_build.sources import git as git_module
from pytorch_build.sources.git import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Commit = Callable[[Path, Mapping[str, str]], str]

pytestmark = pytest.mark.processes


@pytest.fixture
def old_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speak the protocol in which a server refuses commits that no ref names."""
    monkeypatch.setattr(git_module, "_MANAGED", (*git_module._MANAGED, "protocol.version=0"))


def test_files_are_read_at_a_commit(tmp_path: Path, commit_files: Commit) -> None:
    first = commit_files(tmp_path / "up", {"version.txt": "1\n", "a/b.txt": "b\n"})
    commit_files(tmp_path / "up", {"version.txt": "2\n"})
    reader = Reader(cache=tmp_path / "cache")
    texts = reader.texts(str(tmp_path / "up"), first, ("version.txt", "a/b.txt", "absent.txt"))
    assert texts == {"a/b.txt": "b\n", "version.txt": "1\n"}


@pytest.mark.usefixtures("old_server")
def test_a_server_that_gives_no_single_commits_is_asked_for_all(tmp_path: Path, commit_files: Commit) -> None:
    first = commit_files(tmp_path / "up", {"version.txt": "1\n"})
    commit_files(tmp_path / "up", {"version.txt": "2\n"})
    reader = Reader(cache=tmp_path / "cache")
    assert reader.commit(str(tmp_path / "up"), first) == first
    assert reader.texts(str(tmp_path / "up"), first, ("version.txt",)) == {"version.txt": "1\n"}
    with pytest.raises(SourceError, match="does not have the commit 1111"):
        reader.commit(str(tmp_path / "up"), "1" * 40)


def test_an_interrupted_cache_is_made_again(tmp_path: Path, commit_files: Commit) -> None:
    commit = commit_files(tmp_path / "up", {"version.txt": "1\n"})
    reader = Reader(cache=tmp_path / "cache")
    reader.commit(str(tmp_path / "up"), commit)
    (cached,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    (cached / "complete").unlink()
    (cached / "HEAD").unlink()
    assert reader.commit(str(tmp_path / "up"), commit) == commit
