from pathlib import Path

import pytest

from core.errors import CheckError, MissingInputError
from requirements import lint
from tests.kit.machines import Answer, Call, answer_processes, put_on_path

# Python packages bring every linter but actionlint.
PROGRAMS_FROM_PACKAGES = [linter.command[0] for linter in lint.LINTERS]
PROGRAMS_FROM_PACKAGES.remove("actionlint")


def arguments_of(program: str) -> list[set[str]]:
    """Return the arguments of each call of a linter in this repository."""
    commands = lint.list_commands(lint.ROOT, [])
    return [set(arguments) for name, *arguments in commands if name == program]


def list_files(pattern: str) -> set[str]:
    """Return the repository's files that a pattern matches."""
    names: set[str] = set()
    for path in lint.ROOT.glob(pattern):
        names.add(path.relative_to(lint.ROOT).as_posix())
    return names


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


@pytest.mark.parametrize("program", ["yamllint", "actionlint"])
def test_lints_every_workflow(program: str) -> None:
    (arguments,) = arguments_of(program)

    workflows = list_files(".github/workflows/*")
    assert len(workflows) >= 15
    assert workflows <= arguments


def test_validates_every_workflow_by_the_schema_of_workflows() -> None:
    arguments_for_workflows, _arguments_for_actions = arguments_of("check-jsonschema")

    workflows = list_files(".github/workflows/*")
    assert len(workflows) >= 15
    assert workflows <= arguments_for_workflows
    assert "vendor.github-workflows" in arguments_for_workflows


def test_looks_for_dangerous_workflows_without_a_network() -> None:
    (arguments,) = arguments_of("zizmor")

    assert "--offline" in arguments


def test_passes_the_users_arguments_only_to_ruff_check() -> None:
    commands = lint.list_commands(lint.ROOT, ["--fix", "ci"])

    commands.remove(["ruff", "check", "--fix", "ci"])
    for command in commands:
        assert "--fix" not in command


def test_fails_where_a_linter_has_no_files(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="cfn-lint"):
        lint.list_commands(tmp_path, [])


# Findings


@pytest.fixture
def failing_programs() -> set[str]:
    """Return the linters that find something: none, until a test adds some."""
    return set()


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_programs: set[str]) -> list[Call]:
    """Return the calls of linters, on a machine without actionlint."""

    def run_linter(call: Call) -> Answer:
        if call.program in failing_programs:
            return Answer(status=1)
        return Answer()

    put_on_path(monkeypatch, tmp_path / "bin", PROGRAMS_FROM_PACKAGES)
    return answer_processes(monkeypatch, run_linter)


def test_runs_every_linter_in_the_repository(calls: list[Call]) -> None:
    assert lint.main([]) == 0

    for call, program in zip(calls, PROGRAMS_FROM_PACKAGES, strict=True):
        assert call.program == program
        assert call.folder == lint.ROOT


@pytest.mark.parametrize("programs", [["shellcheck"], ["ruff", "hadolint"]], ids=", ".join)
def test_runs_every_linter_and_names_those_that_found_something(
    calls: list[Call], failing_programs: set[str], programs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    failing_programs.update(programs)

    assert lint.main([]) == CheckError.exit_code

    assert len(calls) == len(PROGRAMS_FROM_PACKAGES)
    names = ", ".join(programs)
    assert f": {names}." in capsys.readouterr().err
