"""Running one of upstream's test files: pytest in a process under limits, and again where it dies.

A test that takes its interpreter down costs that test: pytest runs again without the tests that have a
result, up to a limit. What hangs is stopped with the stacks of its threads in the log. The events of the
pytest plugin have the results.
"""

from __future__ import annotations

import glob
import shlex
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, parallel, process
from core.errors import DataError, MissingInputError
from core.shell import command_line
from pytorch_build.test import plugin
from pytorch_build.test.junit.document import Case, worst_case
from pytorch_build.test.process_results import (
    EndedProcess,
    ProcessResults,
    explanation_by_rule,
    result_of_script,
    results_of_process,
)

if TYPE_CHECKING:
    from core.process import Ending
    from pytorch_build.test.plugin import AppliedRule, EventLog
    from pytorch_build.test.upstream_tests import LimitsTable, TestFile

# pytest-timeout stops a test at its limit. What does not let itself be stopped has as long again, up to this.
_MOST_GRACE_SECONDS = 30.0
_LOG_LINES = 60
_CONFIGURATION_FILES = ("pytest.ini", "setup.cfg", "pyproject.toml")


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """How a test file is run.

    Attributes:
        python: The interpreter that has torch.
        tree: Upstream's source tree.
        env: The environment of the processes.
        folder: A folder for what the processes and the tool write for each other.
        logs: The folder of the logs.
        limits: What a test and a file may take.
        rules: The skip rules that apply.
        expression: pytest's ``-k``.
        arguments: Other arguments of pytest.
        workers: How many processes may share the tests of a file.
    """

    python: Path
    tree: Path
    env: Mapping[str, str]
    folder: Path
    logs: Path
    limits: LimitsTable
    rules: tuple[AppliedRule, ...] = ()
    expression: str = ""
    arguments: tuple[str, ...] = ()
    workers: int = 1

    @property
    def selects(self) -> bool:
        """Whether it may leave tests out."""
        return bool(self.expression or self.arguments)


@dataclass(frozen=True, kw_only=True)
class FileResults:
    """The results of a test file.

    Attributes:
        file: Its path from the root of the tree.
        cases: A result for each test that ran, and for the file where it failed as a whole.
        existing: The tests that it has, whether they ran or not; None where that is unknown.
        seconds: How long it took.
        processes: How many processes ran its tests.
        logs: What they printed.
        matched_rules: The rules that take a test of it.
    """

    file: str
    cases: tuple[Case, ...]
    existing: frozenset[str] | None = None
    seconds: float = 0.0
    processes: int = 1
    logs: tuple[Path, ...] = ()
    matched_rules: frozenset[str] = frozenset()

    def named_for(self, target: str) -> FileResults:
        """Return the results with an architecture in each name: ``test/test_nn.py@gfx942``."""
        file = f"{self.file}@{target}"

        def name_for_target(test: str) -> str:
            if test.startswith(self.file):
                return file + test.removeprefix(self.file)
            return f"{test}@{target}"

        existing = self.existing
        if existing is not None:
            existing = frozenset(name_for_target(test) for test in existing)
        cases: list[Case] = []
        for case in self.cases:
            test = name_for_target(case.test)
            cases.append(replace(case, file=file, test=test))
        return replace(
            self,
            file=file,
            cases=tuple(cases),
            existing=existing,
        )


def run_file(file: TestFile, settings: FileSettings, *, name: str | None = None) -> FileResults:
    """Run a test file; `name` is that of its log."""
    started = time.monotonic()
    end = started + settings.limits.file_seconds
    name = name or log_name(file.file)
    # What an earlier run left would be taken for this one's.
    shutil.rmtree(settings.folder / name, ignore_errors=True)
    for log in _logs(settings, name):
        log.unlink()

    if file.runner == "script":
        return _run_script(file, settings, name)

    is_side_by_side = file.parallel and settings.workers > 1
    existing = None
    if settings.selects or is_side_by_side:
        existing = _collect_tests(file, settings, name=name, end=end)

    launcher = _Launcher(file=file, settings=settings, name=name, end=end)
    launchers: Sequence[_Launcher] = [launcher]
    if is_side_by_side and existing:
        launchers = _launchers_of_workers(launcher, existing)
    all_results: list[ProcessResults] = []
    for series in parallel.map_in_threads(_run_series, launchers, jobs=len(launchers)):
        all_results += series

    matched_rules: set[str] = set()
    for results in all_results:
        for event_log in results.ended_process.event_logs:
            matched_rules.update(name for name, tests in event_log.rules.items() if tests)
    if existing is None:
        existing = all_results[0].ended_process.existing
    return FileResults(
        file=file.file,
        cases=_merge_cases(all_results, existing, settings.rules),
        existing=existing,
        seconds=time.monotonic() - started,
        processes=len(all_results),
        logs=_logs(settings, name),
        matched_rules=frozenset(matched_rules),
    )


