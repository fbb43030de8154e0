"""The report and the record of all shards of a stage, which a promotion rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from core import files
from core.errors import CheckError
from core.run import RunOutputs, records
from core.run.records import Record
from pytorch_build.test.record import outcome_details
from pytorch_build.test.report import MERGED_SHARDS, Report, ReportOrigin
from pytorch_build.test.shards import Shard
from pytorch_build.test.stored_reports import put_report
from pytorch_build.test.verdict import why_failed

if TYPE_CHECKING:
    from core.stores import Store
    from pytorch_build.test.cell_results import CellResults


def merge_shard_records(
    group_records: Sequence[Record],
    cell_results: CellResults,
    *,
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
) -> Record:
    """Return the record of all shards of a stage; where they passed, file their report, which it names."""
    origin = cell_results.origin
    shard_count = cell_results.shard_count
    stages: list[str] = []
    for index in range(1, shard_count + 1):
        shard = Shard(index=index, count=shard_count)
        stages.append(origin.stage_name(shard))
    names = {records.record_name(stage, origin.cell) for stage in stages}
    shard_records = [record for record in group_records if record.name in names]

    # It begins with the first shard, and takes what all took.
    started = min((record.started for record in shard_records), default=records.now())
    seconds = sum(record.seconds for record in shard_records)
    merged = Record(
        stage=origin.stage_name(),
        run_id=outputs.run_id,
        platform=outputs.platform,
        cell=origin.cell,
        started=started,
        seconds=round(seconds, 3),
    )
    reason = why_failed([cell_results])
    if reason:
        details = outcome_details(cell_results.document.cases)
        failure = {
            "status": "failed",
            "exit_code": CheckError.exit_code,
            "error": reason,
            "details": {**details, MERGED_SHARDS: shard_count},
        }
        return merged.model_copy(update=failure)

    inputs = _shared_inputs(origin, _require_successes(origin, stages, shard_records))
    report = _merged_report(cell_results)
    report_details = put_report(store, outputs, artifact_group, report)
    success = {
        "inputs": inputs,
        "input_digest": files.digest_of(inputs),
        "details": {**report_details, MERGED_SHARDS: shard_count},
    }
    return merged.model_copy(update=success)


def _merged_report(cell_results: CellResults) -> Report:
    document = cell_results.document
    properties = {MERGED_SHARDS: str(cell_results.shard_count), **document.properties}
    return Report(
        origin=cell_results.origin,
        document=replace(document, properties=properties),
    )


def _require_successes(
    origin: ReportOrigin,
    stages: Sequence[str],
    shard_records: Sequence[Record],
) -> Sequence[Record]:
    """Return the records of shards that passed; refuse results of which one has no such record."""
    successes = [record for record in shard_records if record.status == "ok"]
    stages_with_success = {record.stage for record in successes}
    missing_stages = sorted(set(stages) - stages_with_success)
    if missing_stages:
        raise CheckError(
            f"{origin}: there is no record of success of {', '.join(missing_stages)}.",
            hint="Run that shard again.",
        )
    return successes


def _shared_inputs(
    origin: ReportOrigin,
    shard_records: Sequence[Record],
) -> dict[str, Any]:
    """Return the inputs that all shards have; they must agree in those that a promotion goes by."""
    first_inputs = shard_records[0].inputs
    inputs: dict[str, Any] = {}
    different_names: set[str] = set()
    for record in shard_records:
        for name, value in record.inputs.items():
            inputs[name] = first_inputs.get(name)
            if name not in first_inputs or value != first_inputs[name]:
                different_names.add(name)
        different_names |= first_inputs.keys() - record.inputs.keys()

    for name in ("files", "arguments", "selection", "installed", "config"):
        if name in different_names:
            raise CheckError(f"{origin}: the shards differ in {name}.", hint="Run all shards again, alike.")
    for name in different_names:
        del inputs[name]
    if not first_inputs.get("files"):
        raise CheckError(f"{origin}: the records of the shards name no wheels.", hint="Run them again.")

    # Shards may have run on different machines; that each had a GPU is what counts.
    gpus = [record.inputs.get("gpu") for record in shard_records]
    inputs["gpu"] = gpus if all(gpus) else []
    inputs["shards"] = {record.stage: record.input_digest for record in shard_records}
    return inputs
