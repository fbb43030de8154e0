"""No function, class or constant of the product is there for tests alone."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from core.cli.options import ROOT
from tests.kit import source_code
from tests.kit.source_code import relative

# Folders besides the packages whose code may be what uses a name.
TOOLS = ("docs", "requirements", "tests/bench")

# Frameworks call these by their names.
CALLED_BY_NAME = re.compile(
    r"__|test_|pytest_|visit_|do_[A-Z]|handle_|log_message$|readall$|writable$|doctype$"
    r"|_generate_next_value_"
)

# The sample's code is part of what is packaged and built.
PACKAGED = ("rocm_packaging/sample/", "pytorch_build/sample/")


def test_nothing_is_there_for_tests_alone() -> None:
    assert list(unused_names()) == []


def unused_names() -> Iterator[str]:
    """Yield the names that stand in the product once: where they are defined."""
    uses = count_uses()
    for module in source_code.package_modules():
        if relative(module).startswith(PACKAGED):
            continue
        for name in defined_names(module):
            if uses[name] == 1 and not CALLED_BY_NAME.match(name):
                yield f"{relative(module)}: {name}"


def count_uses() -> Counter[str]:
    """Count the words of all code but the tests."""
    modules = list(source_code.package_modules())
    for folder in TOOLS:
        modules += (ROOT / folder).rglob("*.py")
    modules += ROOT.glob("*.py")
    return source_code.count_words(modules)


def defined_names(module: Path) -> Iterator[str]:
    """Yield the functions and classes of a module, and the constants at its top."""
    tree = source_code.parse(module)
    for node in source_code.nodes(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not is_registered(node):
            yield node.name

    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    yield target.id


def is_registered(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Return whether a decorator with arguments may be what calls it: validators, sessions."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and "dataclass" not in ast.unparse(decorator):
            return True
    return False
