from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from core import process
from core.junit import Case, Document, read_file
from pytorch_build.test import plugin
from pytorch_build.test.file_run import Ended, FileResults, of_file, of_script
from pytorch_build.test.plugin import Began, End, Result, Session, Uncollected

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE = "test/test_a.py"
BEGAN = Began(kind="session", schema=1, time=0.0, python="3.12", pytest="9", torch="", root="/", mode="apply")


def result(name: str, outcome: Any = "passed", message: str = "", attempt: int = 1) -> Result:
    return Result(
        kind="test",
        test=f"{FILE}::{name}",
        outcome=outcome,
        seconds=1.0,
        attempt=attempt,
        rule="",
        message=message,
    )


def session(*results: Result, exit_status: int | None = 0, **facts: Any) -> Session:
    end = None if exit_status is None else End(kind="end", exit=exit_status, seconds=1.0)
    started = facts.pop("started", tuple(dict.fromkeys(one.test for one in results)))
    return Session(began=BEGAN, results=results, started=started, end=end, **facts)


def outcomes(found: FileResults) -> dict[str, str]:
    return {one.test.rpartition("::")[2]: one.outcome for one in found.cases}


def put(
    returncode: int, sessions: Sequence[Session], document: Document | None = None, **facts: Any
) -> FileResults:
    empty = facts.pop("may_be_empty", False)
    ended = Ended(returncode=returncode, seconds=9.0, output="the end", **facts)
    return of_file(FILE, ended, sessions, document, may_be_empty=empty)


def test_results_of_the_journal_with_the_words_of_junit() -> None:
    written = Case(
        test="test_a.py::y", outcome="failed", line="AssertionError: no", text="the whole traceback"
    )
    heard = session(
        result("x"), result("y", "failed", "no"), exit_status=1, collected=(f"{FILE}::x", f"{FILE}::y")
    )
    found = put(1, [heard], Document(cases=(written,)))
    assert [(one.test, one.outcome, one.text) for one in found.cases] == [
        (f"{FILE}::x", "passed", ""),
        (f"{FILE}::y", "failed", "the whole traceback"),
    ]
    assert found.collected == (f"{FILE}::x", f"{FILE}::y")
    assert {one.file for one in found.cases} == {FILE}


@pytest.mark.parametrize(
    ("ended", "outcome", "line"),
    [
        (Ended(returncode=0, output="All checks passed\n"), "passed", ""),
        (
            Ended(returncode=1, output="Traceback\nVerifyDynamoError: no ROCm\n"),
            "failed",
            "VerifyDynamoError: no ROCm",
        ),
        (Ended(returncode=3), "failed", "it ended with status 3"),
        (Ended(returncode=-11), "crashed", "the interpreter died of SIGSEGV"),
        (Ended(returncode=-9, timed_out=True, seconds=5), "timeout", "killed after 5 s"),
    ],
)
def test_a_programs_status_is_its_result(ended: Ended, outcome: str, line: str) -> None:
    case = of_script("tools/x.py", ended)
    assert (case.test, case.file, case.outcome, case.line) == ("tools/x.py", "tools/x.py", outcome, line)


def test_attempts_make_a_flaky_test() -> None:
    heard = session(result("x", "rerun", "first"), result("x", attempt=2), result("z", "xpassed"))
    found = put(0, [heard])
    assert outcomes(found) == {"x": "flaky", "z": "passed"}
    assert (found.cases[0].attempts, found.cases[0].line) == (2, "first")


@pytest.mark.parametrize(
    ("returncode", "facts", "outcome", "words"),
    [
        (-11, {}, "crashed", r"died of SIGSEGV; 1 tests after it did not run"),
        (-999, {}, "crashed", "signal 999"),
        (0, {}, "crashed", "status 0 before pytest did"),
        (3, {}, "crashed", "status 3 before pytest did"),
        (-9, {"timed_out": True}, "timeout", "killed after 9 s"),
    ],
)
def test_a_test_that_takes_the_interpreter_with_it_is_named(
    returncode: int, facts: dict[str, Any], outcome: str, words: str
) -> None:
    started = (f"{FILE}::x", f"{FILE}::y")
    heard = session(result("x"), exit_status=None, started=started, collected=(*started, f"{FILE}::z"))
    found = put(returncode, [heard], **facts)
    assert outcomes(found) == {"x": "passed", "y": outcome}
    assert words.split(";", maxsplit=1)[0] in found.cases[1].line
    assert "; 1 tests after it did not run" in found.cases[1].line
    assert found.cases[1].text == "the end"
    assert len(found.collected) == 3


