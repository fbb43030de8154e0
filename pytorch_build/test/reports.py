"""JUnit reports of a run: what a test stage leaves, its record, and finding and checking them again.

A promotion and the run's page read the records: ``inputs.files`` are the wheels that were tested, name to
digest, and the results are about these bytes alone (`out_of_date`); ``inputs.arguments`` replaced tests or
rules, and make the record count for nothing; ``details.tests`` are the totals, and how many tests exist
without any choice among them (`incomplete`); ``details.report`` is the report, whose digest is checked again.

A shard has a report and a record of its own, ``test_torch-2-of-6``, which do not allow a promotion.
`test_report` writes the record that does, ``test_torch``, once every shard is there and has passed.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from core import console, files, junit, parallel
from core.causes import Cause, first
from core.errors import CheckError, MissingInputError
from core.run import RunOutputs, records
from core.run.records import Record
from core.stores import Store
from pytorch_build.components import distributions
from pytorch_build.test.results import (
    DEFAULT_CONFIG,
    EXISTING,
    LEFT_OUT,
    TAKEN_OUT,
    Origin,
    Report,
    Tested,
    document_of,
    merged,
    report_of,
    unexplained,
)
from pytorch_build.test.shards import Shard
from rocm_packaging.packages.layouts import is_rocm

if TYPE_CHECKING:
    from core.cli.options import Common
    from core.run.stage import Stage

# property of a report, and detail of a record, that was made of those of all shards
MERGED = "merged_shards"
_SHOWN = 10
_NAMED = 200  # names of failed tests in a record: the report has all
_STAGE = "test_"


def stage_name(origin: Origin, shard: Shard | None = None) -> str:
    """Name the stage in records: ``test_torch``, ``test_torch_distributed``, ``test_torch-2-of-6``."""
    config = origin.config.removeprefix(DEFAULT_CONFIG)
    return f"{origin.stage}{f'_{config}' if config else ''}{_part(shard)}"


def _part(shard: Shard | None) -> str:
    return f"-{shard.index}-of-{shard.count}" if shard and shard.count > 1 else ""


def put_report(store: Store, outputs: RunOutputs, artifact_group: str, report: Report) -> Mapping[str, Any]:
    """File a report, ``torch-{ref}-{python}-2-of-6.xml``; locally, drop those of other numbers of shards."""
    if not outputs.immutable and MERGED not in report.document.properties:
        _withdraw_others(store, outputs, artifact_group, report)
    content = junit.write(document_of(report))
    key = f"{outputs.reports_prefix(artifact_group)}/{report.origin.name}{_part(report.shard)}.xml"
    store.put_bytes(key, content)
    digest = hashlib.sha256(content).hexdigest()
    return {**totals(report), "report": {"key": key, "sha256": digest}}


def _withdraw_others(store: Store, outputs: RunOutputs, artifact_group: str, report: Report) -> None:
    """Delete reports and records of the same tests in another number of shards: they are of another run."""
    origin, count = report.origin, report.shard.count if report.shard else 1
    record = records.record_name(stage_name(origin) + "%", origin.cell)
    for prefix, name, end in (
        (outputs.reports_prefix(artifact_group), f"{origin.name}%", r"\.xml"),
        (outputs.manifests_prefix(artifact_group), record, r"(\.failed)?\.json"),
    ):
        pattern = re.compile(re.escape(name).replace("%", r"(-\d+-of-(?P<count>\d+))?") + end)
        for stored in store.list(prefix):
            found = pattern.fullmatch(stored.key.removeprefix(f"{prefix}/"))
            if found and int(found["count"] or 1) != count:
                store.delete(stored.key)


def totals(report: Report) -> Mapping[str, Any]:
    """Count results as a promotion reads them, and by outcome; a shard cannot say how many exist."""
    document, cases = report.document, report.document.cases
    tests = junit.totals(cases)
    known = [suite.properties.get(EXISTING) for suite in document.suites.values()]
    if report.shard is None and known and None not in known:
        files_as_a_whole = sum(case.test == case.file for case in cases)
        tests["existing"] = sum(int(one or 0) for one in known) + files_as_a_whole
        tests["unexplained"] = len(unexplained(cases, document.properties))
    said = {LEFT_OUT: document.properties[LEFT_OUT]} if LEFT_OUT in document.properties else {}
    return {"tests": tests, **outcomes(cases), **said}


def outcomes(cases: Collection[junit.Case]) -> Mapping[str, Any]:
    """Count results by outcome, and name the tests that failed."""
    found = {name: count for name, count in junit.counts(cases).items() if count}
    failing = sorted(case.test for case in cases if case.failing)[:_NAMED]
    return {"outcomes": found, **({"failing": failing} if failing else {})}


def incomplete(details: Mapping[str, Any]) -> str:
    """Explain why the results of a test's record are not those of all tests that exist; "" where they are."""
    tests = details.get("tests")
    if not isinstance(tests, dict) or "existing" not in tests:
        return "its record does not say which tests exist"
    ran, taken_out = tests.get("tests"), tests.get("unexplained")
    if ran != tests["existing"]:
        return f"{ran} of {tests['existing']} tests ran"
    return str(details.get(LEFT_OUT) or (f"{taken_out} of {ran} tests were {TAKEN_OUT}" if taken_out else ""))


