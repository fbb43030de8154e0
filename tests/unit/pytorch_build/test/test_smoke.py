"""The smoke tests, which run in environments without this project."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.cli.options import ROOT
from pytorch_build.components import COMPONENTS

SMOKE_TESTS = ROOT / "pytorch_build" / "test" / "smoke"
# What the packages that are tested bring, and pytest with the tests' own settings.
TESTED_MODULES = {component.module for component in COMPONENTS.values()} | {"apex_C", "rocm_sdk"}
ALLOWED_MODULES = {"pytest", "conftest", *TESTED_MODULES, *sys.stdlib_module_names}


def imported_packages(path: Path) -> Iterator[str]:
    """Yield the top-level package of every import statement in a file, in functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module).partition(".")[0]


@pytest.mark.parametrize("path", sorted(SMOKE_TESTS.glob("*.py")), ids=lambda path: path.name)
def test_smoke_tests_need_nothing_but_pytest_and_the_packages_to_test(path: Path) -> None:
    assert set(imported_packages(path)) <= ALLOWED_MODULES
