"""Chooses the checks that fit what is installed, runs them, and reports."""

import importlib.util
import platform
import time

from .. import _dist_info
from . import base, core, devel, device, libraries, profiler, report, support
from .checks import Check, Skip, results_of


def phases():
    """Lists of checks; a list begins when the one before it is done.

    Each is a function, as what there is to check may follow from the phase before.
    """
    has_devel = importlib.util.find_spec("rocm_sdk_devel") is not None
    yield lambda: [*base.checks(), *([devel.expand()] if has_devel else [])]
    yield lambda: [
        *base.whole(),
        *core.checks(),
        *(
            libraries.checks()
            if _dist_info.installed_libraries()
            else [_left_out("libraries", "the libraries are not installed")]
        ),
        *device.checks(),
        *(profiler.checks() if _has_profiler() else [_left_out("profiler", "it is not installed")]),
        *(
            devel.checks()
            if has_devel
            else [_left_out("devel", "the development tree is not installed")]
        ),
    ]


def _has_profiler():
    entry = _dist_info.ALL_PACKAGES.get("profiler")
    return entry is not None and entry.has_py_package()


def _left_out(group, reason):
    def skip():
        raise Skip(reason)

    return Check(group, "all checks", skip)


def _listed(phase, number):
    """The checks of a phase; one that fails, where they cannot even be listed."""
    try:
        return phase()
    except Exception as problem:
        text = f"{type(problem).__name__}: {problem}"

        def fail():
            raise AssertionError(text)

        return [Check("base", f"what there is to check, part {number}", fail)]


def main(junit=None, jobs=None):
    """Run the checks, print their results, write them to a JUnit file.

    Args:
        junit: Where the JUnit file goes, if anywhere.
        jobs: How many checks run side by side; None: one a core.

    Returns:
        The exit status: 1 where a check failed, or none passed.
    """
    started = time.monotonic()
    results = []
    for number, phase in enumerate(phases(), 1):
        for result in results_of(_listed(phase, number), jobs):
            print(report.line(result), flush=True)
            results.append(result)
    if junit:
        report.write(junit, report.junit(results, facts()))
    number = report.counts(results)
    print(
        f"Ran {len(results)} checks in {time.monotonic() - started:.1f} s: {number['passed']} passed, "
        f"{number['failed']} failed, {number['skipped']} skipped"
    )
    return 1 if number["failed"] or not number["passed"] else 0


def facts():
    """What was checked, for the report."""
    return {
        "rocm": _dist_info.__version__,
        "families": ";".join(_dist_info.installed_target_families()),
        "packages": ";".join(support.installed()),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
