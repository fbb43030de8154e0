"""Test ids, and the patterns that skip rules name them with.

A test id is pytest's node id, its path relative to the checkout:
``test/test_nn.py::TestNN::test_conv[a/b 1]``. Its parts are the path, the names, and the
parameters in brackets, which may hold anything, ``::`` and brackets included.
https://docs.pytest.org/en/stable/how-to/usage.html#select-tests

A pattern is written like an id. ``*`` stands for any characters of one part, and never for half of the
id: ``test_conv*`` does not match ``test_my_conv``. Nothing else is special.

=================================  ==============================================================
``test/test_nn.py::TestNN::*``     every test of a class of a file
``TestNN::test_conv*``             of a class in any file; a last ``*`` takes parameters too
``::test_conv[*]``                 a test in any class of any file, with any parameters
``test/*/test_fx.py::*``           every test of a file, in any folder of ``test/``
=================================  ==============================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_NAME = r"[^:\[]"


@dataclass(frozen=True)
class TestId:
    """A test id in its parts; every text is one, as pytest puts no bounds to them."""

    path: str
    names: tuple[str, ...]
    parameters: str | None = None

    @classmethod
    def parse(cls, text: str) -> TestId:
        """Take an id apart."""
        path, separator, rest = text.partition("::")
        plain, bracket, parameters = rest.partition("[")
        names = tuple(plain.split("::")) if separator else ()
        return cls(path, names, parameters.removesuffix("]") if bracket else None)


@dataclass(frozen=True)
class Pattern(TestId):
    """A pattern in its parts."""

    text: str = ""

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Check a pattern."""
        parts = TestId.parse(text)
        path, names, parameters = parts.path, parts.names, parts.parameters
        if not names:
            raise ValueError(
                f"{text!r} could be anywhere: write ::{text} for tests of that name in any file."
            )
        _refuse_open_bracket(text, parameters)
        if path and "/" not in path and not path.endswith(".py"):
            path, names = "", (path, *names)
        if path:
            _refuse_odd_path(text, path)
        if not all(names):
            raise ValueError(f"{text!r} has an empty part between two '::'.")
        if any(letter in name for name in names for letter in ":/\\ "):
            raise ValueError(f"{text!r}: classes and functions have no such letters; is a '::' missing?")
        stem = path.rpartition("/")[2].removesuffix(".py")
        if stem in {"", "*"} and all(set(name) == {"*"} for name in names):
            raise ValueError(f"{text!r} takes every test: name a file, a class or a test.")
        return cls(path, names, parameters, text)

    @cached_property
    def regex(self) -> str:
        """A regular expression for whole test ids."""
        path = f"{self.path_regex}::" if self.path else rf"[^:]+::(?:{_NAME}+::)*"
        *classes, last = self.names
        return f"{path}{''.join(f'{_part(name)}::' for name in classes)}{_last(last, self.parameters)}"

    @property
    def path_regex(self) -> str:
        """A regular expression for whole paths."""
        return _escaped(self.path, "[^/:]*")

    def matches(self, test: str) -> bool:
        """Whether it takes this test."""
        return re.fullmatch(self.regex, test) is not None

    def near_miss(self, test: TestId) -> str:
        """Explain why it does not take a test that it seems to mean; "" where it means another one.

        Two of file, names and parameters agree, or only the class differs.
        """
        own = Pattern("", self.names[-1:])
        if not test.names or not own.matches(f"{test.path}::{test.names[-1]}"):
            return ""
        same_path = not self.path or re.fullmatch(self.path_regex, test.path) is not None
        same_names = Pattern(self.path and "_", self.names).matches("::".join(("_", *test.names)))
        if same_path and same_names:
            return "the parameters differ: a name without [...] means the test without parameters, [*] any"
        if set(self.names[-1]) == {"*"} and not same_names:
            return ""
        if same_path:
            return f"the class differs: it names {'::'.join(self.names[:-1]) or 'a function of the file'}"
        return f"the file differs: it names {self.path}" if same_names else ""


def exact(text: str) -> str:
    """Check the exact id of a test."""
    parts = TestId.parse(text)
    if not parts.names or not all(parts.names):
        raise ValueError(f"{text!r} is not a test id such as test/test_nn.py::TestNN::test_conv.")
    _refuse_odd_path(text, parts.path)
    _refuse_open_bracket(text, parts.parameters)
    if any("*" in part for part in (parts.path, *parts.names)):
        raise ValueError(f"{text!r} is a pattern: it belongs under 'patterns'.")
    return text


def _refuse_open_bracket(text: str, parameters: str | None) -> None:
    if parameters is not None and not text.endswith("]"):
        raise ValueError(f"{text!r} has an open bracket: parameters end with ']'.")


def _refuse_odd_path(text: str, path: str) -> None:
    if not path.endswith(".py"):
        raise ValueError(f"{text!r}: the file must end with .py.")
    if "\\" in path or {".", "..", ""} & set(path.split("/")):
        raise ValueError(
            f"{text!r}: the path is written from the checkout on, with '/', as in test/test_nn.py."
        )


def _escaped(text: str, star: str) -> str:
    return star.join(map(re.escape, text.split("*")))


def _part(name: str) -> str:
    return f"{_NAME}+" if name == "*" else _escaped(name, f"{_NAME}*")


def _last(name: str, parameters: str | None) -> str:
    if parameters is not None:
        return rf"{_part(name)}\[{_escaped(parameters, '.*')}\]"
    names = rf"{_NAME}+(?:::{_NAME}+)*" if name == "*" else _part(name)
    return names + (r"(?:\[.*)?" if name.endswith("*") else "")
