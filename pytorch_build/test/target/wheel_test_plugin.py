"""A pytest plugin for runs of upstream's tests: applies skip rules, and keeps a journal of what happened.

It runs inside the target environment, so it needs the standard library and pytest (7 to 9)
alone, on Python 3.10 and later. This file's folder goes on PYTHONPATH, and::

    python -m pytest -p wheel_test_plugin --wheel-test-plan PLAN …

`pytorch_build.test.plugin` writes the plan and reads the journal. Test ids are pytest's node ids with the
path relative to the plan's ``root``, however pytest was started: ``test/test_nn.py::TestNN::test_x[a/b 1]``.

The plan is JSON, `plugin.Plan`, and every rule in it applies: conditions were decided before. A rule's tests
are patterns of `fnmatch`, but for brackets, which are an id's own; ``only`` are exact ids: other tests are
deselected.

A test that a rule skips is marked, not dropped: it stands in the journal with the rule's name and reason. Of
several rules that take a test, skip wins over xfail, xfail over retry, and among equals the first.

Upstream's ``run_test.py`` stops a file at the first failed test, and tries each failed test and the file
again, so a failure could pass for a success. With ``runner`` every test runs once, the journal holds the
failures, and the runner gets status 0 as long as pytest itself worked.

The journal is JSON lines, each flushed when it happens, so that it holds what was known when an interpreter
died. One file may hold several sessions, one after another. Kinds of lines, in the order of a session, with
the fields of `plugin.Line`::

    session    python, torch ("" where it is not installed)
    collect    a file that could not be collected, or "skipped" as a whole
    collected  ids about to run
    rule       each rule once, with every collected test that it matches, also those that another took
    start      a test
    test       its outcome; text: the traceback of a failure
    end        pytest's exit status

Outcomes: ``passed``, ``failed``, ``error`` (in setup or teardown), ``skipped``, ``xfailed``, ``xpassed``
(not strict), ``rerun`` (failed, and tried again: another "test" line with the next attempt follows),
``crashed`` (a pytest-xdist worker died). ``rule`` names the rule that was applied to the test.

A session without "end" was killed or died, and a test with "start" and no "test" line was running then; an
id of "collected" with neither was never reached. With pytest-xdist the controller writes the journal; "rule"
lines come before "end", and "deselected" is 0.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import platform
import re
import time
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import pytest

SCHEMA = 1
_ACTIONS = ("skip", "xfail", "retry")  # the first that takes a test wins
_WORST_FIRST = ("crashed", "error", "failed", "rerun", "xpassed", "xfailed", "skipped", "passed")
_LONGEST_MESSAGE, _LONGEST_TEXT, _LONGEST_ID = 2000, 16_000, 1000
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_RULE_PROPERTY = "wheel_test_rule"
_TESTS_FAILED = 1


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    group = parser.getgroup("wheel tests")
    group.addoption("--wheel-test-plan", metavar="FILE", help="JSON: skip rules, chosen tests, the journal")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Read the plan; take back the ``-x`` and ``--reruns`` of upstream's runner, but no marks of tests."""
    name = config.getoption("--wheel-test-plan")
    if not name:
        return
    try:
        plan = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise pytest.UsageError(f"--wheel-test-plan {name}: {problem}") from problem
    if not isinstance(plan, dict) or plan.get("schema") != SCHEMA:
        raise pytest.UsageError(f"--wheel-test-plan {name}: not a plan of schema {SCHEMA}")
    if plan.get("runner"):
        config.option.maxfail = 0
        if hasattr(config.option, "reruns"):
            config.option.reruns = None
    config.pluginmanager.register(WheelTests(config, plan), "wheel-tests")


class Journal:
    """JSON lines, each flushed before the next thing happens; without a path it keeps nothing."""

    def __init__(self, path: str) -> None:
        self._file = Path(path.replace("{pid}", str(os.getpid()))) if path else None
        self._stream: TextIO | None = None

    def write(self, kind: str, **fields: object) -> None:
        """Append one line; the first makes the file, so that a pytest that refuses its plan leaves none."""
        if self._file is None:
            return
        if self._stream is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._file.open("a", encoding="utf-8")
        # JSON of ASCII alone, so that lone surrogates in a test's id do no harm
        self._stream.write(json.dumps({"kind": kind, **fields}) + "\n")
        self._stream.flush()


