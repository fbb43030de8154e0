import json
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.env import interpreter, require
from core.errors import EnvironmentSetupError, UsageError

ANSWER = {
    "version": "3.13.2",
    "implementation": "cpython",
    "free_threaded": False,
    "prefix": "/venv",
    "base_prefix": "/usr",
    "base_executable": "/usr/bin/python3.13",
    "purelib": "/venv/lib",
    "scripts": "/venv/bin",
    "include": "/usr/include",
}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    interpreter.cache_clear()


def answering(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    answer = process.Completed(returncode=0, stdout=text, stderr="")
    monkeypatch.setattr(process, "capture", lambda *_arguments, **_options: answer)


@pytest.mark.parametrize(
    ("facts", "series", "tag"),
    [
        ({}, "3.13", "cp313"),
        ({"free_threaded": True}, "3.13t", "cp313t"),
        ({"version": "3.9.18"}, "3.9", "cp39"),
        ({"version": "3.14.0rc2"}, "3.14", "cp314"),
    ],
)
def test_a_python_is_named_by_its_abi(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], series: str, tag: str
) -> None:
    answering(monkeypatch, json.dumps({**ANSWER, **facts}))
    found = interpreter(Path("/venv/bin/python"))
    assert (found.series, found.tag) == (series, tag)


@pytest.mark.parametrize("text", ["", "-I -c import json", '{"implementation": "pypy"}'])
def test_what_answers_otherwise_is_no_python_to_build_for(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    answering(monkeypatch, text)
    with pytest.raises(EnvironmentSetupError, match=r"(is not a working Python interpreter|is pypy; wheels)"):
        interpreter(Path("/venv/bin/python"))


def test_a_stage_without_a_python_names_the_way_to_one() -> None:
    with pytest.raises(UsageError, match="was given none") as caught:
        require(None)
    assert "nox -s" in caught.value.hint


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match="python is not a working Python interpreter"):
        require(tmp_path / "python")


@pytest.mark.processes
def test_this_python_says_what_it_is() -> None:
    found = require(Path(sys.executable))
    assert found.version == ".".join(str(part) for part in sys.version_info[:3])
    assert found.executable == Path(sys.executable)
    assert found.prefix == Path(sys.prefix)
    assert found.purelib == Path(sysconfig.get_path("purelib"))
    assert found.virtual is (sys.prefix != sys.base_prefix)


@pytest.mark.processes
@pytest.mark.parametrize("series", ["3.10", "3.11", "3.14"])
def test_the_base_of_an_environment_lies_outside_it(tmp_path: Path, series: str) -> None:
    """Python 3.10 names the environment's own interpreter, which uv would then link to itself."""
    python = shutil.which(f"python{series}")
    if python is None or process.capture([python, "-c", ""], check=False).returncode:
        pytest.skip(f"there is no Python {series}")
    process.capture([python, "-m", "venv", "--without-pip", str(tmp_path / "venv")])
    found = interpreter(tmp_path / "venv" / "bin" / "python")
    assert found.virtual
    assert not found.base_executable.is_relative_to(tmp_path)
    assert found.base_executable.is_file()
