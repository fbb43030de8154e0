"""The front door: `python -m pytorch_build VERB`."""

from __future__ import annotations

import sys

from core.cli import Verb, main

VERBS = (
    Verb("resolve", "pytorch_build.verbs.resolve", "torch ref -> source lock: commits and versions"),
    Verb("install-rocm", "pytorch_build.verbs.install_rocm", "install ROCm into a target environment"),
    Verb("prepare", "pytorch_build.verbs.prepare", "pinned libuv and OpenMP, where builds need them"),
    Verb("checkout", "pytorch_build.verbs.checkout", "source lock -> source trees, tagged and hipified"),
    Verb("build", "pytorch_build.verbs.build", "source tree, ROCm, torch -> one wheel and its record"),
    Verb("check-wheels", "pytorch_build.verbs.check_wheels", "wheels -> findings"),
    Verb(
        "repair-wheel",
        "pytorch_build.verbs.repair_wheel",
        "wheel -> the manylinux tag that it satisfies, libraries grafted",
    ),
    Verb("split-wheel", "pytorch_build.verbs.split_wheel", "fat wheel -> host wheel, device code by GPU"),
    Verb("fat-wheel", "pytorch_build.verbs.fat_wheel", "wheel, ROCm -> stand-alone wheel"),
    Verb(
        "test-smoke",
        "pytorch_build.verbs.test_smoke",
        "install a run's wheels from its index, import and compute",
    ),
    Verb("test-torch", "pytorch_build.verbs.test_torch", "upstream's own unit tests, on GPUs of a family"),
    Verb("skips", "pytorch_build.verbs.skips", "which of upstream's tests are skipped, and why"),
    Verb("test-report", "pytorch_build.verbs.test_report", "JUnit of all shards and cells -> one summary"),
)

if __name__ == "__main__":
    sys.exit(main("pytorch_build", "PyTorch sources to checked and tested wheels.", VERBS))
