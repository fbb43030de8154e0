"""What a test stage leaves in a run: its JUnit report, and the record that names the wheels by digest.

A promotion reads the records (`ci.promote.runs`): ``inputs.files`` are the wheels that were tested,
name to digest; ``inputs.arguments`` chose among the tests, and make the record count for nothing;
``details.tests`` are the totals, and ``details.report`` the report, whose digest is checked again.

A shard has a report and a record of its own, ``test_torch-2-of-6``, which are no gate of a promotion.
`test_report` writes the record that is, ``test_torch``, once every shard is there and has passed.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from core import files, junit
from core.errors import CheckError
from core.junit import Document
from core.run import records
from core.run.records import Record
from pytorch_build.test.results import DEFAULT_CONFIG, Report, document_of, merged
from pytorch_build.test.sharding import Shard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.run.outputs import RunOutputs
    from core.stores import Store
    from pytorch_build.test.results import Origin, Tested

# of a report or record that was made of those of all shards
MERGED = "merged_shards"
# inputs in which all shards must agree, because a promotion goes by them
_AGREED = ("files", "arguments", "installed", "config")
_SHOWN = 10


def stage_name(origin: Origin, shard: Shard | None = None) -> str:
    """Name the stage in records: ``test_torch``, ``test_torch_distributed``, ``test_torch-2-of-6``."""
    config = "" if origin.config in {"", DEFAULT_CONFIG} else f"_{origin.config}"
    return f"{origin.stage}{config}{_part(shard)}"


def report_key(outputs: RunOutputs, artifact_group: str, origin: Origin, shard: Shard | None = None) -> str:
    """Key of a JUnit report: ``reports/{artifact group}/torch-{ref}-{python}-2-of-6.xml``."""
    return f"{outputs.reports_prefix(artifact_group)}/{origin.name}{_part(shard)}.xml"


def put_report(store: Store, outputs: RunOutputs, artifact_group: str, report: Report) -> Mapping[str, Any]:
    """File a report; of the local run, take out what another number of shards left."""
    if not outputs.immutable and MERGED not in report.document.properties:
        _withdraw_others(store, outputs, artifact_group, report)
    content = junit.write(document_of(report))
    key = report_key(outputs, artifact_group, report.origin, report.shard)
    store.put_bytes(key, content)
    cases = report.document.cases
    return {**totals(cases), "report": {"key": key, "sha256": hashlib.sha256(content).hexdigest()}}


def totals(cases: Sequence[junit.Case]) -> Mapping[str, Any]:
    """Count results as a promotion reads them, and by outcome."""
    found = junit.counts(cases)
    tests = {
        "tests": len(cases),
        "failures": found["failed"],
        "errors": found["error"] + found["crashed"] + found["timeout"],
        "skipped": found["skipped"] + found["xfailed"],
    }
    return {"tests": tests, "outcomes": {name: count for name, count in found.items() if count}}


def require_passed(tested: Sequence[Tested], *, hint: str = "") -> None:
    """Refuse results that failed, or that cannot be believed."""
    if said := why_not(tested):
        raise CheckError(said, hint=hint)


def why_not(tested: Sequence[Tested]) -> str:
    """Say why results are no pass: a sentence, then a line each of the first reasons; "" for a pass."""
    bad = [one for one in tested if not one.passed]
    if tested and not bad:
        return ""
    said = [f"{one.origin}: {problem}" for one in bad for problem in one.problems]
    for one in bad:
        said += [
            ": ".join(filter(None, (f"{case.test} {case.outcome}", case.line))) for case, _ in one.failing
        ]
    left = [f"and {len(said) - _SHOWN} more"] if len(said) > _SHOWN else []
    failed, total = sum(len(one.failing) for one in bad), sum(len(one.cases) for one in tested)
    what = f"{failed} of {total} failed" if failed else "the results cannot be believed"
    return "\n".join(
        [
            f"Tests: {what if tested else 'there is no result'}.",
            *(f"  {line}" for line in said[:_SHOWN] + left),
        ]
    )


def require_report_passed(report: Report, *, hint: str = "") -> None:
    """Refuse one shard's report that failed, or that cannot be believed; other shards are not missed."""
    require_passed(merged([replace(report, shard=None)]), hint=hint)