def unless_incomplete(stage: Stage) -> Stage:
    """Do again what ran in part for no cause of its inputs, or whose report is another run's since."""
    name, store = records.record_name(stage.name, stage.cell), stage.store
    before = records.read(store, stage.outputs, stage.artifact_group, name)
    if before is None:
        return stage
    part = before.inputs.get("selection") or "-" in stage.name
    digest = partial(_digest, store, stage.outputs.reports_prefix(stage.artifact_group))
    why = ("" if part else incomplete(before.details)) or changed_report(before, digest)
    return replace(stage, common=replace(stage.common, force=stage.common.force or bool(why)))


def out_of_date(record: Record, every: Iterable[Record]) -> str:
    """Explain which bytes of its run a test is not about; "" where the run still has those that it ran on."""
    if not record.inputs.get("installed", True):
        return "it tested what an environment held already"
    tested = record.inputs.get("files") or record.inputs.get("packages")
    tested = tested if isinstance(tested, dict) else {}
    here: dict[str, str] = {}
    needed = set()
    # a build's word counts more than that of an upload
    for one in sorted(every, key=lambda one: one.stage.startswith("build_")):
        made = one.files if one.status == "ok" else ()
        here |= {file.name: file.sha256 for file in made}
        together = (one.cell.torch_ref, one.cell.python) == (record.cell.torch_ref, record.cell.python)
        if one.stage.startswith("build_") and record.cell.torch_ref and together:
            needed |= {file.name for file in made if file.distribution in distributions()}
    changed = {name for name, digest in tested.items() if here.get(name, digest) != digest}
    if rocm := set(filter(_is_rocm, here)):
        changed |= set(filter(_is_rocm, tested)) - rocm
    listed = ", ".join(sorted(changed | (needed - tested.keys())))
    return f"out of date: it ran on other bytes than the run has of {listed}" if listed else ""


def _is_rocm(filename: str) -> bool:
    return is_rocm(canonicalize_name(filename.partition("-")[0]))


def why_missing(record: Record, every: Iterable[Record]) -> str:
    """Explain why a test counts as missing, by its record and all of its group's; "" where it counts."""
    judged = record.status == "ok" and "-" not in record.stage and "tests" in record.details
    return out_of_date(record, every) or (incomplete(record.details) if judged else "")


def why_not(tested: Sequence[Tested]) -> str:
    """Explain why results are not a pass: a sentence, then some reasons, a line each; "" for a pass."""
    bad = [one for one in tested if not one.passed]
    if tested and not bad:
        return ""
    lines = [f"{one.origin}: {problem}" for one in bad for problem in one.problems]
    lines += [
        f"{case.test} {case.outcome}: {case.line}".removesuffix(": ")
        for one in bad
        for case, _ in one.failing
    ]
    failed, total = sum(len(one.failing) for one in bad), sum(len(one.cases) for one in tested)
    what = f"{failed} of {total} failed" if failed else "the results cannot be trusted"
    left = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "\n  ".join([f"Tests: {what if tested else 'there is no result'}.", *lines[:_SHOWN], *left])


