"""The house in figures: `python -m docs.house` measures this checkout, tests hold the limits.

Product is core, rocm_packaging, pytorch_build and ci, without sample and templates.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import median

from core import console
from core.cli.options import ROOT

LAYERS = ("core", "rocm_packaging", "pytorch_build", "ci")
APART = {"sample", "templates"}
LIMITS: Mapping[str, int] = {
    "lines of the longest module": 700,
    "modules with one importer (verbs apart)": 40,
    "gerund modules beside their verb": 0,
    "import circles": 0,
}
_WORD = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(r"^ *#.*$", re.MULTILINE)
_CALLED = re.compile(
    r"__|test_|pytest_|visit_|do_[A-Z]|handle_|log_message$|readall$|redirect_request$|writable$|_generate_next_value_"
)
_STEM = 4  # letters that a gerund shares with its verb: `uploading`, `upload`


@dataclass(frozen=True)
class House:
    """The product's modules, and how they import each other."""

    root: Path

    @cached_property
    def modules(self) -> Mapping[str, Path]:
        """Dotted name -> file."""
        found = {}
        for layer in LAYERS:
            for path in sorted((self.root / layer).rglob("*.py")):
                parts = path.relative_to(self.root).with_suffix("").parts
                if not APART & set(parts):
                    found[".".join(parts).removesuffix(".__init__")] = path
        return found

    @cached_property
    def trees(self) -> Mapping[str, ast.Module]:
        """Dotted name -> parsed module."""
        return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in self.modules.items()}

    def imports(self, name: str, *, types: bool) -> set[str]:
        """Return the product's modules that a module imports, in functions too."""
        return {one for node in _nodes(self.trees[name], types=types) for one in self._named(node)} - {name}

    def _named(self, node: ast.AST) -> set[str]:
        if isinstance(node, ast.Import):
            return {alias.name for alias in node.names} & set(self.modules)
        if not isinstance(node, ast.ImportFrom) or not node.module:
            return set()
        below = {f"{node.module}.{alias.name}" for alias in node.names} & set(self.modules)
        return below or {node.module} & set(self.modules)

    def circle(self) -> list[str]:
        """Return modules that import each other in a circle, or none; type imports do not count."""
        try:
            TopologicalSorter({name: self.imports(name, types=False) for name in self.modules}).prepare()
        except CycleError as problem:
            return list(problem.args[1])
        return []

    def of_one_importer(self) -> list[str]:
        """Return the modules that one other module imports; verbs are imported by name."""
        importers = Counter(one for name in self.modules for one in self.imports(name, types=True))
        return [name for name in self.modules if importers[name] == 1 and ".verbs." not in name]

    def gerunds(self) -> list[str]:
        """Return the modules that a gerund names where another has its verb: `uploading` beside `upload`."""
        stems = {name.rpartition(".")[2] for name in self.modules}
        verbs = {stem for stem in stems if len(stem) >= _STEM}
        return sorted(
            stem
            for stem in stems
            if stem.endswith("ing") and any(stem.startswith(one[:_STEM]) for one in verbs - {stem})
        )

    def unused(self) -> list[str]:
        """Return the functions, classes and constants that no product code, task or session names.

        What a framework calls by name (`test_*`, visitors, handlers) is left out, as are templates' own.
        """
        folders = [self.root / one for one in (*LAYERS, "docs", "requirements", "tests/bench")]
        files = [*(path for folder in folders for path in folder.rglob("*.py")), *self.root.glob("*.py")]
        words: Counter[str] = Counter()
        for path in files:
            words.update(_WORD.findall(_COMMENT.sub("", path.read_text(encoding="utf-8"))))
        defined = ((name, one) for name, tree in self.trees.items() for one in _definitions(tree))
        return [f"{name}.{one}" for name, one in defined if words[one] == 1 and not _CALLED.match(one)]

    def figures(self) -> Mapping[str, int]:
        """Measure what `LIMITS` limits."""
        lines = [_lines(path) for path in self.modules.values()]
        values = (
            max(lines),
            len(self.of_one_importer()),
            len(self.gerunds()),
            bool(self.circle()),
        )
        return dict(zip(LIMITS, values, strict=True))


def _nodes(tree: ast.AST, *, types: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if types or not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield node
            yield from _nodes(node, types=types)


def _definitions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # a decorator may be what calls it: validators, sessions
            calls = [ast.unparse(one) for one in node.decorator_list if isinstance(one, ast.Call)]
            yield from () if any("dataclass" not in one for one in calls) else (node.name,)
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def main() -> int:
    """Print each figure beside its limit; 1 where one is above."""
    house = House(ROOT)
    figures = house.figures()
    console.table(
        ("figure", "now", "limit"),
        [(name, f"{value:,}", f"{LIMITS[name]:,}") for name, value in figures.items()],
    )
    console.say(f"median module: {median(map(_lines, house.modules.values())):.0f} lines")
    console.say(f"named by tests alone: {', '.join(house.unused()) or 'nothing'}")
    for what, named in (("circle", house.circle()), ("one importer", house.of_one_importer())):
        console.say(f"{what}: {', '.join(named) or 'none'}")
    return int(any(value > LIMITS[name] for name, value in figures.items()))


if __name__ == "__main__":
    sys.exit(main())
