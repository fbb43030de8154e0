"""The front door of each package: `python -m PACKAGE VERB [options]`.

A verb is a module with ``add_options(parser)``, ``run(arguments)`` and ``COMMON_OPTIONS``, the names of the
common options that have an effect there; only the chosen one is imported. One with ``PASSES_REST = True``
passes options it does not know on, as ``arguments.rest``, beside all its words as ``arguments.words``. That
of a step of the pipeline has ``look(arguments)``, too.

Errors are printed here, once, and become the process's exit code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from core import console, process, temporary
from core.cli.failures import tell
from core.cli.options import ROOT, add_common, environment, take_out_options_without_effect
from core.cli.parser import VerbParser
from core.cli.sessions import FrontDoorCall, as_current_call
from core.errors import STOPPING, FatalError, UsageError, as_fatal_error, nearest

if TYPE_CHECKING:
    from argparse import Namespace
    from types import ModuleType


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
        path = ROOT / f"{self.module.replace('.', '/')}.py"
        with path.open(encoding="utf-8") as source:
            first_line = source.readline()
        return first_line.strip('"\n').partition(": ")[2].removesuffix(".")


def verbs_of(package: str, names: str) -> tuple[Verb, ...]:
    """Return the verbs of a package by their names, in this order; their modules are named as they are."""
    return tuple(Verb(name, f"{package}.verbs.{name.replace('-', '_')}") for name in names.split())


def run_program(package: str, about: str, verbs: Sequence[Verb]) -> int:
    """Run one verb as a program of its own, with which all ends that it starts; return its exit code."""
    console.accept_every_letter()
    # nox that is killed cannot stop its session.
    is_in_session = "NOX_CURRENT_SESSION" in environment()
    process.take_charge(grace_after_death=process.COMMAND_GRACE_SECONDS, ends_with_parent=is_in_session)
    temporary.keep_journal(ROOT / ".cache")
    return main(package, about, verbs)


def main(package: str, about: str, verbs: Sequence[Verb], argv: Sequence[str] | None = None) -> int:
    """Run one verb; return the process's exit code: 0, or that of the error's class."""
    if argv is None:
        argv = sys.argv[1:]
    with as_current_call(FrontDoorCall(package=package, argv=argv)):
        try:
            process.prepare_variables()
            # nox goes to the folder of the noxfile, and the relative paths of its users begin elsewhere.
            os.chdir(environment().get("INVOKED_FROM", "."))
            with process.stopped_by_signals():
                dispatch(package, about, verbs, argv)
        except (Exception, KeyboardInterrupt) as problem:
            if "--debug" in argv and isinstance(problem, Exception):
                raise
            error = as_fatal_error(problem)
            tell(error)
            return error.exit_code
        finally:
            STOPPING.clear()
    return 0


def exit_code(work: Callable[[], object]) -> int:
    """Run what is no verb; its error is printed, and becomes the process's exit code."""
    try:
        work()
    except FatalError as problem:
        console.error(str(problem))
        return problem.exit_code
    return 0


def dispatch(package: str, about: str, verbs: Sequence[Verb], argv: Sequence[str]) -> None:
    """Run one verb in this process; what `main` does besides is told of errors."""
    if not argv or argv[0] in {"-h", "--help"}:
        console.result(_overview(package, about, verbs))
        return
    module, arguments = _parsed(package, verbs, argv)
    console.SCREEN.verbose = arguments.verbose or bool(environment().get("VERBOSE_OUTPUT"))
    module.run(arguments)


def _overview(package: str, about: str, verbs: Sequence[Verb]) -> str:
    lines = [f"usage: python -m {package} VERB [options]", "", about, ""]
    width = max(len(verb.name) for verb in verbs)
    lines += [f"  {verb.name.ljust(width)}  {verb.summary}" for verb in verbs]
    return "\n".join(lines)


def parsed_call(package: str, argv: Sequence[str]) -> tuple[ModuleType, Namespace]:
    """Return the module of the verb that a command line calls, and its parsed arguments."""
    front_door = import_module(f"{package}.__main__")
    verbs: Sequence[Verb] = front_door.VERBS
    return _parsed(package, verbs, argv)


def options_with_effect(
    package: str, argv: Sequence[str], shared_options: Sequence[str]
) -> tuple[Sequence[str], frozenset[str]]:
    """Return those of the options of several sessions that a verb takes, and the names of those left out.

    Raises:
        UsageError: The verb does not take the others.
    """
    front_door = import_module(f"{package}.__main__")
    (verb,) = [verb for verb in front_door.VERBS if verb.name == argv[0]]
    _module, parser = verb_parser(package, verb)
    options, names = take_out_options_without_effect(parser, shared_options)
    parsed_call(package, [*argv, *options])
    return options, names


def _parsed(package: str, verbs: Sequence[Verb], argv: Sequence[str]) -> tuple[ModuleType, Namespace]:
    verbs_by_name = {verb.name: verb for verb in verbs}
    verb_name, *options = argv
    if verb_name not in verbs_by_name:
        hint = nearest(verb_name, verbs_by_name)
        raise UsageError(f"python -m {package} has no verb {verb_name!r}.", hint=hint)

    module, parser = verb_parser(package, verbs_by_name[verb_name])
    if not getattr(module, "PASSES_REST", False):
        return module, parser.parse_args(options)

    arguments, unknown_options = parser.parse_known_args(options)
    parser.refuse_misspelt_options(unknown_options)
    arguments.rest = [option for option in unknown_options if option != "--"]
    arguments.words = options
    return module, arguments


def verb_parser(package: str, verb: Verb) -> tuple[ModuleType, VerbParser]:
    """Import a verb, and return it with the parser of its options, the common ones first."""
    module = import_module(verb.module)
    parser = VerbParser(prog=f"python -m {package} {verb.name}", description=verb.summary, allow_abbrev=False)
    add_common(parser, module.COMMON_OPTIONS)
    module.add_options(parser)
    parser.speaks_as_session = True
    return module, parser
