"""The front doors of the three packages, as a shell goes through them."""

from collections.abc import Mapping, Sequence
from typing import Literal

import ci.__main__
import pytorch_build.__main__
import rocm_packaging.__main__
from core.cli import Verb, main

Package = Literal["ci", "pytorch_build", "rocm_packaging"]

VERBS: Mapping[Package, Sequence[Verb]] = {
    "ci": ci.__main__.VERBS,
    "pytorch_build": pytorch_build.__main__.VERBS,
    "rocm_packaging": rocm_packaging.__main__.VERBS,
}


def run_verb(package: Package, verb: str, *words: object) -> int:
    """Run a verb of a package with its options; return the exit code."""
    return main(package, "", VERBS[package], [verb, *map(str, words)])


def run_ci(*words: object) -> int:
    """Run a verb of `ci` with its options; return the exit code."""
    verb, *options = words
    return run_verb("ci", str(verb), *options)
