"""Every part of the project is in plain code: CONTRIBUTING.md has the rules."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core.cli.options import ROOT
from tests.kit import plain_code, source_code
from tests.kit.plain_code import Figures
from tests.kit.source_code import relative

# The folders and files of each part, tests among them. A part is measured as a whole, as figures per 1000
# statements say little of a single small file.
PARTS: dict[str, tuple[str, ...]] = {
    "flows": ("noxfile.py", "tasks.py"),
    "core": ("core",),
    "rocm_packaging": ("rocm_packaging",),
    "pytorch_build": ("pytorch_build",),
    "ci": ("ci",),
    "docs": ("docs",),
    "kit": ("tests/kit",),
    "gates": ("tests/gates",),
    "core's tests": ("tests/unit/core",),
    "rocm_packaging's tests": ("tests/unit/rocm_packaging",),
    "pytorch_build's tests": ("tests/unit/pytorch_build", "pytorch_build/test/smoke"),
    "docs' tests": ("tests/unit/docs",),
    "ci's tests": ("tests/unit/ci", "tests/unit/test_noxfile.py", "tests/unit/test_tasks.py"),
    "other unit tests": (
        "tests/conftest.py",
        "tests/unit/conftest.py",
        "tests/unit/docker",
        "tests/unit/requirements",
        "tests/unit/test_damaged_input.py",
        "tests/unit/test_guards.py",
    ),
    "tests of integration": ("tests/integration",),
    "reports from the field": ("tests/field",),
    "bench": ("tests/bench",),
    "bench's tests": ("tests/unit/bench",),
    "promises": ("tests/promises",),
    "linters and locks": ("requirements",),
    "upstream's tests": ("tests/upstream",),
}

# Where tests are. Smoke tests run in the environments of users, and are part of the product for that.
FOLDERS_OF_TESTS = ("tests/", "pytorch_build/test/smoke")

MOST_MODULE_LINES = 700
MOST_FUNCTION_LINES = 75
MOST_PARAMETERS = 8
# invoke makes an option of each parameter of a task, and makers of test inputs have one for each fact.
MAY_TAKE_MANY_PARAMETERS = ("tasks.py", "tests/kit/")

# A test says in one expression what is expected.
MOST_NODES_PER_LINE = 3.8
MOST_NODES_PER_LINE_OF_TESTS = 4.5

LIMITS: dict[str, tuple[Callable[[Figures], float], float]] = {
    "placeholder names, % of all": (lambda figures: figures.placeholders, 2),
    "assignments of several values, per 1000 statements": (lambda figures: figures.tuple_assignments, 2),
    "conditional expressions, per 1000 statements": (lambda figures: figures.conditional_expressions, 20),
    "comprehensions, per 1000 statements": (lambda figures: figures.comprehensions, 40),
    "nested comprehensions, per 1000 statements": (lambda figures: figures.nested_comprehensions, 3),
}


def modules_of(path: str) -> list[Path]:
    """Return a file, or the modules in a folder."""
    file_or_folder = ROOT / path
    modules = [file_or_folder] if file_or_folder.is_file() else sorted(file_or_folder.rglob("*.py"))
    assert modules, f"{path} has no modules"
    return modules


def modules_of_part(part: str) -> list[Path]:
    modules: list[Path] = []
    for path in PARTS[part]:
        modules += modules_of(path)
    return modules


MODULES: list[Path] = []
for name_of_part in PARTS:
    MODULES += modules_of_part(name_of_part)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("figure", LIMITS)
def test_name_of_parts_stay_readable(part: str, figure: str) -> None:
    measure, limit = LIMITS[figure]
    modules = modules_of_part(part)
    worst_modules = sorted(modules, key=lambda module: measure(plain_code.measure([module])), reverse=True)

    value = measure(plain_code.measure(modules))

    assert value <= limit, f"{figure}: see {', '.join(map(relative, worst_modules[:5]))}"


@pytest.mark.parametrize("part", PARTS)
def test_lines_of_name_of_parts_say_one_thing(part: str) -> None:
    are_tests = all(path.startswith(FOLDERS_OF_TESTS) for path in PARTS[part])
    limit = MOST_NODES_PER_LINE_OF_TESTS if are_tests else MOST_NODES_PER_LINE

    assert plain_code.measure(modules_of_part(part)).nodes_per_line <= limit


def test_every_module_is_measured() -> None:
    python_files = {path for path in source_code.tracked_files() if path.suffix == ".py"}

    assert python_files - set(MODULES) == set()


def test_modules_have_one_subject() -> None:
    for module in MODULES:
        assert len(module.read_text(encoding="utf-8").splitlines()) <= MOST_MODULE_LINES, relative(module)


def test_functions_fit_on_a_screen() -> None:
    assert list(long_functions()) == []


def long_functions() -> Iterator[str]:
    """Yield the functions of the product that do not fit."""
    for module in source_code.product_modules():
        for function in plain_code.functions(module):
            if plain_code.count_lines(function) > MOST_FUNCTION_LINES:
                yield f"{relative(module)}: {function.name}"


def test_functions_take_few_parameters() -> None:
    assert list(crowded_functions()) == []


def crowded_functions() -> Iterator[str]:
    """Yield the functions that take too much at once."""
    for module in MODULES:
        if relative(module).startswith(MAY_TAKE_MANY_PARAMETERS):
            continue
        for function in plain_code.functions(module):
            if plain_code.count_parameters(function) > MOST_PARAMETERS:
                yield f"{relative(module)}: {function.name}"
