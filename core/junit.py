"""Test results, and the JUnit documents that hold them: one format for every stage that tests.

Format: what pytest's ``--junitxml`` writes. Beyond it, an ``error`` of type ``crashed`` or ``timeout``,
properties of the whole document, one ``testsuite`` per test file, and ``flakyFailure`` elements as Maven
Surefire writes them.

A report may be cut off, empty, huge or hostile: reading is one pass of expat, in memory bounded by the number
of tests. What is wrong with it stands in `Document.problems`, beside the results that were read before it.
"""

import hashlib
import math
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, NamedTuple, NoReturn, get_args
from xml.parsers import expat

Outcome = Literal["passed", "skipped", "xfailed", "flaky", "error", "failed", "timeout", "crashed"]
# from the best to the worst: of several results of one test, the worst counts; a failed call says more
# than the failed clean-up after it
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
FAILING: frozenset[str] = frozenset({"failed", "error", "timeout", "crashed"})

LINE_LIMIT = 300
TEXT_LIMIT = 16_384
_HALF = TEXT_LIMIT // 2
MAX_BYTES = 512 << 20
MAX_CASES = 1_000_000
MAX_DEPTH = 64
NO_TEST = "the report holds no test"
# property of a document: each problem is one more reason not to believe it
_PROBLEM = "problem"
_XFAIL = "pytest.xfail"
_NAME_LIMIT = 2_000
# expat begins a token again with each read, so few and large ones
_CHUNK = 16 << 20
_VERDICTS = frozenset({"failure", "error", "skipped"})
# attributes of suites, and the elements that they count
_COUNTED = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
_EARLIER = frozenset({"rerun", "flakyFailure", "flakyError", "rerunFailure", "rerunError"})
_KEPT = _VERDICTS | _EARLIER
# how an outcome is written: element and type
_ELEMENTS: dict[Outcome, tuple[str, str]] = {
    "failed": ("failure", ""),
    "error": ("error", ""),
    "crashed": ("error", "crashed"),
    "timeout": ("error", "timeout"),
    "skipped": ("skipped", ""),
    "xfailed": ("skipped", _XFAIL),
    "flaky": ("flakyFailure", ""),
}
_TIMEOUT = re.compile(r"Failed: Timeout \(?>")
_CRASH = re.compile(r"worker '.*' crashed while running")
_MODULE = re.compile(r"test_\w+|\w+_test")
# terminal colours, also as pytest writes characters that XML has no place for
_COLOURS = re.compile(r"(?:\x1b|#x1B)\[[0-9;]*m")
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
# messages that say where it happened, not what
_VAGUE = re.compile(r"(?i)(collection failure|failed on (setup|teardown) with .*|test failure|)")
_RAISED = re.compile(r"^E {2,}(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """The result of one test."""

    test: str  # its node id (``test_nn.py::TestNN::test_relu``); the file where the whole file failed
    outcome: Outcome  # ``flaky`` is failed and then passed; ``crashed`` is a dead interpreter
    seconds: float = 0.0
    line: str = ""  # the first that matters of why it did not pass
    text: str = ""  # all output about it, cut to `TEXT_LIMIT` characters
    file: str = ""
    attempts: int = 1
    rule: str = ""  # why it may be skipped or tried again

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
    """Count results by outcome; every outcome is a key."""
    found = Counter(case.outcome for case in cases)
    return {one: found[one] for one in OUTCOMES}


def totals(cases: Collection[Case]) -> dict[str, int]:
    """Count results as JUnit reports do."""
    found = counts(cases)
    return {
        "tests": len(cases),
        "failures": found["failed"],
        "errors": found["error"] + found["crashed"] + found["timeout"],
        "skipped": found["skipped"] + found["xfailed"],
    }


def first_line(message: str, text: str) -> str:
    """Choose the line that says why: the message's first, else what was raised, else the text's last."""
    if (lines := _lines(message)) and not _VAGUE.fullmatch(lines[0]):
        return lines[0][:LINE_LIMIT]
    if raised := _RAISED.search(clean(text)):
        return raised[1].strip()[:LINE_LIMIT]
    return (_lines(text) or lines or [""])[-1][:LINE_LIMIT]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in clean(text).splitlines() if line.strip()]


def clean(text: str) -> str:
    """Remove colours, and characters that move a terminal's cursor or reorder text."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", _COLOURS.sub("", text)).replace("\r", "")


def cut(text: str, left_out: int = 0) -> str:
    """Shorten a text to `TEXT_LIMIT` characters, of its beginning and end; `left_out` are missing already."""
    left_out += max(len(text) - 2 * _HALF, 0)
    return f"{text[:_HALF]}\n… {left_out} characters left out …\n{text[-_HALF:]}" if left_out else text


def worst(cases: Sequence[Case]) -> Case:
    """Make one result of several parts of one (a failed call and a failed teardown, subtests)."""
    if len(cases) == 1:
        return cases[0]
    return replace(
        max(cases, key=lambda case: OUTCOMES.index(case.outcome)),
        seconds=sum(case.seconds for case in cases),
        text=cut("\n".join(dict.fromkeys(case.text for case in cases if case.text))),
        attempts=max(case.attempts for case in cases),
    )


def write(document: Document) -> bytes:
    """Write results so that `read` returns them, and any JUnit reader understands them."""
    root = ET.Element("testsuites", tests=str(len(document.cases)))
    _properties(root, [*document.properties.items(), *((_PROBLEM, one) for one in document.problems)])
    by_file: dict[str, list[Case]] = {name: [] for name in document.suites}
    for case in document.cases:
        by_file.setdefault(case.file, []).append(case)
    for name, cases in by_file.items():
        suite = document.suites.get(name) or Suite(seconds=sum(case.seconds for case in cases))
        counted = {attribute: str(count) for attribute, count in totals(cases).items()}
        time = {"time": f"{suite.seconds:.3f}"}
        element = ET.SubElement(root, "testsuite", {"name": clean(name), **counted, **time})
        if document.timestamp:
            element.set("timestamp", document.timestamp)
        _properties(element, suite.properties.items())
        for case in cases:
            _write_case(element, case)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))


