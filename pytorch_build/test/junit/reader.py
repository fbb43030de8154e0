"""Read a report, which may be cut off, empty, huge or hostile.

It is read in one pass, which keeps the elements of one test at a time. Its size and that of each tag, its
depth and the number of its tests have limits. What is wrong with it stands in `Document.problems`, beside the
results that were read before it.
"""

import stat
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NoReturn

from pytorch_build.test.junit.document import Case, Document, Suite, worst_case
from pytorch_build.test.junit.elements import EARLIER_ATTEMPTS, PROBLEM, SUITES, VERDICTS
from pytorch_build.test.junit.testcase import NAME_LIMIT, read_case, read_count, read_seconds
from pytorch_build.test.junit.texts import LINE_LIMIT, clean

# Limits of a report.
MAX_BYTES = 256 << 20
MAX_CASES = 1_000_000
MAX_DEPTH = 64
# The parser keeps a tag with all its attributes, or a comment, until it ends: in several times its size.
MAX_TAG_BYTES = 16 << 20

# Limits of what is kept of it.
_TIMESTAMP_LIMIT = 64
_MOST_PROBLEMS = 5
_SHOWN_DIGITS = 20

NO_TEST = "the report holds no test"
_READ_SIZE = 1 << 20

# No other text is of use: not what a test printed, nor the spaces between elements.
_ELEMENTS_WITH_TEXT = VERDICTS | EARLIER_ATTEMPTS
# Attributes in which suites count elements.
_COUNTED_ELEMENTS = {
    "tests": "testcase",
    "failures": "failure",
    "errors": "error",
    "skipped": "skipped",
}


class _RefusalError(Exception):
    """The report is not read any further; never leaves this module."""


def read_junit_file(path: Path) -> Document:
    """Return the content of a file; one that is missing is a report with a problem."""
    subject = f"the report {path.name}"
    try:
        status = path.stat()
        # A pipe would wait for whoever writes to it.
        if not stat.S_ISREG(status.st_mode):
            return Document(problems=(f"{subject} is no regular file",))
        with path.open("rb") as stream:
            return _read(stream, subject, size=status.st_size)
    except OSError as problem:
        return Document(problems=(f"{subject} cannot be read: {problem.strerror}",))


def read_junit(content: bytes | BinaryIO) -> Document:
    """Return a report's results, and what is wrong with it; no result at all is a problem, too."""
    if isinstance(content, bytes):
        return _read(BytesIO(content), "the report", size=len(content))
    return _read(content, "the report")


def _read(stream: BinaryIO, subject: str, *, size: int = 0) -> Document:
    """Read a report that problems call `subject`, of a size that may be known before."""
    results = _Results()
    try:
        _require_size(size)
        _parse(stream, _ReportReader(results))
    except _RefusalError as refusal:
        return results.document(f"{subject} is refused: {refusal}")
    except (ET.ParseError, ValueError, LookupError) as problem:
        # ValueError and LookupError: encodings that Python does not have, or not for XML.
        return results.document(f"{subject} is cut off or not valid XML: {problem}")
    return results.document()


def _require_size(size: int) -> None:
    if size > MAX_BYTES:
        raise _RefusalError(f"it is larger than {MAX_BYTES >> 20} MiB")


def _parse(stream: BinaryIO, reader: "_ReportReader") -> None:
    """Let a reader take what a stream holds, within the limits of a report."""
    parser = ET.XMLParser(target=reader)  # noqa: S314 - the reader refuses document types, and sets limits
    size = 0
    unfinished_size = 0
    while chunk := stream.read(_READ_SIZE):
        size += len(chunk)
        _require_size(size)

        known_parts = reader.part_count
        parser.feed(chunk)
        unfinished_size += len(chunk)
        if reader.part_count > known_parts:
            unfinished_size = 0
        if unfinished_size > MAX_TAG_BYTES:
            raise _RefusalError(f"it has a tag or comment larger than {MAX_TAG_BYTES >> 20} MiB")

    if size == 0:
        raise _RefusalError("it is empty")
    parser.close()


# Results


class _Results:
    """What a document holds, collected element by element."""

    def __init__(self) -> None:
        self._cases: dict[str, list[Case]] = {}
        self._suites: dict[str, Suite] = {}
        self._properties: dict[str, str] = {}
        self._problems: list[str] = []
        self._timestamp = ""

        # Those of the suite that began last.
        self.suite_name = ""
        self._suite_properties: dict[str, str] = {}

    def start_suite(self, attributes: Mapping[str, str]) -> None:
        """Begin a suite, or one more part of a suite of that name."""
        if not self._timestamp:
            timestamp = attributes.get("timestamp", "")
            self._timestamp = timestamp[:_TIMESTAMP_LIMIT]
        name = attributes.get("name", "")
        self.suite_name = name[:NAME_LIMIT]
        self._suite_properties = {}

        seconds = read_seconds(attributes)
        earlier_part = self._suites.get(self.suite_name)
        if earlier_part is not None:
            seconds += earlier_part.seconds
        self._suites[self.suite_name] = Suite(
            seconds=seconds,
            properties=self._suite_properties,
        )

    def add_suite_property(self, name: str, value: str) -> None:
        """Add a property of the suite that began last."""
        self._suite_properties[name] = value

    def add_property(self, name: str, value: str) -> None:
        """Add a property of the document, which may be one of its problems."""
        if name == PROBLEM:
            self._problems.append(value)
        else:
            self._properties[name] = value

    def add_problems(self, problems: Iterable[str]) -> None:
        """Add what is wrong with the document."""
        self._problems += problems

    def add_case(self, case: Case) -> None:
        """Add the result of a test, or of one more part of it."""
        self._cases.setdefault(case.test, []).append(case)

    def has_test(self, test: str) -> bool:
        """Return whether there is a result of a test."""
        return test in self._cases

    def document(self, last_problem: str | None = None) -> Document:
        """Return the document; a problem may have ended the reading."""
        cases = tuple(worst_case(parts) for parts in self._cases.values())
        return Document(
            cases=cases,
            suites=self._suites,
            properties=self._properties or self._properties_of_suites(),
            problems=self._told_problems(last_problem),
            timestamp=self._timestamp,
        )

    def _properties_of_suites(self) -> Mapping[str, str]:
        """Return the properties of all suites: other writers keep those of the whole there."""
        properties: dict[str, str] = {}
        for suite in self._suites.values():
            properties.update(suite.properties)
        return properties

    def _told_problems(self, last_problem: str | None) -> tuple[str, ...]:
        """Return each problem once, that which ended the reading first; a few tell enough."""
        problems = list(dict.fromkeys(self._problems))
        if last_problem is not None:
            problems.insert(0, last_problem)
        if not problems and not self._cases:
            problems.append(NO_TEST)
        told_problems = map(clean, problems[:_MOST_PROBLEMS])
        return tuple(problem[:LINE_LIMIT] for problem in told_problems)


