"""Everything that a command starts, on this platform."""

import sys

if sys.platform == "win32":
    from core.process.windows import CREATION_FLAGS, STARTING, CommandTree, take_charge
else:
    from core.process.linux import CREATION_FLAGS, STARTING, CommandTree, take_charge

__all__ = ["CREATION_FLAGS", "STARTING", "CommandTree", "take_charge"]
