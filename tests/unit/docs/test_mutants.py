from pathlib import Path

import pytest

from core.cli.options import ROOT
from core.data import load_toml
from core.errors import CheckError
from docs import mutants
from tests.kit.repos import commit_files

MODULES = load_toml(mutants.DATA_FILE, mutants.Mutants).modules

# A checkout with a module and its test, which does not try the boundary.
CHECKOUT = {
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


# Data


@pytest.mark.parametrize("module", MODULES)
def test_every_judged_module_and_its_tests_exist(module: str) -> None:
    paths = [module, *mutants.unit_tests(module, MODULES[module])]

    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("module", MODULES)
def test_every_reason_is_of_a_line_of_its_module(module: str) -> None:
    lines = {line.strip() for line in (ROOT / module).read_text(encoding="utf-8").splitlines()}

    assert {stay.line for stay in MODULES[module].stay} <= lines


def test_names_a_module_that_is_not_judged_and_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["ci/plan/event.py"]) == 2

    output = capsys.readouterr().err
    assert "ci/plan/event.py" in output
    assert "'ci/plan/events.py'" in output


# Survivors

SURVIVORS = [mutants.Survivor(line=line, diff="") for line in ("a = 1", "a = 1", "b = 2")]
JUDGED = mutants.Judged(
    stay=(
        mutants.Stay(
            line="a = 1",
            survivors=2,
            reason="Nothing reads it.",
        ),
    )
)


def test_a_reason_explains_the_survivors_of_its_line() -> None:
    assert mutants.unexplained(SURVIVORS, JUDGED, module="x.py") == SURVIVORS[2:]


def test_rejects_a_reason_for_another_number_of_survivors() -> None:
    with pytest.raises(CheckError, match=r"a = 1: 1 .* not 2"):
        mutants.unexplained(SURVIVORS[1:], JUDGED, module="x.py")


def test_writes_decorators_as_calls_and_leaves_caches_out() -> None:
    source = "class A:\n    @property\n    @f(1)\n    def b(self): ...\n\n@functools.cache\ndef c(): ...\n"

    undecorated = mutants.undecorated(source)

    assert undecorated == "class A:\n    def b(self): ...\n    b = property(f(1)(b))\n\ndef c(): ...\n"


# Measurements


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout with a module and its test."""
    pytest.importorskip("mutmut", reason="mutmut is not installed")
    commit_files(tmp_path, CHECKOUT)
    return tmp_path


@pytest.mark.processes
def test_shows_the_mutant_that_no_test_finds(checkout: Path) -> None:
    count, (survivor,) = mutants.measure(checkout, "core/limits.py", ["tests"])

    assert count == 2
    assert survivor.line == "return count < Limit().most"
    assert survivor.diff.endswith("-    return count < Limit().most\n+    return count <= Limit().most")


@pytest.mark.processes
def test_measures_no_module_whose_tests_fail(checkout: Path) -> None:
    commit_files(checkout, {"core/limits.py": CHECKOUT["core/limits.py"].replace("7", "5")})

    with pytest.raises(CheckError, match=r"core/limits\.py") as raised:
        mutants.measure(checkout, "core/limits.py", ["tests"])

    assert raised.value.hint.endswith("pytest tests")
