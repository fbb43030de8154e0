import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from core.causes import Cause
from core.cli import Verb, again, main, this_again
from core.errors import BuildError, InterruptedStageError, ProcessError

VERBS = (
    Verb("build", "fake_verbs_build", "trees -> wheels"),
    Verb("check-wheels", "fake_verbs_absent", "wheels -> findings"),
)


class Build(ModuleType):
    """A verb that remembers what it was called with, and may end badly."""

    def __init__(self) -> None:
        super().__init__("fake_verbs_build")
        self.called: list[argparse.Namespace] = []
        self.problem: BaseException | None = None

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("project")
        parser.add_argument("--clean-first", action="store_true")

    def run(self, arguments: argparse.Namespace) -> None:
        self.called.append(arguments)
        self.again = this_again()
        if self.problem is not None:
            raise self.problem


@pytest.fixture(name="build")
def build_fixture(monkeypatch: pytest.MonkeyPatch) -> Build:
    build = Build()
    monkeypatch.setitem(sys.modules, "fake_verbs_build", build)
    return build


def call(*words: str) -> int:
    return main("pytorch_build", "Sources to wheels.", VERBS, words)


def test_the_verb_gets_its_own_and_the_common_options(build: Build) -> None:
    assert call("build", "torch", "--clean-first", "--gpu-family", "cpu") == 0
    arguments = build.called[0]
    assert (arguments.project, arguments.clean_first, arguments.gpu_family) == ("torch", True, "cpu")
    # its record has the command that does it once more
    assert build.again == "nox -s build_torch -- --clean-first --gpu-family cpu"
    assert this_again() == ""


def test_what_children_say_of_a_stop_is_an_interruption(build: Build, monkeypatch: Any) -> None:
    def run(_arguments: argparse.Namespace) -> None:
        with suppress(KeyboardInterrupt):  # as where it comes in a callback
            signal.raise_signal(signals.pop())
        raise ProcessError("ninja ended with status 1.")

    monkeypatch.setattr(build, "run", run)
    signals = [signal.SIGINT, signal.SIGTERM]
    # and one stop does not count for what is called next
    assert [call("build", "torch") for _ in range(2)] == [130, ProcessError.exit_code]


@pytest.mark.usefixtures("build")
def test_the_words_of_the_process_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["__main__.py", "build"])
    assert main("pytorch_build", "Sources to wheels.", VERBS) == 2


@pytest.mark.parametrize("words", [(), ("-h",), ("--help",)])
def test_help_lists_verbs_and_imports_none(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*words) == 0
    out = capsys.readouterr().out
    assert "  build         trees -> wheels\n  check-wheels  wheels -> findings\n" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("biuld",), "python -m pytorch_build has no verb 'biuld'.\nDid you mean 'build'?"),
        (("build",), "the following arguments are required: project"),
        (("build", "torch", "--zzz"), "arguments: --zzz\nSee: nox -s build_torch -- --help"),
        (("build", "torch", "--gpu-famly=cpu"), "Did you mean '--gpu-family'? See: nox -s build_torch --"),
        (("build", "torch", "--clean"), "unrecognized arguments: --clean"),  # abbreviations change meaning
        (("build", "torch", "--torch-ref=a", "--torch-ref=b"), "cannot be 'b' too"),
    ],
)
@pytest.mark.usefixtures("build")
def test_bad_words_end_as_usage(words: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*words) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert said in err


def test_a_verb_may_take_options_that_it_does_not_know_and_are_not_misspelt(
    build: Build, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "PASSES_REST", True, raising=False)
    assert call("build", "torch", "--", "-k", "autograd", "--tb=short") == 0
    assert build.called[0].rest == ["-k", "autograd", "--tb=short"]
    assert call("build", "torch", "--gpu-famly=cpu") == 2
    assert "Did you mean '--gpu-family'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("problem", "code", "said"),
    [
        (BuildError("No wheel.", hint="Look."), BuildError.exit_code, "error: No wheel.\nLook.\n"),
        (KeyboardInterrupt(), InterruptedStageError.exit_code, "error: Interrupted; run the same"),
        (OSError(28, "No space left on device", "a.whl"), 17, "error: a.whl: No space left on device.\n"),
        (RecursionError("maximum"), 17, "error: Folders or documents are nested too deeply.\n"),
        (KeyError("x"), 1, "error: KeyError: 'x'\nAn internal error: run the command with --debug"),
    ],
)
def test_an_error_is_printed_once_without_a_traceback(
    build: Build, problem: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    build.problem = problem
    assert call("build", "torch") == code
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert "Traceback" not in err


@pytest.mark.parametrize("problem", [BuildError("No wheel."), KeyError("x")])
def test_debug_shows_where_an_error_came_from(build: Build, problem: Exception) -> None:
    build.problem = problem
    with pytest.raises(type(problem)):
        call("build", "torch", "--debug")


PLAIN = "--python=/x/.nox/build_torch/bin/python"
PYTHON = "--python=/x/.nox/build_torch-3-12/bin/python"


@pytest.mark.parametrize(
    ("package", "words", "command"),
    [
        ("pytorch_build", ("build", "torch", PYTHON, "--force"), "nox -s build_torch -P 3.12 -- --force"),
        ("pytorch_build", ("build", "torch", PLAIN), "nox -s build_torch"),
        ("pytorch_build", ("check-wheels", "--rocm", "--run-id=7"), "nox -s check_rocm -- --run-id=7"),
        ("pytorch_build", ("check-wheels", "--run-id=7"), "nox -s check_wheels -- --run-id=7"),
        ("sample", ("build", "a b"), "python -m sample build 'a b'"),
    ],
)
def test_a_step_is_repeated_by_its_session(package: str, words: tuple[str, ...], command: str) -> None:
    assert again(package, words) == command


def test_a_failed_tool_ends_in_its_error_the_command_and_the_log(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = ProcessError("ninja ended with status 1.", returncode=1)
    problem.cause = Cause(tool="compiler", file="a,b.cpp", line=3, message="error: 5% bad", around=("x", "y"))
    problem.log = Path("logs", "build.log")
    build.problem = problem
    main("pytorch_build", "", VERBS, ["build", "torch"])
    ending = "again: nox -s build_torch\nlog:   logs/build.log"
    said = capsys.readouterr().err
    block = f"a,b.cpp:3: error: 5% bad\n  | x\n  | y\n{ending}"
    assert said == f"ninja ended with status 1.\nerror: {block}\n"
    with monkeypatch.context() as patch:
        # what called it prints it, so that it stands in a log once
        patch.setenv("FAILURE_FILE", str(tmp_path / "failure.txt"))
        main("pytorch_build", "", VERBS, ["build", "torch"])
    assert capsys.readouterr().err == ""
    assert (tmp_path / "failure.txt").read_text() == f"ninja ended with status 1.\n{block}"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    monkeypatch.setenv("FAILURE_FILE", str(tmp_path / "failure.txt"))  # which has no annotation
    main("pytorch_build", "", VERBS, ["build", "torch"])
    said = capsys.readouterr().err
    assert "::error file=a%2Cb.cpp,line=3::a,b.cpp:3: error: 5%25 bad\n" in said
    assert f"    {ending.splitlines()[0]}" in (tmp_path / "summary.md").read_text()
    for name in ("GITHUB_ACTIONS", "FAILURE_FILE"):
        monkeypatch.delenv(name)
    problem.cause, problem.output = None, "what it\nsaid"
    main("pytorch_build", "", VERBS, ["build", "torch"])
    assert capsys.readouterr().err.endswith(f"  | what it\n  | said\n{ending}\n")