def _properties(parent: ET.Element, pairs: Iterable[tuple[str, str]]) -> None:
    if listed := list(pairs):
        element = ET.SubElement(parent, "properties")
        for name, value in listed:
            ET.SubElement(element, "property", name=clean(name), value=clean(value))


def _write_case(suite: ET.Element, case: Case) -> None:
    owner, _, name = map(clean, case.test.rpartition("::"))
    element = ET.SubElement(suite, "testcase", classname=owner, name=name, time=f"{case.seconds:.3f}")
    facts = {"attempts": str(case.attempts) if case.attempts > 1 else "", "rule": case.rule}
    _properties(element, [("nodeid", case.test), *(pair for pair in facts.items() if pair[1])])
    if case.outcome in _ELEMENTS:
        tag, kind = _ELEMENTS[case.outcome]
        verdict = ET.SubElement(element, tag, {"type": kind} if kind else {}, message=clean(case.line))
        verdict.text = clean(case.text)


class _Refused(Exception):  # noqa: N818 - ends the parse, and never leaves this module
    """The report is not read any further."""


def read_file(path: Path) -> Document:
    """Read a report from a file; one that is missing is a report with a problem."""
    try:
        with path.open("rb") as stream:
            return read(stream)
    except OSError as problem:
        return Document(problems=(f"the report {path.name} cannot be read: {problem.strerror}",))


def read(content: bytes | BinaryIO) -> Document:
    """Read a report: its results, and what is wrong with it; no result at all is a problem, too."""
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    # a report needs no entities, and a document type is where they are declared
    parser.StartDoctypeDeclHandler = reader.doctype
    problem = ""
    try:
        _feed(parser, BytesIO(content) if isinstance(content, bytes) else content)
    except _Refused as refusal:
        problem = f"the report is refused: {refusal}"
    except (expat.ExpatError, ValueError, LookupError) as broken:
        # ValueError and LookupError: encodings that Python does not have, or not for this
        problem = f"the report is cut off or not valid XML: {broken}"
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


