"""Reading one ``testcase`` element: which test it is of, how that ended, and why.

Reports of other programs are read, too: what they leave out is found by how pytest names things.
"""

import hashlib
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import PurePosixPath

from pytorch_build.test.junit.document import Case, Outcome, severity
from pytorch_build.test.junit.elements import EARLIER_ATTEMPTS, VERDICTS, XFAIL
from pytorch_build.test.junit.texts import LINE_LIMIT, clean, cut, first_line

# The limit of a name that is kept, in characters.
NAME_LIMIT = 2_000

# What pytest-timeout and pytest-xdist say of a test.
_TIMEOUT = re.compile(r"Failed: Timeout \(?>")
_CRASH = re.compile(r"worker '.*' crashed while running")
_TEST_MODULE = re.compile(r"test_\w+|\w+_test")
_NUMBER = re.compile(r"[0-9]{1,9}")


def read_case(element: ET.Element, suite_name: str) -> Case:
    """Return the result that a ``testcase`` holds."""
    properties = _properties(element)
    node = properties.get("nodeid") or node_id(element.attrib)
    test = _shortened_name(node)
    file, _separator, _name = test.partition("::")
    if not file.endswith(".py"):
        file = suite_name

    earlier_attempts = sum(child.tag in EARLIER_ATTEMPTS for child in element)
    stated_attempts = read_count(properties, "attempts")
    attempts = max(earlier_attempts + 1, stated_attempts)
    # With earlier attempts alone it passed in the end.
    outcome: Outcome = "flaky" if attempts > 1 else "passed"
    line = ""
    text = ""
    reason = _find_reason(element)
    if reason is not None:
        if reason.tag in VERDICTS:
            outcome = _outcome_of(reason)
        message = cut(reason.get("message", ""))
        text = clean(cut(reason.text or ""))
        line = _line_of(outcome, message, text)
        text = text or clean(message)

    rule = clean(properties.get("rule", ""))
    return Case(
        test=test,
        outcome=outcome,
        seconds=read_seconds(element.attrib),
        line=line,
        text=text,
        file=file,
        attempts=attempts,
        rule=rule[:LINE_LIMIT],
    )


def _properties(testcase: ET.Element) -> Mapping[str, str]:
    properties: dict[str, str] = {}
    for element in testcase.iter("property"):
        name = element.get("name", "")
        properties[name] = element.get("value", "")
    return properties


# How a test ended


def _find_reason(testcase: ET.Element) -> ET.Element | None:
    """Return the element that says why a test did not pass: the worst verdict, else its first failure."""
    verdicts = [child for child in testcase if child.tag in VERDICTS]
    if verdicts:
        return max(verdicts, key=_severity_of)
    for child in testcase:
        if child.tag in EARLIER_ATTEMPTS:
            return child
    return None


def _severity_of(verdict: ET.Element) -> int:
    outcome = _outcome_of(verdict)
    return severity(outcome)


def _outcome_of(verdict: ET.Element) -> Outcome:
    kind = verdict.get("type", "")
    message = verdict.get("message", "")
    if verdict.tag == "skipped":
        return "xfailed" if kind == XFAIL else "skipped"
    if kind == "crashed" or _CRASH.match(message):
        return "crashed"
    if kind == "timeout" or _TIMEOUT.match(message):
        return "timeout"
    return "failed" if verdict.tag == "failure" else "error"


def _line_of(outcome: Outcome, message: str, text: str) -> str:
    """Return the line that says why: of a skipped test all of its reason."""
    if outcome in {"skipped", "xfailed"}:
        reason = clean(message).strip()
        if reason:
            return reason[:LINE_LIMIT]
    return first_line(message, text)


# Names of tests


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
        classes = dotted_classes.split(".")
        parts = [path, *classes, name]
        return "::".join(filter(None, parts))
    return _node_id_by_class(class_name, name)


def _module_of(path: str) -> str:
    """Return the dotted name of a test file, as class names begin with it."""
    if not path:
        return ""
    file = PurePosixPath(path.replace("\\", "/"))
    module = file.with_suffix("")
    return ".".join(module.parts)


def _node_id_by_class(class_name: str, name: str) -> str:
    """Return a node id whose file is the last part of a dotted name that is named like a test file."""
    parts = class_name.split(".")
    for depth in range(len(parts), 0, -1):
        if _TEST_MODULE.fullmatch(parts[depth - 1]):
            module = "/".join(parts[:depth])
            classes = parts[depth:]
            return "::".join((f"{module}.py", *classes, name))
    return f"{class_name}::{name}"


def _shortened_name(test: str) -> str:
    """Return a test's name within the limit; names that begin alike stay different."""
    if len(test) <= NAME_LIMIT:
        return clean(test)
    beginning = test[:NAME_LIMIT]
    digest = hashlib.sha256(test.encode()).hexdigest()
    short_digest = digest[:12]
    return clean(f"{beginning}…{short_digest}")


# Numbers


def read_seconds(attributes: Mapping[str, str]) -> float:
    """Return the duration of a test or suite; what is no duration counts nothing."""
    # Some writers separate thousands.
    text = attributes.get("time", "").replace(",", "")
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    is_duration = math.isfinite(seconds) and seconds >= 0
    return seconds if is_duration else 0.0


def read_count(attributes: Mapping[str, str], name: str) -> int:
    """Return the count in an attribute; what is no count is 0."""
    text = attributes.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else 0
