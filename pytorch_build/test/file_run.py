"""Running one of upstream's test files: a process under limits, and others after it where it dies.

A test that takes its interpreter down costs that test. What had not run yet runs in another process, up to
a limit; what hangs is stopped with the stacks of its threads in the log. What is known of a test comes from
the plugin's journal and from JUnit, see `pytorch_build.test.file_run`.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from core import console, junit
from core.env import supervision
from core.env.supervision import Limits, supervise
from core.errors import DataError, MissingInputError
from core.junit import OUTCOMES, Case, clean, cut, first_line, last_attempt
from pytorch_build.test import plugin
from pytorch_build.test.plugin import Plan, PlannedRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from core.junit import Document, Outcome
    from pytorch_build.test.plugin import Result, Session
    from pytorch_build.test.shards import Part
    from pytorch_build.test.upstream_tests import LimitsTable, TestFile


# pytest stops a test itself at its limit; what does not let itself be stopped has this long again
_SECOND_CHANCE = 30.0
_MEGABYTE = 1 << 20
_TAIL_LINES = 60
# what pytest-timeout says, in its older and newer words
_LATE = re.compile(r"Timeout \(?>[0-9.]+s\)?")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all files of a run have in common."""

    python: Path
    tree: Path
    env: Mapping[str, str]
    folder: Path
    logs: Path
    limits: LimitsTable
    rules: tuple[PlannedRule, ...] = ()
    expression: str = ""
    arguments: tuple[str, ...] = ()
    workers: int = 1


@dataclass(frozen=True, kw_only=True)
class FileRun:
    """What became of a test file."""

    file: str
    cases: tuple[Case, ...]
    collected: tuple[str, ...] = ()
    whole: int | None = None
    seconds: float = 0.0
    processes: int = 1
    log: Path | None = None
    matched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    collection: Path | None = None


class Stall:
    """Says whether a test of a journal runs longer than it may; asked while journals grow."""

    def __init__(self, journals: Callable[[], Iterable[Path]], seconds: float) -> None:
        self._journals = journals
        self._seconds = seconds
        self._read: dict[Path, int] = {}
        self._running: dict[str, float] = {}

    def __call__(self) -> str:
        """Read what is new, and name a test that hangs; "" for none."""
        now = time.monotonic()
        for line in self._lines():
            test = str(line.get("test", ""))
            if line.get("kind") == "start" or line.get("outcome") == "rerun":
                self._running[test] = now
            elif line.get("kind") in ("test", "end"):
                self._running.pop(test, None)
        for test, since in self._running.items():
            if now - since > self._seconds:
                return f"{test} did not end within {console.duration(self._seconds)}"
        return ""

    def _lines(self) -> list[dict[str, object]]:
        found = []
        for journal in self._journals():
            with journal.open("rb") as stream:
                stream.seek(self._read.get(journal, 0))
                # a line that is being written is read the next time
                whole = stream.read().rpartition(b"\n")[0]
            self._read[journal] = self._read.get(journal, 0) + len(whole) + bool(whole)
            found += [json.loads(line) for line in whole.splitlines() if line.strip()]
        return found


