"""Real files of upstream's tests beside small ones that crash, hang, flicker and fail, on a real torch."""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from core import process
from core.cli.options import ROOT
from pytorch_build.test.junit.reader import read_junit_file

TEXTS = Path(__file__).with_name("texts")
UPSTREAM_TESTS = ("test_type_info", "test_comparison_utils")
# What upstream's tests import
UPSTREAM_SUPPORT = ("conftest.py", "pytest_shard_custom.py")
OUR_TESTS = {
    "test_crash": "crashing-tests.txt",
    "test_hang": "hanging-tests.txt",
    "test_mixed": "mixed-tests.txt",
}

OUTCOMES = {
    "test/test_crash.py::TestCrash::test_before": "passed",
    "test/test_crash.py::TestCrash::test_crash": "crashed",
    "test/test_crash.py::TestCrash::test_exit": "crashed",
    "test/test_crash.py::TestCrash::test_later": "passed",
    "test/test_hang.py::test_hang": "timeout",
    "test/test_hang.py::test_after": "passed",
    "test/test_mixed.py::test_flaky": "flaky",
    "test/test_mixed.py::test_wrong": "failed",
    "test/test_mixed.py::test_hidden": "skipped",
    "test/test_mixed.py::test_error": "error",
}
FAILING = {"crashed", "timeout", "failed", "error"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory, torch_sources: Path) -> Path:
    """Return a tree with some of upstream's tests, and with ours beside them."""
    tree = tmp_path_factory.mktemp("upstream") / "pytorch"
    (tree / "test").mkdir(parents=True)
    for name in ("version.txt", "pytest.ini"):
        shutil.copy2(torch_sources / name, tree / name)
    for name in UPSTREAM_SUPPORT:
        shutil.copy2(torch_sources / "test" / name, tree / "test" / name)
    for name in UPSTREAM_TESTS:
        shutil.copy2(torch_sources / "test" / f"{name}.py", tree / "test" / f"{name}.py")
    for name, text in OUR_TESTS.items():
        shutil.copyfile(TEXTS / text, tree / "test" / f"{name}.py")
    shutil.copyfile(TEXTS / "run-rules.toml", tree / "rules.toml")
    return tree


def run_verb(verb: str, tree: Path, *options: str | Path) -> process.Completed:
    """Run a verb of the front door, for the CPU and with a store beside the tree."""
    command: list[str | Path] = [sys.executable, "-m", "pytorch_build", verb, "--gpu-family", "cpu"]
    command += ["--torch-ref", "nightly", "--store", tree.parent / "out"]
    return process.capture([*command, *options], cwd=ROOT, check=False)


def run_tests(tree: Path, python: Path, *options: str | Path) -> process.Completed:
    """Run the tree's tests in an environment that has torch."""
    return run_verb("test-torch", tree, "--python", python, "--no-install", "--pytorch-dir", tree, *options)


def run_shard(tree: Path, python: Path, shard: str) -> process.Completed:
    """Run a part of the tests, though the sources may be those of another torch."""
    options = ["--allow-version-mismatch", f"--skips={tree / 'rules.toml'}", "--test-timeout=90"]
    options += [f"--include={name}" for name in (*UPSTREAM_TESTS, *OUR_TESTS)]
    return run_tests(tree, python, *options, "--shard", shard)


def passed_by_pytest_alone(tree: Path, python: Path) -> set[str]:
    """Ask pytest itself, without anything of ours, which of upstream's tests pass."""
    environment = process.inherited(PYTORCH_TESTING_DEVICE_ONLY_FOR="cpu", PYTORCH_TEST_WITH_ROCM="0")
    options = ("-q", "-rA", "-p", "no:cacheprovider")

    passed: set[str] = set()
    for name in UPSTREAM_TESTS:
        command: list[str | Path] = [python, "-m", "pytest", *options, f"{name}.py"]
        completed = process.capture(command, cwd=tree / "test", env=environment, check=False)
        for line in completed.stdout.splitlines():
            # Upstream's conftest puts the time before the test: PASSED [0.01s] test_x.py::TestX::test_y
            words = line.split()
            if words[:1] == ["PASSED"]:
                passed.add(f"test/{words[-1].removeprefix('test/')}")
    return passed


def outcomes_in_reports(tree: Path) -> Mapping[str, str]:
    """Return the outcome of each test in the reports of both shards, which share none."""
    outcomes: dict[str, str] = {}
    for path in (tree.parent / "out").rglob("reports/cpu/*-of-2.xml"):
        for case in read_junit_file(path).cases:
            assert case.test not in outcomes
            outcomes[case.test] = case.outcome
    return outcomes


def test_a_report_of_two_shards_is_the_truth(tree: Path, torch_python: Path) -> None:
    for shard in ("1/2", "2/2"):
        completed = run_shard(tree, torch_python, shard)
        assert completed.returncode == 9, completed.stderr
    report = tree.parent / "report.json"
    summary = run_verb("test-report", tree, "--json", report)
    assert summary.returncode == 9, summary.stderr

    (configuration,) = json.loads(report.read_text())["tests"]
    failures = {failure["test"]: failure["outcome"] for failure in configuration["failures"]}
    assert failures == {test: outcome for test, outcome in OUTCOMES.items() if outcome in FAILING}

    outcomes = outcomes_in_reports(tree)
    assert outcomes.items() >= OUTCOMES.items()

    passed = passed_by_pytest_alone(tree, torch_python)
    assert passed
    for test in passed:
        assert outcomes.get(test) == "passed", test

    # No other test is lost or invented.
    assert configuration["problems"] == ["the tree has no test file of the configuration"]
    (log,) = (tree.parent / "out").rglob("logs/cpu/*/test_hang.log")
    assert "in test_hang" in log.read_text()


def test_tests_of_another_torch_are_refused(tree: Path, torch_python: Path) -> None:
    completed = run_tests(tree, torch_python)

    assert completed.returncode == 6
    assert "--allow-version-mismatch" in completed.stderr
