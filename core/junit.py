"""Test results, and the JUnit documents that hold them: one format for every stage that tests.

Format: what pytest's ``--junitxml`` writes. Beyond it, an ``error`` of type ``crashed`` or ``timeout``,
properties of the whole document, one ``testsuite`` a test file, and ``flakyFailure`` elements as Maven
Surefire writes them. `core.junit_reading` reads it.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
    """Write results so that `core.junit_reading.read` gives them again, and any JUnit reader understands."""
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
