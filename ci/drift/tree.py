"""A checkout of TheRock (a work tree, or a git directory at a commit), and the facts in its Python files.

Nothing of it is ever executed. A place that says nothing any more is an error that names the file:
upstream moved it, and a comparison with nothing would find no difference.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pydantic import Field

from core import process
from core.data import Model, read_text
from core.errors import DataError, MissingInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


LANDMARK = "BUILD_TOPOLOGY.toml"


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A checkout."""

    root: Path
    commit: str = ""

    def text(self, path: str) -> str:
        """Read a file by its path from the root."""
        if self.commit:
            said = process.capture([*self._git(), "show", f"{self.commit}:{path}"], check=False)
            if said.returncode:
                raise moved(path, "the file")
            return said.stdout
        if not (self.root / path).is_file():
            raise moved(path, "the file")
        return read_text(self.root / path)

    def names(self, folder: str) -> Sequence[str]:
        """List the files of a folder, by name."""
        if self.commit:
            said = process.capture([*self._git(), "ls-tree", "--name-only", f"{self.commit}:{folder}"])
            names = said.stdout.splitlines()
        else:
            names = [one.name for one in (self.root / folder).glob("*") if one.is_file()]
        if not names:
            raise moved(folder, "every file")
        return sorted(names)

    def _git(self) -> tuple[str, ...]:
        return ("git", f"--git-dir={self.root}")


def tree(root: Path, commit: str = "") -> Tree:
    """Open a checkout."""
    if not (root / LANDMARK).is_file() and (root / "HEAD").is_file():
        found = Tree(root=root, commit=commit or "HEAD")
        found.text(LANDMARK)
        return found
    if not (root / LANDMARK).is_file():
        raise MissingInputError(
            f"{root} is no checkout of TheRock: it has no {LANDMARK}.",
            hint="git clone https://github.com/ROCm/TheRock, and name its folder with --therock.",
        )
    return Tree(root=root)


def moved(path: str, what: str) -> DataError:
    """Make the error for a place that does not say any more what it said."""
    return DataError(
        f"{path} of TheRock does not have {what} any more.",
        hint="Find where upstream says it now, and change ci/drift accordingly.",
    )


def found(pattern: str, checkout: Tree, path: str) -> Sequence[Any]:
    """Find a pattern in a file, at least once: its group, or its groups."""
    every = re.findall(pattern, checkout.text(path), re.MULTILINE)
    if not every:
        raise moved(path, f"what {pattern!r} finds")
    return every


def toml(checkout: Tree, path: str) -> dict[str, Any]:
    """Read a TOML file."""
    return tomllib.loads(checkout.text(path))


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
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            if any(isinstance(one, ast.Name) and one.id == name for one in targets):
                value = getattr(node, "value", None)
                if isinstance(value, ast.expr):
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
        every = [one for one in in_order(within) if isinstance(one, ast.Call) and _called(one) == name]
        if not every:
            raise moved(self.path, f"a call of {name}()")
        return every

    def tests(self, within: str, attribute: str) -> Sequence[Sequence[str]]:
        """Find what a function compares an attribute with, in its order: lists, and single values."""
        every = []
        for node in in_order(self.function(within)):
            if isinstance(node, ast.Compare) and getattr(node.left, "attr", "") == attribute:
                right = node.comparators[0]
                if isinstance(right, ast.List | ast.Constant):
                    value = self._value(right)
                    every.append([value] if isinstance(value, str) else value)
        if not every:
            raise moved(self.path, f"{attribute} in {within}()")
        return every

    def template(self, node: ast.AST) -> str:
        """Write a string with its parts that are filled in, as ``{name}``."""
        if isinstance(node, ast.Constant):
            return str(node.value)
        if not isinstance(node, ast.JoinedStr):
            raise moved(self.path, "a string")
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
            for part in node.values
            if isinstance(part, ast.Constant | ast.FormattedValue)
        )

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
    return [
        one.value for one in in_order(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]


def in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a part of a program as it is written."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from in_order(child)


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", "") or getattr(call.func, "id", "")


Facts = Mapping[str, "tuple[str, ...]"]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Something that upstream says, and our data says, too."""

    name: str
    upstream: str
    here: str
    facts: Callable[[Tree], tuple[Facts, Facts]]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A key whose values differ."""

    subject: str
    key: str
    upstream: str
    here: str
    only_upstream: tuple[str, ...]
    only_here: tuple[str, ...]


class Accepted(Model):
    """Differences that are meant; what differs beyond the listed values is none of them."""

    subject: str
    key: str
    upstream: tuple[str, ...] = ()
    here: tuple[str, ...] = ()
    reason: str = Field(min_length=10)

    def covers(self, one: Difference) -> bool:
        """Say whether a difference is meant."""
        return (
            self.subject == one.subject
            and fnmatchcase(one.key, self.key)
            and _among(one.only_upstream, self.upstream)
            and _among(one.only_here, self.here)
        )


class AcceptedFile(Model):
    """What `drift.toml` says."""

    accepted: tuple[Accepted, ...] = ()


def _among(values: Iterable[str], patterns: Sequence[str]) -> bool:
    return all(any(fnmatchcase(value, pattern) for pattern in patterns) for value in values)


def differences(subject: Subject, checkout: Tree) -> Sequence[Difference]:
    """Compare a subject, key by key."""
    theirs, ours = subject.facts(checkout)
    for facts, where in ((theirs, f"{subject.upstream} of TheRock"), (ours, subject.here)):
        if not any(facts.values()):
            raise DataError(f"{where} says nothing of {subject.name}.", hint="Correct how ci/drift reads it.")
    every = [
        Difference(
            subject=subject.name,
            key=key,
            upstream=subject.upstream,
            here=subject.here,
            only_upstream=tuple(sorted(set(theirs.get(key, ())) - set(ours.get(key, ())))),
            only_here=tuple(sorted(set(ours.get(key, ())) - set(theirs.get(key, ())))),
        )
        for key in dict.fromkeys((*theirs, *ours))
    ]
    return [one for one in every if one.only_upstream or one.only_here]


def sorted_out(
    every: Sequence[Difference], accepted: Sequence[Accepted]
) -> tuple[Sequence[Difference], Mapping[Difference, str], Sequence[Accepted]]:
    """Part differences from those that are meant."""
    meant = {one: row.reason for one in every for row in reversed(accepted) if row.covers(one)}
    idle = [row for row in accepted if not any(row.covers(one) for one in every)]
    return [one for one in every if one not in meant], meant, idle