class _Running:
    """One file, process by process."""

    def __init__(self, file: TestFile, setting: Setting, part: Part | None, name: str) -> None:
        self.file, self.setting, self.part = file, setting, part
        self.name = name
        self.folder = setting.folder / name
        self.log = setting.logs / f"{name}.log"
        self.until = time.monotonic() + setting.limits.file_seconds
        self.cases: dict[str, Case] = {}
        self.collected: dict[str, None] = {}
        self.matched: dict[str, tuple[str, ...]] = {}
        self.whole: int | None = None
        self.processes = 0
        self.side_by_side = file.parallel and setting.workers > 1

    def perform(self) -> None:
        """Run the file, and what is left of it after each process that dies."""
        # what an earlier run left there would be taken for this one's
        shutil.rmtree(self.folder, ignore_errors=True)
        self.log.unlink(missing_ok=True)
        if self.file.runner == "script":
            self._script()
            return
        only: tuple[str, ...] | None = None
        if self.part is not None and not self.part.whole:
            only = self._part(self.part)
            if only == ():
                return
        while True:
            left = self._process(only)
            if not left:
                return
            console.say(f"{self.file.file}: its process died; {len(left)} tests go on in another one.")
            only = left

    def _script(self) -> None:
        """Run a program, whose status is its result."""
        self.processes += 1
        argv = [str(self.setting.python), str(self.setting.tree / self.file.file)]
        ended = self._supervised(argv, self.setting.env)
        self.cases[self.file.file] = of_script(self.file.file, ended)

    def _part(self, part: Part) -> tuple[str, ...] | None:
        """Collect the file, and choose the shard's tests; None to let the file fail as a whole."""
        sessions, _ = self._started("collect", None, ("--collect-only", "-q"))
        session = sessions[-1] if sessions else None
        if (
            session is None
            or session.end is None
            or any(one.outcome == "error" for one in session.uncollected)
        ):
            return None
        self.whole = len(session.collected)
        return tuple(test for test in session.collected if part.takes(test))

    def _process(self, only: tuple[str, ...] | None) -> tuple[str, ...]:
        """Run one process and keep what it said; give the tests that are to go on in another one."""
        self.processes += 1
        name, together = f"{self.processes}", self.side_by_side
        sessions, ended = self._started(name, only, ())
        left = self._left(sessions)
        found = of_file(
            self.file.file,
            ended,
            # what goes on is not told as lost
            [replace(one, collected=one.started) for one in sessions] if left else sessions,
            self._document(name),
            may_be_empty=bool(self.setting.expression or self.setting.arguments) or only is not None,
        )
        for case in found.cases:
            if left and together and case.test in {*left, self.file.file}:
                continue  # one of several that ran: by itself it shows which of them it was
            self.cases[case.test] = self._ruled(_timed_out(case))
        for session in sessions:
            self.collected |= dict.fromkeys(session.collected)
            for rule, tests in session.rules.items():
                self.matched[rule] = tuple(dict.fromkeys((*self.matched.get(rule, ()), *tests)))
        return left

    def _ruled(self, case: Case) -> Case:
        """Say by which rule a test was tried again."""
        if case.attempts == 1:
            return case
        rules = (one for one in self.setting.rules if one.action == "retry" and one.takes(case.test))
        return replace(case, rule=next((f"{one.name}: {one.reason}" for one in rules), ""))

    def _left(self, sessions: Sequence[Session]) -> tuple[str, ...]:
        """Name the tests that a process that died had not come to, if they may go on."""
        if not sessions or sessions[-1].end is not None or self.file.runner != "pytest":
            return ()
        left = sessions[-1].unreached
        if self.side_by_side:
            self.side_by_side = False
            left = (*sessions[-1].unfinished, *left)
        if left and self.processes > self.setting.limits.restarts:
            console.warn(f"{self.file.file}: given up after {self.processes} processes that died.")
            return ()
        return left if time.monotonic() < self.until else ()

    def _started(
        self, name: str, only: tuple[str, ...] | None, more: tuple[str, ...]
    ) -> tuple[Sequence[Session], Ended]:
        setting = self.setting
        plan, journal = self.folder / f"{name}.plan.json", self.folder / f"{name}.journal.jsonl"
        plugin.write_plan(plan, Plan(root=str(setting.tree), only=only, rules=setting.rules))
        journals = journal if self.file.runner == "pytest" else self.folder / f"{name}.{{pid}}.journal.jsonl"
        argv, env = self._command(plan, journals, self.folder / f"{name}.xml", more)
        stalled = Stall(partial(self._journals, name), setting.limits.test_seconds + _SECOND_CHANCE)
        ended = self._supervised(argv, env, stalled)
        return self._sessions(name), ended

    def _supervised(
        self, argv: Sequence[str], env: Mapping[str, str], stalled: Callable[[], str] = str
    ) -> Ended:
        limits, folder = self.setting.limits, self.setting.tree / "test"
        console.detail(f"+ {shlex.join(argv)}  (in {folder})")
        seconds = max(self.until - time.monotonic(), 1.0)
        ended = supervise(
            argv,
            cwd=folder,
            env=env,
            log=self.log,
            limits=Limits(seconds=seconds, log_bytes=limits.log_megabytes * _MEGABYTE),
            stalled=stalled,
        )
        return Ended(
            returncode=ended.returncode,
            timed_out=ended.late,
            stopped=ended.stopped,
            seconds=ended.seconds,
            output=supervision.tail(self.log, lines=_TAIL_LINES),
        )

    def _command(
        self, plan: Path, journal: Path, report: Path, more: tuple[str, ...]
    ) -> tuple[list[str], Mapping[str, str]]:
        setting = self.setting
        own = [*plugin.arguments(plan, journal), "-o", f"cache_dir={self.folder / 'pytest'}"]
        own += [f"--timeout={setting.limits.test_seconds:g}", *more]
        if self.file.runner == "pytest":
            argv = [str(setting.python), "-m", "pytest", *_configuration(setting.tree), *own]
            argv += ["--junitxml", str(report), *self._workers()]
            argv += ["-k", setting.expression] if setting.expression else []
            return [*argv, *setting.arguments, self.file.file.partition("/")[2]], setting.env
        argv = [str(setting.python), "run_test.py", "--verbose", "--keep-going", *self.file.arguments]
        argv += ["-k", setting.expression] if setting.expression else []
        # pytest takes the rest from a variable, as the runner would not pass it on
        own += ["-p", "upstream_runner_plugin", *setting.arguments]
        return [*argv, "--include", self.file.module], {**setting.env, "PYTEST_ADDOPTS": shlex.join(own)}

    def _workers(self) -> list[str]:
        return ["--numprocesses", str(self.setting.workers)] if self.side_by_side else []

    def _journals(self, name: str) -> list[Path]:
        return sorted(self.folder.glob(f"{name}.*journal.jsonl"))

    def _sessions(self, name: str) -> Sequence[Session]:
        found: list[Session] = []
        for path in self._journals(name):
            try:
                found += plugin.read_journal(path)
            except (DataError, MissingInputError) as problem:
                console.warn(str(problem))
        return sorted(found, key=lambda session: session.began.time)

    def _document(self, name: str) -> Document | None:
        path = self.folder / f"{name}.xml"
        return junit.read_file(path) if path.is_file() else None


