"""Runs in a target environment: imports a distribution's module and reports problems as JSON.

Standard library only, and old syntax, as it runs under the target's Python. Standard output
holds one JSON document; what the modules print goes to standard error. Exit status 1 means
that `problems` is not empty.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


def main() -> int:
    """Import the module that the arguments name, print what is wrong as JSON, and return the exit status."""
    parser = argparse.ArgumentParser(description="Import a distribution's module and compare versions.")
    parser.add_argument("--distribution", required=True)
    parser.add_argument(
        "--version",
        required=True,
        help="the version that must be installed",
    )
    parser.add_argument("--module", required=True)
    parser.add_argument(
        "--public",
        action="store_true",
        help="modules state the version without local part",
    )
    options = parser.parse_args()

    with _redirected_output() as report:
        problems = list(_compare_installed(options.distribution, options.version))
        problems += _import_module(options.module, options.version, public=options.public)
        report.write(json.dumps({"problems": problems}) + "\n")
    return 1 if problems else 0


def _compare_installed(distribution: str, version: str) -> Iterator[str]:
    """Yield a sentence where the distribution is not installed in this version."""
    try:
        installed_version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        yield f"{distribution} is not installed."
        return
    if normalized_version(installed_version) != normalized_version(version):
        yield f"{distribution} {installed_version} is installed; {version} is expected."


def _import_module(name: str, version: str, *, public: bool) -> Iterator[str]:
    """Yield a sentence where a module cannot be imported, or states another version."""
    try:
        module = importlib.import_module(name)
    # SystemExit included: a module that ends the process on import does not work.
    except BaseException as problem:  # noqa: BLE001 - whatever it raises is what is reported
        traceback.print_exc()
        yield f"import {name} failed: {type(problem).__name__}: {problem}"
        return

    stated_version = getattr(module, "__version__", None)
    if stated_version is None:
        return
    expected_version = normalized_version(version)
    shown_version = normalized_version(str(stated_version))
    if public:
        expected_version = expected_version.partition("+")[0]
        shown_version = shown_version.partition("+")[0]
    if shown_version != expected_version:
        yield f"{name}.__version__ is {stated_version}; {version} is expected."


def normalized_version(version: str) -> str:
    """Return a version in one spelling: lower case, and dots between the parts of its local label."""
    public, plus, local = version.strip().lower().partition("+")
    return public + plus + re.sub(r"[-_.]+", ".", local)


@contextmanager
def _redirected_output() -> Iterator[TextIO]:
    """Send what modules print to standard error during the block, and give the real output."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as report:
        os.dup2(2, 1)
        try:
            yield report
        finally:
            sys.stdout.flush()
            report.flush()
            os.dup2(report.fileno(), 1)


if __name__ == "__main__":
    sys.exit(main())
