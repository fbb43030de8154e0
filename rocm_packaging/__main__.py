"""The front door: `python -m rocm_packaging VERB`."""

import sys

from core.cli import main, verbs_of

VERBS = verbs_of("rocm_packaging", "build test")

if __name__ == "__main__":
    sys.exit(main("rocm_packaging", "ROCm artifacts to Python packages.", VERBS))
