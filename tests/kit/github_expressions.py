"""GitHub's expressions, evaluated as its runner does: enough of them for the workflows of this repository.

Source: https://docs.github.com/en/actions/reference/workflows-and-actions/expressions.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from tests.kit.workflow_files import EXPRESSION

Contexts = Mapping[str, Any]
# An expression that was read: what it is, given the contexts.
Node = Callable[[Contexts], Any]

_TOKEN = re.compile(r"\s*('(?:[^']|'')*'|\d+|&&|\|\||==|!=|[\w-]+|[()\[\].,!*])")
_CONSTANTS = {"true": True, "false": False, "null": None}

# What the status functions return, by their names; without this context, all earlier jobs have succeeded.
STATUS = "status"
_ALL_SUCCEEDED = {"always": True, "cancelled": False, "failure": False, "success": True}


class Elements(list[Any]):
    """What `.*` gives: a name behind it is looked up in each of them."""


def is_true(value: Any) -> bool:
    """Return whether a value counts as true: all but false, 0, "" and null."""
    return value not in (None, False, 0, "")


def as_text(value: Any) -> str:
    """Return a value as an expression in a text becomes it; GitHub refuses objects and lists there."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    assert not isinstance(value, Mapping | list), f"{value} is no text"
    return str(value)


def evaluate(expression: str, contexts: Contexts) -> Any:
    """Return the value of an expression."""
    return read_expression(expression.strip())(contexts)


def expand(template: object, contexts: Contexts) -> Any:
    """Return a part of a workflow as GitHub expands it: a text that is an expression gets that one's type."""
    if isinstance(template, Mapping):
        return {key: expand(value, contexts) for key, value in template.items()}
    if isinstance(template, list):
        return [expand(element, contexts) for element in template]
    if not isinstance(template, str):
        return template

    text = template.strip()
    only_expression = EXPRESSION.fullmatch(text)
    if only_expression and "}}" not in only_expression[1]:
        return evaluate(only_expression[1], contexts)
    return EXPRESSION.sub(lambda match: as_text(evaluate(match[1], contexts)), text)


def expand_text(template: object, contexts: Contexts) -> str:
    """Return a value of a workflow as the text that a job gets."""
    return as_text(expand(template, contexts))


def expand_condition(condition: object, contexts: Contexts) -> bool:
    """Return whether the `if` of a job or step holds; it need not be marked as an expression."""
    text = str(condition).strip()
    return is_true(expand(text, contexts) if "${{" in text else evaluate(text, contexts))


@cache
def read_expression(expression: str) -> Node:
    """Read an expression once; it is evaluated for many jobs."""
    reader = _Reader(tokens=list(_tokens(expression)))
    node = reader.read_or()
    assert reader.token is None, f"{expression}: {reader.token}"
    return node


def _tokens(expression: str) -> Iterator[str]:
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        assert match, expression[position:]
        yield match[1]
        position = match.end()


