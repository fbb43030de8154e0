"""A test's name says a behaviour, and pytest finds it."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.kit import source_code
from tests.kit.source_code import relative

FEWEST_WORDS = 3


def test_names_say_a_behaviour() -> None:
    assert list(names_of_things()) == []


def names_of_things() -> Iterator[str]:
    """Yield the tests whose name says nothing of what happens."""
    for module in source_code.modules_of_tests():
        for name in names_of_tests(module):
            if name.startswith("what_") or name.count("_") + 1 < FEWEST_WORDS:
                yield f"{relative(module)}: test_{name}"


def test_pytest_collects_every_test() -> None:
    for module in source_code.modules_of_tests():
        if not module.name.startswith("test_"):
            assert list(names_of_tests(module)) == [], relative(module)


def test_conftest_files_hold_fixtures_and_hooks_alone() -> None:
    for module in source_code.modules_of_tests():
        if module.name == "conftest.py":
            assert list(helpers_in(module)) == [], (
                f"{relative(module)}: what helps tests belongs in tests/kit"
            )


def names_of_tests(module: Path) -> Iterator[str]:
    """Yield the names of a module's tests, without ``test_``."""
    for node in source_code.parse(module).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name.removeprefix("test_")


def helpers_in(module: Path) -> Iterator[str]:
    """Yield the classes of a module, and its functions that are neither fixtures nor hooks of pytest."""
    for node in source_code.parse(module).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.FunctionDef):
            decorators = " ".join(map(ast.unparse, node.decorator_list))
            if "fixture" not in decorators and not node.name.startswith("pytest_"):
                yield node.name
