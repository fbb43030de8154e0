from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING

import pytest

from core.data import Dated, Model, load_toml, parse_json
from core.errors import DataError, MissingInputError

if TYPE_CHECKING:
    from pathlib import Path


class Project(Model):
    origin: str | None = None
    depth: int = 1


class Ref(Model):
    audio: Project | None = None
    tags: tuple[Project, ...] = ()


class File(Model):
    refs: dict[str, Ref]


def written(folder: Path, text: str) -> Path:
    path = folder / "refs.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_a_file_into_the_model(tmp_path: Path) -> None:
    path = written(tmp_path, '[refs.mine.audio]\norigin = "https://example.org/audio"\n')
    assert load_toml(path, File).refs["mine"].audio == Project(origin="https://example.org/audio")


def test_unknown_key_is_named_with_its_path_and_the_nearest_known_one(tmp_path: Path) -> None:
    path = written(tmp_path, '[refs.mine.audio]\norgin = "x"\n')
    with pytest.raises(DataError) as caught:
        load_toml(path, File)
    assert str(caught.value).startswith(f"{path}: refs.mine.audio.orgin: unknown key.")
    assert "Did you mean 'origin'?" in str(caught.value)


def test_unknown_key_inside_a_list_is_found(tmp_path: Path) -> None:
    path = written(tmp_path, "[[refs.mine.tags]]\ndeth = 1\n")
    with pytest.raises(DataError, match=r"refs\.mine\.tags\[0\]\.deth: unknown key\. Did you mean 'depth'"):
        load_toml(path, File)


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, '[refs."release/2.9".audio]\norgin = "x"\ndepth = "deep"\n')
    with pytest.raises(DataError) as caught:
        load_toml(path, File)
    assert "has 2 problems" in caught.value.message
    assert 'refs."release/2.9".audio.orgin' in caught.value.message
    assert "(it is 'deep')" in caught.value.message


def test_syntax_error_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not valid TOML.*line 2"):
        load_toml(written(tmp_path, "[refs]\nmine = \n"), File)


def test_absent_file_is_a_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="No such file"):
        load_toml(tmp_path / "absent.toml", File)


def test_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b"a = '\xe9'\n")
    with pytest.raises(DataError, match="not UTF-8"):
        load_toml(path, File)


def test_json_problems_are_data_errors() -> None:
    with pytest.raises(DataError, match="not valid JSON"):
        parse_json("{", File, where="lock.json")
    with pytest.raises(DataError, match=r"lock\.json: refs: this key is missing"):
        parse_json("{}", File, where="lock.json")


def test_data_grows_too_old_after_its_days() -> None:
    data = Dated(checked=date(2026, 11, 22), days=60)
    last = data.checked + timedelta(days=60)
    assert not data.overdue(last)
    assert data.overdue(last + timedelta(days=1)) == "61 days old, where 60 are allowed"