@pytest.mark.parametrize(
    ("returncode", "sessions", "outcome", "words"),
    [
        (0, [], "crashed", "status 0 before pytest did"),
        (1, [], "error", "pytest did not begin (status 1): the end"),
        (4, [], "error", "refused its arguments"),
        (-6, [], "crashed", "SIGABRT"),
        (-11, [session(result("x"))], "crashed", "SIGSEGV"),
        (134, [session(result("x"))], "crashed", "status 134 after the last test"),
        (3, [session(result("x"), exit_status=3)], "error", "internal error"),
        (1, [session(result("x"), exit_status=1)], "error", "named none of 1 tests"),
        (5, [session(exit_status=5)], "error", "no test ran"),
        (0, [session()], "error", "no test ran"),
    ],
)
def test_a_file_that_failed_as_a_whole(
    returncode: int, sessions: Sequence[Session], outcome: str, words: str
) -> None:
    found = put(returncode, sessions)
    whole = found.cases[-1]
    assert (whole.test, whole.outcome) == (FILE, outcome)
    assert words in whole.line


def test_an_empty_part_of_a_file_is_right() -> None:
    assert put(5, [session(exit_status=5)], may_be_empty=True).cases == ()


def test_a_file_that_cannot_be_collected() -> None:
    broken = Uncollected(kind="collect", file=FILE, outcome="error", message="ImportError: x")
    found = put(2, [session(exit_status=2, uncollected=(broken,))])
    assert [(one.test, one.outcome, one.line) for one in found.cases] == [(FILE, "error", "ImportError: x")]
    skipped = Uncollected(kind="collect", file=FILE, outcome="skipped", message="no GPU")
    assert outcomes(put(5, [session(exit_status=5, uncollected=(skipped,))])) == {FILE: "skipped"}


CRASHING = """
import os, signal, sys, time
def test_fine(): pass
def test_wrong(): assert 1 == 2
def test_dies(): {how}
def test_after(): pass
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "outcome", "line"),
    [
        ("pass", "passed", ""),
        ("os._exit(0)", "crashed", "the interpreter ended with status 0 before pytest did; 1 tests"),
        ("os._exit(7)", "crashed", "the interpreter ended with status 7 before pytest did; 1 tests"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "crashed", "the interpreter died of SIGKILL; 1 tests"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed", "the interpreter died of SIGSEGV; 1 tests"),
    ],
)
def test_real_files_that_die(tmp_path: Path, how: str, outcome: str, line: str) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / FILE).write_text(CRASHING.format(how=how))
    plugin.write_plan(tmp_path / "plan.json", plugin.Plan(root=str(tmp_path)))
    options = plugin.arguments(tmp_path / "plan.json", tmp_path / "journal.jsonl")
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *options,
        "--junitxml=out.xml",
        FILE,
    ]
    env = process.inherited(PYTHONPATH=str(plugin.TARGET), PYTHONDONTWRITEBYTECODE="1")
    done = process.capture(argv, cwd=tmp_path, env=env, check=False)
    document = read_file(tmp_path / "out.xml", file=FILE) if (tmp_path / "out.xml").is_file() else None
    ended = Ended(returncode=done.returncode, seconds=1.0, output=done.stdout)
    found = of_file(FILE, ended, plugin.read_journal(tmp_path / "journal.jsonl"), document)
    expected = {"test_fine": "passed", "test_wrong": "failed", "test_dies": outcome}
    if how == "pass":
        expected["test_after"] = "passed"
    assert outcomes(found) == expected
    dead = next(one for one in found.cases if one.test.endswith("test_dies"))
    assert dead.line.startswith(line)
    assert next(one for one in found.cases if one.test.endswith("test_wrong")).line
    assert len(found.collected) == 4
