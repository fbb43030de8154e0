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
    """Import, compare, report."""
    parser = argparse.ArgumentParser(description="Import a distribution's modules and compare versions.")
    parser.add_argument("--distribution", required=True)
    parser.add_argument("--version", required=True, help="the version that must be installed")
    parser.add_argument("--module", required=True)
    parser.add_argument("--public", action="store_true", help="modules state the version without local part")
    options = parser.parse_args()
    with _own_output() as output:
        problems = check(
            options.distribution,
            options.version,
            options.module,
            public=options.public,
        )
        output.write(json.dumps({"problems": problems}) + "\n")
    return 1 if problems else 0


def check(
    distribution: str,
    version: str,
    module: str,
    *,
    public: bool,
) -> list[str]:
    """Import a module and compare what it says with what is installed; return every problem."""
    problems: list[str] = []
    try:
        installed = importlib.metadata.version(distribution)
        if normal(installed) != normal(version):
            problems.append(f"{distribution} {installed} is installed; {version} is expected.")
    except importlib.metadata.PackageNotFoundError:
        problems.append(f"{distribution} is not installed.")
    try:
        stated = getattr(importlib.import_module(module), "__version__", None)
    # SystemExit included: a module that ends the process on import does not work.
    except BaseException as problem:  # noqa: BLE001 - whatever it raises is what is reported
        traceback.print_exc()
        return [*problems, f"import {module} failed: {type(problem).__name__}: {problem}"]
    wanted, shown = version, str(stated)
    if public:
        wanted, shown = wanted.partition("+")[0], shown.partition("+")[0]
    if stated is not None and normal(shown) != normal(wanted):
        problems.append(f"{module}.__version__ is {stated}; {wanted} is expected.")
    return problems


def normal(version: str) -> str:
    """Write a version so that spellings of the same one are equal, as far as wheels spell it."""
    public, _, local = version.strip().lower().partition("+")
    return public + ("+" + re.sub(r"[-_.]+", ".", local) if local else "")


@contextmanager
def _own_output() -> Iterator[TextIO]:
    """Keep standard output for the report: modules, and libraries below Python, write elsewhere."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as stream:
        os.dup2(2, 1)
        try:
            yield stream
        finally:
            sys.stdout.flush()
            stream.flush()
            os.dup2(stream.fileno(), 1)


if __name__ == "__main__":
    sys.exit(main())
