"""Run a command at a revision, and judge how it ended. Exit codes mean what they do to `git bisect`."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from ci import install
from ci.bisection.differences import commits_in
from ci.bisection.index_versions import IndexVersions
from ci.bisection.search import Judgement
from ci.bisection.stored_runs import StoredRuns
from core import console, process
from core.errors import EnvironmentSetupError, MissingInputError, ProcessError, UsageError
from core.process import status
from core.shell import command_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ci.bisection.differences import RevisionFacts
    from ci.bisection.request import BisectRequest
    from ci.bisection.search import Revision
    from core.env import Interpreter

# Where the revisions are among which is searched.
RevisionSource: TypeAlias = StoredRuns | IndexVersions

FAILED = 1
SKIP = 125
# From here on, exit codes are neither good nor bad: the shell's for a signal.
STOP = 128


def judge_revision(source: RevisionSource, revision: Revision) -> Judgement:
    """Install a revision's packages and run the command; what cannot be installed is skipped."""
    try:
        with _installed(source, revision) as (interpreter, facts):
            judgement = _run_command(source.request, revision, interpreter)
            return judgement.model_copy(update={"facts": facts})
    except (MissingInputError, EnvironmentSetupError) as problem:
        first_line, _, _ = problem.message.partition("\n")
        is_lost = isinstance(problem, MissingInputError)
        return Judgement(
            result="skip",
            why=first_line,
            lost=is_lost,
        )


@contextmanager
def _installed(source: RevisionSource, revision: Revision) -> Iterator[tuple[Interpreter, RevisionFacts]]:
    """Make an environment of a revision's packages, and nothing else; return it with what is known of it."""
    request = source.request
    request_of_revision = source.request_packages(revision)
    stored_source = request_of_revision.source.stored
    with install.opened_dependency_index(stored_source) as other_packages:
        interpreter = request.interpreter(source.python)
        selection = install.choose(request_of_revision, other_packages, interpreter)
        for candidate in selection.our_files:
            if candidate.key is None or stored_source is None:
                continue
            if stored_source.store.find(candidate.key) is None:
                raise MissingInputError(f"{candidate.name} is no longer there.")

        with (
            request_of_revision.source.opened(selection.our_files) as our_packages,
            install.environment(request.folder / "venv", python=source.python, clean=True) as interpreter,
        ):
            install.install_chosen(interpreter, request_of_revision, selection, our_packages, other_packages)
            yield interpreter, _facts_of_installation(source, revision, selection, interpreter)


def _facts_of_installation(
    source: RevisionSource,
    revision: Revision,
    selection: install.ChosenPackages,
    interpreter: Interpreter,
) -> RevisionFacts:
    """Return what is known of a revision, with the versions and commits of what is installed."""
    facts = source.read_facts(revision)
    packages: dict[str, str] = {}
    for candidate in selection.our_files:
        packages[candidate.distribution] = candidate.version
    for package in selection.other_packages:
        packages[package.name] = package.version
    # A lock names origins, which packages do not.
    commits = {**commits_in(interpreter.purelib), **facts.commits}
    return facts.model_copy(update={"packages": packages, "commits": commits})


def _run_command(request: BisectRequest, revision: Revision, interpreter: Interpreter) -> Judgement:
    """Run the command in an environment as often as it is asked for."""
    own_path = process.handed_on().get("PATH", "")
    search_path = f"{interpreter.scripts}{os.pathsep}{own_path}"
    program = _find_program(request, search_path)
    env = process.handed_on(
        PATH=search_path,
        VIRTUAL_ENV=str(interpreter.prefix),
        BISECT_RUN=revision.name,
    )
    log = request.folder / "logs" / f"{revision.name}.log"
    log.unlink(missing_ok=True)

    exit_codes: list[int] = []
    last_words = ""
    for _attempt in range(request.repeat):
        console.echo(f"+ {command_line(request.command)}  (output: {log})")
        ending = process.supervise(
            [program, *request.command[1:]],
            cwd=request.command_folder,
            env=env,
            log=log,
            seconds=request.timeout,
        )
        exit_code = FAILED if ending.late else ending.returncode
        if not 0 <= exit_code < STOP:
            raise ProcessError(
                f"The command {ending.words} at {revision.name}, which is neither good nor bad: {log}",
                hint="To search for exactly that, give it another status: -- sh -c '… || exit 1'.",
            )
        exit_codes.append(exit_code)
        last_words = ending.words
    judgement = judge_exit_codes(exit_codes, last_words)
    return judgement.model_copy(update={"log": str(log)})


def _find_program(request: BisectRequest, search_path: str) -> Path:
    """Return the command's program: of the environment, of this machine, or of the folder that it runs in."""
    name = request.command[0]
    path = name
    if os.sep in name:
        path = str(request.command_folder / name)
    program = process.which(path, path=search_path)
    if program is None:
        packages = " ".join(map(str, request.packages))
        raise UsageError(
            f"There is no {name} in the environment, nor on this machine.",
            hint=f"Where a package has it: --packages '{packages} {name}'.",
        )
    return program.absolute()


def judge_exit_codes(exit_codes: Sequence[int], last_words: str = "") -> Judgement:
    """Judge the exit codes of one or several calls; `last_words` say how the last one ended.

    One failure is enough to be bad.
    """
    times = len(exit_codes)
    failed = sum(exit_code != 0 for exit_code in exit_codes)
    if not last_words:
        last_words = f"ended with {status(exit_codes[-1])}"
    reason = f"the command {last_words}"
    if SKIP in exit_codes:
        return Judgement(
            result="skip",
            why=reason,
            times=times,
        )
    if times > 1:
        reason = f"failed {failed} of {times} times"
    return Judgement(
        result="bad" if failed else "good",
        why=reason,
        failed=failed,
        times=times,
    )
