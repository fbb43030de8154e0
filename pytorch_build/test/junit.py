"""Test results, and the JUnit documents that hold them: one format for every stage that tests.

Format: what pytest's ``--junitxml`` writes. Beyond it, an ``error`` of type ``crashed`` or ``timeout``,
properties of the whole document, one ``testsuite`` per test file, and ``flakyFailure`` elements as Maven
Surefire writes them.

A report may be cut off, empty, huge or hostile: it is read in one pass, which keeps the elements of one test
at a time. Its size and that of each tag, its depth and the number of its tests have limits. What is wrong
with it stands in `Document.problems`, beside the results that were read before it.
"""

import hashlib
import math
import re
import stat
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, NoReturn, get_args

Outcome = Literal["passed", "skipped", "xfailed", "flaky", "error", "failed", "timeout", "crashed"]
# From the best to the worst: of several results of one test, the worst counts; a failed call says more
# than the failed clean-up after it.
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
FAILING: frozenset[str] = frozenset({"failed", "error", "timeout", "crashed"})

# Limits of what is kept of a result, in characters.
LINE_LIMIT = 300
TEXT_LIMIT = 16_384
_HALF_TEXT = TEXT_LIMIT // 2
_NAME_LIMIT = 2_000
_TIMESTAMP_LIMIT = 64
_MOST_PROBLEMS = 5
_SHOWN_DIGITS = 20

# Limits of a report.
MAX_BYTES = 256 << 20
MAX_CASES = 1_000_000
MAX_DEPTH = 64
# The parser keeps a tag with all its attributes, or a comment, until it ends: in several times its size.
MAX_TAG_BYTES = 16 << 20

NO_TEST = "the report holds no test"
# The property of a document that holds a problem: one more reason not to believe it.
_PROBLEM = "problem"
_XFAIL = "pytest.xfail"
_READ_SIZE = 1 << 20

_SUITES = frozenset({"testsuite", "testsuites"})
_VERDICTS = frozenset({"failure", "error", "skipped"})
_EARLIER_ATTEMPTS = frozenset({"rerun", "flakyFailure", "flakyError", "rerunFailure", "rerunError"})
# No other text is of use: not what a test printed, nor the spaces between elements.
_ELEMENTS_WITH_TEXT = _VERDICTS | _EARLIER_ATTEMPTS
# Attributes in which suites count elements.
_COUNTED_ELEMENTS = {
    "tests": "testcase",
    "failures": "failure",
    "errors": "error",
    "skipped": "skipped",
}
# How an outcome is written: element and type.
_ELEMENTS: dict[Outcome, tuple[str, str | None]] = {
    "failed": ("failure", None),
    "error": ("error", None),
    "crashed": ("error", "crashed"),
    "timeout": ("error", "timeout"),
    "skipped": ("skipped", None),
    "xfailed": ("skipped", _XFAIL),
    "flaky": ("flakyFailure", None),
}

_TIMEOUT = re.compile(r"Failed: Timeout \(?>")
_CRASH = re.compile(r"worker '.*' crashed while running")
_TEST_MODULE = re.compile(r"test_\w+|\w+_test")
_NUMBER = re.compile(r"[0-9]{1,9}")
# Terminal colours, also as pytest writes characters that XML has no place for.
_COLOURS = re.compile(r"(?:\x1b|#x1B)\[[0-9;]*m")
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
# Messages that say where it happened, not what.
_VAGUE = re.compile(r"(?i)(collection failure|failed on (setup|teardown) with .*|test failure|)")
_RAISED = re.compile(r"^E {2,}(\S.*)$", re.MULTILINE)


