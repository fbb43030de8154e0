"""Reading what `rocm-sdk test` reports, and showing it as a table."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core import console, junit
from core.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX = "rocm_sdk."


@dataclass(frozen=True, kw_only=True)
class Case:
    """One check."""

    group: str
    name: str
    outcome: str
    text: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """All checks of one run, and facts about what was checked."""

    cases: tuple[Case, ...]
    properties: Mapping[str, str]

    @property
    def total(self) -> int:
        """How many checks there are."""
        return len(self.cases)

    @property
    def failed(self) -> tuple[Case, ...]:
        """The checks that failed."""
        return tuple(case for case in self.cases if case.outcome == "failed")

    @property
    def passed(self) -> tuple[Case, ...]:
        """The checks that passed."""
        return tuple(case for case in self.cases if case.outcome == "passed")

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each outcome."""
        outcomes = [case.outcome for case in self.cases]
        return {outcome: outcomes.count(outcome) for outcome in ("passed", "failed", "skipped")}


def read(content: bytes) -> Report:
    """Read a JUnit document of `rocm-sdk test`."""
    document = junit.read(content)
    if document.problems == (junit.NO_TEST,):
        raise CheckError("The report of rocm-sdk test holds no check.")
    if document.problems:
        raise CheckError(f"The report of rocm-sdk test cannot be read: {document.problems[0]}.")
    return Report(cases=tuple(map(_case, document.cases)), properties=document.properties)


def write(report: Report) -> bytes:
    """Write a report as JUnit, as `read` takes it."""
    suite = ET.Element("testsuite", name="rocm-sdk test", tests=str(report.total))
    suite.set("failures", str(report.counts["failed"]))
    suite.set("skipped", str(report.counts["skipped"]))
    properties = ET.SubElement(suite, "properties")
    for name, value in sorted(report.properties.items()):
        ET.SubElement(properties, "property", name=name, value=value)
    for case in report.cases:
        element = ET.SubElement(
            suite, "testcase", classname=f"{_PREFIX}{case.group}", name=case.name, time=str(case.seconds)
        )
        if case.outcome == "failed":
            ET.SubElement(element, "failure", message=case.text.partition("\n")[0]).text = case.text
        elif case.outcome == "skipped":
            ET.SubElement(element, "skipped", message=case.text)
    root = ET.Element("testsuites")
    root.append(suite)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _case(case: junit.Case) -> Case:
    group, _, name = case.test.rpartition("::")
    outcome = "failed" if case.failing else "skipped" if case.outcome in {"skipped", "xfailed"} else "passed"
    return Case(
        group=group.removeprefix(_PREFIX),
        name=name,
        outcome=outcome,
        text="" if outcome == "passed" else case.text,
        seconds=case.seconds,
    )


def show(report: Report) -> None:
    """Print one row a group, then what failed."""
    rows = []
    for group in dict.fromkeys(case.group for case in report.cases):
        cases = tuple(case for case in report.cases if case.group == group)
        counts = Report(cases=cases, properties={}).counts
        seconds = sum(case.seconds for case in cases)
        rows.append((group, *(str(number) for number in counts.values()), f"{seconds:.1f}"))
    console.table(("rocm-sdk test", "passed", "failed", "skipped", "seconds"), rows)
    failed = [(f"{case.group}: {case.name}", case.text.partition("\n")[0]) for case in report.failed]
    console.table(("failed", "why"), failed)
