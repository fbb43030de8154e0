"""The front door: `python -m rocm_packaging VERB`."""

from __future__ import annotations

import sys

from core.cli import Verb, main

VERBS = (
    Verb("build", "rocm_packaging.verbs.build", "ROCm artifacts -> rocm sdist and rocm-sdk-* wheels"),
    Verb(
        "test", "rocm_packaging.verbs.test", "ROCm packages -> a clean environment, and rocm-sdk test there"
    ),
)

if __name__ == "__main__":
    sys.exit(main("rocm_packaging", "ROCm artifacts to Python packages.", VERBS))
