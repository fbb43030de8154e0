from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from core.cli import Verb, main
from core.errors import BuildError, InterruptedStageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

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


@pytest.mark.usefixtures("build")
def test_the_words_of_the_process_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["__main__.py", "build"])
    assert main("pytorch_build", "Sources to wheels.", VERBS) == 2


@pytest.mark.parametrize("words", [(), ("-h",), ("--help",)])
def test_help_lists_the_verbs_and_imports_none(
    words: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words) == 0
    out = capsys.readouterr().out
    assert "  build         trees -> wheels\n  check-wheels  wheels -> findings\n" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("biuld",), "python -m pytorch_build has no verb 'biuld'.\nDid you mean 'build'?"),
        (("build",), "the following arguments are required: project"),
        (
            ("build", "torch", "--zzz"),
            "arguments: --zzz\nSee: python -m pytorch_build build --help",
        ),
        (
            ("build", "torch", "--gpu-famly=cpu"),
            "Did you mean '--gpu-family'? See: python -m",
        ),
        (("build", "torch", "--clean"), "unrecognized arguments: --clean"),  # abbreviations change meaning
        (("build", "torch", "--torch-ref=a", "--torch-ref=b"), "cannot be 'b' too"),
    ],
)
@pytest.mark.usefixtures("build")
def test_words_that_cannot_be_meant_end_with_the_usage_code(
    words: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert said in err


def test_a_verb_may_take_options_that_it_does_not_know(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PASSES_REST", True, raising=False)
    assert call("build", "torch", "--", "-k", "autograd", "--tb=short") == 0
    assert build.called[0].rest == ["-k", "autograd", "--tb=short"]


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
