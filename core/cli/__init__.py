"""The front door of each package: `python -m PACKAGE VERB [options]`.

A verb is a module with ``add_options(parser)`` and ``run(arguments)``; only the chosen one is imported. One
with ``PASSES_REST = True`` passes options it does not know on, as ``arguments.rest``, beside all its words
as ``arguments.words``. Errors are printed here, once, and become the process's exit code.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from core import console
from core.cell import Cell
from core.cli.options import FAILURE_FILE, ROOT, add_common, environment
from core.errors import STOPPING, FatalError, ProcessError, UsageError, fatal, nearest, origin

if TYPE_CHECKING:
    from types import ModuleType

_NEARLY = 0.85  # of pytest's own options none is as near to one of ours
_LAST_WORDS = 15  # of a tool, where nothing that it says is known for an error
# nox names a session NAME, NAME-3.12 where -P chose its Python, or NAME(CELL) with a matrix.
_SESSION = re.compile(r"(?P<name>\w+)(?:-(?P<python>3\.\d+t?))?(?:\((?P<cell>.*)\))?")
_CALL: ContextVar[tuple[str, Sequence[str]]] = ContextVar("_CALL", default=("", ()))


@dataclass(frozen=True, kw_only=True)
class FailureNote:
    """What a front door leaves in FAILURE_FILE for the flow that called it: how it failed, in its words."""

    exit_code: int
    message: str

    @classmethod
    def read(cls, path: Path) -> FailureNote | None:
        """Return the note in a file; None where a session failed before its front door began."""
        if not path.is_file():
            return None
        return cls(**json.loads(path.read_text(encoding="utf-8")))


class Verb(NamedTuple):
    """One verb of a front door; its module is imported when it is chosen."""

    name: str
    module: str
    about: str = ""

    @property
    def summary(self) -> str:
        """What it does: what its module's first line says behind the verb, where nothing else is said."""
        if self.about:
            return self.about
        with (ROOT / f"{self.module.replace('.', '/')}.py").open(encoding="utf-8") as source:
            return source.readline().strip('"\n').partition(": ")[2].removesuffix(".")


def verbs_of(package: str, names: str) -> tuple[Verb, ...]:
    """Return the verbs of a package by their names, in this order; their modules are named as they are."""
    return tuple(Verb(name, f"{package}.verbs.{name.replace('-', '_')}") for name in names.split())


class _Parser(argparse.ArgumentParser):
    whole = False  # of a verb, not of one of its subcommands

    def error(self, message: str) -> NoReturn:
        self._speak()
        raise UsageError(message, hint=f"{self._meant(message)}See: {self.prog} --help")

    def refuse_misspelt(self, passed_on: Sequence[str]) -> None:
        """Refuse what somebody else would get where it is nearly an option of ours."""
        known = self._option_string_actions
        words = [one.partition("=")[0] for one in passed_on if one.startswith("--")]
        if near := [one for one in words if one not in known and get_close_matches(one, known, 1, _NEARLY)]:
            self.error(f"unrecognized arguments: {near[0]}")

    def _speak(self) -> None:
        """Speak as the session that is called, if one is, which gives words itself."""
        _package, words = _CALL.get()
        session = NoxSession.current() if self.whole else None
        if session is None or not words:
            return
        self.prog = f"nox -s {session.name} --"

        # What the session gives by itself is nothing that its users say.
        given_words = session.words_of(words)[1:]
        positional_actions = [action for action in self._actions if not action.option_strings]
        for action in positional_actions[: len([word for word in given_words if not word.startswith("-")])]:
            action.help = argparse.SUPPRESS

    def format_help(self) -> str:
        """Name every option once: below, and not in the usage, too."""
        self._speak()
        shown = [one for one in self._actions if not one.option_strings and one.help != argparse.SUPPRESS]
        forms = {"*": "[{0} ...]", "?": "[{0}]", "+": "{0} [{0} ...]"}
        words = [forms.get(str(one.nargs), "{0}").format(one.metavar or one.dest) for one in shown]
        self.usage = " ".join([self.prog, "[OPTION ...]", *words])
        return super().format_help()

    def _meant(self, message: str) -> str:
        """Name the option that a misspelt one is nearest to."""
        words = message.split() if message.startswith("unrecognized arguments") else []
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        guesses = (nearest(option, self._option_string_actions) for option in options)
        return next((f"{guess} " for guess in guesses if guess.startswith("Did you mean")), "")


def main(package: str, about: str, verbs: Sequence[Verb], argv: Sequence[str] | None = None) -> int:
    """Run one verb; return the process's exit code: 0, or that of the error's class."""
    words = list(sys.argv[1:] if argv is None else argv)
    call = _CALL.set((package, words))
    try:
        # nox goes to the folder of the noxfile, and the relative paths of its users begin elsewhere.
        os.chdir(environment().get("INVOKED_FROM", "."))
        with _stopped_by_sigterm():
            dispatch(package, about, verbs, words)
    except (Exception, KeyboardInterrupt) as problem:
        if "--debug" in words and isinstance(problem, Exception):
            raise
        ended = fatal(problem)
        _tell(ended)
        return ended.exit_code
    finally:
        _CALL.reset(call)
        STOPPING.clear()
    return 0


