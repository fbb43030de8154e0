"""What people are told of a promotion: the decision cell by cell, every reason, the plan, the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.promote import execution, layout
from ci.promote.documents import Cell
from ci.promote.policy import by_cell
from core import console
from core.errors import CheckError

if TYPE_CHECKING:
    from ci.promote.documents import Decision
    from ci.promote.execution import Done
    from ci.promote.facts import Facts
    from ci.promote.policy import Verdict
    from core.stores import Store


def show(facts: Facts, verdict: Verdict) -> None:
    """Print the decision on each cell."""
    rules = {
        Cell(family=one.family, platform=one.platform, python=one.python): one for one in verdict.rulings
    }
    blocked = by_cell(verdict.reasons)
    cells = sorted({wheel.cell for wheel in facts.wheels} | blocked.keys())
    rows = []
    for cell in cells:
        ruling = rules.get(cell)
        wheels = sum(wheel.cell == cell for wheel in facts.wheels)
        rule = "refused" if cell in blocked else ruling.rule if ruling else "refused"
        tests = ", ".join(sorted({one.stage for one in ruling.evidence})) if ruling else ""
        rows.append((cell.family, cell.platform, cell.python or "any", str(wheels), rule, tests))
    console.table(("family", "platform", "Python", "files", "rule", "tests"), rows, title=facts.set_name)


def require(facts: Facts, verdict: Verdict) -> None:
    """Refuse a set that may not go out."""
    if verdict.promote:
        return
    lines = []
    for cell, reasons in by_cell(verdict.reasons).items():
        lines.append(f"  {str(cell) or 'the set'}:")
        lines += [f"    {one.message}" for one in reasons]
    count = len(verdict.reasons)
    hint = "Correct it, stage again where wheels changed, test, and promote again."
    if all(one.overridable for one in verdict.reasons):
        hint = "Test again; or decide against the tests: --override-by NAME --override-reason TEXT."
    raise CheckError(
        f"{facts.set_name} is not promoted, for {count} reason{'s' if count > 1 else ''}:\n"
        + "\n".join(lines),
        hint=hint,
    )


def show_unfinished(bucket: Store, facts: Facts) -> None:
    """Say which promotions go on, or were interrupted."""
    for one in execution.unfinished(bucket):
        again = "; this one goes on with it" if one.set_name == facts.set_name else ""
        console.warn(
            f"{one.set_name} is being promoted by {one.by} since {one.decided}, or was interrupted{again}."
        )


def show_plan(bucket: Store, decision: Decision) -> None:
    """Print what would be done."""
    planned = execution.plan(decision)
    rows = [
        (one.key, console.size(one.size), one.staged_sha256[:12], one.staged_key) for one in decision.files
    ]
    console.table(("would be written", "size", "sha256", "from"), rows)
    show_left_out(decision)
    where = f"{bucket.url}/{layout.RELEASE}"
    if execution.is_done(bucket, decision):
        console.done(f"promote: already promoted, {len(planned.wheels)} files are in {where}")
        return
    console.done(
        f"promote: {len(planned.wheels)} files ({console.size(planned.size)}) and {len(planned.sidecars)} "
        f"sidecars would be put into {where}, pages of {len(planned.families)} families written"
    )


def show_left_out(decision: Decision) -> None:
    """Say which device packages a keep-list leaves out."""
    if decision.gpu_targets:
        names = ", ".join(sorted({key.rpartition("/")[2] for key in decision.left_out})) or "nothing"
        console.say(f"Device code is kept for {', '.join(decision.gpu_targets)}. Left out: {names}.")


def show_done(bucket: Store, done: Done) -> None:
    """Print how it ended."""
    decision = done.decision
    key = layout.decision(decision.set_name, decision.identity)
    if done.outcome == "already":
        by = f"{decision.by} at {decision.completed}"
        console.done(f"promote: {decision.set_name} was already promoted by {by} ({key})")
        return
    show_left_out(decision)
    console.done(
        f"promote: {len(decision.files)} files of {decision.set_name} are in {bucket.url}/{layout.RELEASE}, "
        f"{done.copied} of them new; decision {key}"
    )
