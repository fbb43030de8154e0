"""`python -m core.cli.shared_options`: divide the options of a call of nox among its sessions.

nox gives what follows the two dashes to every session of a call. The noxfile puts into the variable
SHARED_OPTIONS, as JSON, the words of each session's front door (package, verb, options of its cell) and the
options. The answer, as JSON on standard output, has the options of each session.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from core import console
from core.cli import options_with_effect
from core.cli.failures import tell
from core.cli.options import environment
from core.errors import UsageError

SHARED_OPTIONS = "SHARED_OPTIONS"


def divide_options(
    front_doors: Mapping[str, Sequence[str]], shared_options: Sequence[str]
) -> Mapping[str, Sequence[str]]:
    """Return the options of each session: without the common ones that have an effect in others alone.

    Raises:
        UsageError: A session does not have an option, or none of them has a use for it.
    """
    options_of_sessions: dict[str, Sequence[str]] = {}
    left_out_of_sessions: list[frozenset[str]] = []
    for session, (package, *argv) in front_doors.items():
        try:
            options, left_out = options_with_effect(package, argv, shared_options)
        except UsageError as problem:
            raise UsageError(
                f"{session} cannot run with these options, and nothing was begun: {problem.message}",
                hint="What follows -- is given to every session of a call. "
                f"Call {session} by itself, with options that it has.",
            ) from problem
        options_of_sessions[session] = options
        left_out_of_sessions.append(left_out)

    useless_options = frozenset.intersection(*left_out_of_sessions)
    if useless_options:
        names = " and ".join(sorted(useless_options))
        raise UsageError(
            f"{names}: without effect on any of {', '.join(front_doors)}. Nothing was begun.",
            hint="Leave it out.",
        )
    return options_of_sessions


def main() -> int:
    """Print the options of each session, or what is refused; return the exit code of the process."""
    call = json.loads(environment()[SHARED_OPTIONS])
    try:
        options_of_sessions = divide_options(call["front_doors"], call["options"])
    except UsageError as problem:
        tell(problem)
        return problem.exit_code
    console.result(json.dumps(options_of_sessions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
