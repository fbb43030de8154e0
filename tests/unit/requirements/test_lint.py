from pathlib import Path

import pytest

from core.errors import CheckError, MissingInputError
from requirements import lint
from tests.kit.machines import Answer, Call, answer_processes, put_on_path

PROGRAMS = [linter.command[0] for linter in lint.LINTERS]
# Python packages bring all of them but one.
ALWAYS_RUN = [program for program in PROGRAMS if program != "actionlint"]


def arguments_of(program: str) -> list[set[str]]:
    """Return the words of each call of a linter in this repository."""
    commands = lint.list_commands(lint.ROOT, [])
    return [set(command[1:]) for command in commands if command[0] == program]


def list_files(pattern: str) -> set[str]:
    """Return the repository's files that a pattern matches."""
    paths = lint.ROOT.glob(pattern)
    return {path.relative_to(lint.ROOT).as_posix() for path in paths}


# Files


def test_lints_every_script() -> None:
    (arguments,) = arguments_of("shellcheck")

    scripts = list_files("docker/**/*.sh")
    assert len(scripts) >= 3
    assert scripts <= arguments


def test_lints_every_dockerfile() -> None:
    (arguments,) = arguments_of("hadolint")

    assert arguments == {
        "docker/no_rocm_image_ubuntu24_04.Dockerfile",
        "docker/ubuntu-rocm/Dockerfile",
    }


@pytest.mark.parametrize("program", ["yamllint", "actionlint", "check-jsonschema"])
def test_lints_every_workflow(program: str) -> None:
    workflows = list_files(".github/workflows/*")

    assert len(workflows) >= 15
    assert any(workflows <= arguments for arguments in arguments_of(program))


def test_looks_for_dangerous_workflows_without_a_network() -> None:
    (arguments,) = arguments_of("zizmor")

    assert "--offline" in arguments


def test_gives_only_ruffs_rules_what_a_person_adds() -> None:
    commands = lint.list_commands(lint.ROOT, ["--fix", "ci"])

    commands_with_fix = [command for command in commands if "--fix" in command]
    assert commands_with_fix == [["ruff", "check", "--fix", "ci"]]


def test_a_linter_without_files_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="cfn-lint"):
        lint.list_commands(tmp_path, [])


# Findings


@pytest.fixture
def findings() -> set[str]:
    """Return the linters that find something: none, until a test adds some."""
    return set()


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, findings: set[str]) -> list[Call]:
    """Return the calls of linters, on a machine that has them all but for actionlint."""

    def run_linter(call: Call) -> Answer:
        if call.program in findings:
            return Answer(status=1)
        return Answer()

    put_on_path(monkeypatch, tmp_path / "bin", ALWAYS_RUN)
    return answer_processes(monkeypatch, run_linter)


def test_runs_every_linter_in_the_repository(calls: list[Call]) -> None:
    assert lint.main([]) == 0

    assert [call.program for call in calls] == ALWAYS_RUN
    assert {call.folder for call in calls} == {lint.ROOT}


@pytest.mark.parametrize("programs", [["shellcheck"], ["ruff", "hadolint"]], ids=", ".join)
def test_runs_every_linter_and_names_those_that_found_something(
    calls: list[Call], findings: set[str], programs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    findings.update(programs)

    assert lint.main([]) == CheckError.exit_code

    assert len(calls) == len(ALWAYS_RUN)
    names = ", ".join(programs)
    assert f": {names}." in capsys.readouterr().err
