"""The plugin in a pytest of its own, as it runs in a target environment."""

import ast
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from core import process
from pytorch_build.test import plugin
from pytorch_build.test.ids import Pattern

pytestmark = pytest.mark.processes

# classes as torch's instantiate_device_type_tests makes them, and parameters as pytest writes them
TESTS = """
import os, unittest
import pytest

class TestFooCUDA(unittest.TestCase):
    def test_bar_cuda_float32(self): assert os.environ.get("MENDED"), "wrong result"
    def test_bar_cuda_float64(self): assert os.environ.get("MENDED"), "wrong result"
    def test_bar_cuda_float16(self): pass

class TestFooCUDAMore(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError("no device")
    def test_bar_cuda_float32(self): pass

@pytest.mark.parametrize("what", ["a/b", "c [d]", "x::y", "a*b"])
def test_kinds(what): assert what != "c [d]"
"""


CRASH = """
import os, pytest
def test_one(): pass
def test_two(): os._exit(0)
def test_three(): pass
"""


@dataclass
class Ran:
    returncode: int
    output: str
    sessions: Sequence[plugin.Session]

    @property
    def outcomes(self) -> dict[str, str]:
        """Last attempt of each test: the outcome, with the rule that was applied."""
        return {
            one.test.partition("::")[2]: f"{one.outcome} {one.rule}".rstrip()
            for session in self.sessions
            for one in session.results
        }


def rule(action: plugin.Action, *patterns: str, name: str = "", retries: int = 0) -> plugin.PlannedRule:
    return plugin.PlannedRule(
        name=name or f"mine.{action}",
        action=action,
        reason=f"It needs {action}.",
        retries=retries,
        patterns={one: Pattern.parse(one).regex for one in patterns},
    )


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Ran]:
    folder = tmp_path / "up" / "test"
    folder.mkdir(parents=True)
    (tmp_path / "up" / "pytest.ini").write_text("[pytest]\n")

    def start(
        text: str,
        *rules: plugin.PlannedRule,
        mode: str = "apply",
        only: tuple[str, ...] | None = None,
        arguments: Sequence[str] = (),
        **env: str,
    ) -> Ran:
        (folder / "test_foo.py").write_text(text)
        journal = tmp_path / "journal.jsonl"
        facts = {"root": str(tmp_path / "up"), "journal": str(journal)}
        plan = plugin.Plan.model_validate({**facts, "mode": mode, "only": only, "rules": rules})
        argv = [sys.executable, "-m", "pytest", *plugin.arguments(tmp_path / "plan.json", plan)]
        argv += ["-p", "no:cacheprovider", *(arguments or ["test_foo.py"])]
        environment = process.inherited(PYTHONPATH=str(plugin.TARGET), PYTEST_ADDOPTS=None, **env)
        done = process.capture(argv, cwd=folder, env=environment, check=False)
        return Ran(
            returncode=done.returncode,
            output=done.stdout + done.stderr,
            sessions=plugin.read_journal(journal) if journal.exists() else (),
        )

    return start


def test_rules_take_whole_ids_and_every_test_is_accounted_for(run: Callable[..., Ran]) -> None:
    exact = plugin.PlannedRule(
        name="mine.exact", action="skip", reason="It fails.", tests=("test/test_foo.py::test_kinds[c [d]]",)
    )
    ran = run(
        TESTS,
        rule("skip", "TestFooCUDA::test_bar_cuda_float32"),
        exact,
        rule("xfail", "TestFoo*::test_bar_cuda_float64"),
        rule("skip", "test/test_other.py::*", name="mine.unmatched"),
    )
    assert ran.outcomes == {
        "TestFooCUDA::test_bar_cuda_float16": "passed",
        "TestFooCUDA::test_bar_cuda_float32": "skipped mine.skip",
        "TestFooCUDA::test_bar_cuda_float64": "xfailed mine.xfail",
        "TestFooCUDAMore::test_bar_cuda_float32": "error",
        "test_kinds[a/b]": "passed",
        "test_kinds[c [d]]": "skipped mine.exact",
        "test_kinds[x::y]": "passed",
        "test_kinds[a*b]": "passed",
    }
    (session,) = ran.sessions
    messages = {one.message for one in session.results if one.rule == "mine.skip"}
    assert messages == {"It needs skip. [rule mine.skip]"}
    assert set(session.collected) == {f"test/test_foo.py::{name}" for name in ran.outcomes}
    assert session.rules == {
        "mine.skip": ("test/test_foo.py::TestFooCUDA::test_bar_cuda_float32",),
        "mine.exact": ("test/test_foo.py::test_kinds[c [d]]",),
        "mine.xfail": ("test/test_foo.py::TestFooCUDA::test_bar_cuda_float64",),
        "mine.unmatched": (),
    }
    assert session.end is not None
    assert session.end.exit == ran.returncode == 1


