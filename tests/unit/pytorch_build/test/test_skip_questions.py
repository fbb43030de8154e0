import platform
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytorch_build.test import skip_rules
from tests.kit.front_doors import FrontDoorResult, run_pytorch_build
from tests.kit.repos import write_files

CallSkips = Callable[..., FrontDoorResult]

MOON_RULE = """\
[rules.moon]
tests = [
    "test/a.py::TestA::test_x",
    "test/a.py::TestA::test_gone",
]
reason = "It fails on a full moon."
"""
OLD_RULE = """\
# long ago
[rules.old]
tests = ["*::TestOld::*"]
os = ["windows"]
reason = "It failed last year."
expires = 2026-01-31
"""
RULES = f"{MOON_RULE}\n{OLD_RULE}"
PROJECT_RULES = '[rules.gpu]\ngpu = ["any"]\ntests = ["*::TestC::*"]\nreason = "It fails on GPUs."\n'


@pytest.fixture
def rules_file(tmp_path: Path) -> Path:
    """Return the user's rules."""
    path = tmp_path / "mine.toml"
    path.write_text(RULES)
    return path


@pytest.fixture
def skips(
    tmp_path: Path, rules_file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CallSkips:
    """Return the verb, about torch of release/2.10 without a GPU."""
    write_files(tmp_path / "project", {"project.toml": PROJECT_RULES})
    monkeypatch.setattr(skip_rules, "RULES_FOLDER", tmp_path / "project")

    def call(*arguments: str | Path) -> FrontDoorResult:
        options = ("--gpu-family=cpu", "--torch-ref=release/2.10", f"--skips={rules_file}")
        exit_code = run_pytorch_build("test-torch", "--skip-rules", *arguments, *options)
        captured = capfd.readouterr()
        return FrontDoorResult(exit_code=exit_code, output=captured.out, report=captured.err)

    return call


def test_lists_the_rules_that_apply(skips: CallSkips) -> None:
    result = skips("list")

    assert result.exit_code == 0
    assert result.output.startswith(
        "mine.moon: skip: It fails on a full moon.\n    test/a.py::TestA::test_x\n"
    )
    assert "mine.old" not in result.output
    assert "torch 2.10 (release/2.10)" in result.report
    assert "1 of 3 rules" in result.report


def test_lists_the_rules_of_another_platform(skips: CallSkips) -> None:
    assert "mine.old" in skips("list", "--os=windows").output


def test_lists_every_rule(skips: CallSkips) -> None:
    lines = skips("list", "--all").output.splitlines()

    names = [line.partition(":")[0] for line in lines if not line.startswith(" ")]
    assert names == ["project.gpu", "mine.moon", "mine.old"]


def test_explains_tests_before_and_after_options(skips: CallSkips) -> None:
    result = skips("explain", "test/a.py::TestA::test_x", "--os=linux", "test/a.py::test_x")

    assert result.exit_code == 0
    assert "test/a.py::TestA::test_x: skipped, by mine.moon\n" in result.output
    assert "test/a.py::test_x: runs" in result.output


def test_explains_a_rule_that_would_take_a_test_elsewhere(skips: CallSkips) -> None:
    result = skips("explain", "test/b.py::TestOld::test_y")

    assert "test/b.py::TestOld::test_y: runs" in result.output
    assert "mine.old takes it" in result.output
    assert "it is for windows" in result.output


def test_check_names_a_rule_that_has_expired(skips: CallSkips) -> None:
    result = skips("check")

    assert result.exit_code == 9
    assert "mine.old expired on 2026-01-31" in result.report


def test_check_accepts_rules_that_hold(skips: CallSkips, rules_file: Path) -> None:
    rules_file.write_text(MOON_RULE)

    result = skips("check")

    assert result.exit_code == 0
    assert "2 rules" in result.report


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        pytest.param(("explain",), "test", id="no test"),
        pytest.param(("explain", "test_x"), "'test_x'", id="no test id"),
        pytest.param(("explain", "--al", "test/a.py::test_x"), "--al", id="short option"),
        pytest.param(("list", "test/a.py::test_x"), "list", id="test that nothing takes"),
        pytest.param(("lst",), "'lst'", id="unknown action"),
        pytest.param(("check", "--pytorch-dir", "up"), "--pytorch-dir", id="tree that nothing reads"),
    ],
)
def test_refuses_arguments_that_have_no_meaning(
    skips: CallSkips, arguments: tuple[str, ...], name: str
) -> None:
    result = skips(*arguments)

    assert result.exit_code == 2
    assert name in result.report


def test_a_question_takes_no_options_of_a_test_run(skips: CallSkips) -> None:
    result = skips("list", "-k", "rnn")

    assert result.exit_code == 2
    assert "-k has no effect with --skip-rules" in result.report


def test_a_test_run_takes_no_options_of_a_question(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_pytorch_build("test-torch", "--gpu-family=cpu", "--all") == 2

    assert "--all has no effect without --skip-rules" in capfd.readouterr().err


@pytest.mark.processes
def test_an_environment_without_torch_leaves_the_version_to_the_ref(skips: CallSkips) -> None:
    result = skips("list", f"--python={sys.executable}")

    assert result.exit_code == 0
    assert f"Python {platform.python_version()}, torch 2.10 (release/2.10)" in result.report
