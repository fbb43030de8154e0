"""Running a graph of jobs on this machine: as many at a time as asked, a table at the end."""

from __future__ import annotations

import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from core import console, process
from core.errors import FatalError, ProcessError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from ci.flow_graph import Call, Node

Result = Literal["ok", "failed", "left out"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one job ended."""

    name: str
    result: Result
    why: str = ""
    seconds: float = 0.0


@dataclass(kw_only=True)
class _State:
    waiting: list[Node]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    stopped: bool = False

    def ready(self) -> Node | None:
        """Take the next job that waits for nothing more."""
        for node in self.waiting:
            if all(name in self.outcomes for name in node.needs):
                self.waiting.remove(node)
                return node
        return None

    def reason(self, node: Node) -> str:
        """Say why a job does not run; "" where it does."""
        idle = node.wants_results and all(self.outcomes[name].result == "left out" for name in node.needs)
        if node.tolerant:
            return "nothing has run that it needs" if idle else ""
        failed = [name for name in node.needs if self.outcomes[name].result != "ok"]
        if failed:
            return f"{failed[0]} {self.outcomes[failed[0]].result}"
        return "another job failed" if self.stopped else ""


def run_all(
    nodes: Sequence[Node], work: Callable[[Node], None], *, jobs: int = 1, keep_going: bool = False
) -> Sequence[Outcome]:
    """Run every job after those that it needs."""
    state = _State(waiting=list(nodes))
    running: dict[Future[None], tuple[Node, float]] = {}
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        while state.waiting or running:
            while len(running) < jobs and (node := state.ready()):
                why = state.reason(node)
                if why:
                    state.outcomes[node.name] = Outcome(name=node.name, result="left out", why=why)
                else:
                    running[pool.submit(work, node)] = (node, time.monotonic())
            if not running:
                continue
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                node, started = running.pop(future)
                outcome = _outcome(node, future, time.monotonic() - started)
                state.outcomes[node.name] = outcome
                state.stopped |= outcome.result == "failed" and not keep_going
    return [state.outcomes[node.name] for node in nodes]


def _outcome(node: Node, future: Future[None], seconds: float) -> Outcome:
    problem = future.exception()
    if problem is None:
        return Outcome(name=node.name, result="ok", seconds=seconds)
    if not isinstance(problem, FatalError):
        raise problem
    return Outcome(name=node.name, result="failed", why=problem.message, seconds=seconds)


def runner(root: Path, *, together: bool) -> Callable[[Node], None]:
    """Give what runs a job: its calls of nox, in order."""
    # with a matrix in the environment the noxfile has cells in the place of these sessions
    env = process.inherited(MATRIX=None)

    def work(node: Node) -> None:
        for call in node.calls:
            argv = command(call)
            if not together:
                with console.group(f"{node.name}: {' '.join(call.sessions)}"):
                    process.run(argv, cwd=root, env=env)
                continue
            done = process.capture(argv, cwd=root, env=env, check=False)
            with console.group(f"{node.name}: {' '.join(call.sessions)}"):
                console.say((done.stdout + done.stderr).rstrip())
            if done.returncode:
                raise ProcessError(f"{' '.join(call.sessions)} failed", returncode=done.returncode)

    return work


def command(call: Call) -> list[str]:
    """Write a call's command line."""
    return [sys.executable, "-m", "nox", "--no-error-on-external-run", *call.words]


def show(outcomes: Sequence[Outcome]) -> None:
    """Print the table that a flow ends with, and fail if a job did."""
    rows = [
        (one.name, one.result, console.duration(one.seconds), one.why.splitlines()[0] if one.why else "")
        for one in outcomes
    ]
    console.table(("job", "result", "time", "why"), rows, title="Jobs")
    failed = [one for one in outcomes if one.result == "failed"]
    if failed:
        raise ProcessError(
            f"{len(failed)} of {len(outcomes)} jobs failed: {', '.join(one.name for one in failed)}.",
            hint="What they said stands above. The same command again goes on where this one stopped.",
            returncode=1,
        )
