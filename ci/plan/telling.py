"""A plan for people: a table on a terminal, Markdown in a job's summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core import console
from core.run.job_files import table, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.run.plan import Decision, Plan

_ROWS = 300  # a summary is read by people; the plan itself has them all
_COLUMNS = ("stage", "platform", "what", "runs on", "why")


def show(plan: Plan) -> None:
    """Print a plan: notes first, what was decided, every job, what is left out."""
    for note in plan.notes:
        console.warn(_line(note), title="plan")
    console.table(("decision", "value", "why"), [tuple(map(_line, row)) for row in decisions(plan)])
    console.table(_COLUMNS, [tuple(map(_line, row)) for row in jobs(plan)], title=f"{len(plan.cells)} jobs")
    console.table(
        ("left out", "why"), [(_line(one.what), _line(one.reason)) for one in plan.left_out], title="Left out"
    )


def summary(plan: Plan) -> str:
    """Write the same as Markdown, for the job's summary."""
    lines = ["### Plan", ""]
    lines += [f"> ⚠️ {_shown(note)}\n" for note in plan.notes]
    lines += [
        table(("decision", "value", "why"), [[_shown(cell) for cell in row] for row in decisions(plan)]),
        "",
    ]
    rows = [[_shown(cell) for cell in row] for row in jobs(plan)]
    if rows:
        lines += [table(_COLUMNS, rows[:_ROWS]), ""]
    if len(rows) > _ROWS:
        lines += [f"and {len(rows) - _ROWS} more jobs", ""]
    if plan.left_out:
        left = [[_shown(one.what), _shown(one.reason)] for one in plan.left_out[:_ROWS]]
        lines += [f"<details><summary>Left out: {len(plan.left_out)}</summary>", ""]
        lines += [table(("what", "why"), left), "", "</details>"]
    return "\n".join(lines)


def decisions(plan: Plan) -> Sequence[tuple[str, str, str]]:
    """Give a row a decision: what, yes or no, why."""
    made: list[tuple[str, Decision]] = [
        ("build", plan.enable_build_jobs),
        ("PyTorch", plan.build_pytorch),
        ("trusted", plan.trusted),
        ("upload", plan.upload),
        ("promote", plan.promote),
    ]
    rows = [(name, "yes" if one.value else "no", one.reason) for name, one in made]
    return [*rows, ("tests", plan.test_type, plan.test_type_reason)]


def jobs(plan: Plan) -> Sequence[tuple[str, str, str, str, str]]:
    """Give a row a job: stage, platform, what, runner, why."""
    return [(one.stage, one.platform, one.name, one.runner, one.reason) for one in plan.cells]


def _shown(value: str) -> str:
    return text(_line(value))


def _line(value: str) -> str:
    """Keep what somebody else wrote on one line, without what would steer a terminal."""
    if value.isprintable():
        return value
    return "".join(letter if letter.isprintable() else "?" for letter in value)