def _collect_tests(
    file: TestFile,
    settings: FileSettings,
    *,
    name: str,
    end: float,
) -> frozenset[str] | None:
    """Return all tests of a file, whatever the settings choose; None where they cannot be collected."""
    whole_settings = replace(settings, expression="", arguments=())
    collector = _Launcher(file=file, settings=whole_settings, name=name, end=end)
    collection = collector.run_pytest("collect", excluded=(), arguments=("--collect-only", "-q"))
    return collection.existing if collection.could_collect else None


def log_name(file: str) -> str:
    """Return the name of a file's log: ``dynamo.test_misc`` of ``test/dynamo/test_misc.py``."""
    return file.removeprefix("test/").removesuffix(".py").replace("/", ".")


def _logs(settings: FileSettings, name: str) -> tuple[Path, ...]:
    """Return the logs of a file that exist: its own, and those of workers."""
    worker_pattern = f"{glob.escape(name)}.worker-*.log"
    worker_logs = sorted(settings.logs.glob(worker_pattern))
    paths = [settings.logs / f"{name}.log", *worker_logs]
    return tuple(path for path in paths if path.is_file())


def _run_script(file: TestFile, settings: FileSettings, name: str) -> FileResults:
    """Run a program that is not a test file."""
    command = [str(settings.python), str(settings.tree / file.file)]
    log = settings.logs / f"{name}.log"
    seconds = settings.limits.file_seconds
    ending = _supervise(command, settings, log, env=settings.env, seconds=seconds)
    output = process.tail(log, lines=_LOG_LINES)
    case = result_of_script(file.file, ending, output)
    return FileResults(
        file=file.file,
        cases=(case,),
        existing=frozenset(),
        seconds=ending.seconds,
        logs=_logs(settings, name),
    )


def _supervise(
    command: Sequence[str],
    settings: FileSettings,
    log: Path,
    *,
    env: Mapping[str, str],
    seconds: float,
) -> Ending:
    """Run a command in the tree's folder of tests, to its end or to a limit."""
    folder = settings.tree / "test"
    console.echo(f"+ {command_line(command)}  (in {folder})")
    return process.supervise(
        command,
        cwd=folder,
        env=env,
        log=log,
        seconds=seconds,
        log_bytes=settings.limits.log_megabytes << 20,
    )


# Processes of pytest


@dataclass(frozen=True, kw_only=True)
class _Launcher:
    """Starts the processes of a test file, or of a worker's share of it.

    Attributes:
        name: The name of the log, and of the folder for the plugin's files.
        end: When the file is stopped, by the monotonic clock.
        excluded: The tests that run elsewhere.
    """

    file: TestFile
    settings: FileSettings
    name: str
    end: float
    excluded: frozenset[str] = frozenset()

    @property
    def log(self) -> Path:
        """The log of its processes."""
        return self.settings.logs / f"{self.name}.log"

    def run_pytest(
        self,
        process_name: str,
        excluded: Iterable[str],
        arguments: Sequence[str] = (),
    ) -> EndedProcess:
        """Run one process to its end, or to a limit."""
        settings = self.settings
        folder = settings.folder / self.name / process_name
        test_seconds = settings.limits.test_seconds
        plugin_settings = plugin.PluginSettings(
            root=str(settings.tree),
            events=str(folder),
            watch_seconds=test_seconds + min(test_seconds, _MOST_GRACE_SECONDS),
            started_by_run_test=self.file.runner == "run_test",
            excluded=tuple(sorted(excluded)),
            rules=settings.rules,
        )
        options = [
            *plugin.write_settings(folder / "settings.json", plugin_settings),
            *("-o", f"cache_dir={settings.folder / self.name / 'pytest'}"),
            f"--timeout={test_seconds:g}",
            *arguments,
        ]
        remaining_seconds = max(self.end - time.monotonic(), 1.0)
        command, env = self._command(options)
        ending = _supervise(command, settings, self.log, env=env, seconds=remaining_seconds)
        return EndedProcess(
            ending=ending,
            ended_at=time.time(),
            event_logs=_read_event_logs(folder),
            output=process.tail(self.log, lines=_LOG_LINES),
        )

    def _command(self, options: Sequence[str]) -> tuple[list[str], Mapping[str, str]]:
        """Return the command line of a process, and its environment."""
        settings = self.settings
        python = str(settings.python)
        selection = ["-k", settings.expression] if settings.expression else []
        if self.file.runner == "pytest":
            command = [
                python,
                "-m",
                "pytest",
                *_configuration_arguments(settings.tree),
                *options,
                *selection,
            ]
            # The path is relative to the folder that pytest starts in.
            path = self.file.file.partition("/")[2]
            command += [*settings.arguments, path]
            return command, settings.env

        command = [
            python,
            "run_test.py",
            "--verbose",
            "--keep-going",
            *self.file.arguments,
            *selection,
        ]
        command += ["--include", self.file.module]
        # The runner would not pass these on to pytest.
        variable = shlex.join([*options, *settings.arguments])
        return command, {**settings.env, "PYTEST_ADDOPTS": variable}


