"""A pytest plugin for runs of upstream's tests: applies skip rules, and writes down what happens.

It runs inside the target environment, so it needs the standard library and pytest (7 to 9) alone, on
Python 3.10 and later. This file's folder goes on PYTHONPATH, and::

    python -m pytest -p wheel_test_plugin --wheel-tests SETTINGS …

`pytorch_build.test.plugin` writes the settings, `plugin.Settings`, and reads the events. Test ids are
pytest's node ids with the path relative to the settings' ``root``, however pytest was started:
``test/test_nn.py::TestNN::test_x[a/b 1]``. Characters that cannot be printed are written out in them.

A rule's tests are patterns of `fnmatch`, but for brackets, which are an id's own. A test that a rule skips
is marked, not dropped: it ends with the rule's name and reason. Of several rules that take a test, skip wins
over xfail, xfail over retry, and among equals the first.

The events are JSON lines, ``{pid}.jsonl`` in the settings' folder, one file a process. Each line is flushed
when it happens, so that the file holds what was known when an interpreter died::

    collected  tests: about to run; deselected: others that exist; rules: the tests that each one takes
    started    test
    ended      test, outcome, seconds, attempt, rule, message, text (the traceback of a failure)

Outcomes: ``passed``, ``failed``, ``error`` (in setup or teardown), ``skipped``, ``xfailed``, ``xpassed``
(not strict), ``rerun`` (failed, and tried again: the test ends once more), ``unrun`` (set up alone). A file
that could not be collected, or that skips itself as a whole, ends under its path. A test that started and did
not end was running when its interpreter died.

Upstream's ``run_test.py`` stops a file at the first failed test, and tries each failed test and the file
again, so a failure could pass for a success. With ``started_by_run_test`` every test runs once, the events
hold the failures, and the runner gets status 0 as long as pytest itself worked.
"""

from __future__ import annotations

import faulthandler
import fnmatch
import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

# The first action that takes a test wins.
_ACTIONS = ("skip", "xfail", "retry")
_WORST_FIRST = (
    "error",
    "failed",
    "rerun",
    "xpassed",
    "xfailed",
    "skipped",
    "passed",
)
_MESSAGE_LIMIT = 2000
_TEXT_LIMIT = 16_000
_ID_LIMIT = 1000
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_RULE_PROPERTY = "wheel_test_rule"
_TESTS_FAILED = 1
# The process's own standard error, as it is before pytest captures it.
_STDERR = os.dup(2)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    group = parser.getgroup("wheel tests")
    group.addoption(
        "--wheel-tests",
        metavar="FILE",
        help="JSON: skip rules, excluded tests, the events",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Read the settings; take back the ``-x`` and ``--reruns`` of upstream's runner, but no tests' marks."""
    settings_file = config.getoption("--wheel-tests")
    if not settings_file:
        return
    if config.getoption("numprocesses", default=None):
        raise pytest.UsageError("-n: pytest-xdist's processes lose results; use --workers")

    try:
        settings = json.loads(Path(settings_file).read_text(encoding="utf-8"))
        plugin = WheelTests(config, settings)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise pytest.UsageError(f"--wheel-tests {settings_file}: {problem!r}") from problem

    has_retry_rule = any(rule.action == "retry" for rule in plugin.rules)
    if has_retry_rule and not config.pluginmanager.hasplugin("rerunfailures"):
        raise pytest.UsageError("a rule retries tests, which needs pytest-rerunfailures")
    if settings["started_by_run_test"]:
        config.option.maxfail = 0
        if hasattr(config.option, "reruns"):
            config.option.reruns = None
    config.pluginmanager.register(plugin, "wheel-tests")


class EventWriter:
    """Writes JSON lines, each flushed before the next thing happens."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(
            parents=True,
            exist_ok=True,
        )
        self._process_id = os.getpid()
        path = folder / f"{self._process_id}.jsonl"
        self._stream = path.open("w", encoding="utf-8")

    @property
    def is_ours(self) -> bool:
        """Whether this process is pytest's own, and not one that a test has forked."""
        return os.getpid() == self._process_id

    def write(self, kind: str, **fields: object) -> None:
        """Append one line."""
        if self.is_ours:
            event = {
                "kind": kind,
                "time": time.time(),
                **fields,
            }
            self._stream.write(json.dumps(event) + "\n")
            self._stream.flush()


