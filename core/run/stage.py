"""The life of a stage that makes files: unchanged inputs, work, run outputs, record, closing table."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from core import console, files, process
from core.cell import GroupCell
from core.cli.options import Common, environment
from core.cli.sessions import command_again
from core.data import compact
from core.errors import InterruptedStageError, StoreError, fatal, origin
from core.run import RunOutputs, records
from core.run.records import FileRecord, Record
from core.status import Pending, Status, UpToDate
from core.stores import Store
from core.stores.overlay import OverlayStore
from core.wheel import distributions

_DIGEST = re.compile("[0-9a-f]{64}")
BUILDER = "builder"  # where a record's details have it


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """The wheels and sdists that a stage's work left on disk, and details for the record.

    `digests` are SHA-256 by name; a file without one is hashed.
    """

    files: tuple[Path, ...]
    details: Mapping[str, Any] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage on one cell."""

    name: str
    common: Common
    artifact_group: str
    cell: GroupCell = field(default_factory=GroupCell)
    output_dir: Path | None = None  # a folder that also gets the files

    @property
    def store(self) -> Store:
        """The store that is written to."""
        return self.common.open_store()

    @property
    def log(self) -> Path:
        """Where this machine keeps what the stage's tools say."""
        name = f"{records.record_name(self.name, self.cell)}.log"
        return self.common.cache / "logs" / self.outputs.prefix / self.artifact_group / name

    @property
    def outputs(self) -> RunOutputs:
        """The run's paths."""
        return self.common.outputs


def look(stage: Stage, inputs: Mapping[str, Any]) -> Status:
    """Return whether a stage has work to do, and say so where it has none. Nothing is changed."""
    store = stage.store
    record = records.read(store, stage.outputs, stage.artifact_group, _record_name(stage))
    if stage.common.force or record is None or not _holds(store, record, files.digest_of(inputs)):
        return Pending(reasons=_changes(stage, inputs, record))

    if store.find(records.failure_key(stage.outputs, stage.artifact_group, record)) is not None:
        return Pending(reasons=("it has failed since it was done",))

    _say_unchanged(stage)
    return UpToDate()


def perform(
    stage: Stage,
    inputs: Mapping[str, Any],
    work: Callable[[], StageResult],
    *,
    so_far: Mapping[str, Any] | None = None,
) -> Record | Pending:
    """Do a stage's work, unless a record says that it was done from the same inputs.

    The record may be this cell's or another's of the same stage and group, and lie here or where CI
    left the run: another attempt of a job takes what the one before has uploaded. What ends the work early is
    recorded first, with what `work` has put into `so_far`. A dry run that leaves work undone returns why it
    would do it.
    """
    store = stage.store
    digest = files.digest_of(inputs)
    previous_record = records.read(store, stage.outputs, stage.artifact_group, _record_name(stage))

    record: Record | None = None
    if not stage.common.force:
        if previous_record is not None and _holds(store, previous_record, digest):
            _say_unchanged(stage)
            return _finished(stage, previous_record)
        record = _taken(stage, digest)

    if record is None:
        if stage.common.dry_run:
            reasons = _changes(stage, inputs, previous_record)
            for reason in reasons:
                console.say(f"{stage.name}: would run: {reason}")
            return Pending(reasons=reasons)

        seconds = previous_record.seconds if previous_record else 0
        ninja_runs = previous_record.details.get("ninja", ()) if previous_record else ()
        with console.as_last_time(seconds, [ninja_run["edges"] for ninja_run in ninja_runs]):
            known = {"inputs": dict(inputs), "input_digest": digest}
            record = _worked(stage, known, work, so_far)

    _withdraw_old(stage, previous_record, record.files)
    return _finished(stage, record)


def _record_name(stage: Stage) -> str:
    return records.record_name(stage.name, stage.cell)


def _say_unchanged(stage: Stage) -> None:
    console.done(f"{stage.name}: unchanged, nothing to do (--force does it again)")


