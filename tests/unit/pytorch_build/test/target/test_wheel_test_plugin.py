"""The plugin in a pytest of its own, as it runs in a target environment."""

import ast
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from core import process
from pytorch_build.test import plugin
from tests.kit.repos import write_files

# Classes as torch's instantiate_device_type_tests makes them, and parameters as pytest writes them.
TESTS = """
import unittest
import pytest

class TestFooCUDA(unittest.TestCase):
    def test_bar_cuda_float32(self): assert False, "wrong result"
    def test_bar_cuda_float64(self): assert False, "wrong result"
    def test_bar_cuda_float16(self): pass

class TestFooCUDAMore(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError("no device")
    def test_bar_cuda_float32(self): pass

@pytest.mark.parametrize("kind", ["a/b", "c [d]", "x::y", "a*b"])
def test_kinds(kind): assert kind != "c [d]"
"""
THREE_TESTS = "def test_first(): pass\ndef test_second(): pass\ndef test_third(): pass\n"

processes = pytest.mark.processes


@dataclass(frozen=True, kw_only=True)
class PluginRun:
    """How a pytest with the plugin ended, and what it wrote down."""

    status: int
    output: str
    events: plugin.EventLog

    @property
    def outcomes(self) -> dict[str, str]:
        """Return the outcome of each test, with the rule that was applied."""
        outcomes: dict[str, str] = {}
        for result in self.events.results:
            outcomes[result.test.partition("::")[2]] = f"{result.outcome} {result.rule}".rstrip()
        return outcomes


def rule_for(action: plugin.Action, *tests: str, name: str | None = None) -> plugin.AppliedRule:
    """Return a rule for tests, which is named after its action."""
    return plugin.AppliedRule(
        name=name or f"mine.{action}",
        action=action,
        reason=f"It needs {action}.",
        tests=tests,
    )


RunTests = Callable[..., PluginRun]


@pytest.fixture
def run_tests(tmp_path: Path) -> RunTests:
    """Return what runs a test file with rules."""
    tree = tmp_path / "upstream"
    write_files(tree, {"pytest.ini": "[pytest]\n"})

    def run(
        text: str,
        *rules: plugin.AppliedRule,
        excluded: tuple[str, ...] = (),
        arguments: Sequence[str] = ("test_foo.py",),
        **variables: str,
    ) -> PluginRun:
        write_files(tree / "test", {"test_foo.py": text})
        folder = tmp_path / "events"
        settings = plugin.PluginSettings(root=str(tree), events=str(folder), excluded=excluded, rules=rules)
        options = plugin.write_settings(tmp_path / "settings.json", settings)
        command = [sys.executable, "-m", "pytest", *options]
        command += ["-p", "no:cacheprovider", *arguments]
        env = process.inherited(PYTHONPATH=str(plugin.TARGET), PYTEST_ADDOPTS=None, **variables)
        completed = process.capture(command, cwd=tree / "test", env=env, check=False)
        (events,) = plugin.read_event_logs(folder)
        return PluginRun(
            status=completed.returncode, output=completed.stdout + completed.stderr, events=events
        )

    return run


@processes
def test_rules_take_whole_ids_and_every_test_is_accounted_for(run_tests: RunTests) -> None:
    run = run_tests(
        TESTS,
        rule_for("skip", "*::TestFooCUDA::test_bar_cuda_float32"),
        rule_for("skip", "test/test_foo.py::test_kinds[c [d]]", name="mine.exact"),
        rule_for("xfail", "*::TestFoo*::test_bar_cuda_float64"),
        rule_for("skip", "test/test_other.py::*", name="mine.unmatched"),
    )

    assert run.outcomes == {
        "TestFooCUDA::test_bar_cuda_float16": "passed",
        "TestFooCUDA::test_bar_cuda_float32": "skipped mine.skip",
        "TestFooCUDA::test_bar_cuda_float64": "xfailed mine.xfail",
        "TestFooCUDAMore::test_bar_cuda_float32": "error",
        "test_kinds[a/b]": "passed",
        "test_kinds[c [d]]": "skipped mine.exact",
        "test_kinds[x::y]": "passed",
        "test_kinds[a*b]": "passed",
    }
    assert run.events.existing == {f"test/test_foo.py::{name}" for name in run.outcomes}
    assert run.events.rules == {
        "mine.skip": ("test/test_foo.py::TestFooCUDA::test_bar_cuda_float32",),
        "mine.exact": ("test/test_foo.py::test_kinds[c [d]]",),
        "mine.xfail": ("test/test_foo.py::TestFooCUDA::test_bar_cuda_float64",),
        "mine.unmatched": (),
    }
    assert run.status == 1


@processes
def test_a_skip_says_its_reason_and_rule(run_tests: RunTests) -> None:
    run = run_tests(THREE_TESTS, rule_for("skip", "*::test_first"))

    (message,) = [result.message for result in run.events.results if result.outcome == "skipped"]
    assert message == "It needs skip. [rule mine.skip]"