@dataclass(kw_only=True)
class _Reader:
    """Reads the tokens of one expression; what binds weaker calls what binds stronger."""

    tokens: Sequence[str]
    position: int = field(default=0)

    @property
    def token(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self, *expected: str) -> str | None:
        """Return the next token and go behind it, where it is one of these."""
        token = self.token
        if token is None or (expected and token not in expected):
            return None
        self.position += 1
        return token

    def read_or(self) -> Node:
        operand = self.read_and()
        while self.take("||"):
            operand = _or(operand, self.read_and())
        return operand

    def read_and(self) -> Node:
        operand = self.read_comparison()
        while self.take("&&"):
            operand = _and(operand, self.read_comparison())
        return operand

    def read_comparison(self) -> Node:
        operand = self.read_not()
        operator = self.take("==", "!=")
        if operator is None:
            return operand
        return _compared(operand, self.read_not(), is_equal=operator == "==")

    def read_not(self) -> Node:
        if self.take("!"):
            negated = self.read_not()
            return lambda contexts: not is_true(negated(contexts))
        return self.read_member()

    def read_member(self) -> Node:
        node = self.read_value()
        while True:
            if self.take("."):
                name = self.take()
                assert name is not None
                node = _elements(node) if name == "*" else _member(node, _constant(name))
            elif self.take("["):
                index = self.read_or()
                assert self.take("]")
                node = _member(node, index)
            else:
                return node

    def read_value(self) -> Node:
        if self.take("("):
            node = self.read_or()
            assert self.take(")")
            return node

        token = self.take()
        assert token is not None
        if token.startswith("'"):
            return _constant(token[1:-1].replace("''", "'"))
        if token.isdigit():
            return _constant(int(token))
        if token in _CONSTANTS:
            return _constant(_CONSTANTS[token])
        if self.take("("):
            return self.read_call(token)
        return lambda contexts: contexts[token]

    def read_call(self, name: str) -> Node:
        arguments: list[Node] = []
        while not self.take(")"):
            arguments.append(self.read_or())
            self.take(",")
        if name in _ALL_SUCCEEDED:
            return lambda contexts: contexts.get(STATUS, _ALL_SUCCEEDED)[name]
        function = _FUNCTIONS[name]
        return lambda contexts: function(*(argument(contexts) for argument in arguments))


def _constant(value: Any) -> Node:
    return lambda _contexts: value


def _or(operand: Node, second_operand: Node) -> Node:
    def node(contexts: Contexts) -> Any:
        value = operand(contexts)
        return value if is_true(value) else second_operand(contexts)

    return node


def _and(operand: Node, second_operand: Node) -> Node:
    def node(contexts: Contexts) -> Any:
        value = operand(contexts)
        return second_operand(contexts) if is_true(value) else value

    return node


def _compared(operand: Node, second_operand: Node, *, is_equal: bool) -> Node:
    return lambda contexts: _are_equal(operand(contexts), second_operand(contexts)) is is_equal


def _are_equal(operand: Any, second_operand: Any) -> bool:
    """Compare as GitHub does: texts in any case, values of different types as numbers."""
    if isinstance(operand, str) and isinstance(second_operand, str):
        return operand.casefold() == second_operand.casefold()
    if type(operand) is type(second_operand):
        return bool(operand == second_operand)
    return _as_number(operand) == _as_number(second_operand)


def _as_number(value: Any) -> float:
    if value is None or value == "":
        return 0
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _member(node: Node, index: Node) -> Node:
    return lambda contexts: _look_up(node(contexts), index(contexts))


def _look_up(value: Any, index: Any) -> Any:
    if isinstance(value, Elements):
        return Elements(_look_up(element, index) for element in value)
    if isinstance(value, Mapping):
        # What makes up values has them by any name.
        return value[index] if index in value or hasattr(value, "__missing__") else None
    if isinstance(value, list) and isinstance(index, int) and index < len(value):
        return value[index]
    return None


def _elements(node: Node) -> Node:
    def all_elements(contexts: Contexts) -> Elements:
        value = node(contexts)
        if not isinstance(value, Elements):
            return Elements(value)
        return Elements(inner for element in value for inner in element)

    return all_elements


def _contains(container: Any, searched: Any) -> bool:
    if isinstance(container, list):
        return any(_are_equal(element, searched) for element in container)
    return as_text(searched).casefold() in as_text(container).casefold()


def _starts_with(text: Any, start: Any) -> bool:
    return as_text(text).casefold().startswith(as_text(start).casefold())


def _format(template: str, *values: Any) -> str:
    return template.format(*map(as_text, values))


def _to_json(value: Any) -> str:
    # With line breaks, as GitHub writes it.
    return json.dumps(value, indent=2, ensure_ascii=False)


# Every job of a run reads the same few values.
_from_json = lru_cache(maxsize=1024)(json.loads)

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "contains": _contains,
    "format": _format,
    "fromJSON": _from_json,
    "startsWith": _starts_with,
    "toJSON": _to_json,
}
