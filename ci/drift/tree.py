"""A checkout of TheRock (a work tree, or a git directory at a commit), and the facts in its Python files.

Nothing of it is ever executed. A place without facts is an error that names the file:
upstream moved it, and a comparison with nothing would find no difference.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from core import process
from core.data import read_text
from core.errors import DataError, MissingInputError

LANDMARK = "BUILD_TOPOLOGY.toml"
Values: TypeAlias = str | Sequence[str]  # "" is none
Facts: TypeAlias = Mapping[str, Values]


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A checkout."""

    root: Path
    commit: str = ""

    def text(self, path: str) -> str:
        """Read a file by its path from the root."""
        if self.commit:
            shown = process.capture(self._git("show", f"{self.commit}:{path}"), check=False)
            if not shown.returncode:
                return shown.stdout
        elif (self.root / path).is_file():
            return read_text(self.root / path)
        raise moved(path, "the file")

    def names(self, folder: str) -> Sequence[str]:
        """List the files of a folder, by name."""
        if self.commit:
            listed = process.capture(self._git("ls-tree", "--name-only", f"{self.commit}:{folder}"))
            names = listed.stdout.splitlines()
        else:
            names = [one.name for one in (self.root / folder).glob("*") if one.is_file()]
        if not names:
            raise moved(folder, "every file")
        return sorted(names)

    def find(self, pattern: str, path: str) -> Sequence[Any]:
        """Find a pattern in a file, at least once: its group, or its groups."""
        every = re.findall(pattern, self.text(path), re.MULTILINE)
        if not every:
            raise moved(path, f"matches of {pattern!r}")
        return every

    def _git(self, *words: str) -> tuple[str, ...]:
        return ("git", f"--git-dir={self.root}", *words)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A subject that upstream has facts of (in a file) and our data, too: theirs, and ours."""

    name: str
    upstream: str
    here: str
    facts: Callable[[Tree], tuple[Facts, Facts]]


def parted(both: Mapping[str, tuple[Values, Values]]) -> tuple[Facts, Facts]:
    """Part what both say of the same keys: theirs, and ours."""
    return {key: one for key, (one, _) in both.items()}, {key: one for key, (_, one) in both.items()}


def tree(root: Path, commit: str = "") -> Tree:
    """Open a checkout."""
    if (root / LANDMARK).is_file():
        return Tree(root=root)
    if (root / "HEAD").is_file():
        found = Tree(root=root, commit=commit or "HEAD")
        found.text(LANDMARK)
        return found
    raise MissingInputError(
        f"{root} is not a checkout of TheRock: it has no {LANDMARK}.",
        hint="git clone https://github.com/ROCm/TheRock, and name its folder with --therock.",
    )


def moved(path: str, what: str) -> DataError:
    """Return the error for a place that no longer has its facts."""
    return DataError(
        f"{path} of TheRock no longer has {what}.",
        hint="Find where upstream has it now, and change ci/drift accordingly.",
    )


class Python:
    """The constants and functions of a Python file."""

    def __init__(self, checkout: Tree, path: str) -> None:
        self.path = path
        self.module = ast.parse(checkout.text(path))

    def constant(self, name: str) -> Any:  # noqa: ANN401 - whatever upstream wrote down
        """Evaluate a constant of the module: literals, names of other constants, and unpacked lists."""
        return self._value(self.assigned(name))

    def assigned(self, name: str) -> ast.expr:
        """Find what a name of the module, or of a function in it, is assigned."""
        for node in ast.walk(self.module):
            match node:
                case ast.Assign(targets=[ast.Name(id=known)], value=value) if known == name:
                    return value
                case ast.AnnAssign(target=ast.Name(id=known), value=ast.expr() as value) if known == name:
                    return value
        raise moved(self.path, name)

    def function(self, name: str) -> ast.FunctionDef:
        """Find a function."""
        for node in ast.walk(self.module):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node
        raise moved(self.path, f"{name}()")

    def calls(self, within: ast.AST, name: str) -> Sequence[ast.Call]:
        """Find the calls of a function or method, in their order."""
        calls = (one for one in in_order(within) if isinstance(one, ast.Call))
        every = [one for one in calls if name in {getattr(one.func, "attr", ""), getattr(one.func, "id", "")}]
        if not every:
            raise moved(self.path, f"a call of {name}()")
        return every

    def tests(self, within: str, attribute: str) -> Sequence[Sequence[str]]:
        """Find what a function compares an attribute with, in its order: lists, and single values."""
        nodes = (one for one in in_order(self.function(within)) if isinstance(one, ast.Compare))
        right = [one.comparators[0] for one in nodes if getattr(one.left, "attr", "") == attribute]
        values = [self._value(one) for one in right if isinstance(one, ast.List | ast.Constant)]
        if not values:
            raise moved(self.path, f"{attribute} in {within}()")
        return [[one] if isinstance(one, str) else one for one in values]

    def template(self, node: ast.AST) -> str:
        """Write a string with its parts that are filled in, as ``{name}``."""
        if not isinstance(node, ast.Constant | ast.JoinedStr):
            raise moved(self.path, "a string")
        # without its quotes
        return ast.unparse(node).removeprefix("f")[1:-1]

    def _value(self, node: ast.expr) -> Any:  # noqa: ANN401
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.constant(node.id)
            case ast.List() | ast.Tuple() | ast.Set():
                return [item for one in node.elts for item in self._items(one)]
            case ast.Dict():
                pairs = zip(node.keys, node.values, strict=True)
                return {self._value(key): self._value(value) for key, value in pairs if key is not None}
            case _:
                raise moved(self.path, f"a plain value in the place of {ast.unparse(node)!r}")

    def _items(self, node: ast.expr) -> Sequence[Any]:
        return list(self._value(node.value)) if isinstance(node, ast.Starred) else [self._value(node)]


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Find an argument of a call by its name."""
    return next((one.value for one in call.keywords if one.arg == name), None)


def strings(node: ast.AST) -> Sequence[str]:
    """List the string constants in a part of a program, in their order."""
    values = (one.value for one in in_order(node) if isinstance(one, ast.Constant))
    return [one for one in values if isinstance(one, str)]


def in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a part of a program as it is written."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from in_order(child)
