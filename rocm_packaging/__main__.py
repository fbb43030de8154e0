"""The front door: `python -m rocm_packaging VERB`."""

import sys

from core.cli import run_program, verbs_of

VERBS = verbs_of("rocm_packaging", "build test")

if __name__ == "__main__":
    sys.exit(run_program("rocm_packaging", "ROCm artifacts to Python packages.", VERBS))
