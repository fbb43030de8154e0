"""A plan as a job's outputs, as a table on a terminal, and as Markdown in a job's summary."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ci.plan.data import MatrixFile
from ci.tables import Table, one_line
from core import console
from core.data import Value, compact, in_force, key_path
from core.errors import UsageError, nearest
from core.run.job_files import text
from core.run.plan import Plan, PlannedJob, job_outputs

# The decisions of a plan, and what people call them.
_DECISIONS = {
    "enable_build_jobs": "build",
    "build_pytorch": "PyTorch",
    "trusted": "trusted",
    "upload": "upload",
    "promote": "promote",
}
_MOST_ROWS = 300  # a summary is read by people; the plan itself has them all


def outputs(plan: Plan) -> Mapping[str, str]:
    """Return a plan's outputs: lists, objects, booleans as JSON, words as they are.

    They are what GitHub has to know before a job starts. Jobs read the rest in the plan's file, which may be
    longer than outputs may: `plan_job`.
    """
    values: dict[str, object] = {}
    for name in _DECISIONS:
        values[name] = getattr(plan, name).value
    values.update(
        upload_reason=plan.upload.reason,
        release_type=plan.release_type,
        test_type=plan.test_type,
        store=plan.store.store,
        external_repo=plan.store.external_repo,
        aws_role=plan.store.role,
        aws_region=plan.store.region,
    )
    return job_outputs(plan, values)


def decision_table(plan: Plan) -> Table:
    """Return the decisions about the run."""
    rows: list[Sequence[str]] = []
    for name, words in _DECISIONS.items():
        decision = getattr(plan, name)
        rows.append((words, "yes" if decision.value else "no", decision.reason))
    rows.append(("tests", plan.test_type, plan.test_type_reason))
    return Table(
        title="",
        columns=("decision", "value", "why"),
        rows=rows,
    )


def job_table(plan: Plan) -> Table:
    """Return the jobs."""
    rows = [(job.stage, job.platform, job.name, job.runner, job.reason) for job in plan.jobs]
    return Table(
        title=f"{len(rows)} jobs",
        columns=("stage", "platform", "what", "runs on", "why"),
        rows=rows,
    )


def left_out_table(plan: Plan) -> Table:
    """Return what is left out."""
    rows = [(left_out.what, left_out.reason) for left_out in plan.left_out]
    return Table(
        title="Left out",
        columns=("left out", "why"),
        rows=rows,
    )


def show(plan: Plan) -> None:
    """Print a plan: notes first, then decisions, every job, and what is left out."""
    _show_notes(plan)
    decision_table(plan).show()
    job_table(plan).show()
    left_out_table(plan).show()


def show_origins(plan: Plan) -> None:
    """Print where ROCm comes from."""
    _show_notes(plan)
    origins = origin_table(plan)
    origins.show()
    if not origins.rows:
        console.done("configure: nothing in the plan needs ROCm from elsewhere")


def origin_table(plan: Plan) -> Table:
    """Return where the ROCm of each artifact group comes from."""
    rows: list[Sequence[str]] = []
    for origin in plan.rocm.origins:
        source = f"run {origin.run_id} in {origin.store}"
        if origin.index_url is not None:
            source = f"{origin.version} of {origin.index_url}"
        count = str(len(origin.artifacts) or "")
        rows.append((origin.artifact_group, origin.platform, source, count, origin.reason))
    return Table(
        title="",
        columns=("artifact group", "platform", "ROCm from", "artifacts", "why"),
        rows=rows,
    )


def _show_notes(plan: Plan) -> None:
    for note in plan.notes:
        console.warn(one_line(note), title="plan")


def explain(prefix: str, plan: Plan | None, *, as_json: bool) -> None:
    """Print the values in force whose keys begin so, the user's own last, and why each job is there."""
    values = in_force()
    explained_values = [value for value in values.values() if value.key.startswith(prefix)]
    if not explained_values:
        tables = {key.partition(".")[0] for key in values}
        suggestion = nearest(prefix, {*values, *tables})
        raise UsageError(f"No value in force has a key like {prefix!r}. {suggestion}")

    explained_jobs: list[Mapping[str, Any]] = []
    if plan is not None:
        explained_jobs += [_explain_job(job, plan.release_type, values) for job in plan.jobs]

    if as_json:
        document = {
            "values": [asdict(value) for value in explained_values],
            "jobs": explained_jobs,
        }
        console.result(json.dumps(document, indent=2, default=str))
        return

    for value in explained_values:
        console.result(f"{value.key} = {compact(value.value)}\n    {value.where}{_replaced(value)}")
    for explained_job in explained_jobs:
        console.result("{stage}, {platform}: {name}\n    {reason}".format(**explained_job))
        for source in explained_job["because"]:
            console.result("    {of}: {key}, {where}".format(**source))


