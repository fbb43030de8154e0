from dataclasses import replace
from pathlib import Path

import pytest

from pytorch_build.test.file_run import FileResults, FileSettings, log_name, run_file
from pytorch_build.test.plugin import AppliedRule
from pytorch_build.test.upstream_tests import TestFile
from tests.kit.repos import write_files
from tests.kit.torch_results import case_of
from tests.kit.torch_test_files import (
    FILE,
    PASSES,
    case_named,
    existing_names,
    log_of,
    outcomes_of,
    run_settings,
    run_text,
    with_limits,
)

processes = pytest.mark.processes

TWO_PASS = f"{PASSES}def test_second(): pass\n"


@pytest.fixture
def settings(tmp_path: Path) -> FileSettings:
    return run_settings(tmp_path)


MIXED = f"""\
import pytest
{PASSES}
def test_fails():
    print("text that it printed")
    assert 1 == 2
@pytest.mark.skip(reason="no time")
def test_skips(): pass
"""


@processes
def test_every_test_of_a_file_is_run(settings: FileSettings) -> None:
    run = run_text(settings, MIXED)

    failure = case_named(run, "test_fails")
    assert outcomes_of(run) == {"test_passes": "passed", "test_fails": "failed", "test_skips": "skipped"}
    assert failure.line == "assert 1 == 2"
    assert "test_it.py:7" in failure.text
    assert run.processes == 1
    assert existing_names(run) == outcomes_of(run).keys()
    assert "text that it printed" in log_of(run)


# Fails where it runs for the first time.
FLAKY = """\
import pathlib
def test_flaky():
    marker = pathlib.Path("ran")
    if not marker.exists():
        marker.write_text("")
        assert False, "the first time"
"""
RULED_TESTS = f"""\
{FLAKY}
def test_bad(): assert False
def test_bad_too(): assert False
def test_always():
    with pathlib.Path("times").open("a") as times:
        times.write("x")
    assert False
"""
RULES = (
    AppliedRule(name="a.skip", action="skip", reason="It fails.", tests=(f"{FILE}::test_bad",)),
    AppliedRule(name="a.retry", action="retry", reason="Flaky.", retries=1, tests=(f"{FILE}::test_flaky",)),
    AppliedRule(
        name="a.more",
        action="retry",
        reason="Bad.",
        retries=2,
        tests=("*::test_always", "*::test_worse"),
    ),
    AppliedRule(name="a.silent", action="skip", reason="Nothing.", tests=("*::test_absent",)),
)


@processes
def test_rules_skip_and_retry_the_tests_that_they_name(settings: FileSettings) -> None:
    run = run_text(replace(settings, rules=RULES), RULED_TESTS)

    assert outcomes_of(run) == {
        "test_bad": "skipped",
        "test_flaky": "flaky",
        "test_bad_too": "failed",
        "test_always": "failed",
    }
    assert run.matched_rules == {"a.skip", "a.retry", "a.more"}
    attempts = {case.test.removeprefix(f"{FILE}::"): case.attempts for case in run.cases}
    assert attempts == {"test_bad": 1, "test_flaky": 2, "test_bad_too": 1, "test_always": 3}
    assert (settings.tree / "test" / "times").read_text() == "xxx"
    assert case_named(run, "test_flaky").line == "AssertionError: the first time"
    assert case_named(run, "test_flaky").rule == "a.retry: Flaky."
    assert case_named(run, "test_always").rule == "a.more: Bad."


@processes
@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        pytest.param(("-vkpasses",), 1, id="expression"),
        pytest.param(
            ("--deselect", f"{FILE}::test_passes"), 1, marks=pytest.mark.nightly, id="deselected test"
        ),
        pytest.param(("-o", "python_functions=test_p*"), 1, marks=pytest.mark.nightly, id="setting"),
        # Another file's tests take no place of those that did not run.
        pytest.param(("-k", "passes or fill", "test_fill.py"), 1, id="another file"),
        pytest.param(("--setup-only",), 0, marks=pytest.mark.nightly, id="set-up alone"),
        pytest.param(("--tb=short", "-x"), 2, id="no choice"),
    ],
)
def test_the_tests_that_exist_are_known_whatever_arguments_choose(
    settings: FileSettings, arguments: tuple[str, ...], passed: int
) -> None:
    write_files(settings.tree / "test", {"test_fill.py": "def test_fill(): pass\n"})

    run = run_text(replace(settings, arguments=arguments), TWO_PASS)

    assert existing_names(run) == {"test_passes", "test_second"}
    assert list(outcomes_of(run).values()) == ["passed"] * passed


@processes
def test_the_tests_that_exist_are_known_whatever_variables_choose(settings: FileSettings) -> None:
    variables = {**settings.env, "PYTEST_ADDOPTS": "-k passes"}

    run = run_text(replace(settings, env=variables), TWO_PASS)

    assert existing_names(run) == {"test_passes", "test_second"}
    assert len(run.cases) == 1


@processes
def test_an_expression_may_choose_no_test_of_a_file(settings: FileSettings) -> None:
    run = run_text(replace(settings, expression="nothing"), PASSES)

    assert run.cases == ()
    assert existing_names(run) == {"test_passes"}


