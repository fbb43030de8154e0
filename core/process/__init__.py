"""The one door for processes: argument lists, echoed, with explicit folder and environment.

The tool's own environment is never changed, but for empty variables, which a front door drops, and for its
PATH, which it rids of foreign programs.
A child gets the mapping it is given, by default what environment.toml allows upstream's code. Whatever a
command has started ends with it, and all of it with this process, however that ends: `linux` and `windows`
say how. `supervise` runs a command under limits; its output goes to a file and never through this process,
so that its size does not matter.
"""

from core.process.commands import (
    COMMAND_GRACE_SECONDS,
    SESSION_GRACE_SECONDS,
    Child,
    Completed,
    capture,
    logged,
    run,
    start,
    status,
)
from core.process.stopping import stopped_by_signals
from core.process.supervision import Ending, supervise, tail
from core.process.tree import take_charge
from core.process.variables import byte_code, handed_on, inherited, prepare_variables, which

__all__ = [
    "COMMAND_GRACE_SECONDS",
    "SESSION_GRACE_SECONDS",
    "Child",
    "Completed",
    "Ending",
    "byte_code",
    "capture",
    "handed_on",
    "inherited",
    "logged",
    "prepare_variables",
    "run",
    "start",
    "status",
    "stopped_by_signals",
    "supervise",
    "tail",
    "take_charge",
    "which",
]