class Rule:
    """One rule of the plan, with the tests that it matched so far."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.name: str = table["name"]
        self.action: str = table["action"]
        patterns = [fnmatch.translate(pattern.replace("[", "[[]")) for pattern in table["tests"]]
        self.takes = re.compile("|".join(patterns) or "(?!)").match
        self.matched: list[str] = []
        reason = f"{table['reason']} [rule {self.name}]"
        self.mark = {
            "skip": pytest.mark.skip(reason=reason),
            "xfail": pytest.mark.xfail(reason=reason, strict=True),
            "retry": pytest.mark.flaky(reruns=table["retries"]),  # of pytest-rerunfailures
        }[self.action]


class WheelTests:
    """The plugin of one pytest session."""

    def __init__(self, config: pytest.Config, plan: dict[str, Any]) -> None:
        self._config = config
        # a worker of pytest-xdist reports to its controller, which keeps the journal
        self._worker = hasattr(config, "workerinput")
        self._journal = Journal("" if self._worker else plan["journal"])
        self._root = Path(plan["root"]).resolve()
        self._runner: bool = plan["runner"]
        self._only = None if plan["only"] is None else frozenset(plan["only"])
        self._rules = sorted(map(Rule, plan["rules"]), key=lambda rule: _ACTIONS.index(rule.action))
        self._attempts: dict[str, Attempt] = {}
        self._numbers: dict[str, int] = {}
        self._called: set[str] = set()
        self._deselected = 0
        self._collected = self._ruled = False
        self._relative_path = lru_cache(maxsize=None)(self._path_in_root)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Write where and with what."""
        retries = any(rule.action == "retry" for rule in self._rules)
        if retries and not self._config.pluginmanager.hasplugin("rerunfailures"):
            raise pytest.UsageError("a rule retries tests, which needs pytest-rerunfailures")
        try:
            torch = metadata.version("torch")
        except metadata.PackageNotFoundError:
            torch = ""
        self._journal.write(
            "session", schema=SCHEMA, time=time.time(), python=platform.python_version(), torch=torch
        )

    # first, so that the rules see what -k and -m deselect afterwards
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Choose and mark the collected tests."""
        kept: list[pytest.Item] = []
        dropped: list[pytest.Item] = []
        for item in items:
            test = self._id(item.nodeid)
            rules = [rule for rule in self._rules if rule.takes(test)]
            for rule in rules:
                rule.matched.append(test)
            if rules:
                # travels with the reports, from the workers of pytest-xdist too
                item.user_properties.append((_RULE_PROPERTY, rules[0].name))
                item.add_marker(rules[0].mark, append=False)
            is_wanted = self._only is None or test in self._only
            (kept if is_wanted else dropped).append(item)
        if dropped:
            config.hook.pytest_deselected(items=dropped)
            items[:] = kept

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Count what was dropped, by whatever plugin."""
        self._deselected += len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep files that could not be collected, or that skip themselves as a whole."""
        if report.outcome != "passed":
            self._journal.write(
                "collect",
                file=self._id(report.nodeid),
                outcome="error" if report.outcome == "failed" else "skipped",
                message=_message(report),
                text=_text(report),
            )

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Write what is about to run, and what each rule took."""
        if not self._config.pluginmanager.hasplugin("dsession"):
            self._write_collected([item.nodeid for item in session.items])
            self._write_rules(self._matches())

    def _matches(self) -> dict[str, list[str]]:
        return {rule.name: rule.matched for rule in self._rules}

    def _write_collected(self, nodes: list[str]) -> None:
        self._collected = True
        self._journal.write("collected", tests=list(map(self._id, nodes)), deselected=self._deselected)

    def _write_rules(self, matched: dict[str, list[str]]) -> None:
        self._ruled = True
        for rule in self._rules:
            self._journal.write("rule", rule=rule.name, tests=matched.get(rule.name, []))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Name the test before it can take the interpreter down."""
        self._journal.write("start", test=self._id(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a phase's report; write the attempt down when it has ended."""
        if report.when == "call":
            self._called.add(report.nodeid)
        attempt = self._attempts.get(report.nodeid)
        if attempt and attempt.outcome == "rerun" and report.when == "setup":
            # older versions of pytest-rerunfailures keep the teardown of a failed attempt to themselves
            self._write_test(report.nodeid)
        self._attempts.setdefault(report.nodeid, Attempt(self._numbers.get(report.nodeid, 1))).add(report)
        if report.when not in ("setup", "call"):
            self._write_test(report.nodeid)

    def _write_test(self, node: str) -> None:
        attempt = self._attempts.pop(node)
        if attempt.outcome == "passed" and node not in self._called:
            return  # set up alone, as --setup-only has it: it did not run
        if attempt.outcome == "rerun":
            self._numbers[node] = attempt.attempt + 1
        self._journal.write(
            "test", test=self._id(node), **{**vars(attempt), "seconds": round(attempt.seconds, 4)}
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Report to the controller, or end the journal."""
        if self._worker:
            self._config.workeroutput["wheel_tests"] = self._matches()  # type: ignore[attr-defined] # xdist's
        if self._collected and not self._ruled:
            self._write_rules({})
        self._journal.write("end", exit=int(exitstatus))
        if self._runner and exitstatus == _TESTS_FAILED:
            session.exitstatus = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:  # noqa: ANN401, ARG002 - xdist's
        """Write what is about to run, once: every worker collects the same."""
        if not self._collected:
            self._write_collected(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:  # noqa: ANN401, ARG002 - xdist's
        """Take a worker's account of the rules: every worker's is the same, so the first will do."""
        matched = getattr(node, "workeroutput", {}).get("wheel_tests")
        if matched is not None and not self._ruled:
            self._write_rules(matched)

    def _id(self, node: str) -> str:
        path, separator, rest = node.partition("::")
        test = plain_text(f"{self._relative_path(path)}{separator}{rest}", kept="")
        if len(test) <= _LONGEST_ID:
            return test
        # Ids that differ behind the limit stay different.
        digest = hashlib.sha256(test.encode()).hexdigest()[:16]
        return f"{test[:_LONGEST_ID]}…{digest}"

    def _path_in_root(self, path: str) -> str:
        """Take a node id's path, which depends on how pytest was called, relative to the root."""
        starts = [self._config.rootpath, self._config.invocation_params.dir]
        starts += [Path(argument.partition("::")[0]) for argument in self._config.args]
        starts += [start.parent for start in starts[2:]]
        for start in starts:
            file = (start / path).resolve()
            if file.exists():
                inside = file.is_relative_to(self._root)
                return (file.relative_to(self._root) if inside else file).as_posix()
        return path


class Attempt:
    """What the reports of one attempt at one test add up to; its attributes are the journal's."""

    def __init__(self, attempt: int) -> None:
        self.outcome = "passed"
        self.seconds = 0.0
        self.attempt = attempt
        self.rule = self.message = self.text = ""

    def add(self, report: pytest.TestReport) -> None:
        """Count one phase's report; the worst outcome stays, with its message."""
        outcome = _outcome(report)
        self.rule = str(dict(report.user_properties).get(_RULE_PROPERTY, self.rule))
        if hasattr(report, "context"):  # a subtest: its time is its test's, and only a failure is
            if outcome != "failed":
                return
        else:
            self.seconds += report.duration
        if _WORST_FIRST.index(outcome) < _WORST_FIRST.index(self.outcome):
            self.outcome, self.message, self.text = outcome, _message(report), _text(report)


def plain_text(text: str, *, kept: str = "\n\t") -> str:
    """Return a text that every reader of the journal takes: what is not printable is written out.

    Tests print undecodable bytes as lone surrogates, which are not UTF-8: pytest-dev/pytest#13750.
    """
    without_colours = _COLOURS.sub("", text)
    if without_colours.isprintable():
        return without_colours
    return "".join(
        letter if letter in kept or letter.isprintable() else ascii(letter)[1:-1]
        for letter in without_colours
    )


def _outcome(report: pytest.TestReport) -> str:
    if report.when not in ("setup", "call", "teardown"):  # what pytest-xdist reports of a worker that died
        return "crashed"
    if report.outcome == "failed":
        return "failed" if report.when == "call" else "error"
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.outcome == "skipped" else "xpassed"
    return str(report.outcome)  # "rerun", of pytest-rerunfailures, is one


def _message(report: pytest.TestReport | pytest.CollectReport) -> str:
    longrepr = report.longrepr
    if hasattr(report, "wasxfail"):
        message = str(report.wasxfail).removeprefix("reason: ")
    elif isinstance(longrepr, tuple):
        message = str(longrepr[2]).removeprefix("Skipped: ")
    elif (crash := getattr(longrepr, "reprcrash", None)) is not None:
        message = str(crash.message)
    else:
        message = next((line for line in reversed(str(longrepr or "").splitlines()) if line.strip()), "")
    message = plain_text(message)
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"


def _text(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = "" if report.outcome in ("passed", "skipped") else plain_text(report.longreprtext)
    half = _LONGEST_TEXT // 2
    return text if len(text) <= _LONGEST_TEXT else f"{text[:half]}\n…\n{text[-half:]}"
