"""No function, class or constant of the product is there for tests alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from core.cli.options import ROOT
from tests.kit import source_code
from tests.kit.source_code import relative

# Folders besides the packages whose code may be what uses a name.
TOOLS = ("docs", "requirements", "tests/bench")

# Frameworks call these by their names.
CALLED_BY_NAME = re.compile(
    r"__|test_|pytest_|visit_|do_[A-Z]|handle_|log_message$|readall$|redirect_request$|writable$"
    r"|_generate_next_value_"
)
# The sample's code is part of what is packaged and built.
PACKAGED = ("rocm_packaging/sample/", "pytorch_build/sample/")


def test_nothing_is_there_for_tests_alone() -> None:
    tool_modules = [path for folder in TOOLS for path in (ROOT / folder).rglob("*.py")]
    words = source_code.count_words([*source_code.package_modules(), *tool_modules, *ROOT.glob("*.py")])

    unused = [
        f"{relative(path)}: {name}"
        for path in source_code.package_modules()
        for name in defined_names(path)
        if words[name] == 1 and not CALLED_BY_NAME.match(name)
    ]

    assert [name for name in unused if not name.startswith(PACKAGED)] == []


def defined_names(path: Path) -> Iterator[str]:
    """Yield the functions and classes of a module, and the constants at its top."""
    tree = source_code.parse(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not is_registered(node):
            yield node.name

    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def is_registered(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Return whether a decorator with arguments may be what calls it: validators, sessions."""
    calls = [ast.unparse(decorator) for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
    return any("dataclass" not in call for call in calls)
