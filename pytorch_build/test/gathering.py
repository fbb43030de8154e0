"""Finding the reports of a run: in a store, held against the run's records, or in a folder of anybody's."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from core import parallel
from core.errors import MissingInputError, UsageError
from core.junit_reading import read, read_file
from core.run import records
from pytorch_build.test.recording import MERGED
from pytorch_build.test.results import DEFAULT_CONFIG, Origin, Tested, report_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from core.cli.options import Common
    from core.run.outputs import RunOutputs
    from core.run.records import Record
    from core.stores import Store
    from pytorch_build.test.results import Report

_STAGE = "test_"


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Results that there must be."""

    name: str
    shards: int = 1


def parse_expected(text: str) -> Expected:
    """Read ``NAME`` or ``NAME=SHARDS``."""
    name, equals, number = text.partition("=")
    shards = int(number) if number.isascii() and number.isdigit() else 0
    if not name or (equals and not shards):
        raise UsageError(f"--expect {text!r} is not NAME or NAME=SHARDS, such as torch-nightly-cp312=6.")
    return Expected(name=name, shards=shards or 1)


def in_folder(folder: Path) -> Sequence[Report]:
    """Read every ``.xml`` below a folder."""
    if not folder.is_dir():
        raise MissingInputError(
            f"{folder} is no folder.", hint="Name the one with the reports: --input-dir DIR."
        )
    paths = sorted(path for path in folder.rglob("*.xml") if path.is_file())
    if not paths:
        raise MissingInputError(
            f"{folder} has no JUnit reports (*.xml).",
            hint="No report at all is a failure: see why no test ran.",
        )
    found = []
    for path in paths:
        where = path.relative_to(folder).as_posix()
        above = where.rpartition("/")[0]
        found.append(report_of(read_file(path), Origin(folder=above), where=where))
    return _unmerged(found)


def groups_of(common: Common) -> Sequence[str]:
    """List the artifact groups of a run that have test records or reports; or the chosen one."""
    if common.gpu_family:
        return [common.artifact_group]
    store, outputs = common.open_for_reading(), common.outputs
    found = set()
    for prefix in (f"{outputs.prefix}/reports", f"{outputs.prefix}/manifests"):
        for stored in store.list(prefix):
            group, slash, name = stored.key.removeprefix(f"{prefix}/").partition("/")
            if slash and (name.endswith(".xml") or name.startswith(_STAGE)):
                found.add(group)
    if not found:
        raise MissingInputError(
            f"Run {outputs.run_id} has no test reports in {store.url}.",
            hint="Test something first: nox -s test_smoke or nox -s test_torch. Or give --input-dir.",
        )
    return sorted(found)


def in_store(
    store: Store, outputs: RunOutputs, artifact_group: str
) -> tuple[Sequence[Report], Sequence[Record]]:
    """Read the reports of a group of a run, and the records of its tests."""
    every = records.read_all(store, outputs, artifact_group)
    # what was made of shards says nothing that they do not say
    tests = [one for one in every if one.stage.startswith(_STAGE) and MERGED not in one.details]
    return reports_of(store, outputs, artifact_group, tests), tests


def reports_of(
    store: Store, outputs: RunOutputs, artifact_group: str, tests: Sequence[Record]
) -> Sequence[Report]:
    """Read the reports of a group of a run, whose tests' records are known."""
    # smoke and ROCm reports do not say what they are about; their records do
    origins = {_report_name(one): _origin(one, artifact_group, outputs) for one in tests}
    prefix = outputs.reports_prefix(artifact_group)
    keys = [stored.key for stored in store.list(prefix) if stored.key.endswith(".xml")]

    def one(key: str) -> Report:
        name = key.rpartition("/")[2]
        known = origins.get(name) or Origin(
            gpu_family=artifact_group, run_id=outputs.run_id, folder=name.removesuffix(".xml")
        )
        with store.open(key) as stream:
            report = report_of(read(stream), known, where=name)
        # a run that was uploaded says what it was called before
        return replace(report, origin=replace(report.origin, run_id=outputs.run_id))

    return _unmerged(parallel.each(one, keys))


def held_against(
    tested: Iterable[Tested],
    found: Sequence[Record],
    *,
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
) -> tuple[Tested, ...]:
    """Add what records know and reports do not: stages that failed without a report, reports that changed."""
    by_origin = {one.origin: one for one in tested}
    added: dict[Origin, list[str]] = defaultdict(list)
    for record in found:
        origin = _origin(record, artifact_group, outputs)
        known = by_origin.setdefault(origin, Tested(origin=origin, shards=0))
        if record.status == "failed":
            # what the results show already needs no second telling
            if known.passed or not known.cases:
                added[origin].append(f"{record.stage} failed: {record.error or 'it says no more'}")
        elif said := _changed(record, store, outputs, artifact_group):
            added[origin].append(said)
    whole = (replace(one, problems=(*one.problems, *added[one.origin])) for one in by_origin.values())
    return tuple(sorted(whole, key=lambda one: one.origin))


def require_expected(tested: Sequence[Tested], expected: Sequence[Expected]) -> tuple[Tested, ...]:
    """Add what was expected and is not there, as a problem of its own."""
    made = list(tested)
    for one in expected:
        at = next((at for at, known in enumerate(made) if known.origin.name == one.name), None)
        if at is None:
            made.append(Tested(origin=Origin(folder=one.name), problems=("there is no report",), shards=0))
        elif made[at].shards != one.shards:
            said = f"{one.shards} shards were expected, and {made[at].shards} are reported"
            made[at] = replace(made[at], problems=(*made[at].problems, said))
    return tuple(made)


def _unmerged(reports: Iterable[Report]) -> Sequence[Report]:
    """Leave out reports that were made of those of the shards, which are there themselves."""
    return [one for one in reports if MERGED not in one.document.properties]


def _origin(record: Record, artifact_group: str, outputs: RunOutputs) -> Origin:
    stage = record.stage.partition("-")[0]
    config = str(record.inputs.get("config", "")).removeprefix(DEFAULT_CONFIG)
    if config and stage.endswith(f"_{config}"):
        stage = stage.removesuffix(f"_{config}")
    return Origin(
        stage=stage,
        torch_ref=record.cell.torch_ref,
        python=record.cell.python,
        gpu_family=record.cell.gpu_family or artifact_group,
        group=record.cell.group,
        config=config,
        run_id=outputs.run_id,
    )


def _report_name(record: Record) -> str:
    said = record.details.get("report")
    if isinstance(said, dict) and "key" in said:
        return str(said["key"]).rpartition("/")[2]
    return f"{records.record_name(record.stage.removeprefix(_STAGE), record.cell)}.xml"


def _changed(record: Record, store: Store, outputs: RunOutputs, artifact_group: str) -> str:
    """Say what became of the report that a record names; "" where it is as it was."""
    said = record.details.get("report")
    if not isinstance(said, dict) or not {"key", "sha256"} <= said.keys():
        return f"the record of {record.stage} names no report"
    # a run that was uploaded lies under another prefix than where it was tested
    name = str(said["key"]).rpartition("/")[2]
    key = f"{outputs.reports_prefix(artifact_group)}/{name}"
    if store.find(key) is None:
        return f"the report {name} of {record.stage} is gone"
    return "" if store.digest(key) == said["sha256"] else f"the report {name} of {record.stage} was replaced"
