"""Whether the steps of a flow have work to do, asked in this process before nox is called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, process
from core.cli import parsed_call
from core.cli.options import ROOT, Common, environment
from core.errors import InterruptedStageError
from core.status import Pending, Status

if TYPE_CHECKING:
    from ci.pipeline import FlowOptions, Step


def can_look_at_steps(common: Common) -> bool:
    """Return whether steps can be looked at in this process before nox runs them.

    Not where a write to a store cannot be foreseen; nor on GitHub, where each session has a log group.
    """
    if common.dry_run or "://" in common.store or console.mode() == "github":
        return False
    return Path.cwd() == common.root == ROOT


def look_at(step: Step, options: FlowOptions, python: str | None) -> Status:
    """Return whether a step has work to do, and say why. A step that is up to date prints that itself."""
    console.detail(f"step {step.name}")
    status = _status_of(step, options, python)
    if isinstance(status, Pending):
        for reason in status.reasons:
            console.say(f"{step.name}: {reason}")
    return status


def _status_of(step: Step, options: FlowOptions, python: str | None) -> Status:
    package, *verb_words = step.front_door
    if step.has_environment:
        interpreter = _interpreter_of(step, python)
        if interpreter is None:
            return Pending(reasons=("its environment is not there",))
        verb_words.append(f"--python={interpreter}")

    try:
        module, arguments = parsed_call(package, [*verb_words, *options.for_step(step)])
        status: Status = module.look(arguments)
    except InterruptedStageError:
        raise
    except Exception as problem:  # noqa: BLE001 - the session says what is wrong
        return Pending(reasons=(str(problem),))
    return status


def _interpreter_of(step: Step, python: str | None) -> Path | None:
    """Return the interpreter of a session's environment; None where nox would make a new one."""
    if "NOX_ENABLE_STALENESS_CHECK" in environment():
        return None

    # nox's names: build_torch, and build_torch-3-12 where -P has chosen the Python
    virtualenv_name = step.session
    if python is not None:
        virtualenv_name += f"-{python.replace('.', '-')}"
    programs = ROOT / ".nox" / virtualenv_name / ("Scripts" if os.name == "nt" else "bin")
    return process.which("python", path=str(programs))
