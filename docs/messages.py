"""Every error message that says what to do next, read from the code that raises it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from core import errors
from core.cli.options import ROOT
from core.errors import FatalError
from docs.command_tables import PACKAGES
from docs.markdown import Table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

Message: TypeAlias = tuple[str, str]

# Code in these folders runs elsewhere than in this tool.
_FOLDERS_OF_OTHERS = {"templates", "sample", "target", "smoke"}


def message_tables() -> str:
    """Write the messages that have a next action, a table an exit code, in the order of the alphabet."""
    rows_by_code: dict[int, set[Message]] = defaultdict(set)
    for path in _modules():
        for exit_code, message, hint in _messages(path):
            rows_by_code[exit_code].add((message, hint))

    lines: list[str] = []
    for exit_code in sorted(rows_by_code):
        table = Table("message", "what to do")
        for message, hint in sorted(rows_by_code[exit_code], key=_order_of_row):
            table.add(message, hint)
        lines += [f"### Exit code {exit_code}", ""]
        lines += [*table.lines, ""]
    return "\n".join(lines)


def _order_of_row(row: Message) -> tuple[str, Message]:
    """Return what messages are sorted by: their letters."""
    message, _ = row
    letters = re.sub(r"\W", "", message)
    return letters.lower(), row


def _modules() -> Iterator[Path]:
    for package in ("core", *PACKAGES):
        for path in sorted((ROOT / package).rglob("*.py")):
            folders = path.relative_to(ROOT).parts
            if _FOLDERS_OF_OTHERS.isdisjoint(folders):
                yield path


def _messages(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the exit codes, messages and hints of the errors that a module raises."""
    source = path.read_text(encoding="utf-8")
    # Modules of another platform, which cannot be imported here, have no messages of their own.
    if "hint=" not in source:
        return
    module_path = path.relative_to(ROOT).with_suffix("")
    name = ".".join(module_path.parts)
    module = import_module(name.removesuffix(".__init__"))

    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        error_class = _error_class(module, node)
        hint = _hint_of(node)
        if error_class is None or hint is None:
            continue
        message_text = _text(node.args[0])
        hint_text = _text(hint)
        # Where one has no words, the code puts the whole sentence in.
        if _has_words(message_text) and _has_words(hint_text):
            yield error_class.exit_code, message_text, hint_text


def _error_class(module: ModuleType, call: ast.Call) -> type[FatalError] | None:
    """Return the class of errors that a call makes one of; None for any other call."""
    match call.func:
        case ast.Name(id=name):
            pass
        case ast.Attribute(attr=name):
            pass
        case _:
            return None
    candidate = getattr(module, name, None) or getattr(errors, name, None)
    if isinstance(candidate, type) and issubclass(candidate, FatalError):
        return candidate
    return None


def _hint_of(call: ast.Call) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == "hint":
            return keyword.value
    return None


def _has_words(text: str) -> bool:
    return re.search(r"\w{2}", text) is not None


def _text(node: ast.expr) -> str:
    """Return an expression as people see it; what is known only when it is raised is ``…``."""
    text = re.sub(r"\s+", " ", _raw_text(node))
    text = re.sub(r"(… ?)+…", "…", text)
    return text.strip().replace("<", "&lt;")


def _raw_text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_raw_text, parts))
        case ast.BinOp(left=left, right=right):
            return _raw_text(left) + _raw_text(right)
        case ast.IfExp(body=body, orelse=alternative):
            texts = (_raw_text(body), _raw_text(alternative))
            return " / ".join(text for text in texts if text)
        case _:
            return "…"