def _tell(ended: FatalError) -> None:
    """Print an error; that of a tool ends in its own words, the command that does the step again, its log.

    Whoever asked for it in a file prints it, once.
    """
    lines, said, command = [str(ended)], origin(ended), ""
    cause = said.cause if said else None
    if said:
        command = this_again()
        if cause:
            lines += [cause.headline, *(f"  | {line}" for line in cause.around)]
        elif isinstance(said, ProcessError) and not console.echoes():
            lines += [f"  | {line}" for line in said.output.splitlines()[-_LAST_WORDS:]]
        lines.append(f"again: {command}")
        if said.log:
            lines.append(f"log:   {str(said.log).removeprefix(f'{Path.cwd()}/')}")
    if file := environment().get(FAILURE_FILE):
        with suppress(OSError):  # the error itself is what counts
            note = FailureNote(exit_code=ended.exit_code, message=console.mask("\n".join(lines)))
            Path(file).write_text(json.dumps(asdict(note)), encoding="utf-8")
            if console.mode() != "github":  # an annotation names file and line
                return
    if cause:
        console.say(lines.pop(0))
    console.error(lines[0], file=cause.file if cause else "", line=cause.line if cause else 0)
    if said:
        console.say("\n".join(lines[1:]))
        # indented, so that nothing in it is taken for Markdown
        code = "\n".join(lines).replace("\n", "\n    ")
        console.summary(f"### Failed: {command.partition(' -- ')[0]}\n\n    {code}")


def exit_code(work: Callable[[], object]) -> int:
    """Run what is no verb; its error is printed, and becomes the process's exit code."""
    try:
        work()
    except FatalError as problem:
        console.error(str(problem))
        return problem.exit_code
    return 0


def this_again(*more_options: str) -> str:
    """Return the call that does again what this process does, with more options; "" outside a front door."""
    package, words = _CALL.get()
    return again(package, [*words, *more_options]) if package else ""


@dataclass(frozen=True, kw_only=True)
class NoxSession:
    """The session of nox that called this front door."""

    name: str
    python: str | None  # that -P or the cell chose for it

    @classmethod
    def current(cls) -> NoxSession | None:
        """Return the session that nox names; None outside nox."""
        match = _SESSION.fullmatch(environment().get("NOX_CURRENT_SESSION", ""))
        if match is None:
            return None
        if match["cell"] is None:
            return cls(name=match["name"], python=match["python"])
        return cls(name=match["name"], python=Cell.parse(match["cell"]).python)

    def words_of(self, words: Sequence[str]) -> Sequence[str]:
        """Return the words of a front door that the session gives by itself, its verb among them."""
        # Most sessions give a verb alone. build_torch calls `build torch`.
        gives_component = list(words[:1]) == ["build"] and self.name == f"build_{' '.join(words[1:2])}"
        return words[: 2 if gives_component else 1]


def again(package: str, words: Sequence[str]) -> str:
    """Return the call of nox that does a step again, or the front door's own where nox did not call it."""
    session = NoxSession.current()
    if session is None:
        return shlex.join(["python", "-m", package, *words])

    command = ["nox", "-s", session.name]
    if session.python is not None:
        command += ["-P", session.python]
    user_words = words[len(session.words_of(words)) :]
    # The session names its interpreter itself.
    options = [word for word in user_words if not word.startswith("--python=")]
    if options:
        command += ["--", *options]
    return shlex.join(command)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let a cancelled job end as Ctrl-C does: children stopped, locks released, the failure recorded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: object) -> NoReturn:
        STOPPING.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def dispatch(package: str, about: str, verbs: Sequence[Verb], words: Sequence[str]) -> None:
    """Run one verb in this process; what `main` does besides is told of errors."""
    if not words or words[0] in {"-h", "--help"}:
        lines = [f"usage: python -m {package} VERB [options]", "", about, ""]
        width = max(len(verb.name) for verb in verbs)
        lines += [f"  {verb.name.ljust(width)}  {verb.summary}" for verb in verbs]
        console.result("\n".join(lines))
        return
    module, arguments = _parsed(package, verbs, words)
    console.SCREEN.verbose = arguments.verbose or bool(environment().get("VERBOSE_OUTPUT"))
    module.run(arguments)


def parsed_call(package: str, words: Sequence[str]) -> tuple[ModuleType, argparse.Namespace]:
    """Return the module of the verb that a front door's words call, and its parsed arguments."""
    front_door = import_module(f"{package}.__main__")
    verbs: Sequence[Verb] = front_door.VERBS
    return _parsed(package, verbs, words)


def _parsed(
    package: str, verbs: Sequence[Verb], words: Sequence[str]
) -> tuple[ModuleType, argparse.Namespace]:
    verbs_by_name = {verb.name: verb for verb in verbs}
    verb_name, *options = words
    if verb_name not in verbs_by_name:
        hint = nearest(verb_name, verbs_by_name)
        raise UsageError(f"python -m {package} has no verb {verb_name!r}.", hint=hint)

    module, parser = verb_parser(package, verbs_by_name[verb_name])
    if not getattr(module, "PASSES_REST", False):
        return module, parser.parse_args(options)

    arguments, rest = parser.parse_known_args(options)
    parser.refuse_misspelt(rest)
    arguments.rest = [word for word in rest if word != "--"]
    arguments.words = options
    return module, arguments


def verb_parser(package: str, verb: Verb) -> tuple[ModuleType, _Parser]:
    """Import a verb, and return it with the parser of its options, the common ones first."""
    module = import_module(verb.module)
    parser = _Parser(prog=f"python -m {package} {verb.name}", description=verb.summary, allow_abbrev=False)
    add_common(parser)
    module.add_options(parser)
    parser.whole = True
    return module, parser
