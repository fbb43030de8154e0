"""The variables that upstream's code gets: those that environment.toml names, and no others."""

import re
from collections.abc import Mapping
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
# also those of a proxy that is written without a scheme
_LOGIN = re.compile(r"(?<=://)[^/?#\s\"<>]*@|^[^/\\\s]*@(?=[^/\s]+:\d+$)")


@cache
def need_of(variable: str) -> str:
    """Name what upstream's code needs a variable for, as environment.toml does; "" where it never gets it."""
    if any(fnmatch(variable.upper(), one) for one in _variables().never):
        return ""
    needs = _variables().needs.items()
    return next((need for need, names in needs if any(fnmatch(variable, one) for one in names)), "")


def allowed(env: Mapping[str, str], *, program: str = "") -> dict[str, str]:
    """Keep what upstream's code may get of an environment, and what a `program` of the tool gets besides."""
    besides = _variables().programs[program] if program else ()
    own = {name: value for name, value in env.items() if any(fnmatch(name, one) for one in besides)}
    return {name: _LOGIN.sub("", value) for name, value in env.items() if need_of(name)} | own
