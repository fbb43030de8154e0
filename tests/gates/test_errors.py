"""One family of errors, an exit code for each class."""

import ast
import inspect

from core import errors
from tests.kit import source_code
from tests.kit.source_code import relative


def error_classes() -> list[type[errors.FatalError]]:
    classes = [value for _name, value in inspect.getmembers(errors, inspect.isclass)]
    return [value for value in classes if issubclass(value, errors.FatalError)]


def test_every_error_has_an_exit_code_of_its_own() -> None:
    exit_codes = [error.exit_code for error in error_classes()]

    assert len(exit_codes) > 10
    assert len(set(exit_codes)) == len(exit_codes)
    assert all(0 < exit_code < 256 for exit_code in exit_codes)
    assert all("exit_code" in vars(error) for error in error_classes()), "an inherited exit code"


def test_all_errors_are_defined_in_one_module() -> None:
    elsewhere = [
        f"{relative(path)}: {node.name}"
        for path in source_code.product_modules()
        for node in ast.walk(source_code.parse(path))
        if isinstance(node, ast.ClassDef) and derives_from_fatal_error(node)
    ]

    assert [name for name in elsewhere if not name.startswith("core/errors.py:")] == []


def derives_from_fatal_error(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).endswith("FatalError") for base in node.bases)