@processes
def test_pytest_stops_at_the_first_failure_when_asked_to(settings: FileSettings) -> None:
    run = run_text(replace(settings, arguments=("-x",)), f"def test_fails(): assert False\n{TWO_PASS}")

    assert outcomes_of(run) == {"test_fails": "failed"}
    assert run.processes == 1


@processes
def test_processes_of_xdist_are_refused(settings: FileSettings) -> None:
    run = run_text(replace(settings, arguments=("-n", "2")), PASSES)

    assert outcomes_of(run) == {FILE: "error"}
    assert "--workers" in log_of(run)


@processes
@pytest.mark.parametrize(("status", "outcome"), [(0, "passed"), (2, "failed")])
def test_a_program_of_the_tree_is_run_without_pytest(
    settings: FileSettings, status: int, outcome: str
) -> None:
    write_files(settings.tree, {"tools/x.py": f"print('a word')\nraise SystemExit({status})\n"})

    run = run_file(TestFile(file="tools/x.py", runner="script"), settings)

    (case,) = run.cases
    assert case.test == "tools/x.py"
    assert case.outcome == outcome
    assert existing_names(run) == set()
    assert "a word" in log_of(run)


@processes
def test_workers_share_the_tests_of_a_file(settings: FileSettings) -> None:
    text = f"import os, pytest\ndef test_dies(): os._exit(3)\n{PASSES}"
    text += "@pytest.mark.parametrize('n', range(6))\ndef test_each(n): pass\n"

    run = run_text(replace(settings, workers=2), text, parallel=True)

    outcomes = outcomes_of(run)
    assert outcomes.pop("test_dies") == "crashed"
    assert outcomes == {"test_passes": "passed", **{f"test_each[{number}]": "passed" for number in range(6)}}
    assert len(run.logs) == 3
    assert run.processes == 3


# Upstream's runner stops at the first failure, retries, and runs a failed file again.
UPSTREAMS_RUNNER = """\
import os, subprocess, sys
assert sys.argv[1:4] == ["--verbose", "--keep-going", "--inductor"], sys.argv
name = sys.argv[sys.argv.index("--include") + 1]
command = [sys.executable, "-m", "pytest", "-x", "--reruns=2", name + ".py"]
for backend in ("gloo", "nccl"):
    status = subprocess.call(command, env={**os.environ, "BACKEND": backend})
    if status:
        sys.exit(subprocess.call(command))
"""
FAILS_WITH_GLOO = """
import os
def test_backend(): assert os.environ["BACKEND"] != "gloo", "no gloo"
"""


@processes
def test_upstreams_runner_neither_stops_nor_retries(settings: FileSettings) -> None:
    write_files(settings.tree / "test", {"run_test.py": UPSTREAMS_RUNNER})

    run = run_text(settings, FLAKY + FAILS_WITH_GLOO + PASSES, runner="run_test", arguments=("--inductor",))

    # A pass with one backend does not hide that another one failed.
    assert outcomes_of(run) == {"test_flaky": "failed", "test_backend": "failed", "test_passes": "passed"}


@processes
def test_a_crash_under_upstreams_runner_is_named(settings: FileSettings) -> None:
    write_files(settings.tree / "test", {"run_test.py": UPSTREAMS_RUNNER})

    run = run_text(
        settings,
        f"import os\n{PASSES}def test_dies(): os.abort()\n",
        runner="run_test",
        arguments=("--inductor",),
    )

    assert outcomes_of(run) == {"test_passes": "passed", "test_dies": "crashed"}


@processes
def test_upstreams_runner_that_runs_nothing_has_failed(settings: FileSettings) -> None:
    write_files(settings.tree / "test", {"run_test.py": "print('no such test')\n"})

    assert outcomes_of(run_text(settings, PASSES, runner="run_test")) == {FILE: "crashed"}


@processes
def test_nothing_goes_on_behind_the_files_limit(settings: FileSettings) -> None:
    text = f"import os, time\ndef test_dies():\n    time.sleep(4)\n    os._exit(0)\n{PASSES}"

    run = run_text(with_limits(settings, file_seconds=4), text)

    # On a busy machine the limit ends pytest before it begins a test.
    assert "test_passes" not in outcomes_of(run)
    assert run.processes == 1


def test_results_name_their_architecture() -> None:
    results = FileResults(
        file=FILE,
        cases=(
            case_of(f"{FILE}::test_x"),
            case_of(FILE, outcome="error"),
            case_of("TestX::test_y", outcome="error"),
        ),
        existing=frozenset({f"{FILE}::test_x"}),
    )

    named_results = results.named_for("gfx942")

    tests = [case.test for case in named_results.cases]
    assert tests == [f"{FILE}@gfx942::test_x", f"{FILE}@gfx942", "TestX::test_y@gfx942"]
    assert named_results.existing == frozenset({f"{FILE}@gfx942::test_x"})
    assert {case.file for case in named_results.cases} == {named_results.file}


def test_a_log_is_named_after_its_file() -> None:
    assert log_name("test/dynamo/test_misc.py") == "dynamo.test_misc"
