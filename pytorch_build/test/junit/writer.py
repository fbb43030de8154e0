"""Write results as a JUnit report."""

import xml.etree.ElementTree as ET
from collections.abc import Collection, Sequence

from pytorch_build.test.junit.document import Case, Document, Outcome, Suite, suite_totals
from pytorch_build.test.junit.elements import PROBLEM, XFAIL
from pytorch_build.test.junit.texts import clean

# How an outcome is written: element and type.
_ELEMENTS: dict[Outcome, tuple[str, str | None]] = {
    "failed": ("failure", None),
    "error": ("error", None),
    "crashed": ("error", "crashed"),
    "timeout": ("error", "timeout"),
    "skipped": ("skipped", None),
    "xfailed": ("skipped", XFAIL),
    "flaky": ("flakyFailure", None),
}


def write_junit(document: Document) -> bytes:
    """Return results as XML that `reading` returns them from, and any JUnit reader understands."""
    case_count = len(document.cases)
    root = ET.Element("testsuites", tests=str(case_count))
    properties = list(document.properties.items())
    properties += [(PROBLEM, problem) for problem in document.problems]
    _write_properties(root, properties)

    # A file without a result is a suite, too.
    cases_by_file: dict[str, list[Case]] = {name: [] for name in document.suites}
    for case in document.cases:
        cases_by_file.setdefault(case.file, []).append(case)
    for name, cases in cases_by_file.items():
        _write_suite(root, name, cases, document)

    content: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return content


def _write_suite(root: ET.Element, name: str, cases: Sequence[Case], document: Document) -> None:
    suite = document.suites.get(name)
    if suite is None:
        suite = Suite(seconds=sum(case.seconds for case in cases))

    element = ET.SubElement(root, "testsuite", name=clean(name))
    for attribute, count in suite_totals(cases).items():
        element.set(attribute, str(count))
    element.set("time", f"{suite.seconds:.3f}")
    if document.timestamp:
        element.set("timestamp", document.timestamp)

    _write_properties(element, suite.properties.items())
    for case in cases:
        _write_case(element, case)


def _write_properties(parent: ET.Element, properties: Collection[tuple[str, str]]) -> None:
    if not properties:
        return
    element = ET.SubElement(parent, "properties")
    for name, value in properties:
        ET.SubElement(element, "property", name=clean(name), value=clean(value))


def _write_case(suite: ET.Element, case: Case) -> None:
    class_name, _separator, name = case.test.rpartition("::")
    element = ET.SubElement(suite, "testcase")
    element.set("classname", clean(class_name))
    element.set("name", clean(name))
    element.set("time", f"{case.seconds:.3f}")

    # JUnit keeps parts of a test's name alone: the node id is a property of its own.
    properties = [("nodeid", case.test)]
    if case.attempts > 1:
        properties.append(("attempts", str(case.attempts)))
    if case.rule:
        properties.append(("rule", case.rule))
    _write_properties(element, properties)

    if case.outcome == "passed":
        return
    tag, kind = _ELEMENTS[case.outcome]
    verdict = ET.SubElement(element, tag)
    if kind is not None:
        verdict.set("type", kind)
    verdict.set("message", clean(case.line))
    verdict.text = clean(case.text)
