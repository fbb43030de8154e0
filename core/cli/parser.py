"""The parser of a verb's options, which speaks as the session that calls it."""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

from core.cli.sessions import NoxSession, current_call
from core.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

# None of pytest's own options is as near as this to one of ours.
_LEAST_SIMILARITY = 0.85

# How many values an argument without a name takes, as argparse says it, and how a usage line writes that.
_USAGE_FORMS = {"*": "[{0} ...]", "?": "[{0}]", "+": "{0} [{0} ...]"}


class VerbParser(argparse.ArgumentParser):
    """A parser whose errors are `UsageError`, and name the option that a misspelt one is nearest to."""

    # A verb's own parser, and not that of one of its subcommands, speaks as the session.
    speaks_as_session = False

    def error(self, message: str) -> NoReturn:
        """Refuse what was given."""
        self._speak_as_session()
        hints = [f"See: {self.prog} --help"]
        suggestion = self._suggestion(message)
        if suggestion is not None:
            hints.insert(0, suggestion)
        raise UsageError(message, hint=" ".join(hints))

    def refuse_misspelt_options(self, unknown_options: Sequence[str]) -> None:
        """Refuse what another program would get where it is nearly an option of ours."""
        known_options = self._option_string_actions
        for argument in unknown_options:
            option = argument.partition("=")[0]
            if not option.startswith("--") or option in known_options:
                continue
            if get_close_matches(option, known_options, 1, _LEAST_SIMILARITY):
                self.error(f"unrecognized arguments: {option}")

    def format_help(self) -> str:
        """Return the help, which names every option once: not in the usage, too."""
        self._speak_as_session()
        usage = [self.prog, "[OPTION ...]"]
        for action in self._actions:
            if not action.option_strings and action.help != argparse.SUPPRESS:
                form = _USAGE_FORMS.get(str(action.nargs), "{0}")
                usage.append(form.format(action.metavar or action.dest))
        self.usage = " ".join(usage)
        return super().format_help()

    def _speak_as_session(self) -> None:
        """Name the session of nox that is called, if one is, and hide the words that it gives itself."""
        call = current_call()
        session = NoxSession.current()
        if call is None or not call.argv or session is None or not self.speaks_as_session:
            return
        self.prog = f"nox -s {session.name} --"

        given_arguments = session.own_arguments(call.argv)[1:]
        positional_actions = [action for action in self._actions if not action.option_strings]
        for action in positional_actions[: len(given_arguments)]:
            action.help = argparse.SUPPRESS

    def _suggestion(self, message: str) -> str | None:
        """Return the option that a misspelt one may mean; None where none is near."""
        if not message.startswith("unrecognized arguments"):
            return None
        for argument in message.split():
            if not argument.startswith("--"):
                continue
            suggestion = nearest(argument.partition("=")[0], self._option_string_actions)
            if suggestion.startswith("Did you mean"):
                return suggestion
        return None