def _replaced(value: Value) -> str:
    """Return a line about the value that another one takes the place of."""
    replaced_value = value.instead_of
    if replaced_value is None:
        return ""
    return f"\n    in the place of {compact(replaced_value.value)}, {replaced_value.where}"


def _explain_job(
    job: PlannedJob,
    release_type: str,
    values: Mapping[str, Value],
) -> Mapping[str, Any]:
    """Return a job, and the values that it follows from; of what the event names there is none."""
    because: list[Mapping[str, str]] = []
    for name, value in _values_behind(job, release_type, values):
        because.append({"of": name, "key": value.key, "where": value.where})
    return {
        **job.model_dump(include={"stage", "platform", "name", "reason"}),
        "because": because,
    }


def _values_behind(
    job: PlannedJob,
    release_type: str,
    values: Mapping[str, Value],
) -> Iterator[tuple[str, Value]]:
    """Yield each name in a job with a value in force that it comes from."""
    matrix = f"matrix.{MatrixFile.name_of(release_type)}"
    matrix_families = f"{matrix}.gpu_families.{job.platform}"
    family_on_platform = f"{key_path([job.gpu_family])}.{job.platform}"

    tier = values.get(f"families.{family_on_platform}.tier")
    if tier is not None and matrix_families not in values:
        yield job.gpu_family, tier

    prefixes = (
        matrix_families,
        f"{matrix}.torch_refs",
        f"{matrix}.pythons",
        f"runners.machines.{job.platform}.",
        f"runners.families.{family_on_platform}.",
    )
    for name in (job.gpu_family, job.torch_ref, job.python, job.runner):
        if name is None:
            continue
        for value in values.values():
            if value.key.startswith(prefixes) and f'"{name}"' in compact(value.value):
                yield name, value


def _markdown_notes(notes: Sequence[str]) -> Sequence[str]:
    return [f"> ⚠️ {text(one_line(note))}\n" for note in notes]


def summary_of_new_notes(plan: Plan, completed_plan: Plan) -> str:
    """Return what the notes of a plan say once it is completed, as Markdown; "" where they say no more."""
    return "\n".join(_markdown_notes([note for note in completed_plan.notes if note not in plan.notes]))


def summary(plan: Plan) -> str:
    """Return the plan as Markdown, for the job's summary."""
    jobs = job_table(plan)
    left_out = left_out_table(plan)

    lines = ["### Plan", "", *_markdown_notes(plan.notes)]
    lines += [decision_table(plan).markdown(), ""]
    if jobs.rows:
        lines += [jobs.markdown(most_rows=_MOST_ROWS), ""]
    if len(jobs.rows) > _MOST_ROWS:
        lines += [f"and {len(jobs.rows) - _MOST_ROWS} more jobs", ""]
    if left_out.rows:
        heading = f"<details><summary>Left out: {len(left_out.rows)}</summary>"
        lines += [heading, "", left_out.markdown(most_rows=_MOST_ROWS), "", "</details>"]
    return "\n".join(lines)
