"""Running one of upstream's test files: a process under limits, and others after it where it dies.

A test that takes its interpreter down costs that test. What had not run yet runs in another process, up to
a limit; what hangs is stopped with the stacks of its threads in the log. What is known of a test comes from
the plugin's journal and from JUnit, see `pytorch_build.test.file_results`.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from core import console, junit_reading, process
from core.errors import DataError, MissingInputError
from core.process import Limits, supervise
from pytorch_build.test import file_results, plugin
from pytorch_build.test.file_results import Ended
from pytorch_build.test.plugin import Plan, PlannedRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from core.junit import Case, Document
    from pytorch_build.test.configurations import LimitsTable, TestFile
    from pytorch_build.test.plugin import Session
    from pytorch_build.test.sharding import Part

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
        self.cases[self.file.file] = file_results.of_script(self.file.file, ended)

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
        found = file_results.of_file(
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
            output=process.tail(self.log, lines=_TAIL_LINES),
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
        return junit_reading.read_file(path) if path.is_file() else None


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
