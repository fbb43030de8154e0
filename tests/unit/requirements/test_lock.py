import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.errors import CheckError, ProcessError
from requirements import lock


class Compilers:
    """What was run where; each compiler writes the file that it was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], Path, dict[str, str]]] = []

    def __call__(self, argv: list[Any], *, cwd: Path, env: dict[str, str] | None = None) -> None:
        self.calls.append(([str(word) for word in argv], cwd, env or {}))

    def compiled(self) -> list[str]:
        options = {"--output-file", "-o"}
        pairs = [pair for argv, _, _ in self.calls for pair in itertools.pairwise(argv)]
        return [value for option, value in pairs if option in options]


@pytest.fixture(name="compilers")
def compilers_fixture(monkeypatch: pytest.MonkeyPatch) -> Compilers:
    compilers = Compilers()
    monkeypatch.setattr(process, "run", compilers)
    return compilers


def test_every_lock_of_the_repository_is_compiled(compilers: Compilers) -> None:
    lock.compile_all(lock.FOLDER)
    present = {"../requirements.txt", *(path.name for path in lock.FOLDER.glob("*.txt"))}
    assert set(compilers.compiled()) == present
    assert (lock.FOLDER.parent / "requirements.txt").read_text().startswith(lock._GUARD)


def test_locks_are_hashed_and_take_no_settings(compilers: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX_URL", "UV_FIND_LINKS"):
        monkeypatch.setenv(name, "https://mine")
    monkeypatch.setenv("PIP_CERT", "/ca.crt")
    lock.compile_all(lock.FOLDER)
    *compiling, proof = compilers.calls
    for argv, cwd, env in compiling:
        assert {"--generate-hashes", "--no-emit-index-url", "--no-emit-find-links"} <= set(argv)
        assert cwd == lock.FOLDER
        assert "https://mine" not in env.values()
        assert env["PIP_CERT"] == "/ca.crt"
        assert ("--allow-unsafe" in argv) is ("piptools" in argv)
        assert ("--no-config" in argv) is ("piptools" not in argv)
    assert {"--dry-run", "--require-hashes", "windows"} <= set(proof[0])


def test_compiles_where_the_user_names_a_configuration_file(
    compilers: Compilers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/users/pip.conf")
    lock.compile_all(lock.FOLDER)
    _argv, _cwd, env = compilers.calls[0]
    assert env["PIP_CONFIG_FILE"] == os.devnull


def pretend(monkeypatch: pytest.MonkeyPatch, root: Path, *, changed: str = "") -> None:
    """Return the module a small repository whose compilation changes one of its locks."""
    (root / "requirements").mkdir()
    locks = ["requirements.txt", "requirements/test.txt"]
    for name in locks:
        (root / name).write_text("a==1\n")

    def compile_all(folder: Path) -> None:
        assert folder.parent != root, "a check changes nothing"
        for name in locks:
            assert (folder.parent / name).read_text() == "a==1\n"
        if changed:
            (folder.parent / changed).write_text("a==2\n")

    monkeypatch.setattr(lock, "FOLDER", root / "requirements")
    monkeypatch.setattr(lock, "compile_all", compile_all)


def test_current_locks_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, tmp_path)
    assert lock.main(["--check"]) == 0
    assert "locks: current" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["requirements.txt", "requirements/test.txt"])
def test_a_stale_lock_is_named_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pretend(monkeypatch, tmp_path, changed=name)
    with pytest.raises(CheckError, match=f"Not current: {Path(name).name}"):
        lock.check()
    assert (tmp_path / name).read_text() == "a==1\n"
    assert lock.main(["--check"]) == CheckError.exit_code


def test_a_compiler_that_fails_ends_with_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise ProcessError("pip-compile ended with status 2.")

    monkeypatch.setattr(process, "run", fail)
    assert lock.main([]) == ProcessError.exit_code
    assert "pip-compile ended with status 2." in capsys.readouterr().err
