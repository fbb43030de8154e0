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
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
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
def imported_names(path: Path) -> frozenset[str]:
    """Return every module and name that a module imports, at its top or anywhere in it."""
    return frozenset(_imported_names(parse(path), with_types=True))


@cache
def imported_at_runtime(path: Path) -> frozenset[str]:
    """Return the same without what it imports for type checkers alone."""
    return frozenset(_imported_names(parse(path), with_types=False))


def _imported_names(tree: ast.AST, *, with_types: bool) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if is_for_types and not with_types:
            continue

        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (str(argument.value) for argument in node.args if isinstance(argument, ast.Constant))
        yield from _imported_names(node, with_types=with_types)


@cache
def used_names(path: Path) -> frozenset[str]:
    """Return the dotted names that a module uses."""
    nodes = (node for node in ast.walk(parse(path)) if isinstance(node, ast.Attribute | ast.Name))
    return frozenset(ast.unparse(node) for node in nodes)


def module_name(path: Path) -> str:
    """Return a module's dotted name."""
    return relative(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    """Yield the functions and methods of a module."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef):
            yield node


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
