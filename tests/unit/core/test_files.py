import errno
import hashlib
import os
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import files
from core.errors import FatalError


def no_space(*_arguments: Any, **_options: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_appears_whole_in_folders_that_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.txt"
    with files.atomic(path) as stream:
        stream.write(b"half")
        assert not path.exists()
        stream.write(b" and whole")
    assert path.read_bytes() == b"half and whole"
    assert path.stat().st_mode & 0o777 == 0o644


def test_an_interrupted_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "b.txt"
    path.write_text("before")

    def interrupted() -> NoReturn:
        with files.atomic(path) as stream:
            stream.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    said = pytest.raises(FatalError, match=r"b\.txt could not be written: No space left")
    with said, files.atomic(tmp_path / "b.txt"):
        no_space()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(FatalError, match=r"could not be written: (Not a directory|File exists)"):
        files.write_text(tmp_path / "taken" / "b.txt", "text")
    with pytest.raises(FatalError, match="could not be written"):
        files.link_or_copy(tmp_path / "taken", tmp_path / "taken" / "b.txt")


def test_text_has_line_feeds_and_json_ends_with_one(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a", "a\nb\n")
    assert (tmp_path / "a").read_bytes() == b"a\nb\n"
    files.write_json(tmp_path / "b", {"z": "größer", "a": [1]})
    assert (tmp_path / "b").read_text(encoding="utf-8") == '{\n  "z": "größer",\n  "a": [\n    1\n  ]\n}\n'


def test_digests_are_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x00" * files.CHUNK + b"\xff")
    assert files.sha256(tmp_path / "a") == hashlib.sha256(b"\x00" * files.CHUNK + b"\xff").hexdigest()
    assert files.sha256_text("ä") == hashlib.sha256("ä".encode()).hexdigest()


@given(st.dictionaries(st.text(min_size=1), st.integers() | st.lists(st.text()), min_size=1))
def test_a_value_has_one_digest_whatever_the_order(value: dict[str, Any]) -> None:
    digest = files.digest_of(value)
    assert digest == files.digest_of(dict(reversed(value.items())))
    assert digest != files.digest_of({**value, "": 1})


def test_a_file_is_linked_and_replaces_another(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "deep" / "target"
    source.write_text("new")
    target.parent.mkdir()
    target.write_text("old")
    files.link_or_copy(source, target)
    files.link_or_copy(source, target)
    assert target.read_text() == "new"
    assert target.samefile(source)
    assert list(target.parent.iterdir()) == [target]


def test_where_links_are_refused_a_file_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_space)
    (tmp_path / "source").write_text("new")
    files.link_or_copy(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_text() == "new"
    assert not (tmp_path / "target").samefile(tmp_path / "source")


def test_a_second_holder_waits_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    def second() -> None:
        with files.locked(tmp_path / "sub" / "x.lock", what="src/torch"):
            order.append("second")

    with files.locked(tmp_path / "sub" / "x.lock", what="src/torch"):
        thread = threading.Thread(target=second)
        thread.start()
        said = ""
        while "Waiting for another process that works on src/torch" not in said:
            thread.join(0.01)
            said += capsys.readouterr().err
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
