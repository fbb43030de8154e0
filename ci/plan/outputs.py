"""A plan as a job's outputs, as a table on a terminal, and as Markdown in a job's summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from core import console
from core.data import compact
from core.run.job_files import job_files, table, text
from core.run.plan import PLATFORMS, Plan, matrices, refuse_outputs

_DECISIONS = ("enable_build_jobs", "build_pytorch", "trusted", "upload", "promote")
_ROWS = 300  # a summary is read by people; the plan itself has them all


def write_outputs(plan: Plan, env: Mapping[str, str]) -> None:
    """Write a plan's outputs into the job's file, where it has one."""
    files = job_files(env)
    for name, value in outputs(plan).items() if files.outputs else ():
        files.set_output(name, value)


def outputs(plan: Plan) -> Mapping[str, str]:
    """Return a plan's outputs: lists, objects, booleans as JSON, words as they are."""
    values: dict[str, object] = {
        **{name: getattr(plan, name).value for name in _DECISIONS},
        "upload_reason": plan.upload.reason,
        "release_type": plan.release_type,
        "test_type": plan.test_type,
        "store": plan.store.store,
        "external_repo": plan.store.external_repo,
        "aws_role": plan.store.role,
        "aws_region": plan.store.region,
        "rocm_package_index_url": plan.rocm_index,
        "rocm_package_version": plan.rocm.version,
        "plan_digest": plan.digest(),
    }
    for platform in PLATFORMS:
        values[f"{platform}_variants"] = [
            one.model_dump(mode="json", exclude={"platform"})
            for one in plan.variants
            if one.platform == platform
        ]
        values[f"{platform}_test_labels"] = list(plan.test_labels.get(platform, ()))
    values |= matrices(plan)
    written = {name: value if isinstance(value, str) else compact(value) for name, value in values.items()}
    return refuse_outputs(written)


def tables(plan: Plan) -> Iterator[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    """Yield columns and rows of the decisions, of the jobs, and of what is left out."""
    named = {"enable_build_jobs": "build", "build_pytorch": "PyTorch"}
    made = {named.get(one, one): getattr(plan, one) for one in _DECISIONS}
    decisions = [(name, "yes" if one.value else "no", one.reason) for name, one in made.items()]
    jobs = [(one.stage, one.platform, one.name, one.runner, one.reason) for one in plan.cells]
    tables: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]] = (
        (("decision", "value", "why"), [*decisions, ("tests", plan.test_type, plan.test_type_reason)]),
        (("stage", "platform", "what", "runs on", "why"), jobs),
        (("left out", "why"), [(one.what, one.reason) for one in plan.left_out]),
    )
    for columns, rows in tables:
        yield columns, [[_line(cell) for cell in row] for row in rows]


def show(plan: Plan) -> None:
    """Print a plan: notes first, then decisions, every job, and what is left out."""
    for note in plan.notes:
        console.warn(_line(note), title="plan")
    titles = ("", f"{len(plan.cells)} jobs", "Left out")
    for (columns, rows), title in zip(tables(plan), titles, strict=True):
        console.table(columns, rows, title=title)


def summary(plan: Plan) -> str:
    """Write the same as Markdown, for the job's summary."""
    decisions, jobs, left_out = (
        (len(rows), table(columns, [[text(cell) for cell in row] for row in rows[:_ROWS]]))
        for columns, rows in tables(plan)
    )
    lines = ["### Plan", "", *(f"> ⚠️ {text(_line(note))}\n" for note in plan.notes), decisions[1], ""]
    lines += [jobs[1], ""] if jobs[0] else []
    lines += [f"and {jobs[0] - _ROWS} more jobs", ""] if jobs[0] > _ROWS else []
    if left_out[0]:
        lines += [f"<details><summary>Left out: {left_out[0]}</summary>", "", left_out[1], "", "</details>"]
    return "\n".join(lines)


def _line(value: str) -> str:
    """Keep a text of any origin on one line, without what would steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in value)
