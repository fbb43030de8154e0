"""`python -m core` has no verbs: it says where to look for them."""

import sys

from core.cli import exit_code
from core.errors import UsageError


def refuse_call() -> None:
    """Say where the verbs are."""
    raise UsageError("core has no verbs of its own: nox -l lists the sessions that call those of others.")


if __name__ == "__main__":
    sys.exit(exit_code(refuse_call))
