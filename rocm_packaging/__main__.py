"""The front door: `python -m rocm_packaging VERB`."""

from __future__ import annotations

import sys

from core.frontdoor import Verb, main

VERBS = (Verb("build", "rocm_packaging.verbs.build", "ROCm artifacts -> rocm sdist and rocm-sdk-* wheels"),)

if __name__ == "__main__":
    sys.exit(main("rocm_packaging", "ROCm artifacts to Python packages.", VERBS))
