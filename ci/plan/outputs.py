"""A plan as a job's outputs, as a table on a terminal, and as Markdown in a job's summary."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ci.plan.data import MatrixFile
from core import console
from core.data import Value, compact, in_force, key_path
from core.errors import UsageError, nearest
from core.run import PLATFORMS
from core.run.job_files import table, text
from core.run.plan import Plan, PlannedJob, job_outputs

_DECISIONS = ("enable_build_jobs", "build_pytorch", "trusted", "upload", "promote")
_ROWS = 300  # a summary is read by people; the plan itself has them all


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
    }
    for platform in PLATFORMS:
        here = [one for one in plan.variants if one.platform == platform]
        values[f"{platform}_variants"] = [one.model_dump(mode="json", exclude={"platform"}) for one in here]
        values[f"{platform}_test_labels"] = list(plan.test_labels.get(platform, ()))
    return job_outputs(plan, values)


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


def explain(only: str, plan: Plan | None, *, as_json: bool) -> None:
    """Print the values in force whose keys begin so, the user's own last, and why each job is there."""
    values = in_force()
    shown = [one for one in values.values() if one.key.startswith(only)]
    if not shown:
        known = {*values, *(key.partition(".")[0] for key in values)}
        raise UsageError(f"No value in force has a key like {only!r}. {nearest(only, known)}")
    jobs = [_explained(job, plan.release_type, values) for job in plan.cells] if plan else []
    if as_json:
        console.result(json.dumps({"values": [*map(asdict, shown)], "jobs": jobs}, indent=2, default=str))
        return
    for one in shown:
        old = one.instead_of
        instead = f"\n    in the place of {compact(old.value)}, {old.where}" if old else ""
        console.result(f"{one.key} = {compact(one.value)}\n    {one.where}{instead}")
    for job in jobs:
        console.result("{stage}, {platform}: {name}\n    {reason}".format(**job))
        for why in job["because"]:
            console.result("    {of}: {key}, {where}".format(**why))


def _explained(job: PlannedJob, release_type: str, values: Mapping[str, Value]) -> Mapping[str, Any]:
    """Return a job, and the values that it follows from; of what the event names there is none."""
    matrix = f"matrix.{MatrixFile.name_of(release_type)}"
    listed_families = f"{matrix}.gpu_families.{job.platform}"
    family_on_platform = f"{key_path([job.gpu_family])}.{job.platform}"
    machines = (f"runners.machines.{job.platform}.", f"runners.families.{family_on_platform}.")
    keys = (listed_families, f"{matrix}.torch_refs", f"{matrix}.pythons", *machines)

    because: list[tuple[str, Value]] = []
    tier = values.get(f"families.{family_on_platform}.tier")
    if tier is not None and listed_families not in values:
        because.append((job.gpu_family, tier))
    names = [job.gpu_family, job.torch_ref, job.python, job.runner]
    for name in filter(None, names):
        for value in values.values():
            if value.key.startswith(keys) and f'"{name}"' in compact(value.value):
                because.append((name, value))  # noqa: PERF401 - two loops and a condition
    return {
        **job.model_dump(include={"stage", "platform", "name", "reason"}),
        "because": [{"of": name, "key": value.key, "where": value.where} for name, value in because],
    }


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