# Results


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """The result of one test.

    Attributes:
        test: Its node id (``test_nn.py::TestNN::test_relu``); the file where the whole file failed.
        outcome: ``flaky`` is failed and then passed; ``crashed`` is a dead interpreter.
        seconds: How long all attempts took.
        line: The first line that matters of why it did not pass.
        text: All output about that, cut to `TEXT_LIMIT` characters.
        file: The test file, or the name of its suite where the report names no file.
        attempts: How often it was tried.
        rule: Why it may be skipped or tried again.
    """

    test: str
    outcome: Outcome
    seconds: float = 0.0
    line: str = ""
    text: str = ""
    file: str = ""
    attempts: int = 1
    rule: str = ""

    @property
    def failing(self) -> bool:
        """Whether it counts against the wheels."""
        return self.outcome in FAILING


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A test file as a whole: its duration, and its properties."""

    seconds: float = 0.0
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Document:
    """The content of one report: a result per test, in its order.

    Attributes:
        suites: By test file (or the name that the report gives a suite).
        problems: Why the report cannot be trusted as it is: cut off, empty, invalid.
        timestamp: When its first suite began, as written there.
    """

    cases: tuple[Case, ...] = ()
    suites: Mapping[str, Suite] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    timestamp: str = ""

    @property
    def failing(self) -> tuple[Case, ...]:
        """The results that count against the wheels."""
        return tuple(case for case in self.cases if case.failing)


def counts(cases: Iterable[Case]) -> dict[str, int]:
    """Return the number of results of each outcome, 0 for those that did not occur."""
    occurrences = Counter(case.outcome for case in cases)
    return {outcome: occurrences[outcome] for outcome in OUTCOMES}


def totals(cases: Collection[Case]) -> dict[str, int]:
    """Return the numbers that JUnit reports give of a suite."""
    by_outcome = counts(cases)
    errors = by_outcome["error"]
    errors += by_outcome["crashed"]
    errors += by_outcome["timeout"]
    skipped = by_outcome["skipped"]
    skipped += by_outcome["xfailed"]
    return {
        "tests": len(cases),
        "failures": by_outcome["failed"],
        "errors": errors,
        "skipped": skipped,
    }


def worst(cases: Sequence[Case]) -> Case:
    """Return one result for several parts of one (a failed call and a failed teardown, subtests)."""
    if len(cases) == 1:
        return cases[0]

    worst_case = cases[0]
    seconds = 0.0
    attempts = 1
    texts: list[str] = []
    for case in cases:
        if _rank(case.outcome) > _rank(worst_case.outcome):
            worst_case = case
        seconds += case.seconds
        attempts = max(attempts, case.attempts)
        if case.text and case.text not in texts:
            texts.append(case.text)

    text = "\n".join(texts)
    return replace(worst_case, seconds=seconds, text=cut(text), attempts=attempts)


def _rank(outcome: Outcome) -> int:
    """Return how bad an outcome is, compared with others."""
    return OUTCOMES.index(outcome)


# Texts


def first_line(message: str, text: str) -> str:
    """Return the line that says why: the message's first, else what was raised, else the text's last."""
    message_lines = _lines(message)
    if message_lines and not _VAGUE.fullmatch(message_lines[0]):
        return message_lines[0][:LINE_LIMIT]

    clean_text = clean(text)
    if raised := _RAISED.search(clean_text):
        error = raised[1].strip()
        return error[:LINE_LIMIT]

    lines = _lines(text) or message_lines
    if not lines:
        return ""
    return lines[-1][:LINE_LIMIT]


def _lines(text: str) -> list[str]:
    """Return the lines that hold anything, without the spaces around it."""
    lines: list[str] = []
    for line in clean(text).splitlines():
        stripped_line = line.strip()
        if stripped_line:
            lines.append(stripped_line)
    return lines


def clean(text: str) -> str:
    """Remove colours, and characters that move a terminal's cursor or reorder text."""
    colourless_text = _COLOURS.sub("", text)
    printable_text = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", colourless_text)
    return printable_text.replace("\r", "")


def cut(text: str) -> str:
    """Shorten a text to `TEXT_LIMIT` characters of its beginning and end."""
    surplus = len(text) - TEXT_LIMIT
    if surplus <= 0:
        return text
    beginning = text[:_HALF_TEXT]
    end = text[-_HALF_TEXT:]
    return f"{beginning}\n… {surplus} characters left out …\n{end}"


# Writing


def write(document: Document) -> bytes:
    """Return results as XML that `read` returns them from, and any JUnit reader understands."""
    case_count = len(document.cases)
    root = ET.Element("testsuites", tests=str(case_count))
    properties = list(document.properties.items())
    properties += [(_PROBLEM, problem) for problem in document.problems]
    _write_properties(root, properties)

    cases_by_file: dict[str, list[Case]] = {name: [] for name in document.suites}
    for case in document.cases:
        cases_by_file.setdefault(case.file, []).append(case)
    for name, cases in cases_by_file.items():
        _write_suite(root, name, cases, document)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))


