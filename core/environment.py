"""The variables that upstream's code gets: those that environment.toml names, and no others."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from core.data import Model, data_file


class _Variables(Model):
    """The data: names of variables, by what needs them and by the programs that get them besides."""

    never: tuple[str, ...]
    needs: dict[str, tuple[str, ...]]
    programs: dict[str, tuple[str, ...]]


_variables = data_file(Path(__file__).with_name("environment.toml"), _Variables)
# Also those of a proxy that is written without a scheme.
_LOGIN = re.compile(r"(?<=://)[^/?#\s\"<>]*@|^[^/\\\s]*@(?=[^/\s]+:\d+$)")


@cache
def need_of(variable: str) -> str:
    """Name what upstream's code needs a variable for, as environment.toml does; "" where it never gets it."""
    data = _variables()
    # What nothing may get, in any spelling.
    if _matches(variable.upper(), data.never):
        return ""
    for need, patterns in data.needs.items():
        if _matches(variable, patterns):
            return need
    return ""


def allowed(env: Mapping[str, str], *, program: str = "") -> dict[str, str]:
    """Keep what upstream's code may get of an environment, and what a `program` of the tool gets besides."""
    patterns_of_program: Sequence[str] = ()
    if program:
        patterns_of_program = _variables().programs[program]

    variables: dict[str, str] = {}
    for name, value in env.items():
        if _matches(name, patterns_of_program):
            variables[name] = value
        elif need_of(name):
            variables[name] = _LOGIN.sub("", value)
    return variables


def _matches(variable: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(variable, pattern) for pattern in patterns)
