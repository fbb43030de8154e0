"""Files of this machine as uploads see them: which are left out or packed, and how digests are remembered."""

import gzip
import hashlib
import os
import time
from pathlib import Path

import pytest

from ci.publish import local_files
from ci.publish.local_files import Digests, LocalFile, pack
from core.errors import MissingInputError, UsageError
from tests.kit import repos
from tests.kit.wheels import sha256
from tests.kit.windows import make_link


def read_logs(folder: Path) -> dict[str, LocalFile]:
    """Return a folder's files as they are uploaded as logs, by their paths in it."""
    paths = {path.relative_to(folder).as_posix(): path for path in local_files.list_files(folder)}
    return {file.key: file for file in local_files.read_logs(paths, Digests())}


@pytest.mark.parametrize(
    "name",
    [".kpack/a.whl", "a.log.part", "x~", "a/.hidden/b", "tmp/a", "a.TMP", "__pycache__/a.pyc", "b.lock"],
)
def test_leaves_out_hidden_and_temporary_files(name: str, tmp_path: Path) -> None:
    repos.write_files(tmp_path, {"deep/build.log": "x", name: "x"})

    assert [*read_logs(tmp_path)] == ["deep/build.log"]


def test_names_the_hidden_files_that_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repos.write_files(tmp_path, {"build.log": "x", "deep/.ninja_log": "x"})

    local_files.list_files(tmp_path)

    assert "deep/.ninja_log" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["caf\udce9.log", "two\nlines.log"], ids=["not UTF-8", "newline"])
def test_refuses_names_that_no_key_can_hold(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        local_files.require_addressable("logs", ["build.log", name, f"2{name}"])

    assert repr(name) in raised.value.message
    assert repr(f"2{name}") in raised.value.message


@pytest.mark.parametrize("target", ["elsewhere", "."], ids=["file", "folder"])
def test_leaves_out_links_and_names_them(
    target: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    repos.write_files(tmp_path / "in", {"build.log": "x"})
    (tmp_path / "elsewhere").write_text("secret")
    make_link(tmp_path / "in" / "secret.log", tmp_path / target)

    assert [*read_logs(tmp_path / "in")] == ["build.log"]
    assert "secret.log is a link" in capsys.readouterr().err


def test_packs_large_logs_and_nothing_else(tmp_path: Path) -> None:
    large = b"x" * (local_files.PACKED_FROM + 1)
    (tmp_path / "large.log").write_bytes(large)
    (tmp_path / "large.tar").write_bytes(large)
    (tmp_path / "small.log").write_bytes(b"x")

    logs = read_logs(tmp_path)
    assert {key: log.must_pack for key, log in logs.items()} == {
        "large.log.gz": True,
        "large.tar": False,
        "small.log": False,
    }
    assert logs["large.log.gz"].size < 10_000
    assert logs["large.tar"].sha256 == sha256(tmp_path / "large.tar")


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_rejects_a_folder_without_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(MissingInputError, match=name):
        local_files.list_files(tmp_path / name)


# --- Remembered digests


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Write a log that was last changed a minute ago."""
    path = tmp_path / "file.log"
    path.write_bytes(b"line\n" * 1000)
    past = time.time() - 60
    os.utime(path, (past, past))
    return path


def replace_unnoticed(path: Path) -> None:
    """Change a file's bytes and none of what a listing of its folder tells.

    So a digest that is still the old one was remembered, and not computed.
    """
    status = path.stat()
    path.write_bytes(b"LINE\n" * 1000)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def size_and_digest(
    digests: Digests,
    path: Path,
    *,
    packed: bool = False,
) -> tuple[int, str]:
    """Return what is known of a file, or of its gzip form."""
    (file,) = digests.read_files({"file.log": path}, may_replace=True, packed=packed)
    assert file.modified_ns == path.stat().st_mtime_ns
    return file.size, file.sha256


def test_remembers_a_digest_from_one_upload_to_the_next(log: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    first = size_and_digest(Digests(memory_file=memory), log)
    assert first == (5000, sha256(log))
    replace_unnoticed(log)

    assert size_and_digest(Digests(memory_file=memory), log) == first


def test_computes_the_digest_of_a_changed_file(log: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    size_and_digest(Digests(memory_file=memory), log)
    log.write_bytes(b"other")

    assert size_and_digest(Digests(memory_file=memory), log) == (5, hashlib.sha256(b"other").hexdigest())


def test_does_not_remember_a_file_that_was_written_in_this_moment(log: Path) -> None:
    # It may be written again within the same tick of its time.
    log.write_bytes(b"1")
    digests = Digests()

    assert size_and_digest(digests, log) == (1, hashlib.sha256(b"1").hexdigest())
    assert digests.memory == {}


def test_knows_the_size_and_digest_of_the_gzip_form(log: Path, tmp_path: Path) -> None:
    packed_log = tmp_path / "a.gz"
    pack(log, packed_log)

    digest = size_and_digest(Digests(), log, packed=True)

    assert digest == (packed_log.stat().st_size, sha256(packed_log))
    assert gzip.decompress(packed_log.read_bytes()) == log.read_bytes()


def test_remembers_the_gzip_form_beside_the_file(log: Path) -> None:
    digests = Digests()
    packed = size_and_digest(digests, log, packed=True)
    plain = size_and_digest(digests, log)
    replace_unnoticed(log)

    assert size_and_digest(digests, log, packed=True) == packed
    assert size_and_digest(digests, log) == plain
    assert packed != plain


@pytest.mark.parametrize("text", ["{", '"x"', '{"PATH": 5}'])
def test_computes_digests_where_the_memory_is_broken(
    text: str,
    log: Path,
    tmp_path: Path,
) -> None:
    memory = tmp_path / "memory.json"
    memory.write_text(text.replace("PATH", str(log)))

    assert size_and_digest(Digests(memory_file=memory), log) == (5000, sha256(log))
