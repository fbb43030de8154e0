import os
import shutil
from pathlib import Path

import pytest

from core.errors import CheckError, ProcessError
from requirements import lock
from tests.kit.machines import Answer, Call, answer_processes

OUTPUT_OPTIONS = ("--output-file", "-o")
USERS_INDEX = "https://users.invalid"
LOCK_OF_TOOLS = lock.FOLDER.parent / "requirements.txt"


def lock_written_by(call: Call) -> str | None:
    """Return the lock that a call writes; None where it writes none."""
    for option in OUTPUT_OPTIONS:
        if option in call.words:
            return call.option(option)
    return None


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Return the calls of compilers, which write nothing."""
    return answer_processes(monkeypatch, lambda _call: Answer())


def compile_locks(calls: list[Call]) -> list[Call]:
    """Compile the repository's locks; return the calls that write one."""
    lock.compile_all(lock.FOLDER)
    return [call for call in calls if lock_written_by(call) is not None]


@pytest.fixture
def compilations(calls: list[Call]) -> list[Call]:
    """Return the calls that write the repository's locks."""
    return compile_locks(calls)


def is_pip_tools(call: Call) -> bool:
    """Return whether a call is of pip-tools, and not of uv."""
    return "piptools" in call.words


# Compilation


def test_compiles_every_lock_of_the_repository(compilations: list[Call]) -> None:
    names = {path.name for path in lock.FOLDER.glob("*.txt")}

    assert set(map(lock_written_by, compilations)) == {"../requirements.txt", *names}


def test_the_lock_of_tools_tells_an_older_python_what_it_needs() -> None:
    lines = LOCK_OF_TOOLS.read_text().splitlines()

    # An installer of an older Python fails at this name, which no project has.
    assert lines[0].startswith('needs-python-3.11-or-newer==0 ; python_version < "3.11"')


def test_locks_have_hashes_and_no_sources(compilations: list[Call]) -> None:
    for call in compilations:
        assert "--generate-hashes" in call.words
        assert "--no-emit-index-url" in call.words
        assert "--no-emit-find-links" in call.words
        assert call.folder == lock.FOLDER


def test_only_pip_tools_is_told_to_pin_pip_itself(compilations: list[Call]) -> None:
    for call in compilations:
        assert ("--allow-unsafe" in call.words) is is_pip_tools(call)


def test_uv_reads_no_configuration(compilations: list[Call]) -> None:
    for call in compilations:
        assert ("--no-config" in call.words) is not is_pip_tools(call)


@pytest.fixture
def _settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set sources, a certificate and a configuration file, as a user may have them."""
    for name in ("PIP_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX_URL", "UV_FIND_LINKS"):
        monkeypatch.setenv(name, USERS_INDEX)
    monkeypatch.setenv("PIP_CERT", "/ca.crt")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/users/pip.conf")


@pytest.mark.usefixtures("_settings_of_the_user")
def test_compilers_use_the_certificate_of_the_user_and_no_sources(calls: list[Call]) -> None:
    compilations = compile_locks(calls)

    assert compilations
    for call in compilations:
        assert USERS_INDEX not in call.variables.values()
        assert call.variables["PIP_CONFIG_FILE"] == os.devnull
        assert call.variables["PIP_CERT"] == "/ca.crt"


def test_resolves_the_lock_of_tools_for_windows_at_the_end(calls: list[Call]) -> None:
    lock.compile_all(lock.FOLDER)

    assert {"--dry-run", "--require-hashes", "windows"} <= set(calls[-1].words)


def test_a_compiler_that_fails_ends_the_compilation_with_an_error(
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


def answer_compilers(
    monkeypatch: pytest.MonkeyPatch, repository: Path, *, changed_lock: str | None = None
) -> None:
    """Let compilers write the locks as they are, but for one that they change."""

    def compile_lock(call: Call) -> Answer:
        assert repository not in call.folder.parents, "a check compiles in a folder of its own"
        output = lock_written_by(call)
        if output is not None and output.removeprefix("../") == changed_lock:
            (call.folder / output).write_text("changed==2\n")
        return Answer()

    answer_processes(monkeypatch, compile_lock)


def test_accepts_current_locks(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_compilers(monkeypatch, repository)

    assert lock.main(["--check"]) == 0
    assert "current" in capsys.readouterr().err


@pytest.mark.parametrize("name", LOCKS)
def test_names_a_stale_lock_and_does_not_change_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stale_lock = repository / name
    content = stale_lock.read_bytes()
    answer_compilers(monkeypatch, repository, changed_lock=stale_lock.name)

    with pytest.raises(CheckError, match=f" {stale_lock.name}"):
        lock.check()

    assert stale_lock.read_bytes() == content


def test_a_stale_lock_ends_a_check_with_an_error(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_compilers(monkeypatch, repository, changed_lock="test.txt")

    assert lock.main(["--check"]) == CheckError.exit_code
