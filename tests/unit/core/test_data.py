from datetime import date, timedelta
from pathlib import Path

import pytest

from core.data import Dated, Model, load_toml, parse_json, read_toml
from core.errors import DataError, MissingInputError


class Project(Model):
    """A table of a data file."""

    origin: str | None = None
    depth: int = 1


class Ref(Model):
    """A table that holds other tables."""

    audio: Project | None = None
    tags: tuple[Project, ...] = ()


class RefsFile(Model):
    """A data file."""

    refs: dict[str, Ref]


def write_refs(folder: Path, content: bytes) -> Path:
    """Write a data file; return its path."""
    path = folder / "refs.toml"
    path.write_bytes(content)
    return path


def test_reads_a_file_into_the_model(tmp_path: Path) -> None:
    path = write_refs(tmp_path, b'[refs.mine.audio]\norigin = "https://example.org/audio"\n')

    assert load_toml(path, RefsFile).refs["mine"].audio == Project(origin="https://example.org/audio")


@pytest.mark.parametrize(
    ("content", "mentioned"),
    [
        (b'[refs.mine.audio]\norgin = "x"\n', ["refs.mine.audio.orgin", "'origin'"]),
        (b"[[refs.mine.tags]]\ndeth = 1\n", ["refs.mine.tags[0].deth", "'depth'"]),
        (b"[refs]\nmine = \n", ["line 2"]),
        (b"a = '\xe9'\n", ["UTF-8"]),
    ],
    ids=["unknown key", "unknown key in a list", "no TOML", "no UTF-8"],
)
def test_names_the_file_and_the_place_of_a_fault(
    tmp_path: Path, content: bytes, mentioned: list[str]
) -> None:
    path = write_refs(tmp_path, content)

    with pytest.raises(DataError) as raised:
        load_toml(path, RefsFile)

    assert str(path) in raised.value.message
    assert all(name in raised.value.message for name in mentioned)


def test_reads_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    path.write_bytes(b"\xef\xbb\xbfcount = 2\r\n")

    assert read_toml(path) == {"count": 2}


def test_names_a_file_that_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "refs.toml"

    with pytest.raises(MissingInputError) as raised:
        load_toml(path, RefsFile)

    assert str(path) in raised.value.message


def test_reports_every_fault_of_a_file_at_once(tmp_path: Path) -> None:
    path = write_refs(tmp_path, b'[refs."release/2.9".audio]\norgin = "x"\ndepth = "deep"\n')

    with pytest.raises(DataError) as raised:
        load_toml(path, RefsFile)

    assert 'refs."release/2.9".audio.orgin' in raised.value.message
    assert 'refs."release/2.9".audio.depth' in raised.value.message
    assert "'deep'" in raised.value.message


@pytest.mark.parametrize(("text", "mentioned"), [("{", "lock.json"), ("{}", "lock.json: refs:")])
def test_names_the_document_and_the_key_of_faulty_json(text: str, mentioned: str) -> None:
    with pytest.raises(DataError) as raised:
        parse_json(text, RefsFile, where="lock.json")

    assert mentioned in raised.value.message


def test_data_is_overdue_after_its_number_of_days() -> None:
    data = Dated(checked=date(2026, 11, 22), days=60)
    last_day = data.checked + timedelta(days=60)

    assert data.overdue(last_day) == ""
    assert "61 days" in data.overdue(last_day + timedelta(days=1))
