from collections.abc import Sequence
from pathlib import Path

import pytest

from core import process
from core.errors import CheckError, MissingInputError, ProcessError
from requirements import lint

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
    expected = ["docker/no_rocm_image_ubuntu24_04.Dockerfile", "docker/ubuntu-rocm/Dockerfile"]
    assert words["hadolint"] == expected
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
