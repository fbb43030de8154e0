"""The variables that a process gets: by default what environment.toml allows upstream's code."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from core.host_path import remove_foreign_programs

# What this machine serves is behind no proxy, and most programs ask one for it unless they are told.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_THIS_MACHINE = "localhost,127.0.0.1,::1"


def handed_on(**changes: str | None) -> dict[str, str]:
    """Return what upstream's code gets of this process's environment, with `changes` as in `inherited`."""
    from core.environment import allowed  # no part of the server

    return _changed(allowed(os.environ), changes)


def inherited(**changes: str | None) -> dict[str, str]:
    """Copy all of this process's environment, rights included, for the tool's own programs (nox, git).

    `changes` come on top; ``None`` takes a variable out.
    """
    return _changed(os.environ, changes)


def _changed(env: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    variables = dict(env)
    variables.update(_direct_addresses(env))

    for name, value in changes.items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    return variables


def _direct_addresses(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return variables by which what this machine serves is asked for directly, where there is a proxy."""
    if not _has_proxy(env):
        return {}

    # Programs read one spelling or the other, and a user may have set either.
    lists = [env.get("NO_PROXY", ""), env.get("no_proxy", "")]
    # An asterisk that stands alone is all addresses.
    if "*" in lists:
        return {}

    addresses: list[str] = []
    for address_list in (*lists, _THIS_MACHINE):
        if address_list and address_list not in addresses:
            addresses.append(address_list)
    joined_addresses = ",".join(addresses)
    return {"NO_PROXY": joined_addresses, "no_proxy": joined_addresses}


def _has_proxy(env: Mapping[str, str]) -> bool:
    return any(env.get(name) or env.get(name.lower()) for name in _PROXIES)


def output_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return what lets a Python program write UTF-8 into a pipe or a file, as its output is read here."""
    # Elsewhere Python takes the encoding of the user's language, which is UTF-8.
    if os.name == "nt" and "PYTHONIOENCODING" not in variables:
        return {"PYTHONIOENCODING": "utf-8"}
    return {}


def prepare_variables() -> None:
    """Drop empty variables, and find programs without the environments that builds and tests fill.

    Front doors do so before anything else. Workflows set a variable to nothing where an input is not given,
    and tools do not agree on what that means: from here on it is not set.
    """
    for name, value in list(os.environ.items()):
        if not value:
            del os.environ[name]

    path = os.environ.get("PATH")
    if path is not None:
        os.environ["PATH"] = remove_foreign_programs(path)


def byte_code(folder: Path) -> dict[str, str | None]:
    """Return changes that keep byte code out of trees and in a folder, for several processes of one task."""
    return {"PYTHONDONTWRITEBYTECODE": None, "PYTHONPYCACHEPREFIX": str(folder)}


def which(program: str, *, path: str | None = None) -> Path | None:
    """Find a program on `path` (default: this process's PATH)."""
    executable = shutil.which(program, path=path)
    if executable is None:
        return None
    return Path(executable)
