"""`python -m core.cli.later_sessions`: refuse options that a later session of a call of nox does not have.

The noxfile names the sessions in the variable LATER_SESSIONS, as JSON: each with the words of its front door,
which are its package, its verb and its options.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from core.cli import parsed_call
from core.cli.failures import tell
from core.cli.options import environment
from core.errors import UsageError

LATER_SESSIONS = "LATER_SESSIONS"


def require_known_options(front_doors: Mapping[str, Sequence[str]]) -> None:
    """Refuse options that the front door of a session does not take.

    Raises:
        UsageError: It names the session, which the person may have to call by itself.
    """
    for session, (package, *argv) in front_doors.items():
        try:
            parsed_call(package, argv)
        except UsageError as problem:
            raise UsageError(
                f"{session} cannot run with these options, and nothing was begun: {problem.message}",
                hint="What follows -- is given to every session of a call. "
                f"Call {session} by itself, with options that it has.",
            ) from problem


def main() -> int:
    """Print what is refused; return the exit code of the process."""
    try:
        require_known_options(json.loads(environment()[LATER_SESSIONS]))
    except UsageError as problem:
        tell(problem)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
