"""Running one of upstream's test files: a process under limits, and others after it where it dies.

A test that takes its interpreter down costs that test. What had not run yet runs in another process, up to
a limit; what hangs is stopped with the stacks of its threads in the log. The plugin's journal has the
results. A file that ended in any way in which pytest does not end by itself has failed, whatever its tests
said before.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, process
from core.errors import DataError, MissingInputError
from core.junit import OUTCOMES, Case, Outcome, clean, cut, first_line
from pytorch_build.test import plugin
from pytorch_build.test.results import last_attempts

if TYPE_CHECKING:
    from core.process import Ending
    from pytorch_build.test.shards import Part
    from pytorch_build.test.upstream_tests import LimitsTable, TestFile

# pytest stops a test itself at its limit; what does not let itself be stopped has this long again
_SECOND_CHANCE = 30.0
_TAIL_LINES = 60
# https://docs.pytest.org/en/stable/reference/exit-codes.html
_TESTS_FAILED = 1
_EXIT_WORDS = {2: "was interrupted", 3: "had an internal error", 4: "refused its arguments"}
_OUTCOMES: dict[str, Outcome] = {one: one for one in OUTCOMES} | {"xpassed": "passed", "rerun": "failed"}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all files of a run have in common."""

    python: Path
    tree: Path
    env: Mapping[str, str]
    folder: Path
    logs: Path
    limits: LimitsTable
    rules: tuple[plugin.PlannedRule, ...] = ()
    expression: str = ""
    arguments: tuple[str, ...] = ()
    workers: int = 1


@dataclass(frozen=True, kw_only=True)
class FileRun:
    """The results of a test file; `whole` counts its tests before anything chooses among them.

    `matched` are the rules that took a test of it.
    """

    file: str
    cases: tuple[Case, ...]
    collected: tuple[str, ...] = ()
    whole: int | None = None
    seconds: float = 0.0
    processes: int = 1
    log: Path | None = None
    matched: frozenset[str] = frozenset()

    def on(self, target: str) -> FileRun:
        """Name the architecture in the file and its tests (``test/test_nn.py@gfx942``): there are several."""
        file = f"{self.file}@{target}"

        def named(test: str) -> str:
            return file + test.removeprefix(self.file) if test.startswith(self.file) else f"{test}@{target}"

        return replace(
            self,
            file=file,
            cases=tuple(replace(case, file=file, test=named(case.test)) for case in self.cases),
            collected=tuple(map(named, self.collected)),
        )


def run_file(file: TestFile, setting: Setting, *, part: Part | None = None, name: str = "") -> FileRun:
    """Run a test file, or a shard's part of it."""
    running = _Running(file, setting, name or log_name(file.file))
    started = time.monotonic()
    running.perform(part)
    return FileRun(
        file=file.file,
        cases=tuple(running.cases.values()),
        collected=tuple(running.collected),
        whole=running.whole,
        seconds=time.monotonic() - started,
        processes=running.processes,
        log=running.log if running.log.is_file() else None,
        matched=frozenset(running.matched),
    )


def log_name(file: str) -> str:
    """Name a file's log: ``test/dynamo/test_misc.py`` is ``dynamo.test_misc``."""
    return file.removeprefix("test/").removesuffix(".py").replace("/", ".")


class Stall:
    """Reports a test of a journal that runs longer than it may; called while journals grow."""

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
        late = (test for test, since in self._running.items() if now - since > self._seconds)
        return next((f"{test} did not end within {console.duration(self._seconds)}" for test in late), "")

    def _lines(self) -> Iterable[dict[str, object]]:
        for journal in self._journals():
            with journal.open("rb") as stream:
                stream.seek(self._read.get(journal, 0))
                # a line that is being written is read the next time
                whole, newline, _ = stream.read().rpartition(b"\n")
            self._read[journal] = self._read.get(journal, 0) + len(whole) + len(newline)
            yield from (json.loads(line) for line in whole.splitlines() if line.strip())


