"""Which sessions of a flow have nothing to do: their own code says so, in the flow's process."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, look, process
from core.cli import run_verb
from core.cli.options import ROOT
from core.data import read_toml
from core.errors import InterruptedStageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ci.jobs import Call, Job
    from core.cli.options import Common

# what nox takes out of the environment of every session
_CLEARED = (
    *("PIP_RESPECT_VIRTUALENV", "PIP_REQUIRE_VIRTUALENV", "PYTHONHOME", "__PYVENV_LAUNCHER__"),
    *("UV_SYSTEM_PYTHON", "UV_PYTHON"),
)


def can_look(common: Common) -> bool:
    """Return whether sessions are looked at: not where all is to be done, or each has a fold of its own."""
    here = common.root == ROOT == Path.cwd() and "://" not in common.store
    return here and not common.force and console.mode() != "github"


class Look:
    """Leaves out of jobs the sessions that have nothing to do, up to the first that has.

    What follows a session's work follows from it: from there on nox has them all.
    """

    def __init__(self) -> None:
        self._sessions = read_toml(ROOT / "sessions.toml")
        self._ended = False

    def __call__(self, job: Job) -> Job:
        """Return what is left of a job."""
        calls = [replace(one, sessions=tuple(self._left(one))) for one in job.calls]
        return replace(job, calls=tuple(one for one in calls if one.sessions))

    def _left(self, call: Call) -> Iterator[str]:
        for session in call.sessions:
            self._ended = self._ended or not self._idle(session, call)
            if self._ended:
                yield session

    def _idle(self, session: str, call: Call) -> bool:
        """Run a session's verb up to where its work would begin; it has printed all where that is nowhere."""
        row, python = self._sessions[session], []
        verbose = {"VERBOSE_OUTPUT": "1"} if console.echoes() else {}
        env = process.inherited(MATRIX=None, **verbose, **dict.fromkeys(_CLEARED))
        if row.get("cells") or row.get("environment"):
            # where nox has it, and takes it again as it is
            folder = ROOT / ".nox" / "-".join([session, *filter(None, call.python.split("."))])
            programs = folder / ("Scripts" if os.name == "nt" else "bin")
            if not process.which("python", path=str(programs)) or "NOX_ENABLE_STALENESS_CHECK" in env:
                return False
            env |= dict.fromkeys(("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON"), str(folder))
            env["PATH"] = os.pathsep.join([str(programs), env.get("PATH", "")])
            python = [f"--python={programs / 'python'}"]
        package, *words = row["call"].split()
        try:
            with look.at(env):
                console.detail(f"session {session}")
                run_verb(package, [*words, *python, *call.posargs])
        except InterruptedStageError:
            raise
        except (Exception, look.WorkLeft):  # noqa: BLE001 - the session says what is wrong
            return False
        return True
