"""Expressions of GitHub's workflows, evaluated as GitHub does.

https://docs.github.com/en/actions/reference/workflows-and-actions/expressions
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.data import compact
from tests.kit.workflow_files import EXPRESSION

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>\d+)|(?P<name>[A-Za-z_][\w-]*)|(?P<sign>==|!=|&&|\|\||[!()\[\].,]))"
)
_CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "null": None}

# The value of an expression that a status function is called in: how the jobs that a job needs ended.
Status = Callable[[str], bool]


def evaluate(expression: str, contexts: Mapping[str, Any], status: Status | None = None) -> Any:
    """Return the value of an expression; what a context does not have is None."""
    parser = _Parser(tokens=_tokens(expression), contexts=contexts, status=status)
    value = parser.read_or()
    assert parser.position == len(parser.tokens), f"Not an expression: {expression}"
    return value


def render(value: Any, contexts: Mapping[str, Any]) -> Any:
    """Return a part of a workflow with its expressions evaluated; one that is alone keeps its type."""
    if isinstance(value, dict):
        return {key: render(inner, contexts) for key, inner in value.items()}
    if isinstance(value, list):
        return [render(inner, contexts) for inner in value]
    if not isinstance(value, str):
        return value

    lone_expression = EXPRESSION.fullmatch(value.strip())
    if lone_expression is not None and value.count("${{") == 1:
        return evaluate(lone_expression[1], contexts)
    return EXPRESSION.sub(lambda match: as_text(evaluate(match[1], contexts)), value)


def render_text(value: object, contexts: Mapping[str, Any]) -> str:
    """Return a part of a workflow as the text that a job gets."""
    return as_text(render(value, contexts))


def is_true(value: object) -> bool:
    """Return whether a value counts as true."""
    return value not in (None, False, 0, "")


def as_text(value: object) -> str:
    """Return a value as it stands in a text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return compact(value)
    return str(value)


def _tokens(expression: str) -> Sequence[str]:
    tokens: list[str] = []
    position = 0
    text = expression.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None, f"Not an expression: {expression}"
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


@dataclass(kw_only=True)
class _Parser:
    """Reads tokens from left to right, and evaluates them as it goes."""

    tokens: Sequence[str]
    contexts: Mapping[str, Any]
    status: Status | None
    position: int = field(default=0)

    def read_or(self) -> Any:
        value = self._read_and()
        while self._takes("||"):
            operand = self._read_and()
            value = value if is_true(value) else operand
        return value

    def _read_and(self) -> Any:
        value = self._read_equality()
        while self._takes("&&"):
            operand = self._read_equality()
            value = operand if is_true(value) else value
        return value

    def _read_equality(self) -> Any:
        value = self._read_unary()
        while self._next() in {"==", "!="}:
            sign = self._read()
            are_equal = _equal(value, self._read_unary())
            value = are_equal if sign == "==" else not are_equal
        return value

    def _read_unary(self) -> Any:
        if self._takes("!"):
            return not is_true(self._read_unary())
        return self._read_members(self._read_primary())

    def _read_members(self, value: Any) -> Any:
        while self._next() in {".", "["}:
            if self._read() == ".":
                key: Any = self._read()
            else:
                key = self.read_or()
                self._expect("]")
            value = _member(value, key)
        return value

    def _read_primary(self) -> Any:
        if self._takes("("):
            value = self.read_or()
            self._expect(")")
            return value

        token = self._read()
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if token.isdigit():
            return int(token)
        if self._takes("("):
            return self._call(token)
        if token in _CONSTANTS:
            return _CONSTANTS[token]
        assert token in self.contexts, f"There is no context {token}."
        return self.contexts[token]

    def _call(self, name: str) -> Any:
        arguments: list[Any] = []
        while not self._takes(")"):
            arguments.append(self.read_or())
            self._takes(",")
        if name in {"success", "failure", "cancelled", "always"}:
            assert self.status is not None, f"{name}() is not known here."
            return self.status(name)
        return _FUNCTIONS[name](*arguments)

    def _next(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _read(self) -> str:
        token = self._next()
        self.position += 1
        return token

    def _takes(self, token: str) -> bool:
        if self._next() != token:
            return False
        self.position += 1
        return True

    def _expect(self, token: str) -> None:
        assert self._takes(token), f"{token} is missing."


def _member(value: Any, key: Any) -> Any:
    if isinstance(value, list):
        is_index = isinstance(key, int) and key < len(value)
        return value[key] if is_index else None
    if isinstance(value, dict):
        return value.get(key)
    return None


def _equal(value: Any, operand: Any) -> bool:
    if isinstance(value, str) and isinstance(operand, str):
        return value.casefold() == operand.casefold()
    if type(value) is type(operand):
        return bool(value == operand)
    return _number(value) == _number(operand)


def _number(value: Any) -> float:
    if value is None or value == "":
        return 0
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _contains(searched: Any, value: Any) -> bool:
    if isinstance(searched, list):
        return any(_equal(member, value) for member in searched)
    return as_text(value).casefold() in as_text(searched).casefold()


def _starts_with(text: Any, prefix: Any) -> bool:
    return as_text(text).casefold().startswith(as_text(prefix).casefold())


def _format(template: str, *values: Any) -> str:
    return template.format(*map(as_text, values))


def _from_json(text: Any) -> Any:
    return json.loads(as_text(text))


def _to_json(value: Any) -> str:
    return json.dumps(value, indent=2)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "contains": _contains,
    "startsWith": _starts_with,
    "format": _format,
    "fromJSON": _from_json,
    "toJSON": _to_json,
}
