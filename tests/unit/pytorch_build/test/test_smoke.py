"""The smoke tests, which run in environments without this project."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.cli.options import ROOT

SMOKE_TESTS = ROOT / "pytorch_build" / "test" / "smoke"
# pytest, its own configuration file, and the packages that are tested
ALLOWED = {"pytest", "conftest", "triton", "torch", "torchaudio", "torchvision", "apex", "apex_C", "rocm_sdk"}


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
    packages = set(imported_packages(path))

    assert packages <= {*ALLOWED, *sys.stdlib_module_names}