def _configuration(tree: Path) -> list[str]:
    """Name upstream's settings of pytest, so that no file above the tree is taken for them."""
    for name in ("pytest.ini", "setup.cfg", "pyproject.toml"):
        if (tree / name).is_file():
            return ["--rootdir", str(tree), "-c", str(tree / name)]
    return ["--rootdir", str(tree)]


def _timed_out(case: Case) -> Case:
    """Tell a test that pytest stopped at its limit from one that failed."""
    late = case.outcome in ("failed", "error") and _LATE.search(case.line) is not None
    return replace(case, outcome="timeout") if late else case


def run_file(file: TestFile, setting: Setting, *, part: Part | None = None, name: str = "") -> FileRun:
    """Run a test file."""
    running = _Running(file, setting, part, name or log_name(file.file))
    started = time.monotonic()
    running.perform()
    return FileRun(
        file=file.file,
        cases=tuple(running.cases.values()),
        collected=tuple(running.collected),
        whole=running.whole,
        seconds=time.monotonic() - started,
        processes=running.processes,
        log=running.log if running.log.is_file() else None,
        matched=running.matched,
        collection=plugin.keep_collection(
            sorted(running.folder.glob("*.journal.jsonl")), setting.logs / f"{running.name}.collected.jsonl"
        ),
    )


def log_name(file: str) -> str:
    """Name a file's log: ``test/dynamo/test_misc.py`` is ``dynamo.test_misc``."""
    return file.removeprefix("test/").removesuffix(".py").replace("/", ".")


def on(target: str, run: FileRun) -> FileRun:
    """Say on which architecture a file's results were made, where there are several.

    The file's name gets it (``test/test_nn.py@gfx942``): a test may pass on one and fail on another.
    """
    file = f"{run.file}@{target}"

    def named(test: str) -> str:
        return file + test.removeprefix(run.file) if test.startswith(run.file) else f"{test}@{target}"

    return replace(
        run,
        file=file,
        cases=tuple(replace(case, file=file, test=named(case.test)) for case in run.cases),
        collected=tuple(map(named, run.collected)),
    )


