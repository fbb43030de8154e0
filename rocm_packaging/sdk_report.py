"""The report of `rocm-sdk test`: read from its JSON, counted, and written as JUnit."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from typing import Literal

from pydantic import Field, ValidationError

from core.data import Model
from core.errors import CheckError

Outcome = Literal["passed", "failed", "skipped"]

# What XML 1.0 cannot hold, not even escaped.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class CheckResult(Model):
    """One check; `text` says why it failed or was skipped, and `traceback` where."""

    group: str
    name: str
    outcome: Outcome
    text: str = ""
    traceback: str = ""
    seconds: float = 0

    @property
    def reason(self) -> str:
        """The first line of the text."""
        return self.text.partition("\n")[0]


class SdkReport(Model):
    """What `rocm-sdk test` reports: facts about the installation, and its checks."""

    facts: dict[str, str] = Field(default_factory=dict)
    checks: tuple[CheckResult, ...]

    @property
    def failed_checks(self) -> list[CheckResult]:
        """The checks that failed."""
        return [check for check in self.checks if check.outcome == "failed"]

    @property
    def groups(self) -> dict[str, list[CheckResult]]:
        """The checks by group, in order."""
        groups: dict[str, list[CheckResult]] = {}
        for check in self.checks:
            groups.setdefault(check.group, []).append(check)
        return groups


def read_report(content: bytes) -> SdkReport:
    """Read the JSON of a report, which has a check at least."""
    try:
        report = SdkReport.model_validate_json(content)
    except ValidationError as problem:
        raise CheckError(f"The report of rocm-sdk test cannot be read: {problem}.") from problem
    if not report.checks:
        raise CheckError("The report of rocm-sdk test holds no check.")
    return report


def count_outcomes(checks: Iterable[CheckResult]) -> dict[str, int]:
    """Count checks that passed, failed and were skipped."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for check in checks:
        counts[check.outcome] += 1
    return counts


def junit_of(report: SdkReport) -> bytes:
    """Write a report as a JUnit document, whose properties are the facts."""
    counts = count_outcomes(report.checks)
    seconds = sum(check.seconds for check in report.checks)
    totals = {
        "tests": str(len(report.checks)),
        "failures": str(counts["failed"]),
        "errors": "0",
        "skipped": str(counts["skipped"]),
        "time": f"{seconds:.3f}",
    }
    root = ET.Element("testsuites", totals)
    suite = ET.SubElement(root, "testsuite", {"name": "rocm-sdk", **totals})

    properties = ET.SubElement(suite, "properties")
    for name, value in report.facts.items():
        ET.SubElement(properties, "property", {"name": name, "value": _printable(value)})
    for check in report.checks:
        _add_case(suite, check)

    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _add_case(suite: ET.Element, check: CheckResult) -> None:
    attributes = {
        "classname": f"rocm_sdk.{check.group}",
        "name": _printable(check.name),
        "time": f"{check.seconds:.3f}",
    }
    case = ET.SubElement(suite, "testcase", attributes)
    if check.outcome == "skipped":
        ET.SubElement(case, "skipped", {"message": _printable(check.text)})
    elif check.outcome == "failed":
        failure = ET.SubElement(case, "failure", {"message": _printable(check.reason)})
        failure.text = _printable("\n\n".join(filter(None, (check.text, check.traceback))))


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
