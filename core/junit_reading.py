"""Reading JUnit reports that may be cut off, empty, huge, or written to do harm.

One pass of expat over the bytes; memory is bounded by the number of tests, not by what they printed.
Whatever is wrong with a report is told in `Document.problems`, beside the results that were read before it:
a report with a problem is a failure, and what it does hold still helps.
"""

from __future__ import annotations

import hashlib
import math
import re
from io import BytesIO
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, NoReturn
from xml.parsers import expat

from core.junit import (
    LINE_LIMIT,
    OUTCOMES,
    PROBLEM,
    TEXT_LIMIT,
    XFAIL,
    Case,
    Document,
    Suite,
    clean,
    cut,
    first_line,
    worst,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from core.junit import Outcome

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