# https://docs.pytest.org/en/stable/reference/exit-codes.html
_TESTS_FAILED, _NO_TESTS = 1, 5
_BY_ITSELF = frozenset({0, _TESTS_FAILED, _NO_TESTS})
_EXIT_WORDS = {2: "was interrupted", 3: "had an internal error", 4: "refused its arguments"}
_OUTCOMES: dict[str, Outcome] = {one: one for one in OUTCOMES} | {"xpassed": "passed", "rerun": "failed"}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How the process of a test file ended."""

    returncode: int
    timed_out: bool = False
    stopped: str = ""
    seconds: float = 0.0
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class FileResults:
    """What one process said of a test file."""

    cases: tuple[Case, ...]
    collected: tuple[str, ...] = ()


def of_file(
    file: str,
    ended: Ended,
    sessions: Sequence[Session],
    document: Document | None,
    *,
    may_be_empty: bool = False,
) -> FileResults:
    """Put together what is known of one test file."""
    cases = _reported(file, sessions, document)
    told = _as_a_whole(file, ended, sessions, cases)
    if told is None and not cases and not may_be_empty:
        told = Case(test=file, file=file, outcome="error", line="no test ran", text=_said(ended))
    if told is not None:
        cases[told.test] = told
    collected = tuple(dict.fromkeys(test for one in sessions for test in one.collected))
    return FileResults(cases=tuple(cases.values()), collected=collected)


def of_script(file: str, ended: Ended) -> Case:
    """Give the result of a program that is no test file: it is right where it ends with status 0."""
    verdict = _killed(ended)
    if verdict is None and ended.returncode:
        verdict = "failed", first_line("", ended.output) or f"it ended with status {ended.returncode}"
    outcome, line = verdict or ("passed", "")
    text = "" if outcome == "passed" else _said(ended)
    return Case(test=file, file=file, outcome=outcome, seconds=ended.seconds, line=line, text=text)


def _reported(file: str, sessions: Sequence[Session], document: Document | None) -> dict[str, Case]:
    heard: dict[str, list[Case]] = {}
    for session in sessions:
        for uncollected in session.uncollected:
            outcome: Outcome = "error" if uncollected.outcome == "error" else "skipped"
            said = uncollected.message
            case = Case(
                test=uncollected.file, file=file, outcome=outcome, line=first_line(said, ""), text=clean(said)
            )
            heard.setdefault(case.test, []).append(case)
        for result in session.results:
            heard.setdefault(result.test, []).append(_heard(file, result))
    cases = {test: last_attempt(attempts) for test, attempts in heard.items()}
    names = {_short(test): test for test in cases}
    for written in document.cases if document else ():
        # pytest's own root may be another folder than the one that ids are relative to
        test = names.get(_short(written.test)) or _uncollected(written.test, cases) or written.test
        known = cases.get(test)
        if known is None:
            cases[test] = replace(written, file=file)
            continue
        graver = max(known, written, key=lambda one: OUTCOMES.index(one.outcome))
        cases[test] = replace(
            known, outcome=graver.outcome, line=known.line or written.line, text=written.text or known.text
        )
    return cases


def _uncollected(name: str, cases: Iterable[str]) -> str:
    """Find the file that could not be collected and that pytest writes as ``test.test_nn``."""
    dotted = {test: f".{test.removesuffix('.py').replace('/', '.')}" for test in cases if "::" not in test}
    return next((test for test, written in dotted.items() if name and written.endswith(f".{name}")), "")


def _heard(file: str, result: Result) -> Case:
    outcome = _OUTCOMES[result.outcome]
    quiet = outcome == "passed"
    return Case(
        test=result.test,
        file=file,
        outcome=outcome,
        seconds=max(0.0, result.seconds),
        line="" if quiet else first_line(result.message, ""),
        text="" if quiet else clean(result.message),
    )


def _as_a_whole(file: str, ended: Ended, sessions: Sequence[Session], cases: dict[str, Case]) -> Case | None:
    """Say how the file failed as a whole, by the test that it died in where one is known; else None."""
    complete = bool(sessions) and sessions[-1].end is not None
    verdict = _killed(ended) or (_odd(ended, cases) if complete else _incomplete(ended, sessions))
    if verdict is None:
        return None
    outcome, line = verdict
    if left := sum(len(one.unreached) for one in sessions if one.end is None):
        line += f"; {left} tests after it did not run"
    running = _running(sessions)
    test = running[0] if running else file
    return Case(test=test, file=file, outcome=outcome, seconds=ended.seconds, line=line, text=_said(ended))


def _killed(ended: Ended) -> tuple[Outcome, str] | None:
    if ended.timed_out:
        return "timeout", ended.stopped or f"killed after {ended.seconds:.0f} s"
    if ended.stopped:
        return "error", ended.stopped
    if ended.returncode < 0:
        return "crashed", f"the interpreter died of {_signal(-ended.returncode)}"
    return None


def _incomplete(ended: Ended, sessions: Sequence[Session]) -> tuple[Outcome, str]:
    """Say why pytest did not come to its end."""
    if not sessions and ended.returncode in _EXIT_WORDS:
        return "error", f"pytest {_EXIT_WORDS[ended.returncode]} (status {ended.returncode})"
    if not sessions and ended.returncode:
        return "error", f"pytest did not begin (status {ended.returncode}): {first_line('', ended.output)}"
    return "crashed", f"the interpreter ended with status {ended.returncode} before pytest did"


def _odd(ended: Ended, cases: dict[str, Case]) -> tuple[Outcome, str] | None:
    """Say what is wrong with how pytest ended, if it did."""
    if words := _EXIT_WORDS.get(ended.returncode):
        if any(case.failing for case in cases.values()):
            return None  # a file that cannot be collected interrupts pytest, and is told by itself
        return "error", f"pytest {words} (status {ended.returncode})"
    if ended.returncode not in _BY_ITSELF:
        return "crashed", f"the interpreter ended with status {ended.returncode} after the last test"
    if ended.returncode == _TESTS_FAILED and not any(case.failing for case in cases.values()):
        return "error", f"pytest ended with status 1 and named none of {len(cases)} tests as failed"
    return None


def _running(sessions: Sequence[Session]) -> tuple[str, ...]:
    return tuple(test for one in sessions if one.end is None for test in one.unfinished)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _said(ended: Ended) -> str:
    return cut(clean(ended.output))


def _short(test: str) -> str:
    """Give a test id without the folders of its file."""
    path, colons, names = test.partition("::")
    return f"{path.replace(chr(92), '/').rpartition('/')[2]}{colons}{names}"
