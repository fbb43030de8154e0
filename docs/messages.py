"""Every error message that says what to do next, read from the code that raises it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from core import errors
from core.cli.options import ROOT
from core.errors import FatalError
from docs.command_tables import PACKAGES, table

_COLUMNS = ("message", "what to do")
_LEFT_OUT = {"templates", "sample", "target", "smoke"}


def message_tables() -> str:
    """Write the messages that have a next action, a table an exit code, in the order of the alphabet."""
    found: dict[int, set[tuple[str, str]]] = {}
    for path in _modules():
        for code, row in _messages(path):
            found.setdefault(code, set()).add(row)
    lines = []
    for code, rows in sorted(found.items()):
        ordered = sorted(rows, key=lambda row: (re.sub(r"\W", "", row[0]).lower(), row))
        lines += [f"### Exit code {code}", "", *table(_COLUMNS, ordered), ""]
    return "\n".join(lines)


def _modules() -> Iterator[Path]:
    for package in ("core", *PACKAGES):
        for path in sorted((ROOT / package).rglob("*.py")):
            if not _LEFT_OUT & {*path.relative_to(ROOT).parts}:
                yield path


def _messages(path: Path) -> Iterator[tuple[int, tuple[str, str]]]:
    source = path.read_text(encoding="utf-8")
    # Modules of another platform, which cannot be imported here, have no messages of their own.
    if "hint=" not in source:
        return
    module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute) and node.args):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        kind = getattr(module, name, None) or getattr(errors, name, None)
        hint = next((one.value for one in node.keywords if one.arg == "hint"), None)
        if hint is None or not (isinstance(kind, type) and issubclass(kind, FatalError)):
            continue
        row = (_text(node.args[0]), _text(hint))
        if all(re.search(r"\w{2}", one) for one in row):  # else the code puts the whole sentence in
            yield kind.exit_code, row


def _text(node: ast.expr) -> str:
    """Write an expression as people see it; what is known only when it is raised is ``…``."""
    return re.sub(r"(… ?)+…", "…", re.sub(r"\s+", " ", _raw(node))).strip().replace("<", "&lt;")


def _raw(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_raw, parts))
        case ast.BinOp(left=left, right=right):
            return _raw(left) + _raw(right)
        case ast.IfExp(body=body, orelse=other):
            return " / ".join(filter(None, (_raw(body), _raw(other))))
        case _:
            return "…"
