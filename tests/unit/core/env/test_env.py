import json
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from core import process
from core.env import installed, installed_version, interpreter, require
from core.errors import EnvironmentSetupError, UsageError
from tests.kit.machines import (
    Answer,
    VirtualEnvironment,
    answer_processes,
    put_distribution,
    target_in,
)
from tests.kit.windows import SCRIPTS, program_file


@pytest.fixture(autouse=True)
def _forgotten_interpreters() -> None:
    interpreter.cache_clear()


@pytest.fixture
def environment(tmp_path: Path) -> VirtualEnvironment:
    """Return a virtual environment."""
    return VirtualEnvironment(folder=tmp_path / "venv")


def answer_with(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let every Python answer with a text."""
    answer_processes(monkeypatch, lambda _call: Answer(stdout=text))


@pytest.mark.parametrize(
    ("version", "is_free_threaded", "series", "tag"),
    [
        ("3.13.2", False, "3.13", "cp313"),
        ("3.13.2", True, "3.13t", "cp313t"),
        ("3.9.18", False, "3.9", "cp39"),
        ("3.14.0rc2", False, "3.14", "cp314"),
    ],
)
def test_names_a_python_by_its_abi(
    monkeypatch: pytest.MonkeyPatch,
    environment: VirtualEnvironment,
    *,
    version: str,
    is_free_threaded: bool,
    series: str,
    tag: str,
) -> None:
    facts = {**environment.describe(), "version": version, "free_threaded": is_free_threaded}
    answer_with(monkeypatch, json.dumps(facts))

    target = interpreter(environment.python)

    assert target.series == series
    assert target.tag == tag


@pytest.mark.parametrize("text", ["", "-I -c import json"], ids=["nothing", "echo"])
def test_rejects_a_program_that_is_no_python(
    monkeypatch: pytest.MonkeyPatch, environment: VirtualEnvironment, text: str
) -> None:
    answer_with(monkeypatch, text)

    with pytest.raises(EnvironmentSetupError) as raised:
        interpreter(environment.python)

    assert str(environment.python) in raised.value.message


def test_rejects_a_python_that_is_not_cpython(
    monkeypatch: pytest.MonkeyPatch, environment: VirtualEnvironment
) -> None:
    answer_with(monkeypatch, '{"implementation": "pypy"}')

    with pytest.raises(EnvironmentSetupError, match="pypy"):
        interpreter(environment.python)


def test_a_version_is_not_an_interpreter() -> None:
    with pytest.raises(UsageError, match=r"3\.12") as raised:
        require(Path("3.12"))

    assert "-P 3.12" in raised.value.hint


def test_a_stage_without_a_python_names_the_way_to_one() -> None:
    with pytest.raises(UsageError) as raised:
        require(None)

    assert "nox -s" in raised.value.hint
    assert "--python" in raised.value.hint


@pytest.mark.parametrize("is_link", [True, False], ids=["dangling link", "no file"])
def test_names_an_interpreter_that_does_not_exist(tmp_path: Path, *, is_link: bool) -> None:
    python = tmp_path / "python"
    if is_link:
        python.symlink_to("/nonexistent/python")

    with pytest.raises(EnvironmentSetupError) as raised:
        require(python)

    assert str(python) in raised.value.message
    # A path cannot be installed.
    assert "Install" not in str(raised.value)


@pytest.mark.processes
def test_describes_this_python() -> None:
    target = require(Path(sys.executable))

    assert target.version == ".".join(str(part) for part in sys.version_info[:3])
    assert target.executable == Path(sys.executable)
    assert target.prefix == Path(sys.prefix)
    assert target.purelib == Path(sysconfig.get_path("purelib"))
    assert target.virtual is (sys.prefix != sys.base_prefix)


@pytest.mark.processes
@pytest.mark.parametrize("series", ["3.10", "3.11", "3.14"])
def test_the_base_of_an_environment_lies_outside_it(tmp_path: Path, series: str) -> None:
    """Python 3.10 names the environment's own interpreter, which uv would then link to itself."""
    python = shutil.which(f"python{series}")
    if python is None or process.capture([python, "-c", ""], check=False).returncode:
        pytest.skip(f"there is no Python {series}")
    process.capture([python, "-m", "venv", "--without-pip", str(tmp_path / "venv")])

    target = interpreter(tmp_path / "venv" / SCRIPTS / program_file("python"))

    assert target.virtual
    assert not target.base_executable.is_relative_to(tmp_path)
    assert target.base_executable.is_file()


# --- What is installed -----------------------------------------------------------------------


def test_lists_distributions_in_the_order_of_the_search_path(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    put_distribution(second, "torch", "2.9")
    put_distribution(first, "torch", "2.10")
    put_distribution(first, "Rocm_SDK.core", "7.1")
    target = target_in(tmp_path, search_path=(first, second, tmp_path / "python312.zip"))

    names_and_versions = [(distribution.name, distribution.version) for distribution in installed(target)]

    assert names_and_versions == [("rocm-sdk-core", "7.1"), ("torch", "2.10"), ("torch", "2.9")]
    assert installed_version(target, "Torch") == "2.10"


def test_a_half_uninstalled_distribution_is_not_installed(tmp_path: Path) -> None:
    site_packages = tmp_path / "lib"
    metadata_folder = put_distribution(site_packages, "torch", "2.9")
    (metadata_folder / "METADATA").unlink()
    target = target_in(tmp_path)

    assert installed(target) == ()
    with pytest.raises(EnvironmentSetupError, match="torch is not installed"):
        installed_version(target, "torch")


@pytest.mark.processes
def test_lists_what_this_python_has() -> None:
    target = require(Path(sys.executable))

    assert installed_version(target, "pytest") == pytest.__version__
