"""Other people's tools, locked in an environment of their own: what figures are compared with."""

import sys
from pathlib import Path

from core import files, process
from core.cli.options import ROOT
from core.env import installer

LOCK = ROOT / "requirements" / "baselines.txt"
ENVIRONMENT = ROOT / ".cache" / "baselines"


def program(name: str) -> Path:
    """Give a baseline's program; the environment is made again when its lock changed."""
    done, uv = ENVIRONMENT / "lock.sha256", installer.uv_program()
    digest = files.sha256(LOCK)
    if not done.is_file() or done.read_text(encoding="utf-8") != digest:
        process.capture([uv, "venv", "--clear", "--python", sys.executable, ENVIRONMENT])
        python = ENVIRONMENT / "bin" / "python"
        process.capture([uv, "pip", "sync", "--python", python, "--require-hashes", LOCK])
        files.write_text(done, digest)
    return ENVIRONMENT / "bin" / name
