from datetime import date, timedelta
from pathlib import Path

import pytest

from core.data import Dated, Model, load_toml, parse_json
from core.errors import DataError, FatalError, MissingInputError


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


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (
            b'[refs.mine.audio]\norgin = "x"\n',
            DataError,
            ": refs.mine.audio.orgin: unknown key. Did you mean 'or",
        ),
        (b"[[refs.mine.tags]]\ndeth = 1\n", DataError, "refs.mine.tags[0].deth: unknown key. Did you mean"),
        (b"[refs]\nmine = \n", DataError, "line 2"),
        (b"a = '\xe9'\n", DataError, "not UTF-8"),
        (None, MissingInputError, "No such file"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(
    tmp_path: Path, content: bytes | None, kind: type[FatalError], said: str
) -> None:
    path = tmp_path / "refs.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(kind) as caught:
        load_toml(path, File)
    assert str(path) in caught.value.message
    assert said in str(caught.value)


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, '[refs."release/2.9".audio]\norgin = "x"\ndepth = "deep"\n')
    with pytest.raises(DataError) as caught:
        load_toml(path, File)
    assert "has 2 problems" in caught.value.message
    assert 'refs."release/2.9".audio.orgin' in caught.value.message
    assert "(it is 'deep')" in caught.value.message


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
