"""The tools of others that ours are compared with."""

import sys
from pathlib import Path

from core import files, process
from core.cli.options import ROOT
from core.env import installer

LOCK = ROOT / "requirements" / "baselines.txt"
ENVIRONMENTS = ROOT / ".cache" / "baselines"


def baseline_program(name: str, python: str = sys.executable) -> Path:
    """Return a program of others. Its environment is created again when the lock has changed."""
    environment = ENVIRONMENTS / Path(python).name
    stamp = environment / "made_of"
    inputs = f"{files.sha256(LOCK)} {python}"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != inputs:
        _create_environment(environment, python)
        files.write_text(stamp, inputs)
    return environment / "bin" / name


def _create_environment(environment: Path, python: str) -> None:
    uv = installer.uv_program()
    process.capture([uv, "venv", "--no-python-downloads", "--clear", "--python", python, environment])

    interpreter = environment / "bin" / "python"
    process.capture([uv, "pip", "sync", "--python", interpreter, "--require-hashes", LOCK])
