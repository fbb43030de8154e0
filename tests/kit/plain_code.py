"""How hard code is to read, in figures: what they count stands beside each.

Figures show places and judge nothing: a synonym for a placeholder is no better than the placeholder.
"""

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.kit import source_code

# Pronouns, participles and question words that say nothing about what a name holds.
PLACEHOLDERS = frozenset(Path(__file__).with_name("placeholders.txt").read_text(encoding="utf-8").split())
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was counted in some modules."""

    counts: Counter[str]

    @property
    def placeholders(self) -> float:
        """Per cent of the names that are bound."""
        return 100 * self.counts["placeholders"] / max(1, self.counts["names"])

    @property
    def tuple_assignments(self) -> float:
        """Assignments of several values at once, per 1000 statements."""
        return self._per_thousand("tuple assignments")

    @property
    def conditional_expressions(self) -> float:
        """Per 1000 statements."""
        return self._per_thousand("conditional expressions")

    @property
    def comprehensions(self) -> float:
        """Per 1000 statements."""
        return self._per_thousand("comprehensions")

    @property
    def nested_comprehensions(self) -> float:
        """Those with two loops or inside of another one, per 1000 statements."""
        return self._per_thousand("nested comprehensions")

    @property
    def nodes_per_line(self) -> float:
        """Nodes of expressions in a line of code."""
        return self.counts["nodes"] / max(1, self.counts["code lines"])

    def _per_thousand(self, name: str) -> float:
        return 1000 * self.counts[name] / max(1, self.counts["statements"])


def measure(paths: Sequence[Path]) -> Figures:
    """Return the figures of modules together."""
    counts: Counter[str] = Counter()
    for path in paths:
        counts += count_file(path)
    return Figures(counts=counts)


@cache
def count_file(path: Path) -> Counter[str]:
    """Count what is in a module."""
    return count_module(path.read_text(encoding="utf-8"))


def count_module(source: str) -> Counter[str]:
    """Count what is in a module's source."""
    tree = ast.parse(source)
    docstring_lines = set(_docstring_lines(tree))
    counts: Counter[str] = Counter()
    counts["code lines"] = len(_code_lines(source) - docstring_lines)

    for node in ast.walk(tree):
        counts["statements"] += isinstance(node, ast.stmt)
        counts["conditional expressions"] += isinstance(node, ast.IfExp)
        counts["tuple assignments"] += _is_tuple_assignment(node)
        is_docstring = isinstance(node, ast.Constant) and node.lineno in docstring_lines
        counts["nodes"] += isinstance(node, ast.expr) and not is_docstring
        if isinstance(node, COMPREHENSIONS):
            counts["comprehensions"] += 1
            counts["nested comprehensions"] += _is_nested(node)

    names = list(_bound_names(tree))
    counts["names"] = len(names)
    counts["placeholders"] = sum(name.strip("_") in PLACEHOLDERS for name in names)
    return counts


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            yield from range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1)


def _code_lines(source: str) -> set[int]:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def _is_tuple_assignment(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return any(isinstance(target, ast.Tuple) for target in node.targets)


def _is_nested(node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> bool:
    inner = [child for child in ast.walk(node) if isinstance(child, COMPREHENSIONS)]
    return len(node.generators) > 1 or len(inner) > 1


def _bound_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id != "_":
            yield node.id
        elif isinstance(node, ast.arg) and node.arg not in {"self", "cls", "_"}:
            yield node.arg


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions and methods of a module."""
    for node in source_code.nodes(path):
        if isinstance(node, FUNCTIONS):
            yield node


def count_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of a function's lines, docstring and all."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def count_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of a function's parameters, without ``self``."""
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(parameter.arg not in {"self", "cls"} for parameter in parameters)
