"""The front door: `python -m pytorch_build VERB`."""

from __future__ import annotations

import sys

from core.cli import main, verbs_of

VERBS = verbs_of(
    "pytorch_build",
    {
        "resolve": "torch ref -> source lock: commits and versions",
        "install-rocm": "install ROCm into a target environment",
        "prepare": "pinned libuv and OpenMP, where builds need them",
        "checkout": "source lock -> source trees, tagged and hipified",
        "build": "source tree, ROCm, torch -> one wheel and its record",
        "check-wheels": "wheels -> findings",
        "repair-wheel": "wheel -> the manylinux tag that it satisfies, libraries grafted",
        "split-wheel": "fat wheel -> host wheel, device code by GPU",
        "fat-wheel": "wheel, ROCm -> stand-alone wheel",
        "test-smoke": "install a run's wheels from its index, import and compute",
        "test-torch": "upstream's own unit tests, on GPUs of a family",
        "skips": "which of upstream's tests are skipped, and why",
        "test-report": "JUnit of all shards and cells -> one summary",
    },
)

if __name__ == "__main__":
    sys.exit(main("pytorch_build", "PyTorch sources to checked and tested wheels.", VERBS))
