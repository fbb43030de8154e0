"""Reading what `unittest` prints: packages that others built test themselves with it, and write no report.

Format: `unittest.TextTestRunner` with verbosity 2 or 3: a line a test with its
result, perhaps with other output in between; a traceback a failure; ``Ran N tests in S``; the sum.
"""

from __future__ import annotations

import re

from core.errors import CheckError
from rocm_packaging.sdk.reports import Case, Report

_TEST = re.compile(r"^(?P<name>\w+) \((?P<id>[\w.]+)\)", re.MULTILINE)
_SKIPPED = re.compile(r"\.\.\. (?:.*\n)*?skipped (['\"])(?P<reason>.*)\1$", re.MULTILINE)
_PASSED = ("ok", "expected failure")  # what a test has printed may stand right before it
_SET_UP = ("setUp", "tearDown")  # of a class or module: no test, and listed only when it fails
_RULE = "=" * 70
_LINE = "-" * 70
_SECTION = re.compile(rf"^{_RULE}\n(?:FAIL|ERROR): (?P<what>.*)\n(?:.*\n)*?{_LINE}\n", re.MULTILINE)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$", re.MULTILINE)
_RAN = re.compile(r"^Ran (?P<count>\d+) tests? in (?P<seconds>[\d.]+)s$", re.MULTILINE)


def parse_unittest(*streams: str) -> Report:
    """Read the output of one run."""
    text = next((one for one in streams if _RAN.search(one)), "")
    ran = list(_RAN.finditer(text))
    if len(ran) != 1:
        raise CheckError(
            f"The tests ended without saying how many ran ({len(ran)} sums instead of one), "
            "so no result is known.",
            hint="Their own words stand above.",
        )
    listed, _, told = text[: ran[0].start()].removesuffix(f"{_LINE}\n").partition(f"\n{_RULE}\n")
    why = _reasons(f"{_RULE}\n{told}") if told else {}
    cases = _unittest_cases(listed, why)
    tests = [case for case in cases if not case.name.startswith(_SET_UP)]
    count = len(tests)
    # Python 3.12.1 counted no skipped tests; those before and after it do
    counts = (count, sum(case.outcome != "skipped" for case in tests))
    if not count or int(ran[0]["count"]) not in counts:
        raise CheckError(
            f"The tests say that {ran[0]['count']} ran, and list {count}, so no result is known.",
            hint="Their own words stand above.",
        )
    return Report(cases=tuple(cases), properties={})


def _unittest_cases(listed: str, why: dict[str, str]) -> list[Case]:
    starts = list(_TEST.finditer(listed))
    ends = [*(start.start() for start in starts[1:]), len(listed)]
    return [
        _unittest_case(start, listed[start.end() : end], why)
        for start, end in zip(starts, ends, strict=False)
    ]


def _unittest_case(start: re.Match[str], said: str, why: dict[str, str]) -> Case:
    # sub-tests have sections of their own, whose names go on
    reasons = [reason for what, reason in why.items() if what.startswith(start[0])]
    skipped = _SKIPPED.search(said)
    if reasons:
        outcome, text = "failed", reasons[0]
    elif skipped:
        outcome, text = "skipped", skipped["reason"]
    elif said.rstrip().endswith(_PASSED):
        outcome, text = "passed", ""
    else:
        outcome, text = "failed", said.strip().rpartition("\n")[2] or "it ended without a result"
    return Case(group=_group(start["id"]), name=start["name"], outcome=outcome, text=text, seconds=0)


def _group(test_id: str) -> str:
    """Name what a test is about, by its module: ``rocm_sdk.tests.core_test.Core.test_x`` -> ``core``."""
    found = re.search(r"(\w+?)_test\b", test_id)
    return found[1] if found else "base"


def _reasons(told: str) -> dict[str, str]:
    """Give the line of each traceback that names the exception, by the test's own line."""
    sections = list(_SECTION.finditer(told))
    ends = [*(section.start() for section in sections[1:]), len(told)]
    reasons = {}
    for section, end in zip(sections, ends, strict=False):
        lines = _EXCEPTION.findall(told[section.end() : end])
        reasons[section["what"]] = lines[-1] if lines else "it failed"
    return reasons