@processes
def test_the_first_skip_wins_over_any_expected_failure(run_tests: RunTests) -> None:
    run = run_tests(
        TESTS,
        rule_for("xfail", "*::TestFooCUDA::*"),
        rule_for("skip", "*::TestFooCUDA::test_bar_cuda_float64", name="a.first"),
        rule_for("skip", "*::TestFooCUDA::test_bar_cuda_float64", name="a.second"),
        arguments=["test_foo.py::TestFooCUDA"],
    )

    matches = {name: len(tests) for name, tests in run.events.rules.items()}
    assert run.outcomes["TestFooCUDA::test_bar_cuda_float64"] == "skipped a.first"
    assert run.outcomes["TestFooCUDA::test_bar_cuda_float32"] == "xfailed mine.xfail"
    assert matches == {"a.first": 1, "a.second": 1, "mine.xfail": 3}


@processes
def test_an_expected_failure_that_passes_is_a_failure(run_tests: RunTests) -> None:
    run = run_tests(THREE_TESTS, rule_for("xfail", "*::test_first"))

    (failure,) = [result for result in run.events.results if result.outcome == "failed"]
    assert failure.rule == "mine.xfail"
    assert "XPASS(strict)" in failure.message
    assert run.status == 1


@processes
def test_rules_see_tests_that_an_expression_deselects(run_tests: RunTests) -> None:
    arguments = ["test_foo.py", "-k", "float32 and not More"]

    run = run_tests(TESTS, rule_for("skip", "*::TestFooCUDA::*"), arguments=arguments)

    assert run.events.collected == ("test/test_foo.py::TestFooCUDA::test_bar_cuda_float32",)
    assert len(run.events.deselected) == 7
    assert len(run.events.rules["mine.skip"]) == 3


@processes
def test_a_skipped_class_is_not_set_up(run_tests: RunTests) -> None:
    skip = rule_for("skip", "*::TestFooCUDAMore::*")

    run = run_tests(TESTS, skip, arguments=["test_foo.py::TestFooCUDAMore"])

    assert run.status == 0
    assert "no device" not in run.output


@processes
def test_excluded_tests_do_not_run(run_tests: RunTests) -> None:
    first = "test/test_foo.py::test_first"

    run = run_tests(THREE_TESTS, excluded=(first, "test/test_foo.py::test_gone"))

    assert list(run.outcomes) == ["test_second", "test_third"]
    assert run.events.deselected == (first,)


@processes
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["test_foo.py"], id="file"),
        pytest.param(["--rootdir=..", "../test/test_foo.py"], id="root above"),
        pytest.param(["--rootdir=.", "."], id="folder"),
    ],
)
def test_ids_do_not_depend_on_how_pytest_is_called(run_tests: RunTests, arguments: list[str]) -> None:
    run = run_tests(THREE_TESTS, arguments=arguments)

    tests = [result.test for result in run.events.results]
    assert tests == [f"test/test_foo.py::test_{name}" for name in ("first", "second", "third")]


@processes
@pytest.mark.parametrize(
    ("text", "outcome", "message"),
    [
        pytest.param("import nothing_of_that_name\n", "error", "nothing_of_that_name", id="failed import"),
        pytest.param(
            "import pytest\npytest.skip('not here', allow_module_level=True)\n",
            "skipped",
            "not here",
            id="skipped file",
        ),
    ],
)
def test_a_file_without_tests_says_why(run_tests: RunTests, text: str, outcome: str, message: str) -> None:
    run = run_tests(text)

    (result,) = run.events.results
    assert result.test == "test/test_foo.py"
    assert result.outcome == outcome
    assert message in result.message


@processes
@pytest.mark.parametrize(
    ("text", "problem"),
    [("{}", "root"), ("{", "property name"), ('{"root": "."}', "started_by_run_test")],
    ids=["empty", "no JSON", "cut off"],
)
def test_invalid_settings_stop_pytest(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", plugin.PLUGIN, "--wheel-tests", "bad.json"]
    env = process.inherited(PYTHONPATH=str(plugin.TARGET), PYTEST_ADDOPTS=None)

    completed = process.capture(command, cwd=tmp_path, env=env, check=False)

    assert completed.returncode == 4
    assert problem in completed.stdout + completed.stderr


def imported_modules(tree: ast.AST) -> set[str]:
    """Return the top-level modules that a file imports."""
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(str(node.module).partition(".")[0])
    return modules


def test_the_plugin_needs_the_standard_library_and_pytest_alone() -> None:
    files = {path.stem: path.read_text() for path in plugin.TARGET.glob("*.py")}
    modules: set[str] = set()
    for text in files.values():
        # Old environments are tested, too.
        modules |= imported_modules(ast.parse(text, feature_version=(3, 10)))

    assert modules - sys.stdlib_module_names - files.keys() == {"pytest"}
