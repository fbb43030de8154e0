"""The session of nox that calls a front door, and the command that does a step again."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from core.cell import Cell
from core.cli.options import environment
from core.shell import command_line

# nox names a session NAME, NAME-3.12 where -P chose its Python, or NAME(CELL) with a matrix.
_SESSION = re.compile(r"(?P<name>\w+)(?:-(?P<python>3\.\d+t?))?(?:\((?P<cell>.*)\))?")

# That of sessions without -P: nox runs their front doors with its own interpreter.
PYTHON_OF_NOX = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, kw_only=True)
class FrontDoorCall:
    """What a front door was called with."""

    package: str
    argv: Sequence[str]  # the verb and its options


_CURRENT_CALL: ContextVar[FrontDoorCall | None] = ContextVar("_CURRENT_CALL", default=None)


@contextmanager
def as_current_call(call: FrontDoorCall) -> Iterator[None]:
    """Let `current_call` return this call while the block runs."""
    token = _CURRENT_CALL.set(call)
    try:
        yield
    finally:
        _CURRENT_CALL.reset(token)


def current_call() -> FrontDoorCall | None:
    """Return the call that this process answers; None outside a front door."""
    return _CURRENT_CALL.get()


@dataclass(frozen=True, kw_only=True)
class NoxSession:
    """A session of nox that called a front door."""

    name: str
    python: str | None  # that -P or the cell chose for it
    cell: Cell | None = None

    @classmethod
    def current(cls) -> NoxSession | None:
        """Return the session that nox names; None outside nox."""
        match = _SESSION.fullmatch(environment().get("NOX_CURRENT_SESSION", ""))
        if match is None:
            return None
        if match["cell"] is None:
            return cls(name=match["name"], python=match["python"])
        cell = Cell.parse(match["cell"])
        return cls(name=match["name"], python=cell.python, cell=cell)

    @property
    def options_of_cell(self) -> Sequence[str]:
        """The options that the noxfile makes of the cell."""
        if self.cell is None:
            return []
        options: list[str] = []
        for name, value in self.cell.to_json().items():
            option = name.replace("_", "-")
            options.append(f"--{option}={value}")
        return options

    def own_arguments(self, argv: Sequence[str]) -> Sequence[str]:
        """Return the arguments of a front door that the session gives by itself, its verb among them."""
        # build_torch calls `build torch`. Other sessions give a verb alone.
        first_words = list(argv[:2])
        project = self.name.removeprefix("build_")
        if first_words == ["build", project]:
            return argv[:2]
        return argv[:1]


def option_of_python(python: str) -> str:
    """Return what calls a session for a Python: `` -P 3.12``, or "" where nox's own is meant.

    nox keeps another environment for each -P, and a stage would fill it with gigabytes of ROCm once more. So
    it is left out unless the session that runs has it, too.
    """
    session = NoxSession.current()
    has_named_python = session is not None and session.python is not None
    if python == PYTHON_OF_NOX and not has_named_python:
        return ""
    return f" -P {python}"


def command_again(*more_options: str) -> str:
    """Return the call that does again what this process does, with more options; "" outside a front door."""
    call = current_call()
    if call is None:
        return ""
    return again(call.package, [*call.argv, *more_options])


def again(package: str, argv: Sequence[str]) -> str:
    """Return the call of nox that does a step again, or the front door's own where nox did not call it."""
    session = NoxSession.current()
    if session is None:
        return command_line(["python", "-m", package, *argv])

    # The session names its interpreter itself.
    user_arguments = argv[len(session.own_arguments(argv)) :]
    options = [argument for argument in user_arguments if not argument.startswith("--python=")]

    variables: dict[str, str] = {}
    matrix = environment().get("MATRIX")
    if session.cell is not None and matrix:
        # Without the matrix, nox would not know the cell; with it, not the session alone.
        options = [option for option in options if option not in session.options_of_cell]
        variables["MATRIX"] = matrix
        command = ["nox", "-s", f"{session.name}({session.cell})"]
    elif session.python is not None:
        command = ["nox", "-s", session.name, "-P", session.python]
    else:
        command = ["nox", "-s", session.name]
    if options:
        command += ["--", *options]
    return command_line(command, variables=variables)