class _Running:
    def __init__(self, file: TestFile, setting: Setting, name: str) -> None:
        self.file, self.setting, self.name = file, setting, name
        self.folder = setting.folder / name
        self.log = setting.logs / f"{name}.log"
        self.until = time.monotonic() + setting.limits.file_seconds
        self.cases: dict[str, Case] = {}
        self.collected: dict[str, None] = {}
        self.matched: set[str] = set()
        self.whole: int | None = None
        self.existing: frozenset[str] | None = None
        self.processes = 0
        self.selects = bool(setting.expression or setting.arguments)
        self.side_by_side = file.parallel and setting.workers > 1

    def perform(self, part: Part | None) -> None:
        # what an earlier run left there would be taken for this one's
        shutil.rmtree(self.folder, ignore_errors=True)
        self.log.unlink(missing_ok=True)
        if self.file.runner == "script":
            self.processes, self.whole = 1, 0
            argv = [str(self.setting.python), str(self.setting.tree / self.file.file)]
            ended = self._supervised(argv, self.setting.env)
            self.cases[self.file.file] = of_script(
                self.file.file, ended, process.tail(self.log, lines=_TAIL_LINES)
            )
            return
        only = self._part(part) if self.selects or not (part is None or part.whole) else None
        while only != ():
            only = self._process(only)
            if only:
                console.say(f"{self.file.file}: its process died; {len(only)} tests go on in another one.")

    def _part(self, part: Part | None) -> tuple[str, ...] | None:
        """Collect the file as it is, and choose the shard's tests; None for all, also where that fails."""
        plain = replace(self.setting, expression="", arguments=())
        sessions, _ = self._started("collect", None, ("--collect-only", "-q"), plain)
        if not sessions or not all(one.whole for one in sessions):
            return None
        found = dict.fromkeys(test for one in sessions for test in one.collected)
        self.whole, self.existing = len(found), frozenset(found)
        return None if part is None or part.whole else tuple(test for test in found if part.takes(test))

    def _process(self, only: tuple[str, ...] | None) -> tuple[str, ...]:
        """Run one process and keep its results; return the tests that are to go on in another one."""
        self.processes += 1
        together = self.side_by_side
        sessions, ended = self._started(str(self.processes), only, (), self.setting)
        if self.whole is None and sessions and not self.selects:
            tests = {test for one in sessions for test in one.collected}
            self.whole = len(tests) + sum(one.deselected for one in sessions)
        left = self._left(sessions)
        found = of_file(
            self.file.file,
            ended,
            # what goes on is not reported as lost
            [replace(one, collected=one.started) for one in sessions] if left else sessions,
            process.tail(self.log, lines=_TAIL_LINES),
            may_be_empty=self.selects or only is not None,
        )
        rules = {rule.name: rule for rule in self.setting.rules}
        for case in found:
            if left and together and case.test in {*left, self.file.file}:
                continue  # one of several that ran: by itself it shows which of them it was
            if not (case.failing or self._exists(case.test)):
                continue
            self.cases[case.test] = replace(case, rule=_reason_by_rule(case, rules.get(case.rule)))
        for session in sessions:
            self.collected |= dict.fromkeys(filter(self._exists, session.collected))
            self.matched |= {name for name, taken in session.rules.items() if taken}
        return left

    def _exists(self, test: str) -> bool:
        """Whether it is a test of the file, or the file itself, and not what arguments have added."""
        return self.existing is None or test in self.existing or "::" not in test

    def _left(self, sessions: Sequence[plugin.Session]) -> tuple[str, ...]:
        """List the tests that a process that died had not come to, if they may go on."""
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
        self, name: str, only: tuple[str, ...] | None, more: tuple[str, ...], setting: Setting
    ) -> tuple[Sequence[plugin.Session], Ending]:
        path = self.folder / f"{name}.plan.json"
        runner = self.file.runner == "run_test"
        plan = plugin.Plan(
            root=str(setting.tree),
            journal=str(self.folder / f"{name}{'.{pid}' if runner else ''}.journal.jsonl"),
            runner=runner,
            only=only,
            rules=setting.rules,
        )
        argv, env = self._command([*plugin.arguments(path, plan), *more], setting)

        def journals() -> list[Path]:
            return sorted(self.folder.glob(f"{name}.*journal.jsonl"))

        stalled = Stall(journals, setting.limits.test_seconds + _SECOND_CHANCE)
        ended = self._supervised(argv, env, stalled)
        found: list[plugin.Session] = []
        for journal in journals():
            try:
                found += plugin.read_journal(journal)
            except (DataError, MissingInputError) as problem:
                console.warn(str(problem))
        return sorted(found, key=lambda session: session.began.time), ended

    def _command(self, own: Sequence[str], setting: Setting) -> tuple[list[str], Mapping[str, str]]:
        python = str(setting.python)
        own = [
            *own,
            "-o",
            f"cache_dir={self.folder / 'pytest'}",
            f"--timeout={setting.limits.test_seconds:g}",
        ]
        chosen = ["-k", setting.expression] if setting.expression else []
        if self.file.runner == "pytest":
            workers = ["--numprocesses", str(setting.workers)] if self.side_by_side else []
            argv = [python, "-m", "pytest", *_configuration(setting.tree), *own, *workers, *chosen]
            return [*argv, *setting.arguments, self.file.file.partition("/")[2]], setting.env
        argv = [python, "run_test.py", "--verbose", "--keep-going", *self.file.arguments, *chosen]
        # pytest takes the rest from a variable, as the runner would not pass it on
        options = shlex.join([*own, *setting.arguments])
        return [*argv, "--include", self.file.module], {**setting.env, "PYTEST_ADDOPTS": options}

    def _supervised(
        self, argv: Sequence[str], env: Mapping[str, str], stalled: Callable[[], str] = str
    ) -> Ending:
        limits, folder = self.setting.limits, self.setting.tree / "test"
        console.echo(f"+ {shlex.join(argv)}  (in {folder})")
        seconds = max(self.until - time.monotonic(), 1.0)
        most = limits.log_megabytes << 20
        return process.supervise(
            argv, cwd=folder, env=env, log=self.log, seconds=seconds, log_bytes=most, stalled=stalled
        )


