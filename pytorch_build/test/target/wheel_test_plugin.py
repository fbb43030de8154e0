"""A pytest plugin for runs of upstream's tests: applies skip rules, and keeps a journal of what happened.

It runs inside the target environment, so it is one file that needs the standard library and pytest
(7 to 9) alone, on Python 3.10 and later. This file's folder goes on PYTHONPATH, and::

    python -m pytest -p wheel_test_plugin --wheel-test-plan PLAN --wheel-test-journal JOURNAL …

`pytorch_build.test.plugin` writes the plan, gives these arguments and reads the journal.

Test ids are pytest's node ids with the path taken relative to the plan's ``root``, wherever pytest was
started and whatever it took for its root: ``test/test_nn.py::TestNN::test_x[a/b 1]``.

The plan is JSON, and every rule in it applies: conditions were decided before::

    {"schema": 1,
     "root": "/path/of/the/checkout",
     "mode": "apply",                 # or "try": run only what skip and xfail rules take, unmarked
     "only": null,                    # or exact ids: every other test is deselected
     "rules": [{"name": "cuda.mempool",         # file and table of the rule
                "action": "skip",               # or "xfail" (strict), or "retry"
                "reason": "…",                  # goes into the report of each test
                "retries": 0,                   # of "retry": how often again after a failure
                "tests": ["…"],                 # exact ids
                "patterns": ["…"]}]}            # regular expressions, matched against whole ids

A test that a rule skips is marked, not dropped: it stands in JUnit and in the journal with the rule's
name and reason. Of several rules that take a test, skip wins over xfail, xfail over retry, and among
equals the first.

The journal is JSON lines, each written and flushed when it happens, so that it holds what was known
when an interpreter died. ``{pid}`` in its path becomes the process's id, for runners that start pytest
several times. One file may hold several sessions, one after another. In the order of a session::

    {"kind": "session", "schema": 1, "time": 1790000000.0, "python": "3.11.7", "pytest": "9.0.2",
     "torch": "2.13.0+cpu", "root": "…", "mode": "apply"}      # torch: "" where it is not installed
    {"kind": "collect", "file": "test/test_x.py", "outcome": "error", "message": "…"}
                                       # a file that could not be collected; or "skipped" as a whole
    {"kind": "collected", "tests": ["…"], "deselected": 12}    # ids about to run
    {"kind": "absent", "tests": ["…"]}                         # of "only", those that are not there; if any
    {"kind": "rule", "rule": "cuda.mempool", "action": "skip", "tests": ["…"]}
                                       # each rule once, with every collected test that it matches,
                                       # also those that another rule took or -k deselected
    {"kind": "start", "test": "…"}
    {"kind": "test", "test": "…", "outcome": "passed", "seconds": 0.0123, "attempt": 1,
     "rule": "", "message": ""}
    {"kind": "end", "exit": 0, "seconds": 12.3}

Outcomes: ``passed``, ``failed``, ``error`` (in setup or teardown), ``skipped``, ``xfailed``, ``xpassed``
(not strict), ``rerun`` (failed, and tried again: another "test" line with the next attempt follows; a
flaky test is one with a "rerun" line and a "passed" one), ``crashed`` (a pytest-xdist worker died).
``seconds`` are setup, call and teardown together. ``rule`` names the rule that was applied to the test.

What a reader can rely on: a session without "end" was killed or died, and a test with "start" and no
"test" line was running then; an id of "collected" with neither was never reached. With pytest-xdist
the controller writes the journal; "rule" and "absent" lines come before "end", and "deselected" is 0.
The rule's name also stands in JUnit, as the property ``wheel_test_rule`` of its test case.
"""

