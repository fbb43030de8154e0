"""Runs the tests of a `rocm_sdk` that others built, in its environment, and writes their results as JSON.

TheRock's packages run theirs by `unittest` and write no report. This program is started with the
environment's Python, so it imports nothing of this project but the module that it is given:

    python -I recorded_unittest.py REPORT_MODULE FILE
"""

import importlib.util
import sys
import unittest
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any


def run_tests(report: ModuleType, path: Path) -> None:
    """Run `rocm-sdk test`, and write what its tests came to; `report` is the module of our own checks."""
    results: list[Any] = []

    class PrintedResult(report.Recorder, unittest.TextTestResult):  # type: ignore[misc, name-defined]
        """What unittest prints, and a row a test."""

        def __init__(self, stream: Any, descriptions: bool, verbosity: int) -> None:  # noqa: ANN401, FBT001
            super().__init__(stream, descriptions, verbosity)
            results.append(self)

    # The runner is made by `rocm_sdk`, which chooses the modules of tests by what is installed.
    unittest.TextTestRunner.resultclass = PrintedResult
    try:
        import_module("rocm_sdk.__main__").main(["test"])
    finally:
        rows: list[Any] = []
        for result in results:
            rows += result.rows
        report.write(path, {"rocm": metadata.version("rocm")}, rows)


def load_module(path: str) -> ModuleType:
    """Load a module from its file."""
    spec = importlib.util.spec_from_file_location("sdk_test_report", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    run_tests(load_module(sys.argv[1]), Path(sys.argv[2]))