def _configuration_arguments(tree: Path) -> Sequence[str]:
    """Return the arguments that name upstream's settings of pytest: none from above the tree are taken."""
    for name in _CONFIGURATION_FILES:
        if (tree / name).is_file():
            return [
                "--rootdir",
                str(tree),
                "-c",
                str(tree / name),
            ]
    return ["--rootdir", str(tree)]


def _read_event_logs(folder: Path) -> Sequence[EventLog]:
    """Return what the processes of a folder wrote down; nothing where that cannot be read."""
    try:
        return plugin.read_event_logs(folder)
    except (DataError, MissingInputError) as problem:
        # The process is judged by its end, as one that wrote nothing.
        console.warn(str(problem))
        return ()


def _launchers_of_workers(launcher: _Launcher, existing: frozenset[str]) -> Sequence[_Launcher]:
    """Return a launcher for each worker, among which the tests of a file are dealt."""
    tests = sorted(existing)
    workers = launcher.settings.workers
    launchers: list[_Launcher] = []
    for index in range(min(workers, len(tests))):
        share = tests[index::workers]
        worker = replace(
            launcher,
            name=f"{launcher.name}.worker-{index + 1}",
            excluded=existing.difference(share),
        )
        launchers.append(worker)
    return launchers


def _run_series(launcher: _Launcher) -> Sequence[ProcessResults]:
    """Run pytest, and again where its process dies, without the tests that have a result."""
    file = launcher.file
    limits = launcher.settings.limits
    excluded = set(launcher.excluded)
    all_results: list[ProcessResults] = []
    while True:
        ended_process = launcher.run_pytest(str(len(all_results) + 1), excluded)
        results = results_of_process(
            file.file,
            ended_process,
            test_timeout=limits.test_seconds,
            may_be_empty=launcher.settings.selects or bool(excluded),
        )
        all_results.append(results)

        # Upstream's runner goes on by itself.
        if not results.ended_early or not ended_process.unreached or file.runner != "pytest":
            return all_results
        if len(all_results) > limits.restarts:
            console.warn(f"{file.file}: given up after {len(all_results)} processes that died.")
            return all_results
        named_tests = {case.test for case in results.cases}
        if named_tests <= excluded or time.monotonic() >= launcher.end:
            return all_results
        excluded |= named_tests
        unreached_count = len(ended_process.unreached)
        console.say(f"{file.file}: its process died; {unreached_count} tests go on in another one.")


# Results of all processes


def _merge_cases(
    all_results: Sequence[ProcessResults],
    existing: Collection[str] | None,
    rules: Sequence[AppliedRule],
) -> tuple[Case, ...]:
    """Return one result for each test, with the rule that explains it."""
    rule_by_name = {rule.name: rule for rule in rules}
    cases: dict[str, Case] = {}
    for results in all_results:
        for case in results.cases:
            # Arguments may add tests of other files, which do not count.
            is_whole_file = "::" not in case.test
            is_of_file = existing is None or case.test in existing
            if not (is_of_file or is_whole_file or case.failing):
                continue
            if case.test in cases:
                earlier_case = cases[case.test]
                cases[case.test] = worst_case([earlier_case, case])
            else:
                cases[case.test] = case

    explained_cases: list[Case] = []
    for case in cases.values():
        rule = explanation_by_rule(case, rule_by_name)
        explained_cases.append(replace(case, rule=rule))
    return tuple(explained_cases)