def _configuration(tree: Path) -> list[str]:
    """Name upstream's settings of pytest, so that no file above the tree is taken for them."""
    names = (tree / name for name in ("pytest.ini", "setup.cfg", "pyproject.toml"))
    found = next((path for path in names if path.is_file()), None)
    return ["--rootdir", str(tree), *(["-c", str(found)] if found else [])]


def _reason_by_rule(case: Case, rule: plugin.PlannedRule | None) -> str:
    """Return which rule explains that a test was skipped or tried again, and why; "" for none."""
    was_retried = case.attempts > 1
    if rule is None or (rule.action == "retry") != was_retried:
        return ""
    if not was_retried and case.outcome not in {"skipped", "xfailed"}:
        return ""
    return f"{rule.name}: {rule.reason}"


def of_file(
    file: str, ended: Ending, sessions: Sequence[plugin.Session], output: str, *, may_be_empty: bool = False
) -> tuple[Case, ...]:
    """Return the results of one process of a test file; `output` is the end of its log."""
    lines = (line for one in sessions for line in (*one.uncollected, *one.results))
    cases = {case.test: case for case in last_attempts(_case(file, line) for line in lines)}
    whole = _as_a_whole(file, ended, sessions, cases, output)
    if whole is None and not cases and not may_be_empty:
        whole = Case(test=file, file=file, outcome="error", line="no test ran", text=cut(clean(output)))
    if whole is not None:
        cases[whole.test] = whole
    return tuple(cases.values())


def of_script(file: str, ended: Ending, output: str) -> Case:
    """Return the result of a program that is not a test file: it passed if it ended with status 0."""
    verdict = _killed(ended)
    if verdict is None and ended.returncode:
        verdict = "failed", first_line("", output) or f"it ended with status {ended.returncode}"
    outcome, line = verdict or ("passed", "")
    text = cut(clean(output)) if verdict else ""
    return Case(test=file, file=file, outcome=outcome, seconds=ended.seconds, line=line, text=text)


def _case(file: str, line: plugin.Line) -> Case:
    outcome, quiet = _OUTCOMES[line.outcome], line.outcome in {"passed", "xpassed"}
    why = "" if quiet else first_line(line.message, line.text)
    # what pytest-timeout writes, in its older and newer words
    if outcome in {"failed", "error"} and re.search(r"Timeout \(?>[0-9.]+s\)?", why):
        outcome = "timeout"
    text = "" if quiet else cut(clean(line.text or line.message))
    seconds = max(0.0, line.seconds)
    return Case(
        test=line.test or line.file,
        file=file,
        outcome=outcome,
        seconds=seconds,
        line=why,
        text=text,
        rule=line.rule,
    )


def _as_a_whole(
    file: str, ended: Ending, sessions: Sequence[plugin.Session], cases: Mapping[str, Case], output: str
) -> Case | None:
    """Return how the file failed as a whole, by the test that it died in if that is known."""
    complete = bool(sessions) and sessions[-1].end is not None
    verdict = _killed(ended) or (_odd(ended, cases) if complete else _incomplete(ended, sessions, output))
    if verdict is None:
        return None
    outcome, line = verdict
    dead = [one for one in sessions if one.end is None]
    if left := sum(len(one.unreached) for one in dead):
        line += f"; {left} tests after it did not run"
    test = next((test for one in dead for test in one.unfinished), file)
    return Case(
        test=test, file=file, outcome=outcome, seconds=ended.seconds, line=line, text=cut(clean(output))
    )


def _killed(ended: Ending) -> tuple[Outcome, str] | None:
    if ended.late:
        return "timeout", ended.stopped or f"killed after {ended.seconds:.0f} s"
    if ended.stopped:
        return "error", ended.stopped
    if ended.returncode < 0:
        return "crashed", f"the interpreter died of {process.status(ended.returncode)}"
    return None


def _incomplete(ended: Ending, sessions: Sequence[plugin.Session], output: str) -> tuple[Outcome, str]:
    status = process.status(ended.returncode)
    if not sessions and ended.returncode in _EXIT_WORDS:
        return "error", f"pytest {_EXIT_WORDS[ended.returncode]} ({status})"
    if not sessions and ended.returncode:
        return "error", f"pytest did not begin ({status}): {first_line('', output)}"
    return "crashed", f"the interpreter ended with {status} before pytest did"


def _odd(ended: Ending, cases: Mapping[str, Case]) -> tuple[Outcome, str] | None:
    failing, status = any(case.failing for case in cases.values()), process.status(ended.returncode)
    if words := _EXIT_WORDS.get(ended.returncode):
        # a file that cannot be collected interrupts pytest, and is a result by itself
        return None if failing else ("error", f"pytest {words} ({status})")
    if ended.returncode not in {0, _TESTS_FAILED, 5}:
        return "crashed", f"the interpreter ended with {status} after the last test"
    if ended.returncode == _TESTS_FAILED and not failing:
        return "error", f"pytest ended with status 1 and named none of {len(cases)} tests as failed"
    return None