def test_skip_wins_over_xfail_and_the_first_of_its_kind_and_an_xfail_that_passes_fails(
    run: Callable[..., Ran],
) -> None:
    ran = run(
        TESTS,
        rule("xfail", "TestFooCUDA::*"),
        rule("skip", "TestFooCUDA::test_bar_cuda_float64", name="a.first"),
        rule("skip", "TestFooCUDA::test_bar_cuda_float64", name="a.second"),
        arguments=["test_foo.py::TestFooCUDA"],
    )
    assert ran.returncode == 1
    assert ran.outcomes == {
        "TestFooCUDA::test_bar_cuda_float64": "skipped a.first",
        "TestFooCUDA::test_bar_cuda_float32": "xfailed mine.xfail",
        "TestFooCUDA::test_bar_cuda_float16": "failed mine.xfail",
    }
    (message,) = (one.message for one in ran.sessions[0].results if one.outcome == "failed")
    assert "XPASS(strict)" in message
    taken = {name: len(tests) for name, tests in ran.sessions[0].rules.items()}
    assert taken == {"a.first": 1, "a.second": 1, "mine.xfail": 3}


def test_rules_see_what_an_expression_deselects(run: Callable[..., Ran]) -> None:
    ran = run(TESTS, rule("skip", "TestFooCUDA::*"), arguments=["test_foo.py", "-k", "float32 and not More"])
    (session,) = ran.sessions
    assert session.collected == ("test/test_foo.py::TestFooCUDA::test_bar_cuda_float32",)
    assert session.deselected == 7
    assert len(session.rules["mine.skip"]) == 3
    # a skipped class is not even set up
    ran = run(TESTS, rule("skip", "TestFooCUDAMore::*"), arguments=["test_foo.py::TestFooCUDAMore"])
    assert ran.returncode == 0
    assert "no device" not in ran.output
    # tests that are named, of those that are there
    wanted = ("test/test_foo.py::test_kinds[x::y]", "test/test_foo.py::test_gone")
    ran = run(TESTS, only=wanted)
    session = ran.sessions[-1]
    assert session.collected == wanted[:1]
    assert (ran.returncode, session.deselected) == (0, 7)


@pytest.mark.parametrize(
    "arguments", [["test_foo.py"], ["--rootdir=..", "../test/test_foo.py"], ["--rootdir=.", "."]]
)
def test_ids_do_not_depend_on_how_pytest_is_called(run: Callable[..., Ran], arguments: list[str]) -> None:
    ran = run(CRASH.replace("os._exit(0)", "pass"), arguments=arguments)
    assert [one.test for one in ran.sessions[0].results] == [
        f"test/test_foo.py::test_{name}" for name in ("one", "two", "three")
    ]


@pytest.mark.parametrize(("mended", "outcome"), [("", "failed"), ("1", "passed")])
def test_trying_runs_what_rules_hide_and_no_more(run: Callable[..., Ran], mended: str, outcome: str) -> None:
    rules = (
        rule("skip", "TestFooCUDA::test_bar_cuda_float32"),
        rule("xfail", "TestFooCUDA::test_bar_cuda_float64"),
        rule("retry", "::test_kinds[*]"),
    )
    tried = run(TESTS, *rules, mode="try", MENDED=mended)
    assert tried.outcomes == {
        "TestFooCUDA::test_bar_cuda_float32": f"{outcome} mine.skip",
        "TestFooCUDA::test_bar_cuda_float64": f"{outcome} mine.xfail",
    }


@pytest.mark.parametrize(
    ("text", "outcome", "message"),
    [
        ("import nothing_of_that_name\n", "error", "No module named 'nothing_of_that_name'"),
        ("import pytest\npytest.skip('not here', allow_module_level=True)\n", "skipped", "not here"),
    ],
)
def test_files_without_tests_are_told(run: Callable[..., Ran], text: str, outcome: str, message: str) -> None:
    (session,) = run(text).sessions
    (said,) = session.uncollected
    assert (said.file, said.outcome) == ("test/test_foo.py", outcome)
    assert message in said.message


@pytest.mark.parametrize("text", ["{}", "{", '{"schema": 2}'])
def test_a_plan_that_is_invalid_stops_pytest(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    argv = [sys.executable, "-m", "pytest", "-p", plugin.PLUGIN, "--wheel-test-plan", "bad.json"]
    env = process.inherited(PYTHONPATH=str(plugin.TARGET), PYTEST_ADDOPTS=None)
    done = process.capture(argv, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 4
    said = "Expecting property name" if text == "{" else "not a plan of schema 1"
    assert said in done.stdout + done.stderr


def test_the_plugin_needs_the_standard_library_and_pytest_alone() -> None:
    files = {file.stem: file.read_text() for file in plugin.TARGET.glob("*.py")}
    nodes = [node for text in files.values() for node in ast.walk(ast.parse(text, feature_version=(3, 10)))]
    imported = {
        alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {str(node.module).split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    assert imported - sys.stdlib_module_names - files.keys() == {"pytest"}