def _write_suite(root: ET.Element, name: str, cases: Sequence[Case], document: Document) -> None:
    suite = document.suites.get(name)
    if suite is None:
        suite = Suite(seconds=sum(case.seconds for case in cases))

    element = ET.SubElement(root, "testsuite", name=clean(name))
    for attribute, count in totals(cases).items():
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


# Reading


class _RefusalError(Exception):
    """The report is not read any further; never leaves this module."""


def read_file(path: Path) -> Document:
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


def read(content: bytes | BinaryIO) -> Document:
    """Return a report's results, and what is wrong with it; no result at all is a problem, too."""
    if isinstance(content, bytes):
        return _read(BytesIO(content), "the report", size=len(content))
    return _read(content, "the report")


def _read(stream: BinaryIO, subject: str, *, size: int = 0) -> Document:
    """Read a report that problems call `subject`, of a size that may be known before."""
    reader = _ReportReader()
    try:
        _require_size(size)
        _parse(stream, reader)
    except _RefusalError as refusal:
        return reader.document(f"{subject} is refused: {refusal}")
    except (ET.ParseError, ValueError, LookupError) as problem:
        # ValueError and LookupError: encodings that Python does not have, or not for XML.
        return reader.document(f"{subject} is cut off or not valid XML: {problem}")
    return reader.document()


def _require_size(size: int) -> None:
    if size > MAX_BYTES:
        raise _RefusalError(f"it is larger than {MAX_BYTES >> 20} MiB")


def _parse(stream: BinaryIO, reader: "_ReportReader") -> None:
    """Let a reader build what a stream holds, within the limits of a report."""
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
            least = self.tests[tag]
            most = self.elements[tag]
            if attribute == "tests":
                # pytest counts a test whose clean-up failed, too, once, and one that had passed twice.
                most += self.elements["error"]
            elif attribute == "skipped":
                least -= _count(self._attributes, "disabled")

            text = self._attributes.get(attribute)
            if not text:
                continue
            count = _count(self._attributes, attribute)
            if not least <= count <= most:
                number = least if attribute == "tests" else most
                stated_count = text[:_SHOWN_DIGITS]
                yield f"the report counts {stated_count} {attribute} and names {number or 'none'}"