class _OpenSuite:
    """A suite that has not ended: the counts in its attributes, and the elements that it holds so far."""

    def __init__(self, attributes: Mapping[str, str]) -> None:
        self._attributes = attributes
        self.elements: Counter[str] = Counter()
        # Tests with such an element: writers differ in how they count one test twice.
        self.tests: Counter[str] = Counter()

    def problems(self) -> Iterator[str]:
        """Yield the counts that are not those of what the suite holds."""
        for attribute, tag in _COUNTED_ELEMENTS.items():
            stated_count = self._attributes.get(attribute)
            if not stated_count:
                continue
            least = self.tests[tag]
            most = self.elements[tag]
            number = most
            if attribute == "tests":
                number = least
                # pytest counts a test whose clean-up failed, too, once, and one that had passed twice.
                most += self.elements["error"]
            elif attribute == "skipped":
                # ctest counts what is switched off by itself.
                least -= read_count(self._attributes, "disabled")

            count = read_count(self._attributes, attribute)
            if not least <= count <= most:
                shown_count = stated_count[:_SHOWN_DIGITS]
                yield f"the report counts {shown_count} {attribute} and names {number or 'none'}"


# Elements


class _ReportReader(ET.TreeBuilder):
    """Builds the elements of one test at a time, and adds its result to those before."""

    def __init__(self, results: _Results) -> None:
        super().__init__()
        # Beginnings and ends of elements, and pieces of text.
        self.part_count = 0
        self._results = results
        self._open_elements: list[ET.Element] = []
        self._open_suites: list[_OpenSuite] = []
        self._is_in_test = False
        self._test_count = 0

    def doctype(self, *_: object) -> NoReturn:
        """Refuse a document type, where entities are declared that expand to anything: reports need none."""
        raise _RefusalError("it declares a document type")

    def start(self, tag: str, attrs: dict[str, str], /) -> ET.Element:
        """Begin an element."""
        self.part_count += 1
        if not self._open_elements and tag not in SUITES:
            raise _RefusalError(f"it is not a JUnit report but <{tag[:40]}>")
        if len(self._open_elements) >= MAX_DEPTH:
            raise _RefusalError(f"its elements are nested more than {MAX_DEPTH} deep")

        element = super().start(tag, attrs)
        self._open_elements.append(element)
        if tag in SUITES:
            self._open_suites.append(_OpenSuite(attrs))
        if tag == "testsuite":
            self._results.start_suite(attrs)
        elif tag == "testcase":
            self._test_count += 1
            if self._test_count > MAX_CASES:
                raise _RefusalError(f"it holds more than {MAX_CASES} tests")
            self._is_in_test = True
        return element

    def data(self, text: str, /) -> None:
        """Keep the text of an element that says why a test did not pass."""
        self.part_count += 1
        if self._open_elements and self._open_elements[-1].tag in _ELEMENTS_WITH_TEXT:
            super().data(text)

    def end(self, tag: str, /) -> ET.Element:
        """End an element."""
        self.part_count += 1
        element = super().end(tag)
        self._open_elements.pop()
        if tag in VERDICTS:
            for suite in self._open_suites:
                suite.elements[tag] += 1
        elif tag == "testcase":
            self._is_in_test = False
            self._end_test(element)
        elif tag == "property" and not self._is_in_test:
            self._end_property(element)
        elif tag in SUITES:
            suite = self._open_suites.pop()
            self._results.add_problems(suite.problems())

        # A test's own elements are read at its end. All others are not needed again.
        if not self._is_in_test and self._open_elements:
            del self._open_elements[-1][:]
        return element

    def _end_test(self, element: ET.Element) -> None:
        case = read_case(element, self._results.suite_name)
        tags = {child.tag for child in element if child.tag in VERDICTS}
        if not self._results.has_test(case.test):
            tags.add("testcase")
        for suite in self._open_suites:
            suite.elements["testcase"] += 1
            for tag in tags:
                suite.tests[tag] += 1
        self._results.add_case(case)

    def _end_property(self, element: ET.Element) -> None:
        name = element.get("name", "")
        value = element.get("value", "")
        if any(parent.tag == "testsuite" for parent in self._open_elements):
            self._results.add_suite_property(name, value)
        else:
            self._results.add_property(name, value)