def require_passed(report: Report, *, hint: str = "") -> None:
    """Refuse one shard's report that failed, or that cannot be trusted, whatever other shards did.

    What ran and passed is no failure; that it was a part of the tests is said.
    """
    document = replace(report.document, suites={}, properties={})
    if why := why_not(merged([replace(report, shard=None, document=document)])):
        problem = CheckError(why, hint=hint)
        failed = next((one for one in report.document.cases if one.failing), None)
        if failed:
            said = first(failed.text.splitlines()) or Cause(tool="pytest", file=failed.file, message="")
            problem.cause = said.model_copy(update={"message": f"{failed.test}: {failed.line}"})
        problem.details = totals(report)
        raise problem
    if report.shard is None and (why := incomplete(totals(report))):
        console.warn(f"{report.origin}: {why}. It counts as missing: no release rests on it.")


def of_shards(
    found: Sequence[Record], tested: Tested, *, store: Store, outputs: RunOutputs, artifact_group: str
) -> Record:
    """Make the record of all shards of a stage, and file the merged report."""
    origin, count = tested.origin, tested.shards
    names = [stage_name(origin, Shard(index=at, count=count)) for at in range(1, count + 1)]
    of_cell = {records.record_name(name, origin.cell) for name in names}
    mine = [one for one in found if one.name in of_cell]
    if why := why_not([tested]):
        failure = {"status": "failed", "exit_code": CheckError.exit_code, "error": why}
        counted = outcomes([case for case, _ in tested.cases])
        return _record(origin, outputs, mine, **failure, details={**counted, MERGED: count})
    passed = [one for one in mine if one.status == "ok"]
    if absent := sorted({*names} - {one.stage for one in passed}):
        raise CheckError(
            f"{origin}: there is no record of success of {', '.join(absent)}.", hint="Run that shard again."
        )
    inputs = _shared_inputs(origin, passed)
    document = junit.Document(
        cases=tuple(case for case, _ in tested.cases),
        suites=tested.suites,
        properties={MERGED: str(count), **tested.chosen},
    )
    details = put_report(store, outputs, artifact_group, Report(origin=origin, document=document))
    facts = {"inputs": inputs, "input_digest": files.digest_of(inputs)}
    return _record(origin, outputs, mine, **facts, details={**details, MERGED: count})


def _shared_inputs(origin: Origin, mine: Sequence[Record]) -> dict[str, Any]:
    first = mine[0].inputs
    shared = {
        name: value for name, value in first.items() if all(one.inputs.get(name) == value for one in mine)
    }
    # all shards must agree in these, because a promotion goes by them
    for name in ("files", "arguments", "selection", "installed", "config"):
        if name not in shared and any(name in one.inputs for one in mine):
            raise CheckError(f"{origin}: the shards differ in {name}.", hint="Run all shards again, alike.")
    if not first.get("files"):
        raise CheckError(f"{origin}: the records of the shards name no wheels.", hint="Run them again.")
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


def in_folder(folder: Path) -> Sequence[Report]:
    """Read every ``.xml`` below a folder."""
    if not folder.is_dir():
        raise MissingInputError(
            f"{folder} is not a folder.", hint="Name the one with the reports: --input-dir DIR."
        )
    found = []
    for path in sorted(path for path in folder.rglob("*.xml") if path.is_file()):
        where = path.relative_to(folder).as_posix()
        origin = Origin(folder=where.rpartition("/")[0])
        found.append(report_of(junit.read_file(path), origin, where=where))
    if not found:
        raise MissingInputError(
            f"{folder} has no JUnit reports (*.xml).",
            hint="No report at all is a failure: see why no test ran.",
        )
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


def _tests_of(every: Iterable[Record]) -> Sequence[Record]:
    """Choose the records of tests; what was made of shards adds nothing to them."""
    return [one for one in every if one.stage.startswith(_STAGE) and MERGED not in one.details]


