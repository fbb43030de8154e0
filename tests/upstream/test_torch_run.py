"""Real files of upstream's tests beside small ones that crash, hang, flicker and fail, on a real torch."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.cli.options import ROOT

REAL = ("test_type_info", "test_comparison_utils")
NEEDED = ("conftest.py", "pytest_shard_custom.py")

CRASH = Path(__file__).with_name("texts").joinpath("crashing-tests.txt").read_text()

HANG = Path(__file__).with_name("texts").joinpath("hanging-tests.txt").read_text()

MIXED = Path(__file__).with_name("texts").joinpath("mixed-tests.txt").read_text()

RULES = Path(__file__).with_name("texts").joinpath("run-rules.toml").read_text()

TRUTH = {
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


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory, upstream_sources: dict[str, Path]) -> Path:
    if "torch" not in upstream_sources:
        pytest.skip("--sources has no pytorch")
    source = upstream_sources["torch"]
    made = tmp_path_factory.mktemp("upstream") / "pytorch"
    (made / "test").mkdir(parents=True)
    for name in ("version.txt", "pytest.ini"):
        shutil.copy2(source / name, made / name)
    for name in (*NEEDED, *(f"{one}.py" for one in REAL)):
        shutil.copy2(source / "test" / name, made / "test" / name)
    for name, text in {"crash": CRASH, "hang": HANG, "mixed": MIXED}.items():
        (made / "test" / f"test_{name}.py").write_text(text)
    (made / "rules.toml").write_text(RULES)
    return made


def front_door(verb: str, tree: Path, *words: str | Path) -> process.Completed:
    store = ("--store", str(tree.parent / "out"))
    argv = [sys.executable, "-m", "pytorch_build", verb, *store, "--torch-ref", "nightly", *words]
    return process.capture([*argv, "--gpu-family", "cpu"], cwd=ROOT, check=False)


def run_shard(tree: Path, python: Path, *words: str | Path) -> process.Completed:
    own: list[str | Path] = ["--python", python, "--no-install", "--pytorch-dir", tree]
    own += ["--allow-version-mismatch", "--skips", tree / "rules.toml", "--test-timeout", "90"]
    return front_door("test-torch", tree, *own, *words)


def plain_truth(tree: Path, python: Path) -> dict[str, str]:
    """Ask pytest itself, without anything of ours, what the real files give."""
    outcomes = {}
    for name in REAL:
        argv: list[str | Path] = [python, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", f"{name}.py"]
        env = process.inherited(PYTORCH_TESTING_DEVICE_ONLY_FOR="cpu", PYTORCH_TEST_WITH_ROCM="0")
        said = process.capture(argv, cwd=tree / "test", env=env, check=False).stdout
        for line in said.splitlines():
            # upstream's conftest puts the time before the test: PASSED [0.01s] test_x.py::TestX::test_y
            words = line.split()
            if words[:1] == ["PASSED"]:
                outcomes[f"test/{words[-1].removeprefix('test/')}"] = "passed"
    return outcomes


def test_a_report_of_two_shards_is_the_truth(tree: Path, torch_python: Path) -> None:
    files = [f"--include={name}" for name in (*REAL, "test_crash", "test_hang", "test_mixed")]
    said = []
    for shard in ("1/2", "2/2"):
        done = run_shard(tree, torch_python, *files, "--shard", shard)
        assert done.returncode == 9, done.stderr
        said.append(done.stderr)
    told = tree.parent / "report.json"
    summary = front_door("test-report", tree, "--json", told)
    assert summary.returncode == 9, summary.stderr
    (entry,) = json.loads(told.read_text())["tests"]
    failing = {one["test"]: one["outcome"] for one in entry["failures"]}
    bad = {"crashed", "timeout", "failed", "error"}
    assert failing == {test: outcome for test, outcome in TRUTH.items() if outcome in bad}
    found = outcomes_of(tree)
    assert {test: found[test] for test in TRUTH} == TRUTH
    passed = plain_truth(tree, torch_python)
    assert passed
    assert {test: found.get(test) for test in passed} == passed
    # nothing else was lost or made up
    assert entry["problems"] == ["the tree has no test file of the configuration"]
    logs = list((tree.parent / "out").rglob("logs/cpu/*/test_hang.log"))
    assert len(logs) == 1
    assert "in test_hang" in logs[0].read_text()


def outcomes_of(tree: Path) -> dict[str, Any]:
    from core.junit import read_file

    found: dict[str, Any] = {}
    for path in (tree.parent / "out").rglob("reports/cpu/*-of-2.xml"):
        for case in read_file(path).cases:
            assert case.test not in found
            found[case.test] = case.outcome
    return found


def test_tests_of_another_torch_are_refused(tree: Path, torch_python: Path) -> None:
    words: list[str | Path] = ["--python", torch_python, "--no-install", "--pytorch-dir", tree]
    done = front_door("test-torch", tree, *words)
    assert done.returncode == 6
    assert "--allow-version-mismatch" in done.stderr
