import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from core import __main__ as core_call
from core import process
from core.causes import Cause
from core.cli import Verb, exit_code, main
from core.cli.failures import FailureNote
from core.cli.options import ALL_OPTIONS, environment
from core.cli.sessions import command_again
from core.errors import BuildError, EnvironmentSetupError, InterruptedStageError, MachineError, ProcessError
from core.host_path import ENVIRONMENT_MARKER
from tests.kit.screens import set_reader

VERBS = (
    Verb("build", "fake_verbs_build", "trees -> wheels"),
    Verb("check-wheels", "fake_verbs_absent", "wheels -> findings"),
)
USAGE_ERROR = 2

Capture = pytest.CaptureFixture[str]


class BuildVerb(ModuleType):
    """A verb that keeps what it was called with, and what it does is exchangeable."""

    PASSES_REST = False
    COMMON_OPTIONS = ALL_OPTIONS

    def __init__(self) -> None:
        super().__init__("fake_verbs_build")
        self.calls: list[argparse.Namespace] = []
        self.command_again = ""
        self.action: Callable[[], object] = lambda: None

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options of its own."""
        parser.add_argument("project")
        parser.add_argument("--clean-first", action="store_true")

    def run(self, arguments: argparse.Namespace) -> None:
        """Run."""
        self.calls.append(arguments)
        self.command_again = command_again()
        self.action()

    def fail_with(self, problem: BaseException) -> None:
        """End with an error from now on."""

        def fail() -> None:
            raise problem

        self.action = fail


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> BuildVerb:
    """Return the verb that can be imported; the other one cannot. nox has called it."""
    verb = BuildVerb()
    monkeypatch.setenv("NOX_CURRENT_SESSION", "build_torch")
    monkeypatch.setitem(sys.modules, "fake_verbs_build", verb)
    return verb


def call(*command_line: str) -> int:
    """Call the front door of a package; return the exit code."""
    return main("pytorch_build", "Sources to wheels.", VERBS, command_line)


# Programs


@pytest.mark.processes
def test_runs_no_program_that_a_build_left_in_its_environment(
    build: BuildVerb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "environment" / "bin"
    programs.mkdir(parents=True)
    (tmp_path / "environment" / ENVIRONMENT_MARKER).write_text("{}")
    stolen_variables = tmp_path / "stolen"
    planted_git = programs / "git"
    planted_git.write_text(f"#!/bin/sh\nenv > {stolen_variables}\n")
    planted_git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{environment()['PATH']}")
    versions: list[str] = []

    def run_git() -> None:
        completed = process.capture(["git", "--version"], env=process.inherited())
        versions.append(completed.stdout)

    build.action = run_git
    assert call("build", "torch") == 0

    assert versions[0].startswith("git version")
    assert not stolen_variables.exists()


# Words


def test_a_verb_gets_its_options_and_the_common_ones(build: BuildVerb) -> None:
    assert call("build", "torch", "--clean-first", "--gpu-family", "cpu") == 0

    (arguments,) = build.calls
    assert arguments.project == "torch"
    assert arguments.clean_first is True
    assert arguments.gpu_family == "cpu"


def test_a_verb_knows_the_command_that_calls_it_again(build: BuildVerb) -> None:
    call("build", "torch", "--clean-first", "--gpu-family", "cpu")

    assert build.command_again == "nox -s build_torch -- --clean-first --gpu-family cpu"
    assert command_again() == "", "it has ended"


@pytest.mark.usefixtures("build")
def test_takes_the_words_of_the_process_by_default(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sys, "argv", ["__main__.py", "build"])

    assert main("pytorch_build", "Sources to wheels.", VERBS) == USAGE_ERROR
    assert "project" in capsys.readouterr().err


@pytest.mark.parametrize("command_line", [(), ("-h",), ("--help",)], ids=["nothing", "short", "long"])
def test_help_lists_the_verbs_and_imports_none(command_line: Sequence[str], capsys: Capture) -> None:
    assert call(*command_line) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["  build         trees -> wheels", "  check-wheels  wheels -> findings"]


@pytest.mark.parametrize(
    ("command_line", "mentioned"),
    [
        (["biuld"], ["'biuld'", "'build'"]),
        (["build"], ["project"]),
        (["build", "torch", "--zzz"], ["--zzz", "nox -s build_torch -- --help"]),
        (["build", "torch", "--gpu-famly=cpu"], ["'--gpu-family'", "nox -s build_torch --"]),
        (["build", "torch", "--clean"], ["--clean"]),  # abbreviations change their meaning
        (["build", "torch", "--torch-ref=a", "--torch-ref=b"], ["'a'", "'b'"]),
    ],
    ids=["verb", "missing", "unknown", "misspelt", "abbreviated", "two values"],
)
@pytest.mark.usefixtures("build")
def test_rejects_wrong_words(command_line: Sequence[str], mentioned: list[str], capsys: Capture) -> None:
    assert call(*command_line) == USAGE_ERROR

    output = capsys.readouterr().err
    assert output.startswith("error: ")
    assert all(name in output for name in mentioned)


def test_a_verb_may_take_options_that_it_does_not_know(build: BuildVerb) -> None:
    build.PASSES_REST = True

    assert call("build", "torch", "--", "-k", "autograd", "--tb=short") == 0

    assert build.calls[0].rest == ["-k", "autograd", "--tb=short"]


def test_no_verb_takes_a_misspelt_option(build: BuildVerb, capsys: Capture) -> None:
    build.PASSES_REST = True

    assert call("build", "torch", "--gpu-famly=cpu") == USAGE_ERROR

    assert "'--gpu-family'" in capsys.readouterr().err


# Errors


@pytest.mark.parametrize(
    ("problem", "exit_code", "mentioned"),
    [
        (BuildError("No wheel.", hint="Look."), BuildError.exit_code, "No wheel.\nLook.\n"),
        (KeyboardInterrupt(), InterruptedStageError.exit_code, "Interrupted"),
        (OSError(28, "No space left on device", "a.whl"), MachineError.exit_code, "a.whl"),
        (RecursionError("maximum"), MachineError.exit_code, "nested"),
        (ModuleNotFoundError("x", name="pydantic"), EnvironmentSetupError.exit_code, "no module pydantic"),
        (ModuleNotFoundError("x", name="core.absent"), 1, "ModuleNotFoundError"),
        (KeyError("x"), 1, "KeyError: 'x'"),
    ],
    ids=["ours", "Ctrl-C", "disk", "recursion", "a missing package", "a broken checkout", "fault"],
)
def test_prints_an_error_without_a_traceback(
    build: BuildVerb, problem: BaseException, exit_code: int, mentioned: str, capsys: Capture
) -> None:
    build.fail_with(problem)

    assert call("build", "torch") == exit_code

    output = capsys.readouterr().err
    assert output.startswith("error: ")
    assert output.count(mentioned) == 1
    assert "Traceback" not in output


@pytest.mark.parametrize("problem", [BuildError("No wheel."), KeyError("x")], ids=["ours", "fault"])
def test_debug_shows_where_an_error_came_from(build: BuildVerb, problem: Exception) -> None:
    build.fail_with(problem)

    with pytest.raises(type(problem)):
        call("build", "torch", "--debug")


def test_the_error_of_a_child_is_an_interruption_where_the_process_was_stopped(build: BuildVerb) -> None:
    def stop_and_fail() -> None:
        with suppress(KeyboardInterrupt):  # as where it comes in a callback
            signal.raise_signal(signal.SIGTERM)
        raise ProcessError("ninja ended with status 1.")

    build.action = stop_and_fail

    assert call("build", "torch") == InterruptedStageError.exit_code


def test_a_stop_does_not_count_for_the_next_call(build: BuildVerb) -> None:
    build.action = lambda: signal.raise_signal(signal.SIGTERM)
    assert call("build", "torch") == InterruptedStageError.exit_code

    build.fail_with(ProcessError("ninja ended with status 1."))

    assert call("build", "torch") == ProcessError.exit_code


# Errors of tools


@pytest.fixture
def tool_error() -> ProcessError:
    """Return the error of a tool whose log has a cause."""
    problem = ProcessError("ninja ended with status 1.", returncode=1)
    problem.cause = Cause(tool="compiler", file="a,b.cpp", line=3, message="error: 5% bad", around=("x", "y"))
    problem.log = Path("logs", "build.log")
    return problem


TOOL_ERROR_LINES = [
    "ninja ended with status 1.",
    "a,b.cpp:3: error: 5% bad",
    "  | x",
    "  | y",
    "again: nox -s build_torch",
    f"log:   {Path('logs/build.log')}",
]


def test_the_error_of_a_tool_ends_in_its_cause_the_command_and_the_log(
    build: BuildVerb, tool_error: ProcessError, capsys: Capture
) -> None:
    build.fail_with(tool_error)

    call("build", "torch")

    ending, cause, *details = TOOL_ERROR_LINES
    assert capsys.readouterr().err.splitlines() == [ending, f"error: {cause}", *details]


def test_the_error_of_a_tool_without_a_cause_ends_in_its_last_lines(
    build: BuildVerb, tool_error: ProcessError, capsys: Capture
) -> None:
    tool_error.cause = None
    tool_error.output = "the last\nlines"
    build.fail_with(tool_error)

    call("build", "torch")

    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == ["  | the last", "  | lines", *TOOL_ERROR_LINES[-2:]]


def test_leaves_an_error_in_a_file_to_whoever_asked_for_that(
    build: BuildVerb,
    tool_error: ProcessError,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.setenv("FAILURE_FILE", str(tmp_path / "failure.json"))
    build.fail_with(tool_error)

    call("build", "torch")

    note = FailureNote.read(tmp_path / "failure.json")
    assert note == FailureNote(exit_code=ProcessError.exit_code, message="\n".join(TOOL_ERROR_LINES))
    assert capsys.readouterr().err == "", "it is printed once, by the other one"


def test_annotates_the_cause_of_a_tools_error_for_github(
    build: BuildVerb,
    tool_error: ProcessError,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    set_reader(monkeypatch, "github")
    # A file has no annotation.
    monkeypatch.setenv("FAILURE_FILE", str(tmp_path / "failure.json"))
    build.fail_with(tool_error)

    call("build", "torch")

    annotation = "::error file=a%2Cb.cpp,line=3::a,b.cpp:3: error: 5%25 bad"
    assert annotation in capsys.readouterr().err.splitlines()


def test_puts_a_tools_error_into_the_summary_of_a_job(
    build: BuildVerb, tool_error: ProcessError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    build.fail_with(tool_error)

    call("build", "torch")

    lines = summary.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("### ")
    assert "    again: nox -s build_torch" in lines


def test_says_where_the_verbs_are_where_core_is_called(capsys: Capture) -> None:
    assert exit_code(core_call.refuse_call) == USAGE_ERROR
    assert "nox -l" in capsys.readouterr().err
