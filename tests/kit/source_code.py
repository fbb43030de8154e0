"""The checkout's own source code, as gates read it."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from core import process
from core.cli.options import ROOT

# in the order in which they may import each other: each imports those before it
PACKAGES = ("core", "rocm_packaging", "pytorch_build", "ci")

# These files run elsewhere: in a target environment, or as part of what is packaged.
FOREIGN = ("rocm_packaging/templates/", "rocm_packaging/sample/templates/", "pytorch_build/sample/templates/")


def relative(path: Path) -> str:
    """Return a file's path in the checkout, with slashes."""
    return path.relative_to(ROOT).as_posix()


@cache
def package_modules() -> tuple[Path, ...]:
    """Return the modules of the four packages, without what runs elsewhere."""
    paths: list[Path] = []
    for package in PACKAGES:
        paths += sorted((ROOT / package).rglob("*.py"))

    modules = tuple(path for path in paths if not relative(path).startswith(FOREIGN))
    assert len(modules) > 50, "the packages have moved"
    return modules


@cache
def product_modules() -> tuple[Path, ...]:
    """Return the modules of the packages, and those that nox, invoke and the locks are made of."""
    tools = sorted((ROOT / "requirements").glob("*.py"))
    return (*package_modules(), ROOT / "noxfile.py", ROOT / "tasks.py", *tools)


@cache
def modules_of_tests() -> tuple[Path, ...]:
    """Return all Python files of the tests."""
    return tuple(sorted((ROOT / "tests").rglob("*.py")))


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module's syntax tree."""
    return tuple(ast.walk(parse(path)))


@cache
def imported_names(path: Path) -> frozenset[str]:
    """Return every module and name that a module imports, at its top or anywhere in it."""
    names: set[str] = set()
    for node in nodes(path):
        names.update(_names_of_import(node))
    return frozenset(names)


@cache
def imported_at_runtime(path: Path) -> frozenset[str]:
    """Return the same without what it imports for type checkers alone."""
    return _imports_outside(path, ())


@cache
def imported_at_start(path: Path) -> frozenset[str]:
    """Return what a module imports when it is imported, and not when its functions are called."""
    return _imports_outside(path, (ast.FunctionDef, ast.AsyncFunctionDef))


def _imports_outside(path: Path, left_out: tuple[type[ast.AST], ...]) -> frozenset[str]:
    """Return what a module imports outside of some nodes, and not for type checkers alone."""
    names: set[str] = set()
    nodes: list[ast.AST] = [parse(path)]
    while nodes:
        node = nodes.pop()
        is_for_types = isinstance(node, ast.If) and dotted_name(node.test).endswith("TYPE_CHECKING")
        if not is_for_types and not isinstance(node, left_out):
            names.update(_names_of_import(node))
            nodes += ast.iter_child_nodes(node)
    return frozenset(names)


def _names_of_import(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name
    elif isinstance(node, ast.ImportFrom):
        yield str(node.module)
        for alias in node.names:
            yield f"{node.module}.{alias.name}"
    elif isinstance(node, ast.Call) and dotted_name(node.func).endswith("import_module"):
        for argument in node.args:
            if isinstance(argument, ast.Constant):
                yield str(argument.value)


@cache
def used_names(path: Path) -> frozenset[str]:
    """Return the dotted names that a module uses."""
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Attribute | ast.Name):
            names.add(dotted_name(node))
    return frozenset(names)


def dotted_name(node: ast.AST) -> str:
    """Return a name with dots, such as ``process.run``; an empty text for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return ""


def module_name(path: Path) -> str:
    """Return a module's dotted name."""
    return relative(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def count_words(paths: list[Path]) -> Counter[str]:
    """Count the identifiers in files, comments left out."""
    words: Counter[str] = Counter()
    for path in paths:
        source = re.sub(r"^ *#.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        words.update(re.findall(r"[A-Za-z_]\w*", source))
    return words


@cache
def tracked_files() -> tuple[Path, ...]:
    """Return the files that git tracks, and that are there."""
    output = process.capture(["git", "ls-files", "-z"], cwd=ROOT).stdout
    paths = (ROOT / name for name in output.split("\0") if name)
    return tuple(path for path in paths if path.is_file())
