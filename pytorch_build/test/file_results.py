"""The results of one test file, from the three that know of it: the journal, JUnit, and how it ended.

The journal knows every test that ended before an interpreter died; JUnit has the whole texts, where pytest
lived to write it; the exit status says what neither of them can. A file that ended in any way that pytest
does not end in by itself has failed, whatever its tests said before.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from core.junit import OUTCOMES, Case, clean, cut, first_line, last_attempt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from core.junit import Document, Outcome
    from pytorch_build.test.plugin import Result, Session

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