def _changes(stage: Stage, inputs: Mapping[str, Any], previous_record: Record | None) -> tuple[str, ...]:
    """Return why a stage would do its work: what is not as in the record from before."""
    if previous_record is None:
        return ("it was not done yet",)
    # Inputs as a record has them: JSON knows no tuples.
    recorded_inputs = json.loads(json.dumps(inputs, default=str))
    differences = tuple(_differences("", previous_record.inputs, recorded_inputs))
    if differences:
        return differences
    if stage.common.force:
        return ("--force asks for it",)
    return ("what it made is not there as it was",)


def _differences(path: str, old: object, new: object) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from _differences(f"{path}.{key}" if path else key, old.get(key), new.get(key))
    elif old != new:
        yield f"{path} was {_short_value(old)} and is {_short_value(new)}"


def _short_value(value: object) -> str:
    if value is None or value == "":
        return "nothing"
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        value = value[:12]
    return compact(value)


def _finished(stage: Stage, record: Record) -> Record:
    """Write a success's record, which ends that of a failure since the last one; show what there is."""
    records.write(stage.store, stage.outputs, stage.artifact_group, record)
    if stage.output_dir is not None and not stage.common.dry_run:
        for file in record.files:
            path = stage.store.fetch(file.key, stage.common.cache / "fetched")
            files.copy(path, stage.output_dir / file.name)
            console.say(f"copied to {stage.output_dir / file.name}")

    duration = console.duration(record.seconds)
    rows = [(file.name, console.size(file.size), duration, file.sha256[:12]) for file in record.files]
    console.table(("file", "size", "time", "sha256"), rows)
    return record


def _worked(
    stage: Stage,
    known: Mapping[str, Any],
    work: Callable[[], StageResult],
    so_far: Mapping[str, Any] | None,
) -> Record:
    """Do the work and put its files into the run; record what is `known` of it, and what ends it early."""
    started = records.now()
    clock = time.monotonic()

    def record(**facts: Any) -> Record:  # noqa: ANN401 - fields of Record, which checks them
        return Record(
            stage=stage.name,
            run_id=stage.outputs.run_id,
            platform=stage.outputs.platform,
            cell=replace(stage.cell, build_variant=stage.common.build_variant or None),
            started=started,
            seconds=round(time.monotonic() - clock, 3),
            log=_publish_log(stage),
            **known,
            **facts,
        )

    try:
        with process.logged(stage.log):
            result = work()
        published = tuple(_publish_files(stage, result))
    except (Exception, KeyboardInterrupt) as problem:
        facts = _facts_of_failure(stage, problem, so_far or {})
        records.write(stage.store, stage.outputs, stage.artifact_group, record(**facts))
        raise

    details = dict(result.details)
    builder = builder_from(environment())
    if builder:
        details[BUILDER] = builder
    return record(files=published, details=details)


def _publish_files(stage: Stage, result: StageResult) -> Iterator[FileRecord]:
    for path in result.files:
        sha256 = result.digests.get(path.name, "")
        yield distributions.publish(stage.store, stage.outputs, stage.artifact_group, path, sha256=sha256)


def _publish_log(stage: Stage) -> str:
    """Put the log into the run; return its key, "" where no tool has said anything."""
    if not stage.log.is_file():
        return ""
    key = f"{stage.outputs.logs_prefix(stage.artifact_group)}/{stage.log.name}"
    stage.store.put_file(key, stage.log, sha256=files.sha256(stage.log), replace=True)
    return key


