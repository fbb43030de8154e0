"""One family of errors, an exit code for each class."""

import ast
import inspect
from collections.abc import Iterator

import pytest

from core import errors
from tests.kit import source_code
from tests.kit.source_code import relative

ERRORS_MODULE = "core/errors.py"


def error_classes() -> list[type[errors.FatalError]]:
    classes = []
    for _name, value in inspect.getmembers(errors, inspect.isclass):
        if issubclass(value, errors.FatalError):
            classes.append(value)
    return classes


def test_no_two_errors_have_the_same_exit_code() -> None:
    exit_codes = [error.exit_code for error in error_classes()]

    assert len(exit_codes) > 10
    assert len(set(exit_codes)) == len(exit_codes)


@pytest.mark.parametrize("error", error_classes())
def test_every_error_has_an_exit_code_of_its_own(error: type[errors.FatalError]) -> None:
    assert "exit_code" in vars(error), "it inherits the exit code of another error"
    assert 0 < error.exit_code < 256


def test_errors_are_defined_in_their_module_alone() -> None:
    assert set(modules_with_errors()) == {ERRORS_MODULE}


def modules_with_errors() -> Iterator[str]:
    """Yield the modules that define a class of the family."""
    for module in source_code.product_modules():
        for node in source_code.nodes(module):
            if isinstance(node, ast.ClassDef) and "FatalError" in " ".join(map(ast.unparse, node.bases)):
                yield relative(module)