def of_shards(
    found: Sequence[Record], tested: Tested, *, store: Store, outputs: RunOutputs, artifact_group: str
) -> Record:
    """Make the record of all shards of a stage, and file the merged report."""
    origin, count = tested.origin, tested.shards
    names = [stage_name(origin, Shard(index=at, count=count)) for at in range(1, count + 1)]
    of_cell = [records.record_name(name, origin.cell) for name in names]
    mine = [one for one in found if one.name in of_cell]
    if why := why_not([tested]):
        failure = {"status": "failed", "exit_code": CheckError.exit_code, "error": why}
        return _record(origin, outputs, mine, **failure, details={MERGED: count})
    absent = sorted({*names} - {one.stage for one in mine if one.status == "ok"})
    if absent:
        raise CheckError(
            f"{origin}: there is no record of success of {', '.join(absent)}.", hint="Run that shard again."
        )
    inputs = _shared_inputs(origin, [one for one in mine if one.status == "ok"])
    document = Document(
        cases=tuple(case for case, _ in tested.cases), suites=tested.suites, properties={MERGED: str(count)}
    )
    details = put_report(store, outputs, artifact_group, Report(origin=origin, document=document))
    digest = files.digest_of(inputs)
    return _record(
        origin, outputs, mine, inputs=inputs, input_digest=digest, details={**details, MERGED: count}
    )


def _shared_inputs(origin: Origin, mine: Sequence[Record]) -> dict[str, Any]:
    """Give what all shards were made from."""
    first = mine[0].inputs
    for name in _AGREED:
        if any(one.inputs.get(name) != first.get(name) for one in mine):
            raise CheckError(f"{origin}: the shards differ in {name}.", hint="Run all shards again, alike.")
    if not first.get("files"):
        raise CheckError(f"{origin}: the records of the shards name no wheels.", hint="Run them again.")
    shared = {
        name: value for name, value in first.items() if all(one.inputs.get(name) == value for one in mine)
    }
    # shards may have run on different machines; that each had a GPU is what counts
    gpus = [one.inputs.get("gpu") for one in mine]
    shards = {one.stage: one.input_digest for one in mine}
    return {**shared, "gpu": gpus if all(gpus) else [], "shards": shards}


def _record(origin: Origin, outputs: RunOutputs, mine: Sequence[Record], **facts: Any) -> Record:  # noqa: ANN401 - Record's
    return Record(
        stage=stage_name(origin),
        run_id=outputs.run_id,
        platform=outputs.platform,
        cell=origin.cell,
        started=min((one.started for one in mine), default=records.now()),
        seconds=round(sum(one.seconds for one in mine), 3),
        **facts,
    )


def _withdraw_others(store: Store, outputs: RunOutputs, artifact_group: str, report: Report) -> None:
    """Delete reports and records of the same tests in another number of shards: they are of another run."""
    origin = report.origin
    record = records.record_name(stage_name(origin) + "%", origin.cell)
    count = report.shard.count if report.shard else 1
    for prefix, name, end in (
        (outputs.reports_prefix(artifact_group), f"{origin.name}%", r"\.xml"),
        (outputs.manifests_prefix(artifact_group), record, r"(\.failed)?\.json"),
    ):
        pattern = re.compile(re.escape(name).replace("%", r"(-\d+-of-(?P<count>\d+))?") + end)
        for stored in store.list(prefix):
            found = pattern.fullmatch(stored.key.removeprefix(f"{prefix}/"))
            if found and int(found["count"] or 1) != count:
                store.delete(stored.key)


def _part(shard: Shard | None) -> str:
    return f"-{shard.index}-of-{shard.count}" if shard and shard.count > 1 else ""
