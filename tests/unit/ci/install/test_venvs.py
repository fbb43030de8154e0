from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ci import install
from core.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.processes


@pytest.fixture(name="made")
def made_fixture(tmp_path: Path) -> Path:
    with install.environment(tmp_path / "venv") as target:
        assert target.virtual
        assert target.prefix == tmp_path / "venv"
    return tmp_path / "venv"


def test_an_environment_is_made_used_again_and_made_anew_when_asked(made: Path) -> None:
    stray = made / "stray"
    stray.write_text("")
    for clean in (False, True):
        with install.environment(made, clean=clean) as target:
            assert target.version == sys.version.split()[0]
            assert stray.exists() is not clean
    assert install.planned(made).prefix == made


def folder_with_a_file(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("years of work")


@pytest.mark.parametrize("make", [folder_with_a_file, lambda path: path.write_text("years of work")])
@pytest.mark.parametrize("clean", [False, True])
def test_what_is_no_environment_is_never_wiped(
    tmp_path: Path, make: Callable[[Path], object], *, clean: bool
) -> None:
    place = tmp_path / "thesis"
    make(place)
    with (
        pytest.raises(EnvironmentSetupError, match="is not a virtual environment; it is left alone"),
        install.environment(place, clean=clean),
    ):
        pass
    assert "years of work" in (place if place.is_file() else place / "thesis.txt").read_text()
    with pytest.raises(EnvironmentSetupError, match="left alone"):
        install.planned(place, clean=clean)


def test_an_empty_folder_becomes_one(tmp_path: Path) -> None:
    with install.environment(tmp_path) as target:
        assert target.prefix == tmp_path


def test_an_environment_of_another_python_is_kept_unless_made_anew(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made / "other").write_text("")
    other = "3.12" if sys.version_info[:2] != (3, 12) else "3.13"
    asked: list[str] = []

    def interpreter(python: Path) -> object:
        asked.append(str(python))
        return type("Other", (), {"series": other})()

    monkeypatch.setattr(install, "base_python", lambda python: Path(f"/usr/bin/python{python}"))
    monkeypatch.setattr(
        install, "_inspected", lambda _: type("Target", (), {"series": "3.1", "version": "3.1.0"})()
    )
    monkeypatch.setattr(install, "interpreter", interpreter)
    with (
        pytest.raises(EnvironmentSetupError, match=rf"is an environment of Python 3\.1, not of {other}"),
        install.environment(made, python=other),
    ):
        pass
    assert asked == [f"/usr/bin/python{other}"]
    assert (made / "other").exists()


def test_a_python_that_is_not_there_is_said_and_nothing_is_made(tmp_path: Path) -> None:
    with (
        pytest.raises(EnvironmentSetupError, match=r"There is no Python 3\.99 on this machine"),
        install.environment(tmp_path / "venv", python="3.99"),
    ):
        pass
    assert not (tmp_path / "venv").exists()


def test_a_path_and_a_version_name_an_interpreter() -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    assert install.base_python("") == Path(sys.executable)
    assert install.base_python(version).exists()
    assert install.base_python(sys.executable).exists()
