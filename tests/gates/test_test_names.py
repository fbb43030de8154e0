"""A test's name says a behaviour, and pytest finds it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import source_code
from tests.kit.source_code import relative

FEWEST_WORDS = 3
MODULES = source_code.modules_of_tests()
TEST_FILES = [path for path in MODULES if path.name.startswith("test_")]
CONFTEST_FILES = [path for path in MODULES if path.name == "conftest.py"]
OTHER_FILES = [path for path in MODULES if path not in TEST_FILES]


def names_of_tests(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Yield the file and the name of each test, without ``test_``."""
    for path in paths:
        for function in source_code.functions(path):
            if function.name.startswith("test_"):
                yield relative(path), function.name.removeprefix("test_")


def test_no_name_begins_with_what() -> None:
    assert [(path, name) for path, name in names_of_tests(TEST_FILES) if name.startswith("what_")] == []


def test_no_name_is_a_noun_alone() -> None:
    assert [
        (path, name) for path, name in names_of_tests(TEST_FILES) if name.count("_") + 1 < FEWEST_WORDS
    ] == []


def test_no_test_lies_in_a_file_that_pytest_does_not_collect() -> None:
    assert list(names_of_tests(OTHER_FILES)) == []


@pytest.mark.parametrize("path", CONFTEST_FILES, ids=relative)
def test_conftest_files_hold_fixtures_and_hooks_alone(path: Path) -> None:
    assert list(helpers_in(path)) == [], "functions and classes that help tests belong in tests/kit"


def helpers_in(path: Path) -> Iterator[str]:
    """Yield the classes of a module, and its functions that are neither fixtures nor hooks of pytest."""
    for node in source_code.parse(path).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.FunctionDef):
            is_fixture = any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
            if not is_fixture and not node.name.startswith("pytest_"):
                yield node.name
