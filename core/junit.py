"""Test results, and the JUnit documents that hold them: one format for every stage that tests.

Format: what pytest's ``--junitxml`` writes. Beyond it, an ``error`` of type ``crashed`` or ``timeout``,
properties of the whole document, one ``testsuite`` a test file, and ``flakyFailure`` elements as Maven
Surefire writes them. `core.junit` reads it.
"""

from __future__ import annotations

import hashlib
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Literal, NoReturn, get_args
from xml.parsers import expat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


Outcome = Literal["passed", "skipped", "xfailed", "flaky", "error", "failed", "timeout", "crashed"]
# from the best to the worst: of several results of one test, the worst counts; a failed call says more
# than the failed clean-up after it
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
FAILING: frozenset[str] = frozenset({"failed", "error", "timeout", "crashed"})

LINE_LIMIT = 300
TEXT_LIMIT = 16_384
# of a document, in which every problem is one more reason not to believe it
PROBLEM = "problem"
XFAIL = "pytest.xfail"

# terminals' colours, also as pytest writes characters that XML has no place for
_COLOURS = re.compile(r"(?:\x1b|#x1B)\[[0-9;]*m")
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
# messages that say where it happened, not what
_VAGUE = re.compile(r"(?i)(collection failure|failed on (setup|teardown) with .*|test failure|)")
_RAISED = re.compile(r"^E {2,}(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """The result of one test.

    Attributes:
        test: Its node id (``test_nn.py::TestNN::test_relu``); a file's where the whole file failed.
        outcome: ``flaky`` is failed and then passed; ``crashed`` is a dead interpreter.
        seconds: How long it took, all attempts together.
        line: The first line that matters of why it did not pass.
        text: All that was said about it, cut to `TEXT_LIMIT` characters.
        file: The test file; "" where nobody knows.
        attempts: How often it ran.
        rule: The rule by which it was tried again, and its reason; "" where none says so.
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
        """Whether it stands against the wheels."""
        return self.outcome in FAILING


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A test file's own facts: how long it took as a whole, and what else is known of it."""

    seconds: float = 0.0
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Document:
    """What one report says.

    Attributes:
        cases: A result a test, in the order of the report.
        suites: By test file (or the name that the report gives a suite).
        properties: Of the whole report.
        problems: Why the report cannot be believed as it is: cut off, empty, invalid.
        timestamp: When its first suite began, as written there.
    """

    cases: tuple[Case, ...] = ()
    suites: Mapping[str, Suite] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    timestamp: str = ""

    @property
    def failing(self) -> tuple[Case, ...]:
        """The results that stand against the wheels."""
        return tuple(case for case in self.cases if case.failing)


def counts(cases: Iterable[Case]) -> dict[str, int]:
    """Count results by outcome; every outcome is named."""
    found: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
    for case in cases:
        found[case.outcome] += 1
    return found


def first_line(message: str, text: str) -> str:
    """Choose the line that says why: the message's first, else what was raised, else the last one said.

    Args:
        message: The ``message`` of the element.
        text: Its text, mostly a traceback.
    """
    lines = [line for line in clean(message).splitlines() if line.strip()]
    if lines and not _VAGUE.fullmatch(lines[0].strip()):
        return lines[0].strip()[:LINE_LIMIT]
    said = clean(text)
    if raised := _RAISED.search(said):
        return raised[1].strip()[:LINE_LIMIT]
    told = [line.strip() for line in said.splitlines() if line.strip()]
    return (told or [line.strip() for line in lines] or [""])[-1][:LINE_LIMIT]


def clean(text: str) -> str:
    """Take colours out of a text, and what would move a terminal's cursor or a reader's eye."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", _COLOURS.sub("", text)).replace("\r", "")


def cut(text: str, limit: int = TEXT_LIMIT) -> str:
    """Keep a text's beginning and end, and say how much is left out between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def worst(cases: Sequence[Case]) -> Case:
    """Make one result of several parts of one (a failed call and a failed teardown, sub-tests)."""
    if len(cases) == 1:
        return cases[0]
    told = max(cases, key=lambda case: OUTCOMES.index(case.outcome))
    texts = dict.fromkeys(case.text for case in cases if case.text)
    return replace(
        told,
        seconds=sum(case.seconds for case in cases),
        text=cut("\n".join(texts)),
        attempts=max(case.attempts for case in cases),
    )


def last_attempt(cases: Sequence[Case]) -> Case:
    """Make one result of the attempts of a test, the first one first: flaky if it failed and then passed."""
    last = cases[-1]
    failed = next((case for case in cases if case.failing), None)
    attempts, seconds = sum(case.attempts for case in cases), sum(case.seconds for case in cases)
    if last.outcome == "passed" and failed is not None:
        return replace(
            last, outcome="flaky", line=failed.line, text=failed.text, attempts=attempts, seconds=seconds
        )
    if last.failing or failed is None:
        return replace(last, attempts=attempts, seconds=seconds)
    # skipped after a failure: nobody saw it pass
    return replace(failed, attempts=attempts, seconds=seconds)


def write(document: Document) -> bytes:
    """Write results so that `core.junit.read` gives them again, and any JUnit reader understands."""
    root = ET.Element("testsuites")
    said = [*document.properties.items(), *((PROBLEM, one) for one in document.problems)]
    _properties(root, said)
    by_file: dict[str, list[Case]] = {name: [] for name in document.suites}
    for case in document.cases:
        by_file.setdefault(case.file, []).append(case)
    for name, cases in by_file.items():
        suite = document.suites.get(name) or Suite(seconds=sum(case.seconds for case in cases))
        total = counts(cases)
        facts = {
            "name": _xml(name),
            "tests": str(len(cases)),
            "failures": str(total["failed"]),
            "errors": str(total["error"] + total["crashed"] + total["timeout"]),
            "skipped": str(total["skipped"] + total["xfailed"]),
            "time": f"{suite.seconds:.3f}",
        }
        element = ET.SubElement(root, "testsuite", facts)
        if document.timestamp:
            element.set("timestamp", document.timestamp)
        _properties(element, suite.properties.items())
        for case in cases:
            _write_case(element, case)
    content: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return content


def _properties(parent: ET.Element, pairs: Iterable[tuple[str, str]]) -> None:
    listed = list(pairs)
    if listed:
        element = ET.SubElement(parent, "properties")
        for name, value in listed:
            ET.SubElement(element, "property", name=_xml(name), value=_xml(value))


def _write_case(suite: ET.Element, case: Case) -> None:
    owner, _, name = case.test.rpartition("::")
    element = ET.SubElement(
        suite, "testcase", classname=_xml(owner), name=_xml(name), time=f"{case.seconds:.3f}"
    )
    known = {
        "nodeid": case.test,
        "attempts": str(case.attempts) if case.attempts > 1 else "",
        "rule": case.rule,
    }
    _properties(element, [(name, said) for name, said in known.items() if said])
    message, text = _xml(case.line), _xml(case.text)
    match case.outcome:
        case "failed":
            ET.SubElement(element, "failure", message=message).text = text
        case "error":
            ET.SubElement(element, "error", message=message).text = text
        case "crashed" | "timeout":
            ET.SubElement(element, "error", type=case.outcome, message=message).text = text
        case "skipped":
            ET.SubElement(element, "skipped", message=message).text = text
        case "xfailed":
            ET.SubElement(element, "skipped", type=XFAIL, message=message).text = text
        case "flaky":
            ET.SubElement(element, "flakyFailure", message=message).text = text
        case "passed":
            pass


def _xml(text: str) -> str:
    return clean(text)


NO_TEST = "the report holds no test"
MAX_BYTES = 512 << 20
MAX_CASES = 1_000_000
MAX_DEPTH = 64
_NAME_LIMIT = 2_000
# one read: expat begins a token again with each, so few and large ones
_CHUNK = 16 << 20
_VERDICTS = frozenset({"failure", "error", "skipped"})
_EARLIER = frozenset({"rerun", "flakyFailure", "flakyError", "rerunFailure", "rerunError"})
_KEPT = _VERDICTS | _EARLIER
_TIMEOUT = re.compile(r"Failed: Timeout \(?>")
_CRASH = re.compile(r"worker '.*' crashed while running")
_MODULE = re.compile(r"test_\w+|\w+_test")


class _Refused(Exception):  # noqa: N818 - ends the parse, and never leaves this module
    """The report is not read any further."""


def read_file(path: Path, *, file: str = "") -> Document:
    """Read a report from a file; one that is absent is a report with a problem. Arguments as of `read`."""
    try:
        with path.open("rb") as stream:
            return read(stream, file=file)
    except OSError as problem:
        return Document(problems=(f"the report {path.name} cannot be read: {problem.strerror}",))


def read(content: bytes | BinaryIO, *, file: str = "") -> Document:
    """Read a report.

    Args:
        content: The report.
        file: The test file that it is about, relative to the tests' root; "" where it is about several.

    Returns:
        The results, and what is wrong with the report; none at all is wrong, too.
    """
    stream = BytesIO(content) if isinstance(content, bytes) else content
    reader = _Reader(file)
    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    # a report needs no entities, and a document type is where they are declared
    parser.StartDoctypeDeclHandler = reader.doctype
    problem = ""
    try:
        _feed(parser, stream)
    except _Refused as refusal:
        problem = f"the report is refused: {refusal}"
    except (expat.ExpatError, ValueError, LookupError) as broken:
        # ValueError and LookupError: encodings that Python does not have, or not for this
        problem = f"the report is cut off or no valid XML: {broken}"
    return reader.document(problem)


def _feed(parser: expat.XMLParserType, stream: BinaryIO) -> None:
    total = 0
    while chunk := stream.read(_CHUNK):
        total += len(chunk)
        if total > MAX_BYTES:
            raise _Refused(f"it is larger than {MAX_BYTES >> 20} MiB")
        parser.Parse(chunk, False)  # noqa: FBT003 - expat takes no names
    if not total:
        raise _Refused("it is empty")
    parser.Parse(b"", True)  # noqa: FBT003 - the same


class _Reader:
    """Takes expat's events; knows at each moment which test it is in."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.path: list[str] = []
        self.cases: dict[str, list[Case]] = {}
        self.found = 0
        self.suites: dict[str, Suite] = {}
        self.properties: dict[str, str] = {}
        self.problems: list[str] = []
        self.timestamp = ""
        self.claimed = [0, 0]  # tests, and failures with errors, by the suites' own words
        self.suite_name = ""
        self.suite_properties: dict[str, str] = {}
        self.case: dict[str, str] = {}
        self.case_properties: dict[str, str] = {}
        self.verdicts: list[tuple[str, str, str, str]] = []
        self.said = _Said()

    def doctype(self, *_: object) -> NoReturn:
        raise _Refused("it declares a document type")

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if not self.path and name not in {"testsuites", "testsuite"}:
            raise _Refused(f"it is no JUnit report but <{name[:40]}>")
        self.path.append(name)
        if len(self.path) > MAX_DEPTH:
            raise _Refused(f"its elements are nested more than {MAX_DEPTH} deep")
        if name == "testsuite":
            self._start_suite(attributes)
        elif name == "testcase":
            self.found += 1
            if self.found > MAX_CASES:
                raise _Refused(f"it holds more than {MAX_CASES} tests")
            self.case, self.case_properties, self.verdicts = dict(attributes), {}, []
        elif name == "property":
            self._property(attributes.get("name", ""), attributes.get("value", ""))
        elif name in _KEPT:
            self.said = _Said()
            message = cut(attributes.get("message", ""))
            self.verdicts.append((name, attributes.get("type", ""), message, ""))

    def text(self, data: str) -> None:
        if self.path[-1] in _KEPT:
            self.said.add(data)

    def end(self, name: str) -> None:
        self.path.pop()
        if name in _KEPT and self.verdicts:
            self.verdicts[-1] = (*self.verdicts[-1][:3], self.said.whole())
        elif name == "testcase":
            self._end_case()
        elif name == "testsuite":
            old = self.suites[self.suite_name]
            self.suites[self.suite_name] = Suite(seconds=old.seconds, properties=self.suite_properties)

    def _start_suite(self, attributes: Mapping[str, str]) -> None:
        self.timestamp = self.timestamp or attributes.get("timestamp", "")[:64]
        self.suite_name = self.file or attributes.get("name", "")[:_NAME_LIMIT]
        self.suite_properties = {}
        seconds = _seconds(attributes.get("time", ""))
        before = self.suites.get(self.suite_name)
        self.suites[self.suite_name] = Suite(seconds=seconds + (before.seconds if before else 0))
        self.claimed[0] += _count(attributes, "tests")
        self.claimed[1] += _count(attributes, "failures") + _count(attributes, "errors")

    def _property(self, name: str, value: str) -> None:
        if "testcase" in self.path:
            self.case_properties[name] = value
        elif "testsuite" in self.path:
            self.suite_properties[name] = value
        elif name == PROBLEM:
            self.problems.append(value)
        else:
            self.properties[name] = value

    def _end_case(self) -> None:
        test = self.case_properties.get("nodeid") or node_id(self.case, self.file)
        if len(test) > _NAME_LIMIT:
            test = f"{test[:_NAME_LIMIT]}…{hashlib.sha256(test.encode()).hexdigest()[:12]}"
        test = clean(test)
        outcome, told = self._outcome()
        attempts = 1 + sum(name in _EARLIER for name, *_ in self.verdicts)
        attempts = max(attempts, _count(self.case_properties, "attempts"))
        if outcome == "passed" and attempts > 1:
            outcome = "flaky"
        _, _, message, said = told
        line = first_line(message, said) if told[0] else ""
        if outcome in {"skipped", "xfailed"}:
            line = clean(message).strip()[:LINE_LIMIT] or line
        made = Case(
            test=test,
            outcome=outcome,
            seconds=_seconds(self.case.get("time", "")),
            line=line,
            text=cut(clean(said or (message if outcome != "passed" else ""))),
            file=self._file_of(test),
            attempts=attempts,
            rule=clean(self.case_properties.get("rule", ""))[:LINE_LIMIT],
        )
        self.cases.setdefault(test, []).append(made)

    def _outcome(self) -> tuple[Outcome, tuple[str, str, str, str]]:
        """Choose the worst of what is said about the test."""
        final = [(_outcome_of(one), one) for one in self.verdicts if one[0] in _VERDICTS]
        if final:
            return max(final, key=lambda pair: OUTCOMES.index(pair[0]))
        # only earlier attempts, then it passed
        return "passed", self.verdicts[0] if self.verdicts else ("", "", "", "")

    def _file_of(self, test: str) -> str:
        if self.file:
            return self.file
        first = test.partition("::")[0]
        return first if first.endswith(".py") else self.suite_name

    def document(self, problem: str) -> Document:
        """Put together what was read; hold the suites' own totals against it."""
        problems = [problem, *self.problems] if problem else list(self.problems)
        cases = tuple(worst(parts) for parts in self.cases.values())
        if not problem and not cases:
            problems.append(NO_TEST)
        if self.claimed[1] and not problem and not any(case.failing for case in cases):
            problems.append(f"the report counts {self.claimed[1]} failures and names none")
        if self.claimed[0] > 0 and not cases and not problem:
            problems[-1] = f"the report counts {self.claimed[0]} tests and names none"
        return Document(
            cases=cases,
            suites=self.suites,
            # others keep what they say of the whole in their suites
            properties=self.properties
            or {name: value for suite in self.suites.values() for name, value in suite.properties.items()},
            problems=tuple(clean(one)[:LINE_LIMIT] for one in problems),
            timestamp=self.timestamp,
        )


class _Said:
    """Text of any length, of which the beginning and the end are kept."""

    def __init__(self) -> None:
        self.head: list[str] = []
        self.tail = ""
        self.size = self.left_out = 0

    def add(self, data: str) -> None:
        room = TEXT_LIMIT // 2 - self.size
        if room > 0:
            self.head.append(data[:room])
            self.size += len(self.head[-1])
            data = data[room:]
        if data:
            self.tail += data
            if len(self.tail) > 2 * TEXT_LIMIT:
                kept = TEXT_LIMIT // 2
                self.left_out += len(self.tail) - kept
                self.tail = self.tail[-kept:]

    def whole(self) -> str:
        head = "".join(self.head)
        if not self.left_out:
            return f"{head}{self.tail}"
        return f"{head}\n… {self.left_out} characters left out …\n{self.tail[-TEXT_LIMIT // 2 :]}"


def _outcome_of(verdict: tuple[str, str, str, str]) -> Outcome:
    name, kind, message, _ = verdict
    if name == "skipped":
        return "xfailed" if kind == XFAIL else "skipped"
    if kind == "crashed" or _CRASH.match(message):
        return "crashed"
    if kind == "timeout" or _TIMEOUT.match(message):
        return "timeout"
    return "failed" if name == "failure" else "error"


def node_id(attributes: Mapping[str, str], file: str = "") -> str:
    """Give a test's node id from what JUnit keeps of it: dotted class, name, sometimes the file."""
    owner, name = attributes.get("classname", ""), attributes.get("name", "")
    if not owner:
        # a file that could not be collected, by its dotted name
        path = file or attributes.get("file", "")
        return path if path and name in {_dotted(path), ""} else name or path or "?"
    for path in (file, attributes.get("file", "")):
        module = _dotted(path)
        if path and (owner == module or owner.startswith(f"{module}.")):
            rest = owner[len(module) + 1 :]
            return "::".join(part for part in (path, *rest.split("."), name) if part)
    parts = owner.split(".")
    depth = next((at for at in range(len(parts), 0, -1) if _MODULE.fullmatch(parts[at - 1])), 0)
    if not depth:
        return f"{file}::{owner}::{name}" if file else f"{owner}::{name}"
    return "::".join(("/".join(parts[:depth]) + ".py", *parts[depth:], name))


def _dotted(path: str) -> str:
    return ".".join(PurePosixPath(path.replace("\\", "/")).with_suffix("").parts) if path else ""


def _seconds(text: str) -> float:
    try:
        value = float(text.replace(",", "") or 0)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value >= 0 else 0.0


def _count(attributes: Mapping[str, str], name: str) -> int:
    text = attributes.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0  # noqa: PLR2004 - more is no count
