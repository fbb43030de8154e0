"""Everything that a command starts, on this platform."""

import sys

if sys.platform == "win32":
    from core.process.windows import STARTING, CommandTree, take_charge
else:
    from core.process.linux import STARTING, CommandTree, take_charge

__all__ = ["STARTING", "CommandTree", "take_charge"]