def reports_of(
    store: Store, outputs: RunOutputs, artifact_group: str, every: Iterable[Record]
) -> Sequence[Report]:
    """Read the reports of a group of a run, whose records are known."""
    # ROCm reports do not say what they are about; their records do
    origins = {_report_name(one): _origin(one, artifact_group, outputs) for one in _tests_of(every)}
    prefix = outputs.reports_prefix(artifact_group)

    def one(key: str) -> Report:
        name = key.rpartition("/")[2]
        known = origins.get(name) or Origin(gpu_family=artifact_group, folder=name.removesuffix(".xml"))
        with store.open(key) as stream:
            report = report_of(junit.read(stream), known, where=name)
        # a run that was uploaded had another name before
        return replace(report, origin=replace(report.origin, run_id=outputs.run_id))

    keys = [stored.key for stored in store.list(prefix) if stored.key.endswith(".xml")]
    return _unmerged(parallel.map_in_threads(one, keys))


def _unmerged(reports: Iterable[Report]) -> Sequence[Report]:
    """Drop reports that were made of those of the shards, which are there themselves."""
    return [one for one in reports if MERGED not in one.document.properties]


def checked(
    tested: Iterable[Tested],
    every: Sequence[Record],
    *,
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
) -> tuple[Tested, ...]:
    """Add what records know and reports do not: failures without a report, changed reports, other bytes."""
    by_origin = {one.origin: one for one in tested}
    digest = partial(_digest, store, outputs.reports_prefix(artifact_group))
    last = _tests_of(records.latest(every))
    found = [(record, _origin(record, artifact_group, outputs)) for record in last]
    added: dict[Origin, list[str]] = defaultdict(list)
    for origin in by_origin.keys() - {origin for _, origin in found}:
        added[origin].append("no record says which wheels its report is about")
    for record, origin in found:
        known = by_origin.setdefault(origin, Tested(origin=origin, shards=0))
        if record.status == "failed":
            # the results show failures already
            if known.passed or not known.cases:
                added[origin].append(f"{record.stage} failed: {record.error or 'no error message'}")
        elif change := changed_report(record, digest):
            added[origin].append(f"{record.stage}: {change}")
        elif why := out_of_date(record, every):
            added[origin].append(why)
    return tuple(
        replace(by_origin[origin], problems=(*by_origin[origin].problems, *added[origin]))
        for origin in sorted(by_origin)
    )


def _digest(store: Store, prefix: str, name: str) -> str | None:
    return store.digest(f"{prefix}/{name}") if store.find(f"{prefix}/{name}") else None


def changed_report(record: Record, digest: Callable[[str], str | None]) -> str:
    """Explain what became of the report that a record names, by the digest of each name; "" for nothing."""
    match record.details.get("report"):
        case {"key": str(), "sha256": sha256}:
            # by its name: a run that was uploaded lies under another prefix than where it was tested
            name = _report_name(record)
            found = digest(name)
            return "" if found == sha256 else f"its report {name} {'was replaced' if found else 'is gone'}"
    return "its record names no report"


def _report_name(record: Record) -> str:
    match record.details.get("report"):
        case {"key": str(key)}:
            return key.rpartition("/")[2]
    return f"{records.record_name(record.stage.removeprefix(_STAGE), record.cell)}.xml"


def _origin(record: Record, artifact_group: str, outputs: RunOutputs) -> Origin:
    config = str(record.inputs.get("config", "")).removeprefix(DEFAULT_CONFIG)
    stage = record.stage.partition("-")[0]
    stage = stage.removesuffix(f"_{config}") if config else stage
    found = Origin.of(stage, record.cell, config=config, run_id=outputs.run_id)
    return replace(found, gpu_family=found.gpu_family or artifact_group)


def require_expected(tested: Sequence[Tested], expected: Iterable[str]) -> tuple[Tested, ...]:
    """Add what was expected and is missing, as a problem of its own; each shard tells how many there are."""
    known = {one.origin.name for one in tested}
    problem = ("there is no report",)
    absent = (Origin(folder=name) for name in expected if name not in known)
    return (*tested, *(Tested(origin=origin, problems=problem, shards=0) for origin in absent))