from __future__ import annotations

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
_LONGEST_MESSAGE = 2000
_RULE_PROPERTY = "wheel_test_rule"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the two options."""
    group = parser.getgroup("wheel tests")
    group.addoption("--wheel-test-plan", metavar="FILE", help="JSON: skip rules and chosen tests")
    group.addoption("--wheel-test-journal", metavar="FILE", help="JSON lines: what happened, as it happens")


def pytest_configure(config: pytest.Config) -> None:
    """Read the plan and open the journal."""
    plan_file, journal_file = config.getoption("--wheel-test-plan"), config.getoption("--wheel-test-journal")
    if not plan_file and not journal_file:
        return
    plan = _plan(plan_file) if plan_file else {}
    # a worker of pytest-xdist tells its controller, which keeps the journal
    worker = hasattr(config, "workerinput")
    journal = Journal(journal_file) if journal_file and not worker else Journal("")
    config.pluginmanager.register(WheelTests(config, plan, journal), "wheel-tests")


def _plan(name: str) -> dict[str, Any]:
    try:
        plan = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise pytest.UsageError(f"--wheel-test-plan {name}: {problem}") from problem
    if not isinstance(plan, dict) or plan.get("schema") != SCHEMA:
        raise pytest.UsageError(f"--wheel-test-plan {name}: not a plan of schema {SCHEMA}")
    return plan


class Journal:
    """JSON lines, each on disk before the next thing happens.

    Args:
        path: The file to append to, with ``{pid}`` for the process's id; "" for none.
    """

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
        self.reason: str = table["reason"]
        self.retries: int = table.get("retries", 0)
        self.exact = frozenset(table.get("tests", ()))
        self.patterns = [re.compile(pattern) for pattern in table.get("patterns", ())]
        self.matched: dict[str, None] = {}

    def takes(self, test: str) -> bool:
        """Whether the rule names this test."""
        return test in self.exact or any(pattern.fullmatch(test) for pattern in self.patterns)

    def mark(self) -> pytest.MarkDecorator:
        """Give the mark that does what the rule says."""
        said = f"{self.reason} [rule {self.name}]"
        if self.action == "skip":
            return pytest.mark.skip(reason=said)
        if self.action == "xfail":
            return pytest.mark.xfail(reason=said, strict=True)
        return pytest.mark.flaky(reruns=self.retries)  # pytest-rerunfailures does it


class WheelTests:
    """The plugin of one pytest session."""

    def __init__(self, config: pytest.Config, plan: dict[str, Any], journal: Journal) -> None:
        self._config = config
        self._journal = journal
        self._root = Path(plan.get("root") or config.rootpath).resolve()
        self._mode: str = plan.get("mode", "apply")
        self._only = None if plan.get("only") is None else frozenset(plan["only"])
        self._rules = [Rule(table) for table in plan.get("rules", ())]
        self._rules.sort(key=lambda rule: _ACTIONS.index(rule.action))
        self._attempts: dict[str, Attempt] = {}
        self._numbers: dict[str, int] = {}
        self._deselected = 0
        self._absent: list[str] = []
        self._collected = self._told = False
        self._started = time.time()
        self._relative_path = lru_cache(maxsize=None)(self._path_in_root)
        if any(rule.action == "retry" for rule in self._rules) and self._mode == "apply":
            self._require_retries()

    def _require_retries(self) -> None:
        if not self._config.pluginmanager.hasplugin("rerunfailures"):
            raise pytest.UsageError("a rule retries tests, which needs pytest-rerunfailures")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Say where and with what."""
        try:
            torch = metadata.version("torch")
        except metadata.PackageNotFoundError:
            torch = ""
        self._journal.write(
            "session",
            schema=SCHEMA,
            time=self._started,
            python=platform.python_version(),
            pytest=pytest.__version__,
            torch=torch,
            root=str(self._root),
            mode=self._mode,
        )

    # first, so that the rules see what -k and -m deselect afterwards
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Choose and mark the collected tests."""
        kept: list[pytest.Item] = []
        dropped: list[pytest.Item] = []
        seen = set()
        for item in items:
            test = self._id(item.nodeid)
            seen.add(test)
            rules = [rule for rule in self._rules if rule.takes(test)]
            for rule in rules:
                rule.matched[test] = None
            if rules:
                # travels with the reports, from the workers of pytest-xdist too
                item.user_properties.append((_RULE_PROPERTY, rules[0].name))
                if self._mode == "apply":
                    item.add_marker(rules[0].mark(), append=False)
            (kept if self._wanted(test, rules) else dropped).append(item)
        self._absent = sorted(self._only - seen) if self._only is not None else []
        if dropped:
            config.hook.pytest_deselected(items=dropped)
            items[:] = kept

    def _wanted(self, test: str, rules: list[Rule]) -> bool:
        if self._only is not None and test not in self._only:
            return False
        return self._mode == "apply" or any(rule.action != "retry" for rule in rules)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Count what was dropped, by whomever."""
        self._deselected += len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep files that could not be collected, or that skip themselves as a whole."""
        if report.outcome != "passed":
            self._journal.write(
                "collect",
                file=self._id(report.nodeid),
                outcome="error" if report.outcome == "failed" else "skipped",
                message=_message(report),
            )

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Say what is about to run, and what each rule took."""
        if not self._config.pluginmanager.hasplugin("dsession"):
            self._say_collected([item.nodeid for item in session.items])
            self._say_rules({rule.name: list(rule.matched) for rule in self._rules}, self._absent)

    def _say_collected(self, nodes: list[str]) -> None:
        self._collected = True
        tests = [self._id(node) for node in nodes]
        self._journal.write("collected", tests=tests, deselected=self._deselected)

    def _say_rules(self, matched: dict[str, list[str]], absent: list[str]) -> None:
        self._told = True
        if absent:
            self._journal.write("absent", tests=absent)
        for rule in self._rules:
            self._journal.write("rule", rule=rule.name, action=rule.action, tests=matched.get(rule.name, []))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Name the test before it can take the interpreter down."""
        self._journal.write("start", test=self._id(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a phase's report; write the attempt down when it has ended."""
        attempt = self._attempts.get(report.nodeid)
        if attempt and attempt.outcome == "rerun" and report.when == "setup":
            # older versions of pytest-rerunfailures keep the teardown of a failed attempt to themselves
            self._say_test(report.nodeid)
        self._attempts.setdefault(report.nodeid, Attempt(self._numbers.get(report.nodeid, 1))).add(report)
        if report.when not in ("setup", "call"):
            self._say_test(report.nodeid)

    def _say_test(self, node: str) -> None:
        attempt = self._attempts.pop(node)
        if attempt.outcome == "rerun":
            self._numbers[node] = attempt.number + 1
        self._journal.write(
            "test",
            test=self._id(node),
            outcome=attempt.outcome,
            seconds=round(attempt.seconds, 4),
            attempt=attempt.number,
            rule=attempt.rule,
            message=attempt.message,
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Tell the controller, or end the journal."""
        if hasattr(self._config, "workeroutput"):
            found = {rule.name: list(rule.matched) for rule in self._rules}
            self._config.workeroutput["wheel_tests"] = {"rules": found, "absent": self._absent}
        if self._collected and not self._told:
            self._say_rules({}, [])
        self._journal.write("end", exit=int(exitstatus), seconds=round(time.time() - self._started, 3))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:  # noqa: ANN401, ARG002 - xdist's
        """Say what is about to run, once: every worker collects the same."""
        if not self._collected:
            self._say_collected(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:  # noqa: ANN401, ARG002 - xdist's
        """Take a worker's account of the rules: every worker's is the same, so the first will do."""
        said = getattr(node, "workeroutput", {}).get("wheel_tests")
        if said and not self._told:
            self._say_rules(said["rules"], said["absent"])

    def _id(self, node: str) -> str:
        path, separator, rest = node.partition("::")
        return f"{self._relative_path(path)}{separator}{rest}"

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
    """What the reports of one attempt at one test add up to."""

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.seconds = 0.0
        self.outcome = "passed"
        self.message = ""
        self.rule = ""

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
            self.outcome, self.message = outcome, _message(report)


def _outcome(report: pytest.TestReport) -> str:
    if report.when not in ("setup", "call", "teardown"):  # what pytest-xdist says of a worker that died
        return "crashed"
    if report.outcome == "failed":
        return "failed" if report.when == "call" else "error"
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.outcome == "skipped" else "xpassed"
    return str(report.outcome)  # "rerun", of pytest-rerunfailures, is one


def _message(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Give the lines that matter: the assertion or exception, or the reason of a skip."""
    if hasattr(report, "wasxfail"):
        return _short(str(report.wasxfail).removeprefix("reason: "))
    said = report.longrepr
    if isinstance(said, tuple):
        return _short(str(said[2]).removeprefix("Skipped: "))
    crash = getattr(said, "reprcrash", None)
    if crash is not None:
        return _short(str(crash.message))
    lines = [line for line in str(said or "").splitlines() if line.strip()]
    return _short(lines[-1] if lines else "")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"
