"""Verbs with two modes: an option that has no effect in the chosen mode is refused by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable


def declared_options(parser: argparse.ArgumentParser, *names: str) -> tuple[argparse.Action, ...]:
    """Return options that a parser has, by their names."""
    # argparse has no public way to ask for them.
    known_actions = parser._option_string_actions  # noqa: SLF001
    return tuple(known_actions[name] for name in names)


def refuse_options(
    arguments: argparse.Namespace,
    actions: Iterable[argparse.Action],
    *,
    mode: str,
    hint: str = "Leave it out.",
) -> None:
    """Refuse the first of these options that was given.

    Args:
        arguments: What the command line says.
        actions: The options that only count in another mode, as the parser declared them.
        mode: When they have no effect, such as ``with --plan``.
        hint: What to do.
    """
    for action in actions:
        if getattr(arguments, action.dest) != action.default:
            raise UsageError(f"{_name(action)} has no effect {mode}.", hint=hint)


def _name(action: argparse.Action) -> str:
    """Return the name of an option, the long one if it has one, or of an argument."""
    long_names = [name for name in action.option_strings if name.startswith("--")]
    names = [*long_names, *action.option_strings, str(action.metavar or action.dest)]
    return names[0]
