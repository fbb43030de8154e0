from collections.abc import Callable
from pathlib import Path

import pytest

from core.cli.options import ROOT
from core.data import load_toml
from core.errors import CheckError
from docs import mutants

FILES = {
    "conftest.py": 'from hypothesis import settings\n\nsettings.register_profile("mutants")\n',
    "core/limits.py": (
        "class Limit:\n    @property\n    def most(self):\n        return 7\n\n"
        "def allowed(count):\n    return count < Limit().most\n"
    ),
    "tests/unit/core/test_limits.py": (
        "from core.limits import Limit, allowed\n\ndef test_it():\n"
        "    assert allowed(6) and Limit().most == 7\n"
    ),
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
}


def test_the_modules_that_are_judged_and_their_tests_are_there() -> None:
    for module, judged in load_toml(mutants.DATA_FILE, mutants.Mutants).modules.items():
        for path in (module, *mutants.unit_tests(module, judged)):
            assert (ROOT / path).exists(), path
        lines = {line.strip() for line in (ROOT / module).read_text(encoding="utf-8").splitlines()}
        assert {one.line for one in judged.stay} <= lines, module


def test_a_module_that_is_not_judged_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["ci/plan/event.py"]) == 2
    assert "ci/plan/event.py is not judged. Did you mean 'ci/plan/events.py'?" in capsys.readouterr().err


def test_a_reason_covers_as_many_survivors_as_it_says() -> None:
    survivors = [mutants.Survivor(line=line, diff="") for line in ("a = 1", "a = 1", "b = 2")]
    stay = mutants.Stay(line="a = 1", survivors=2, reason="Nothing reads it.")
    assert mutants.unexplained(survivors, mutants.Judged(stay=(stay,)), module="x.py") == survivors[2:]
    with pytest.raises(CheckError, match=r"\n  a = 1: 1 survive, not 2"):
        mutants.unexplained(survivors[1:], mutants.Judged(stay=(stay,)), module="x.py")


def test_what_decorators_do_is_done_after_the_function() -> None:
    source = "class A:\n    @property\n    @f(1)\n    def b(self): ...\n\n@functools.cache\ndef c(): ...\n"
    expected = "class A:\n    def b(self): ...\n    b = property(f(1)(b))\n\ndef c(): ...\n"
    assert mutants.undecorated(source) == expected


@pytest.mark.processes
def test_what_no_test_notices_is_shown(tmp_path: Path, commit_files: Callable[..., str]) -> None:
    pytest.importorskip("mutmut", reason="mutmut is not installed")
    commit_files(tmp_path, FILES)
    count, (boundary,) = mutants.measured(tmp_path, "core/limits.py", ["tests"])
    assert count == 2
    assert boundary.line == "return count < Limit().most"
    assert boundary.diff.endswith("-    return count < Limit().most\n+    return count <= Limit().most")
    commit_files(tmp_path, {"core/limits.py": FILES["core/limits.py"].replace("7", "5")})
    with pytest.raises(
        CheckError, match=r"core/limits.py could not be measured: .*(\n.*)*Run its tests: pytest tests"
    ):
        mutants.measured(tmp_path, "core/limits.py", ["tests"])