def _facts_of_failure(stage: Stage, problem: BaseException, so_far: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the record of a failure says of it."""
    error = fatal(problem)
    first_error = origin(error) or error
    if first_error.log is None and stage.log.is_file():
        first_error.log = stage.log

    facts: dict[str, Any] = {
        "status": "failed",
        "exit_code": error.exit_code,
        "error": console.mask(str(error)),
        "again": console.mask(command_again()),
        "details": {**so_far, **first_error.details},
    }
    if isinstance(error, InterruptedStageError):
        facts["error"] = "interrupted"
    elif first_error.cause is not None:
        facts["cause"] = first_error.cause.masked()
    return facts


def _taken(stage: Stage, digest: str) -> Record | None:
    """Take what was made from the same inputs elsewhere in the run, and put it here."""
    own_store = stage.store
    reading_store = stage.common.open_for_reading()
    match = _made_alike(stage, own_store, digest)
    if match is None and isinstance(reading_store, OverlayStore):
        match = reading_store.query(lambda store: _made_alike(stage, store, digest))
    if match is None:
        return None

    store, record = match
    own_files = record.files
    if store.url != own_store.url and not stage.common.dry_run:
        with console.group(f"{stage.name}: fetching what was made from the same inputs"):
            own_files = tuple(_fetched(stage, store, file) for file in record.files)
    console.done(
        f"{stage.name}: unchanged, taken from {store.url}: {record.name} was made from the same inputs "
        "(--force does it again)"
    )
    return record.model_copy(update={"cell": stage.cell, "files": own_files})


def _made_alike(stage: Stage, store: Store, digest: str) -> tuple[Store, Record] | None:
    """Return a record of the stage's own or of another cell that has these inputs, and its store."""
    start = stage.outputs.record_key(stage.artifact_group, stage.name).removesuffix(".json")
    for stored in store.list(stage.outputs.manifests_prefix(stage.artifact_group)):
        if not stored.key.startswith((f"{start}-", f"{start}.json")):
            continue
        record = records.parse(store.read(stored.key), where=stored.key)
        if record.stage == stage.name and record.files and _holds(store, record, digest):
            return store, record
    return None


def _fetched(stage: Stage, store: Store, file: FileRecord) -> FileRecord:
    path = store.fetch(file.key, stage.common.cache / "fetched")
    if files.sha256(path) != file.sha256:
        raise StoreError(
            f"{file.key} in {store.url} is not the file that its record names.",
            hint="Find out who replaced it, or build it again with --force.",
        )
    published = distributions.publish(
        stage.store, stage.outputs, stage.artifact_group, path, sha256=file.sha256
    )
    return file.model_copy(update={"key": published.key})


def _holds(store: Store, record: Record, digest: str) -> bool:
    """Return whether a record is of a success on these inputs, and its files are there as it names them."""
    if record.status != "ok" or record.input_digest != digest:
        return False
    for file in record.files:
        if store.find(file.key) is None or store.digest(file.key) != file.sha256:
            return False
    return True


def _withdraw_old(stage: Stage, previous_record: Record | None, published: tuple[FileRecord, ...]) -> None:
    """Take out what this cell alone had made before under other names; only ``local`` may replace."""
    if previous_record is None or stage.outputs.immutable:
        return
    old_keys = {file.key for file in previous_record.files} - {file.key for file in published}
    if not old_keys:
        return

    group_records = records.read_all(stage.store, stage.outputs, stage.artifact_group)
    other_records = [record for record in group_records if record.name != previous_record.name]
    keys_of_others = records.promised(other_records)
    for key in sorted(old_keys - keys_of_others.keys()):
        stage.store.delete(f"{key}{distributions.SIDECAR}")
        stage.store.delete(key)


def builder_from(env: Mapping[str, str]) -> dict[str, str]:
    """Return the workflow that this process is a job of, as provenance names it; nothing outside GitHub."""
    server = env.get("GITHUB_SERVER_URL")
    workflow = env.get("GITHUB_WORKFLOW_REF")
    repository = env.get("GITHUB_REPOSITORY")
    if not (server and workflow and repository) or env.get("ACT"):
        return {}

    attempt = f"{env.get('GITHUB_RUN_ID', '')}/attempts/{env.get('GITHUB_RUN_ATTEMPT') or '1'}"
    return {
        "id": f"{server}/{workflow}",
        "invocation": f"{server}/{repository}/actions/runs/{attempt}",
        "source": f"{server}/{repository}",
        "commit": env.get("GITHUB_SHA", ""),
    }
