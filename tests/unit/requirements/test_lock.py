import os
import shutil
from pathlib import Path

import pytest

from core.errors import CheckError, ProcessError
from requirements import lock
from tests.kit.machines import Answer, Call, answer_processes

OUTPUT_OPTIONS = ("--output-file", "-o")
FOREIGN_INDEX = "https://mine"


def output_of(call: Call) -> str | None:
    """Return the lock that a compiler was asked for; None for a call that writes none."""
    for option in OUTPUT_OPTIONS:
        if option in call.words:
            return call.option(option)
    return None


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Return the calls of compilers, which write nothing."""
    return answer_processes(monkeypatch, lambda _call: Answer())


@pytest.fixture
def compilations(calls: list[Call]) -> list[Call]:
    """Return the calls that compile the repository's locks."""
    lock.compile_all(lock.FOLDER)
    return [call for call in calls if output_of(call) is not None]


def is_pip_tools(call: Call) -> bool:
    """Return whether a call is of pip-tools, and not of uv."""
    return "piptools" in call.words


# Compilation


def test_compiles_every_lock_of_the_repository(compilations: list[Call]) -> None:
    names = {path.name for path in lock.FOLDER.glob("*.txt")}

    assert {output_of(call) for call in compilations} == {"../requirements.txt", *names}


def test_the_tools_lock_ends_an_older_python_by_name() -> None:
    first_line = (lock.FOLDER.parent / "requirements.txt").read_text().splitlines()[0]

    assert first_line.startswith('needs-python-3.11-or-newer==0 ; python_version < "3.11"')


def test_locks_have_hashes_and_no_sources(compilations: list[Call]) -> None:
    for call in compilations:
        assert {"--generate-hashes", "--no-emit-index-url", "--no-emit-find-links"} <= set(call.words)
        assert call.folder == lock.FOLDER


def test_locks_of_tools_may_pin_the_installer_itself(compilations: list[Call]) -> None:
    for call in compilations:
        assert ("--allow-unsafe" in call.words) is is_pip_tools(call)


def test_uv_reads_no_configuration(compilations: list[Call]) -> None:
    for call in compilations:
        assert ("--no-config" in call.words) is not is_pip_tools(call)


@pytest.fixture
def _users_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set sources, a certificate and a configuration file of the user's own."""
    for name in ("PIP_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX_URL", "UV_FIND_LINKS"):
        monkeypatch.setenv(name, FOREIGN_INDEX)
    monkeypatch.setenv("PIP_CERT", "/ca.crt")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/users/pip.conf")


# Before the compilations, which read them.
@pytest.mark.usefixtures("_users_settings", "compilations")
def test_locks_take_no_sources_of_the_users(calls: list[Call]) -> None:
    compilations = [call for call in calls if output_of(call) is not None]

    assert compilations
    for call in compilations:
        assert FOREIGN_INDEX not in call.variables.values()
        assert call.variables["PIP_CONFIG_FILE"] == os.devnull
        assert call.variables["PIP_CERT"] == "/ca.crt"


def test_proves_that_the_tools_lock_can_be_installed_on_windows(calls: list[Call]) -> None:
    lock.compile_all(lock.FOLDER)

    assert {"--dry-run", "--require-hashes", "windows"} <= set(calls[-1].words)


def test_a_compiler_that_fails_ends_with_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_processes(monkeypatch, lambda _call: Answer(status=2))

    assert lock.main([]) == ProcessError.exit_code
    assert "piptools" in capsys.readouterr().err


# Checks

LOCKS = ["requirements.txt", "requirements/test.txt"]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository of two locks."""
    (tmp_path / "requirements").mkdir()
    for name in LOCKS:
        shutil.copy(lock.FOLDER.parent / name, tmp_path / name)
    monkeypatch.setattr(lock, "FOLDER", tmp_path / "requirements")
    return tmp_path


def compile_to(monkeypatch: pytest.MonkeyPatch, repository: Path, *, changed: str | None = None) -> None:
    """Let compilers leave all locks as they are but for one."""

    def compile_lock(call: Call) -> Answer:
        output = output_of(call)
        assert repository not in call.folder.parents, "a check changes nothing"
        if output is not None and output.removeprefix("../") == changed:
            (call.folder / output).write_text("changed==2\n")
        return Answer()

    answer_processes(monkeypatch, compile_lock)


def test_accepts_current_locks(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_to(monkeypatch, repository)

    assert lock.main(["--check"]) == 0
    assert "current" in capsys.readouterr().err


@pytest.mark.parametrize("name", LOCKS)
def test_names_a_stale_lock_and_leaves_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file_name = Path(name).name
    compile_to(monkeypatch, repository, changed=file_name)
    content = (repository / name).read_bytes()

    with pytest.raises(CheckError, match=f" {file_name}"):
        lock.check()

    assert (repository / name).read_bytes() == content


def test_a_stale_lock_ends_a_check_with_its_code(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_to(monkeypatch, repository, changed="test.txt")

    assert lock.main(["--check"]) == CheckError.exit_code