class _ReportReader(ET.TreeBuilder):
    """Builds the elements of one test at a time, and keeps its result."""

    def __init__(self) -> None:
        super().__init__()
        # Beginnings and ends of elements, and pieces of text.
        self.part_count = 0
        self._open_elements: list[ET.Element] = []
        self._open_suites: list[_OpenSuite] = []
        self._is_in_test = False
        self._test_count = 0

        self._cases: dict[str, list[Case]] = {}
        self._suites: dict[str, Suite] = {}
        self._suite_name = ""
        self._suite_properties: dict[str, str] = {}
        self._properties: dict[str, str] = {}
        self._problems: list[str] = []
        self._timestamp = ""

    def doctype(self, *_: object) -> NoReturn:
        """Refuse a document type, where entities are declared that expand to anything: reports need none."""
        raise _RefusalError("it declares a document type")

    def start(self, tag: str, attrs: dict[str, str], /) -> ET.Element:
        """Begin an element."""
        self.part_count += 1
        if not self._open_elements and tag not in _SUITES:
            raise _RefusalError(f"it is not a JUnit report but <{tag[:40]}>")
        if len(self._open_elements) >= MAX_DEPTH:
            raise _RefusalError(f"its elements are nested more than {MAX_DEPTH} deep")

        element = super().start(tag, attrs)
        self._open_elements.append(element)
        if tag in _SUITES:
            self._open_suites.append(_OpenSuite(attrs))
        if tag == "testsuite":
            self._start_suite(attrs)
        elif tag == "testcase":
            self._test_count += 1
            if self._test_count > MAX_CASES:
                raise _RefusalError(f"it holds more than {MAX_CASES} tests")
            self._is_in_test = True
        return element

    def data(self, text: str, /) -> None:
        """Keep the text of an element that says why a test did not pass."""
        self.part_count += 1
        if not self._open_elements:
            return
        element = self._open_elements[-1]
        if element.tag in _ELEMENTS_WITH_TEXT:
            super().data(text)

    def end(self, tag: str, /) -> ET.Element:
        """End an element."""
        self.part_count += 1
        element = super().end(tag)
        self._open_elements.pop()
        if tag in _VERDICTS:
            self._count_element(tag)
        elif tag == "testcase":
            self._is_in_test = False
            self._end_test(element)
        elif tag == "property" and not self._is_in_test:
            name = element.get("name", "")
            value = element.get("value", "")
            self._add_property(name, value)
        elif tag in _SUITES:
            suite = self._open_suites.pop()
            self._problems += suite.problems()

        # A test's own elements are read at its end. All others are not needed again.
        if not self._is_in_test and self._open_elements:
            del self._open_elements[-1][:]
        return element

    def _count_element(self, tag: str) -> None:
        for suite in self._open_suites:
            suite.elements[tag] += 1

    def _start_suite(self, attributes: Mapping[str, str]) -> None:
        if not self._timestamp:
            timestamp = attributes.get("timestamp", "")
            self._timestamp = timestamp[:_TIMESTAMP_LIMIT]
        name = attributes.get("name", "")
        self._suite_name = name[:_NAME_LIMIT]
        self._suite_properties = {}

        seconds = _seconds(attributes)
        earlier_part = self._suites.get(self._suite_name)
        if earlier_part is not None:
            seconds += earlier_part.seconds
        self._suites[self._suite_name] = Suite(seconds=seconds, properties=self._suite_properties)

    def _add_property(self, name: str, value: str) -> None:
        if any(element.tag == "testsuite" for element in self._open_elements):
            self._suite_properties[name] = value
        elif name == _PROBLEM:
            self._problems.append(value)
        else:
            self._properties[name] = value

    def _end_test(self, element: ET.Element) -> None:
        self._count_element("testcase")
        case = _case(element, self._suite_name)
        parts = self._cases.setdefault(case.test, [])
        tags = {child.tag for child in element if child.tag in _VERDICTS}
        if not parts:
            tags.add("testcase")
        for suite in self._open_suites:
            suite.tests.update(tags)
        parts.append(case)

    def document(self, problem: str | None = None) -> Document:
        """Return what was read; a problem may have ended that."""
        cases = tuple(worst(parts) for parts in self._cases.values())
        return Document(
            cases=cases,
            suites=self._suites,
            properties=self._properties or self._properties_of_suites(),
            problems=self._all_problems(problem, has_cases=bool(cases)),
            timestamp=self._timestamp,
        )

    def _properties_of_suites(self) -> Mapping[str, str]:
        """Return the properties of all suites: other writers keep those of the whole there."""
        properties: dict[str, str] = {}
        for suite in self._suites.values():
            properties.update(suite.properties)
        return properties

    def _all_problems(self, last_problem: str | None, *, has_cases: bool) -> tuple[str, ...]:
        """Return each problem once, that which ended the reading first; a few tell enough."""
        problems = list(dict.fromkeys(self._problems))
        if last_problem is not None:
            problems.insert(0, last_problem)
        if not problems and not has_cases:
            problems.append(NO_TEST)
        told_problems = map(clean, problems[:_MOST_PROBLEMS])
        return tuple(problem[:LINE_LIMIT] for problem in told_problems)


def _case(element: ET.Element, suite_name: str) -> Case:
    """Return the result that a ``testcase`` holds."""
    properties = _properties(element)
    node = properties.get("nodeid") or node_id(element.attrib)
    test = _shortened_name(node)
    file, _separator, _name = test.partition("::")
    if not file.endswith(".py"):
        file = suite_name

    earlier_attempts = sum(child.tag in _EARLIER_ATTEMPTS for child in element)
    attempts = max(earlier_attempts + 1, _count(properties, "attempts"))
    # With earlier attempts alone it passed in the end.
    outcome: Outcome = "flaky" if attempts > 1 else "passed"
    line = ""
    text = ""
    reason = _reason(element)
    if reason is not None:
        if reason.tag in _VERDICTS:
            outcome = _outcome(reason)
        message = cut(reason.get("message", ""))
        text = clean(cut(reason.text or ""))
        line = _line(outcome, message, text)
        text = text or clean(message)

    rule = clean(properties.get("rule", ""))
    return Case(
        test=test,
        outcome=outcome,
        seconds=_seconds(element.attrib),
        line=line,
        text=text,
        file=file,
        attempts=attempts,
        rule=rule[:LINE_LIMIT],
    )


