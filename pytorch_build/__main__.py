"""The front door: `python -m pytorch_build VERB`."""

import sys

from core.cli import run_program, verbs_of

VERBS = verbs_of(
    "pytorch_build",
    "resolve install-rocm checkout build check-wheels repair-wheel split-wheel fat-wheel "
    "test-smoke test-torch test-report",
)

if __name__ == "__main__":
    sys.exit(run_program("pytorch_build", "PyTorch sources to checked and tested wheels.", VERBS))
