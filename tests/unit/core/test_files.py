import ctypes
import errno
import hashlib
import os
import shutil
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import files
from core.errors import MachineError, MissingInputError
from tests.kit.windows import NO_PIPES, ON_WINDOWS, make_link, make_pipe, not_on_linux


def fail_for_space(*_arguments: Any, **_options: Any) -> NoReturn:
    """Fail as the operating system does on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Atomic writes


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "b.txt"

    with files.atomic_file(path) as stream:
        stream.write(b"first half")
        assert not path.exists()
        stream.write(b" and second")

    assert path.read_bytes() == b"first half and second"
    assert ON_WINDOWS or path.stat().st_mode & 0o777 == 0o644


def test_an_interrupted_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "b.txt"
    path.write_text("before")

    def write_half() -> NoReturn:
        with files.atomic_file(path) as stream:
            stream.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()

    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_names_the_file_that_a_full_disk_did_not_take(tmp_path: Path) -> None:
    with pytest.raises(MachineError) as raised, files.atomic_file(tmp_path / "b.txt"):
        fail_for_space()

    assert "b.txt" in raised.value.message
    assert os.strerror(errno.ENOSPC) in raised.value.message
    assert list(tmp_path.iterdir()) == []


def test_names_a_file_whose_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(MachineError) as raised:
        files.write_text(tmp_path / "file" / "b.txt", "text")

    assert "b.txt" in raised.value.message


def test_writes_text_with_line_feeds(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a", "a\nb\n")

    assert (tmp_path / "a").read_bytes() == b"a\nb\n"


def test_writes_json_in_the_order_of_its_keys_with_a_newline_at_the_end(tmp_path: Path) -> None:
    files.write_json(tmp_path / "b", {"z": "größer", "a": [1]})

    content = (tmp_path / "b").read_text(encoding="utf-8")
    assert content == '{\n  "z": "größer",\n  "a": [\n    1\n  ]\n}\n'


# Digests


def test_hashes_files_of_several_chunks_and_texts_by_sha256(tmp_path: Path) -> None:
    content = b"\x00" * files.CHUNK + b"\xff"
    (tmp_path / "a").write_bytes(content)

    assert files.sha256(tmp_path / "a") == hashlib.sha256(content).hexdigest()
    assert files.sha256_text("ä") == hashlib.sha256("ä".encode()).hexdigest()


@given(st.dictionaries(st.text(min_size=1), st.integers() | st.lists(st.text()), min_size=1))
def test_a_document_has_one_digest_whatever_the_order_of_its_keys(document: dict[str, Any]) -> None:
    digest = files.digest_of(document)

    assert digest == files.digest_of(dict(reversed(document.items())))
    assert digest != files.digest_of({**document, "": 1})


# Links


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a file to link or copy."""
    source = tmp_path / "source"
    source.write_text("new")
    return source


def test_links_a_file_in_the_place_of_another(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    target.parent.mkdir()
    target.write_text("old")

    files.link_or_copy(source, target)

    assert target.samefile(source)
    assert list(target.parent.iterdir()) == [target]


def test_links_a_file_that_is_linked_already(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    files.link_or_copy(source, target)

    files.link_or_copy(source, target)

    assert target.samefile(source)


def test_copies_a_file_where_links_are_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", fail_for_space)

    files.link_or_copy(source, tmp_path / "target")

    assert (tmp_path / "target").read_text() == "new"
    assert not (tmp_path / "target").samefile(source)


def test_names_a_link_whose_folder_cannot_be_made(source: Path) -> None:
    with pytest.raises(MachineError) as raised:
        files.link_or_copy(source, source / "b.txt")

    assert "b.txt" in raised.value.message


# Locks


def test_a_second_holder_of_a_lock_waits_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "sub" / "x.lock"
    order: list[str] = []

    def work_second() -> None:
        with files.locked(lock, what="src/torch"):
            order.append("second")

    with files.locked(lock, what="src/torch"):
        thread = threading.Thread(target=work_second)
        thread.start()
        output = ""
        while "src/torch" not in output:
            thread.join(0.01)
            output += capsys.readouterr().err
        order.append("first")
    thread.join()

    assert order == ["first", "second"]


@not_on_linux("Linux replaces files that are read")
def test_replaces_a_file_as_soon_as_nobody_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    stream = path.open("rb")
    reader = threading.Timer(0.2, stream.close)

    reader.start()
    files.write_text(path, "new")
    reader.join()

    assert path.read_text() == "new"


# Folders that go


def test_removes_a_folder_with_files_that_are_read_only(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    folder.mkdir()
    (folder / "pack").touch()
    (folder / "pack").chmod(0o444)
    folder.chmod(0o555)

    files.remove_folder(folder)

    assert not folder.exists()


@not_on_linux("Linux removes files that are open")
def test_names_the_file_in_use_that_keeps_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "objects" / "pack"
    path.parent.mkdir()
    path.touch()

    with path.open("rb"), pytest.raises(MachineError) as raised:
        files.remove_folder(path.parent)

    assert str(path) in raised.value.message
    assert "open" in raised.value.hint


@not_on_linux("Linux removes libraries that are loaded")
@pytest.mark.parametrize(
    "change",
    [files.remove_folder, lambda folder: files.write_text(folder / "a.dll", "")],
    ids=["remove", "replace"],
)
def test_names_the_dll_that_a_program_has_loaded(tmp_path: Path, change: Callable[[Path], object]) -> None:
    dll = tmp_path / "bin" / "a.dll"
    dll.parent.mkdir()
    # Any small one does.
    shutil.copyfile(next(Path(sys.base_prefix).rglob("libffi-8.dll")), dll)

    with loaded(dll), pytest.raises(MachineError) as raised:
        change(dll.parent)

    assert str(dll) in raised.value.message
    assert "in use" in raised.value.hint
    assert dll.is_file()


@contextmanager
def loaded(dll: Path) -> Iterator[None]:
    """Load a DLL into this process while the block runs."""
    # Type checkers know no such library on other systems.
    kernel = vars(ctypes)["WinDLL"]("kernel32")
    kernel.LoadLibraryW.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(kernel.LoadLibraryW(str(dll)))
    assert handle.value is not None
    try:
        yield
    finally:
        kernel.FreeLibrary(handle)


# Files of others


def test_reads_a_regular_file_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    make_link(tmp_path / "link", "file")

    assert files.read_regular(tmp_path / "link") == b"content"


def test_refuses_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")

    with pytest.raises(MachineError) as raised:
        files.read_regular(path, largest=6)

    assert str(path) in str(raised.value)


def test_asks_for_no_more_memory_than_a_file_needs(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")

    tracemalloc.start()
    try:
        files.read_regular(tmp_path / "file")
        _current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < files.LARGEST_DOCUMENT / 100


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux has such files")
def test_refuses_a_file_that_is_longer_than_its_status_says() -> None:
    with pytest.raises(MachineError):
        files.read_regular(Path("/proc/self/status"), largest=10)


@pytest.mark.parametrize(
    "make", [pytest.param(make_pipe, marks=NO_PIPES), Path.mkdir], ids=["pipe", "folder"]
)
def test_refuses_what_is_no_file_without_waiting(tmp_path: Path, make: Callable[[Path], object]) -> None:
    path = tmp_path / "file"
    make(path)

    with pytest.raises(MachineError) as raised:
        files.read_regular(path)

    assert str(path) in str(raised.value)


def test_says_which_file_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError) as raised:
        files.read_regular(tmp_path / "file")

    assert str(tmp_path / "file") in str(raised.value)