class _Verdict(NamedTuple):
    element: str
    kind: str
    message: str
    text: str = ""

    @property
    def outcome(self) -> Outcome:
        match self.element, self.kind:
            case "skipped", kind:
                return "xfailed" if kind == _XFAIL else "skipped"
            case _, kind if kind == "crashed" or _CRASH.match(self.message):
                return "crashed"
            case _, kind if kind == "timeout" or _TIMEOUT.match(self.message):
                return "timeout"
            case element, _:
                return "failed" if element == "failure" else "error"


class _Reader:
    """Takes expat's events; knows at each moment which test it is in."""

    def __init__(self) -> None:
        self.path: list[str] = []
        self.cases: dict[str, list[Case]] = {}
        self.suites: dict[str, Suite] = {}
        self.properties: dict[str, str] = {}
        self.problems: list[str] = []
        self.suite_properties: dict[str, str] = {}
        self.case: Mapping[str, str] = {}
        self.case_properties: dict[str, str] = {}
        self.verdicts: list[_Verdict] = []
        self.head, self.tail, self.size, self.timestamp, self.suite_name = "", "", 0, "", ""
        # elements, and cases with such: so far, and before each suite that is open
        self.seen: Counter[str] = Counter()
        self.open: list[tuple[Mapping[str, str], Counter[str]]] = []

    def doctype(self, *_: object) -> NoReturn:
        raise _Refused("it declares a document type")

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if not self.path and name not in {"testsuites", "testsuite"}:
            raise _Refused(f"it is not a JUnit report but <{name[:40]}>")
        self.path.append(name)
        if len(self.path) > MAX_DEPTH:
            raise _Refused(f"its elements are nested more than {MAX_DEPTH} deep")
        self.seen[name] += name in _VERDICTS or name == "testcase"
        if name in {"testsuite", "testsuites"}:
            self.open.append((attributes, self.seen.copy()))
        if name == "testsuite":
            self._start_suite(attributes)
        elif name == "testcase":
            if self.seen[name] > MAX_CASES:
                raise _Refused(f"it holds more than {MAX_CASES} tests")
            self.case, self.case_properties, self.verdicts = attributes, {}, []
        elif name == "property":
            self._property(attributes.get("name", ""), attributes.get("value", ""))
        elif name in _KEPT:
            self.head, self.tail, self.size = "", "", 0
            kind, message = attributes.get("type", ""), cut(attributes.get("message", ""))
            self.verdicts.append(_Verdict(name, kind, message))

    def text(self, data: str) -> None:
        """Keep the beginning and the end of a text of any length."""
        if self.path[-1] in _KEPT:
            room = _HALF - len(self.head)
            self.size += len(data)
            self.head += data[:room]
            self.tail = (self.tail + data[room:])[-_HALF:]

    def end(self, name: str) -> None:
        self.path.pop()
        if name in _KEPT and self.verdicts:
            said = self.head + self.tail
            self.verdicts[-1] = self.verdicts[-1]._replace(text=clean(cut(said, self.size - len(said))))
        elif name == "testcase":
            self._end_case()
        elif name in {"testsuite", "testsuites"}:
            self._end_suite(*self.open.pop())

    def _end_suite(self, said: Mapping[str, str], before: Mapping[str, int]) -> None:
        """Compare what a suite counts with what it holds; writers differ in how they count one test twice."""
        for attribute, element in _COUNTED.items():
            least, most = (self.seen[one] - before[one] for one in (f"{element} cases", element))
            if attribute == "tests":
                # pytest counts a test whose clean-up failed, too, once, and one that had passed twice
                most += self.seen["error"] - before["error"]
            elif attribute == "skipped":
                least -= _count(said, "disabled")
            if (text := said.get(attribute)) and not least <= _count(said, attribute) <= most:
                named = least if attribute == "tests" else most
                self.problems.append(f"the report counts {text[:20]} {attribute} and names {named or 'none'}")

    def _start_suite(self, attributes: Mapping[str, str]) -> None:
        self.timestamp = self.timestamp or attributes.get("timestamp", "")[:64]
        self.suite_name = attributes.get("name", "")[:_NAME_LIMIT]
        self.suite_properties = {}
        seconds = self.suites.get(self.suite_name, Suite()).seconds + _seconds(attributes.get("time", ""))
        self.suites[self.suite_name] = Suite(seconds=seconds, properties=self.suite_properties)

    def _property(self, name: str, value: str) -> None:
        if "testcase" in self.path:
            self.case_properties[name] = value
        elif "testsuite" in self.path:
            self.suite_properties[name] = value
        elif name == _PROBLEM:
            self.problems.append(value)
        else:
            self.properties[name] = value

    def _end_case(self) -> None:
        test = self.case_properties.get("nodeid") or node_id(self.case)
        if len(test) > _NAME_LIMIT:
            test = f"{test[:_NAME_LIMIT]}…{hashlib.sha256(test.encode()).hexdigest()[:12]}"
        test = clean(test)
        attempts = 1 + sum(one.element in _EARLIER for one in self.verdicts)
        attempts = max(attempts, _count(self.case_properties, "attempts"))
        final = [one for one in self.verdicts if one.element in _VERDICTS]
        verdict = max(final, key=lambda one: OUTCOMES.index(one.outcome), default=None)
        outcome = verdict.outcome if verdict else "flaky" if attempts > 1 else "passed"
        # only earlier attempts: then it passed
        verdict = verdict or next(iter(self.verdicts), _Verdict("", "", ""))
        line = first_line(verdict.message, verdict.text) if verdict.element else ""
        if outcome in {"skipped", "xfailed"}:
            line = clean(verdict.message).strip()[:LINE_LIMIT] or line
        file = test.partition("::")[0]
        made = Case(
            test=test,
            outcome=outcome,
            seconds=_seconds(self.case.get("time", "")),
            line=line,
            text=verdict.text or cut(clean(verdict.message)),
            file=file if file.endswith(".py") else self.suite_name,
            attempts=attempts,
            rule=clean(self.case_properties.get("rule", ""))[:LINE_LIMIT],
        )
        counted = {f"{one.element} cases" for one in final}
        self.seen.update(counted if test in self.cases else {*counted, "testcase cases"})
        self.cases.setdefault(test, []).append(made)

    def document(self, problem: str) -> Document:
        cases = tuple(map(worst, self.cases.values()))
        problems = [*filter(None, [problem]), *dict.fromkeys(self.problems)][:5]
        problems += [] if problems or cases else [NO_TEST]
        return Document(
            cases=cases,
            suites=self.suites,
            # other writers keep properties of the whole in their suites
            properties=self.properties
            or {name: value for suite in self.suites.values() for name, value in suite.properties.items()},
            problems=tuple(clean(one)[:LINE_LIMIT] for one in problems),
            timestamp=self.timestamp,
        )


def node_id(attributes: Mapping[str, str]) -> str:
    """Return a test's node id from what JUnit keeps of it: dotted class, name, sometimes the file."""
    owner, name, path = (attributes.get(key, "") for key in ("classname", "name", "file"))
    module = ".".join(PurePosixPath(path.replace("\\", "/")).with_suffix("").parts) if path else ""
    if not owner:
        # a file that could not be collected, by its dotted name
        return path if path and name in {module, ""} else name or path or "?"
    if path and f"{owner}.".startswith(f"{module}."):
        return "::".join(filter(None, (path, *owner[len(module) + 1 :].split("."), name)))
    parts = owner.split(".")
    depth = next((at for at in range(len(parts), 0, -1) if _MODULE.fullmatch(parts[at - 1])), 0)
    if not depth:
        return f"{owner}::{name}"
    return "::".join(("/".join(parts[:depth]) + ".py", *parts[depth:], name))


def _seconds(text: str) -> float:
    try:
        value = float(text.replace(",", "") or 0)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value >= 0 else 0.0


def _count(attributes: Mapping[str, str], name: str) -> int:
    text = attributes.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0  # noqa: PLR2004 - more is no count