def _reason(test: ET.Element) -> ET.Element | None:
    """Return the element that says why a test did not pass: the worst verdict, else its first failure."""
    verdicts = [child for child in test if child.tag in _VERDICTS]
    if verdicts:
        return max(verdicts, key=lambda verdict: _rank(_outcome(verdict)))
    for child in test:
        if child.tag in _EARLIER_ATTEMPTS:
            return child
    return None


def _properties(test: ET.Element) -> Mapping[str, str]:
    properties: dict[str, str] = {}
    for element in test.iter("property"):
        name = element.get("name", "")
        properties[name] = element.get("value", "")
    return properties


def _shortened_name(test: str) -> str:
    """Return a test's name within the limit; names that begin alike stay different."""
    if len(test) <= _NAME_LIMIT:
        return clean(test)
    beginning = test[:_NAME_LIMIT]
    digest = hashlib.sha256(test.encode()).hexdigest()
    short_digest = digest[:12]
    return clean(f"{beginning}…{short_digest}")


def _outcome(verdict: ET.Element) -> Outcome:
    kind = verdict.get("type", "")
    message = verdict.get("message", "")
    if verdict.tag == "skipped":
        return "xfailed" if kind == _XFAIL else "skipped"
    if kind == "crashed" or _CRASH.match(message):
        return "crashed"
    if kind == "timeout" or _TIMEOUT.match(message):
        return "timeout"
    return "failed" if verdict.tag == "failure" else "error"


def _line(outcome: Outcome, message: str, text: str) -> str:
    if outcome in {"skipped", "xfailed"}:
        reason = clean(message).strip()[:LINE_LIMIT]
        if reason:
            return reason
    return first_line(message, text)


def node_id(attributes: Mapping[str, str]) -> str:
    """Return a test's node id from what JUnit keeps of it: dotted class, name, sometimes the file."""
    class_name = attributes.get("classname", "")
    name = attributes.get("name", "")
    path = attributes.get("file", "")
    module = _module_of(path)

    if not class_name:
        # A file that could not be collected has its dotted name for a name.
        if path and name in {module, ""}:
            return path
        return name or path or "?"

    if path and class_name == module:
        return f"{path}::{name}" if name else path
    if path and class_name.startswith(f"{module}."):
        dotted_classes = class_name.removeprefix(f"{module}.")
        parts = [path, *dotted_classes.split("."), name]
        return "::".join(filter(None, parts))
    return _node_id_by_class(class_name, name)


def _module_of(path: str) -> str:
    """Return the dotted name of a test file, as class names begin with it."""
    if not path:
        return ""
    file = PurePosixPath(path.replace("\\", "/"))
    return ".".join(file.with_suffix("").parts)


def _node_id_by_class(class_name: str, name: str) -> str:
    """Return a node id whose file is the last part of a dotted name that is named like a test file."""
    parts = class_name.split(".")
    for depth in range(len(parts), 0, -1):
        if _TEST_MODULE.fullmatch(parts[depth - 1]):
            file = "/".join(parts[:depth]) + ".py"
            classes = parts[depth:]
            return "::".join((file, *classes, name))
    return f"{class_name}::{name}"


def _seconds(attributes: Mapping[str, str]) -> float:
    """Return the duration of a test or suite; what is no duration counts nothing."""
    # Some writers separate thousands.
    text = attributes.get("time", "").replace(",", "")
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    is_duration = math.isfinite(seconds) and seconds >= 0
    return seconds if is_duration else 0.0


def _count(attributes: Mapping[str, str], name: str) -> int:
    """Return the count in an attribute; what is no count is 0."""
    text = attributes.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else 0
