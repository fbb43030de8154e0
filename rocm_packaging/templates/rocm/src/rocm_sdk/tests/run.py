"""Chooses the checks that fit what is installed, runs them, and reports."""

import importlib.util
import platform
import time

from .. import _dist_info, _installed
from . import base, core, devel, device, libraries, profiler, report
from .check import Check, run_checks, skipped_check


def phases():
    """Return functions that list checks; one is called when the checks of the one before are done.

    What there is to check may follow from the phase before: libraries of the expanded tree.
    """
    return [_checks_before_expansion, _checks_after_expansion]


def _checks_before_expansion():
    checks = [*base.checks()]
    if _has_devel():
        checks.append(devel.expansion_check())
    return checks


def _checks_after_expansion():
    checks = [*base.checks_of_files(), *core.checks()]

    if _dist_info.installed_libraries():
        checks += libraries.checks()
    else:
        checks.append(
            skipped_check(
                "libraries", "all checks", "the libraries are not installed"
            )
        )
    checks += device.checks()

    if _has_profiler():
        checks += profiler.checks()
    else:
        checks.append(
            skipped_check("profiler", "all checks", "it is not installed")
        )

    if _has_devel():
        checks += devel.checks()
    else:
        checks.append(
            skipped_check(
                "devel", "all checks", "the development tree is not installed"
            )
        )
    return checks


def _has_devel():
    return importlib.util.find_spec("rocm_sdk_devel") is not None


def _has_profiler():
    entry = _dist_info.ALL_PACKAGES.get("profiler")
    return entry is not None and entry.has_py_package()


def _list_checks(phase, number):
    """Return the checks of a phase; one that fails, where they cannot even be listed."""
    try:
        return phase()
    except Exception as problem:
        text = f"{type(problem).__name__}: {problem}"

        def fail():
            raise AssertionError(text)

        return [Check("base", f"what there is to check, part {number}", fail)]


def main(report_path=None, jobs=None):
    """Run the checks, print their results, write them to a JSON file.

    Args:
        report_path: Where the file goes, if anywhere.
        jobs: How many checks run side by side; None: one a core.

    Returns:
        The exit status: 1 where a check failed, or none passed.
    """
    started = time.monotonic()
    rows = []
    for number, phase in enumerate(phases(), 1):
        for row in run_checks(_list_checks(phase, number), jobs):
            print(report.line(row), flush=True)
            rows.append(row)
    if report_path is not None:
        report.write(report_path, _facts(), rows)

    counts = report.count_outcomes(rows)
    print(
        f"Ran {len(rows)} checks in {time.monotonic() - started:.1f} s: {counts['passed']} passed, "
        f"{counts['failed']} failed, {counts['skipped']} skipped"
    )
    return 1 if counts["failed"] or not counts["passed"] else 0


def _facts():
    """Return what was checked, for the report."""
    return {
        "rocm": _dist_info.__version__,
        "families": ";".join(_dist_info.installed_target_families()),
        "packages": ";".join(_installed.rocm_distributions()),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