class Rule:
    """One rule of the settings."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.name: str = table["name"]
        self.action: str = table["action"]
        self.names_test = _matcher(table["tests"])
        reason = f"{table['reason']} [rule {self.name}]"
        marks = {
            "skip": pytest.mark.skip(reason=reason),
            "xfail": pytest.mark.xfail(reason=reason, strict=True),
            # The mark of pytest-rerunfailures.
            "retry": pytest.mark.flaky(reruns=table["retries"]),
        }
        self.mark = marks[self.action]


def _matcher(patterns: list[str]) -> Callable[[str], object]:
    """Return a function that says whether one of the patterns takes a test."""
    # Brackets are an id's own.
    expressions = [fnmatch.translate(pattern.replace("[", "[[]")) for pattern in patterns]
    # Without patterns nothing matches.
    expression = "|".join(expressions) or "(?!)"
    return re.compile(expression).match


class WheelTests:
    """The plugin of one pytest process."""

    def __init__(self, config: pytest.Config, settings: dict[str, Any]) -> None:
        self._config = config
        self._root = Path(settings["root"]).resolve()
        self._started_by_run_test: bool = settings["started_by_run_test"]
        self._excluded = frozenset(settings["excluded"])
        self._watch_seconds: float | None = settings["watch_seconds"]
        rules = [Rule(table) for table in settings["rules"]]
        self.rules = sorted(rules, key=lambda rule: _ACTIONS.index(rule.action))
        self._existing: list[str] = []
        self._taken: dict[str, list[str]] = {}
        for rule in self.rules:
            self._taken[rule.name] = []
        self._attempts: dict[str, Attempt] = {}
        self._attempt_numbers: dict[str, int] = {}
        self._cached_path_in_root = lru_cache(maxsize=None)(self._path_in_root)
        self._events = EventWriter(Path(settings["events"]))

    # First, so that the rules see what -k and -m deselect afterwards.
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Mark the collected tests, and deselect those that are excluded."""
        kept: list[pytest.Item] = []
        excluded: list[pytest.Item] = []
        for item in items:
            test = self._test_id(item.nodeid)
            self._existing.append(test)
            self._apply_rules(item, test)
            if test in self._excluded:
                excluded.append(item)
            else:
                kept.append(item)
        if excluded:
            config.hook.pytest_deselected(items=excluded)
            items[:] = kept

    def _apply_rules(self, item: pytest.Item, test: str) -> None:
        taking_rules = [rule for rule in self.rules if rule.names_test(test)]
        for rule in taking_rules:
            self._taken[rule.name].append(test)
        if taking_rules:
            # A report has the properties of its test.
            item.user_properties.append((_RULE_PROPERTY, taking_rules[0].name))
            item.add_marker(taking_rules[0].mark, append=False)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write down a file that could not be collected, or that skips itself as a whole."""
        if report.outcome != "passed":
            self._events.write(
                "ended",
                test=self._test_id(report.nodeid),
                outcome="error" if report.outcome == "failed" else "skipped",
                message=_message(report),
                text=_text(report),
            )

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Write down what is about to run, and what each rule takes."""
        tests: list[str] = []
        if not self._config.getoption("collectonly"):
            tests = [self._test_id(item.nodeid) for item in session.items]
        chosen_tests = set(tests)
        deselected = [test for test in self._existing if test not in chosen_tests]
        self._events.write(
            "collected",
            tests=tests,
            deselected=deselected,
            rules=self._taken,
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Name the test before it can take the interpreter down."""
        self._events.write("started", test=self._test_id(nodeid))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Watch over each attempt."""
        self._watch()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """Watch on: pytest's own plugin ends the watch where a test fails."""
        self._watch()

    def _watch(self) -> None:
        """End the process, with its stacks in its log, where a test goes on for too long.

        pytest-timeout has stopped it before, but for one that holds the GIL or blocks signals.
        """
        if self._watch_seconds is not None and self._events.is_ours:
            faulthandler.dump_traceback_later(
                self._watch_seconds,
                exit=True,
                file=_STDERR,
            )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a phase's report; write the attempt down when it has ended."""
        node_id = report.nodeid
        attempt = self._attempts.get(node_id)
        is_tried_again = attempt is not None and attempt.outcome == "rerun"
        if is_tried_again and report.when == "setup":
            # Older versions of pytest-rerunfailures keep the teardown of a failed attempt to themselves.
            self._end_attempt(node_id)
        if node_id not in self._attempts:
            self._attempts[node_id] = Attempt(self._attempt_numbers.get(node_id, 1))
        self._attempts[node_id].add(report)
        if report.when == "teardown":
            self._end_attempt(node_id)

    def _end_attempt(self, node_id: str) -> None:
        attempt = self._attempts.pop(node_id)
        if attempt.outcome == "rerun":
            self._attempt_numbers[node_id] = attempt.number + 1
        elif self._events.is_ours:
            faulthandler.cancel_dump_traceback_later()
        self._events.write(
            "ended",
            test=self._test_id(node_id),
            outcome=attempt.outcome,
            seconds=round(attempt.seconds, 4),
            attempt=attempt.number,
            rule=attempt.rule,
            message=attempt.message,
            text=attempt.text,
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Keep failures from upstream's runner, which would try again."""
        if self._started_by_run_test and exitstatus == _TESTS_FAILED:
            session.exitstatus = 0

    def _test_id(self, node_id: str) -> str:
        path, separator, names = node_id.partition("::")
        path_in_root = self._cached_path_in_root(path)
        test_id = plain_text(f"{path_in_root}{separator}{names}", kept_characters="")
        if len(test_id) <= _ID_LIMIT:
            return test_id
        # Ids that differ behind the limit stay different.
        digest = hashlib.sha256(test_id.encode()).hexdigest()
        beginning = test_id[:_ID_LIMIT]
        return f"{beginning}…{digest[:16]}"

    def _path_in_root(self, path: str) -> str:
        """Return a node id's path, which depends on how pytest was called, relative to the root."""
        folders = [self._config.rootpath, self._config.invocation_params.dir]
        for argument in self._config.args:
            argument_path = Path(argument.partition("::")[0])
            folders += [argument_path, argument_path.parent]
        for folder in folders:
            file = (folder / path).resolve()
            if file.exists():
                is_inside = file.is_relative_to(self._root)
                return (file.relative_to(self._root) if is_inside else file).as_posix()
        return path


class Attempt:
    """What the reports of one attempt at one test add up to."""

    def __init__(self, number: int) -> None:
        self.number = number
        # Without a call it was set up alone, as --setup-only has it.
        self.outcome = "unrun"
        self.seconds = 0.0
        self.rule = ""
        self.message = ""
        self.text = ""

    def add(self, report: pytest.TestReport) -> None:
        """Count one phase's report; the worst outcome stays, with its message."""
        outcome = _outcome(report)
        self.rule = str(dict(report.user_properties).get(_RULE_PROPERTY, self.rule))
        # A subtest's time is its test's, and only its failure counts.
        is_subtest = hasattr(report, "context")
        if is_subtest and outcome != "failed":
            return
        if not is_subtest:
            self.seconds += report.duration

        if self.outcome == "unrun":
            is_result = outcome != "passed" or report.when == "call"
        else:
            is_result = _WORST_FIRST.index(outcome) < _WORST_FIRST.index(self.outcome)
        if is_result:
            self.outcome = outcome
            self.message = _message(report)
            self.text = _text(report)


def plain_text(text: str, *, kept_characters: str = "\n\t") -> str:
    """Return a text that every reader of the events takes: what is not printable is written out.

    Tests print undecodable bytes as lone surrogates, which are not UTF-8: pytest-dev/pytest#13750.
    """
    without_colours = _COLOURS.sub("", text)
    if without_colours.isprintable():
        return without_colours
    letters: list[str] = []
    for letter in without_colours:
        if letter in kept_characters or letter.isprintable():
            letters.append(letter)
        else:
            letters.append(ascii(letter)[1:-1])
    return "".join(letters)


def _outcome(report: pytest.TestReport) -> str:
    if report.outcome == "failed":
        return "failed" if report.when == "call" else "error"
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.outcome == "skipped" else "xpassed"
    # Also "rerun", which is of pytest-rerunfailures.
    return str(report.outcome)


def _message(report: pytest.TestReport | pytest.CollectReport) -> str:
    longrepr = report.longrepr
    crash = getattr(longrepr, "reprcrash", None)
    if hasattr(report, "wasxfail"):
        message = str(report.wasxfail).removeprefix("reason: ")
    elif isinstance(longrepr, tuple):
        message = str(longrepr[2]).removeprefix("Skipped: ")
    elif crash is not None:
        message = str(crash.message)
    else:
        message = _last_line(str(longrepr or ""))

    message = plain_text(message)
    if len(message) <= _MESSAGE_LIMIT:
        return message
    return f"{message[:_MESSAGE_LIMIT]}…"


def _last_line(text: str) -> str:
    for line in reversed(text.splitlines()):
        if line.strip():
            return line
    return ""


def _text(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why an attempt failed, at length; "" where it did not."""
    if report.outcome in {"passed", "skipped"}:
        return ""
    text = plain_text(report.longreprtext)
    if len(text) <= _TEXT_LIMIT:
        return text
    half = _TEXT_LIMIT // 2
    beginning = text[:half]
    end = text[-half:]
    return f"{beginning}\n…\n{end}"
