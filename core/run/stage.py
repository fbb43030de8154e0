"""The life of a stage that makes files: unchanged inputs, work, run outputs, record, closing table."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from core import console, files, process
from core.causes import Cause
from core.cell import GroupCell
from core.cli.options import Common, environment
from core.cli.sessions import command_again
from core.data import compact
from core.errors import InterruptedStageError, StoreError, as_fatal_error, error_with_cause
from core.run import RunOutputs, records
from core.run.records import FileRecord, Record
from core.status import Pending, Status, UpToDate
from core.stores import Store
from core.stores.overlay import OverlayStore
from core.wheel import distributions

Inputs = Mapping[str, Any]
Details = Mapping[str, Any]

_DIGEST = re.compile("[0-9a-f]{64}")
BUILDER = "builder"  # where a record's details have it


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """The wheels and sdists that a stage's work left on disk, and details for the record.

    `digests` are SHA-256 by name; a file without one is hashed.
    """

    files: tuple[Path, ...]
    details: Details = field(default_factory=dict)
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
        run_folder = self.common.cache / "logs" / self.outputs.prefix
        return run_folder / self.artifact_group / f"{self.record_name}.log"

    @property
    def record_name(self) -> str:
        """The name of its record within its artifact group."""
        return records.record_name(self.name, self.cell)

    @property
    def outputs(self) -> RunOutputs:
        """The run's paths."""
        return self.common.outputs

    @property
    def force(self) -> bool:
        """Whether its work is done again though it is done."""
        return self.common.force

    @property
    def dry_run(self) -> bool:
        """Whether nothing may be changed."""
        return self.common.dry_run


def look(stage: Stage, inputs: Inputs) -> Status:
    """Return whether a stage has work to do, and say so where it has none. Nothing is changed."""
    digest = files.digest_of(inputs)
    record = _read_record(stage)
    is_done = record is not None and _holds(stage.store, record, digest)
    if record is None or not is_done or stage.force:
        reasons = _changes(stage, inputs, record)
        return Pending(reasons=reasons)

    key_of_failure = records.failure_key(stage.outputs, stage.artifact_group, record)
    if stage.store.find(key_of_failure) is not None:
        return Pending(reasons=("it has failed since it was done",))

    _say_unchanged(stage)
    return UpToDate()


def perform(
    stage: Stage,
    inputs: Inputs,
    work: Callable[[], StageResult],
    *,
    so_far: Details | None = None,
) -> Record | Pending:
    """Do a stage's work, unless a record says that it was done from the same inputs.

    The record may be this cell's or another's of the same stage and group, and lie here or where CI
    left the run: another attempt of a job takes what the one before has uploaded. A job that runs beside
    another one with the same inputs waits for it, and takes its files. What ends the work early is
    recorded first, with what `work` has put into `so_far`. A dry run that leaves work undone returns why it
    would do it.
    """
    digest = files.digest_of(inputs)
    with _input_lock(stage, digest):
        return _perform_alone(stage, inputs, digest, work, so_far)


def _input_lock(stage: Stage, digest: str) -> AbstractContextManager[None]:
    """Return the lock of a stage's inputs: of jobs side by side one makes the files, the others take them."""
    if stage.dry_run:
        return nullcontext()
    group_prefix = stage.outputs.manifests_prefix(stage.artifact_group)
    lock_id = files.digest_of([group_prefix, stage.name, digest])[:16]
    path = stage.common.cache / "locks" / f"{stage.name}-{lock_id}.lock"
    return files.locked(path, what=f"{stage.name} with the same inputs")


def _perform_alone(
    stage: Stage,
    inputs: Inputs,
    digest: str,
    work: Callable[[], StageResult],
    so_far: Details | None,
) -> Record | Pending:
    """Do as `perform` says, where nobody else on this machine works on the same inputs."""
    previous_record = _read_record(stage)

    record: Record | None = None
    if not stage.force:
        if previous_record is not None and _holds(stage.store, previous_record, digest):
            _say_unchanged(stage)
            records.remove_failure(stage.store, stage.outputs, stage.artifact_group, previous_record)
            return _finish(stage, previous_record)
        record = _take_over(stage, digest)

    if record is None and stage.dry_run:
        reasons = _changes(stage, inputs, previous_record)
        for reason in reasons:
            console.say(f"{stage.name}: would run: {reason}")
        return Pending(reasons=reasons)

    if record is None:
        attempt = _Attempt(
            stage=stage,
            inputs=inputs,
            input_digest=digest,
        )
        seconds_last_time = previous_record.seconds if previous_record else None
        with console.as_last_time(seconds_last_time):
            record = _do_work(attempt, work, so_far)
        _update_records_of_other_cells(stage, record)

    _withdraw_old(stage, previous_record, record.files)
    _write_record(stage, record)
    return _finish(stage, record)


def _update_records_of_other_cells(stage: Stage, record: Record) -> None:
    """Let other cells that have taken files of the same inputs name the new ones, which replace those.

    Only ``local`` may replace files.
    """
    if stage.outputs.immutable:
        return
    for other_record in records.read_all(stage.store, stage.outputs, stage.artifact_group):
        is_of_same_inputs = (
            other_record.stage == stage.name and other_record.input_digest == record.input_digest
        )
        if not is_of_same_inputs or other_record.status != "ok" or other_record.name == record.name:
            continue
        # A failure of the other cell, which may lie beside its success, stays.
        new_record = record.model_copy(update={"cell": other_record.cell})
        key = stage.outputs.record_key(stage.artifact_group, other_record.name)
        stage.store.put_bytes(key, records.serialize(new_record))


def _read_record(stage: Stage) -> Record | None:
    """Return the record of the last time that the stage succeeded on this cell."""
    return records.read(stage.store, stage.outputs, stage.artifact_group, stage.record_name)


def _write_record(stage: Stage, record: Record) -> None:
    records.write(stage.store, stage.outputs, stage.artifact_group, record)


def _say_unchanged(stage: Stage) -> None:
    console.done(f"{stage.name}: unchanged, nothing to do (--force does it again)")


def _changes(
    stage: Stage,
    inputs: Inputs,
    previous_record: Record | None,
) -> tuple[str, ...]:
    """Return why a stage would do its work: what is not as in the record from before."""
    if previous_record is None:
        return ("it was not done yet",)

    # Inputs as a record has them: JSON knows no tuples.
    document = json.dumps(inputs, default=str)
    recorded_inputs = json.loads(document)
    differences = tuple(_differences("", previous_record.inputs, recorded_inputs))
    if differences:
        return differences

    if stage.force:
        return ("--force asks for it",)
    return ("what it made is not there as it was",)


def _differences(
    path: str,
    old: object,
    new: object,
) -> Iterator[str]:
    """Yield a sentence for each value that is not the same in two documents."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = {*old, *new}
        for key in sorted(keys):
            key_path = f"{path}.{key}" if path else key
            old_value = old.get(key)
            new_value = new.get(key)
            yield from _differences(key_path, old_value, new_value)
    elif old != new:
        old_words = _short_value(old)
        new_words = _short_value(new)
        yield f"{path} was {old_words} and is {new_words}"


def _short_value(value: object) -> str:
    if value is None or value == "":
        return "nothing"
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        value = value[:12]
    return compact(value)


def _finish(stage: Stage, record: Record) -> Record:
    """Copy the files into the output folder, where one is named, and show them."""
    if stage.output_dir is not None and not stage.dry_run:
        _copy_files(stage, record, stage.output_dir)

    duration = console.duration(record.seconds)
    rows: list[tuple[str, ...]] = []
    for file in record.files:
        size = console.size(file.size)
        short_sha256 = file.sha256[:12]
        rows.append((file.name, size, duration, short_sha256))
    console.table(("file", "size", "time", "sha256"), rows)
    return record


def _fetch(
    stage: Stage,
    store: Store,
    file: FileRecord,
) -> Path:
    folder = stage.common.cache / "fetched"
    return store.fetch(file.key, folder)


def _copy_files(
    stage: Stage,
    record: Record,
    folder: Path,
) -> None:
    for file in record.files:
        path = _fetch(stage, stage.store, file)
        copied_file = folder / file.name
        files.copy(path, copied_file)
        console.say(f"copied to {copied_file}")


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """How a stage's work ended: with files, or with an error."""

    status: Literal["ok", "failed"] = "ok"
    exit_code: int = 0
    error: str = ""
    cause: Cause | None = None
    again: str = ""
    files: tuple[FileRecord, ...] = ()
    details: Details


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """A stage's work on some inputs, from its beginning on."""

    stage: Stage
    inputs: Inputs
    input_digest: str
    started: str = field(default_factory=records.now)
    clock: float = field(default_factory=time.monotonic)

    def record(self, outcome: _Outcome) -> Record:
        """Return the record of an outcome; the log is put into the run for it."""
        stage = self.stage
        build_variant = stage.common.build_variant or None
        seconds = time.monotonic() - self.clock
        return Record(
            stage=stage.name,
            status=outcome.status,
            exit_code=outcome.exit_code,
            error=outcome.error,
            cause=outcome.cause,
            again=outcome.again,
            log=_publish_log(stage),
            run_id=stage.outputs.run_id,
            platform=stage.outputs.platform,
            cell=replace(stage.cell, build_variant=build_variant),
            started=self.started,
            seconds=round(seconds, 3),
            inputs=dict(self.inputs),
            input_digest=self.input_digest,
            files=outcome.files,
            details=dict(outcome.details),
        )


def _do_work(
    attempt: _Attempt,
    work: Callable[[], StageResult],
    so_far: Details | None,
) -> Record:
    """Do the work and put its files into the run; where it ends early, record that first."""
    stage = attempt.stage
    try:
        with process.logged(stage.log):
            result = work()
        published_files = tuple(_publish_files(stage, result))
    except (Exception, KeyboardInterrupt) as problem:
        failure = _outcome_of_failure(stage, problem, so_far or {})
        failed_record = attempt.record(failure)
        _write_record(stage, failed_record)
        raise

    details = dict(result.details)
    builder = builder_from(environment())
    if builder:
        details[BUILDER] = builder
    success = _Outcome(files=published_files, details=details)
    return attempt.record(success)


def _publish_files(stage: Stage, result: StageResult) -> Iterator[FileRecord]:
    for path in result.files:
        sha256 = result.digests.get(path.name, "")
        yield _publish_file(stage, path, sha256)


def _publish_file(
    stage: Stage,
    path: Path,
    sha256: str,
) -> FileRecord:
    return distributions.publish(
        stage.store,
        stage.outputs,
        stage.artifact_group,
        path,
        sha256=sha256,
    )


def _publish_log(stage: Stage) -> str:
    """Put the log into the run; return its key, "" where no tool has said anything."""
    if not stage.log.is_file():
        return ""
    folder_key = stage.outputs.logs_prefix(stage.artifact_group)
    key = f"{folder_key}/{stage.log.name}"
    sha256 = files.sha256(stage.log)
    stage.store.put_file(
        key,
        stage.log,
        sha256=sha256,
        replace=True,
    )
    return key


def _outcome_of_failure(
    stage: Stage,
    problem: BaseException,
    so_far: Details,
) -> _Outcome:
    """Return what the record of a failure says of it."""
    error = as_fatal_error(problem)
    first_error = error_with_cause(error) or error
    if first_error.log is None and stage.log.is_file():
        first_error.log = stage.log

    sentence = console.mask(str(error))
    cause: Cause | None = None
    if isinstance(error, InterruptedStageError):
        # What the tools said as they were stopped is no cause.
        sentence = "interrupted"
    elif first_error.cause is not None:
        cause = first_error.cause.masked()

    return _Outcome(
        status="failed",
        exit_code=error.exit_code,
        error=sentence,
        cause=cause,
        again=console.mask(command_again()),
        details={**so_far, **first_error.details},
    )


def _take_over(stage: Stage, digest: str) -> Record | None:
    """Take what was made from the same inputs elsewhere in the run, and put it here."""
    match = _find_alike(stage, digest)
    if match is None:
        return None

    store, record = match
    stage_files = record.files
    is_elsewhere = store.url != stage.store.url
    if is_elsewhere and not stage.dry_run:
        with console.group(f"{stage.name}: fetching what was made from the same inputs"):
            stage_files = tuple(_fetch_files(stage, store, record))

    origin_of_files = f"taken from {store.url}: {record.name} was made from the same inputs"
    console.done(f"{stage.name}: unchanged, {origin_of_files} (--force does it again)")
    changes = {"cell": stage.cell, "files": stage_files}
    return record.model_copy(update=changes)


def _find_alike(stage: Stage, digest: str) -> tuple[Store, Record] | None:
    """Return a record of the same inputs and its store: this run's here, or as CI left it."""
    match = _made_alike(stage, stage.store, digest)
    if match is not None:
        return match

    reading_store = stage.common.open_for_reading()
    if not isinstance(reading_store, OverlayStore):
        return None
    return reading_store.query(lambda store: _made_alike(stage, store, digest))


def _made_alike(
    stage: Stage,
    store: Store,
    digest: str,
) -> tuple[Store, Record] | None:
    """Return a record of the stage's own or of another cell that has these inputs, and its store."""
    manifests = stage.outputs.manifests_prefix(stage.artifact_group)
    own_key = stage.outputs.record_key(stage.artifact_group, stage.name)
    start = own_key.removesuffix(".json")
    # A stage's name, alone or before that of a cell.
    starts = (f"{start}-", own_key)

    for stored in store.list(manifests):
        if not stored.key.startswith(starts):
            continue
        document = store.read(stored.key)
        record = records.parse(document, where=stored.key)
        # Another stage's name may begin like this one's.
        if record.stage != stage.name or not record.files:
            continue
        if _holds(store, record, digest):
            return store, record
    return None


def _fetch_files(
    stage: Stage,
    store: Store,
    record: Record,
) -> Iterator[FileRecord]:
    """Put the files of another store's record into this run; yield them with their keys here."""
    for file in record.files:
        path = _fetch(stage, store, file)
        if files.sha256(path) != file.sha256:
            raise StoreError(
                f"{file.key} in {store.url} is not the file that its record names.",
                hint="Find out who replaced it, or build it again with --force.",
            )

        published_file = _publish_file(stage, path, file.sha256)
        changes = {"key": published_file.key}
        yield file.model_copy(update=changes)


def _holds(
    store: Store,
    record: Record,
    digest: str,
) -> bool:
    """Return whether a record is of a success on these inputs, and its files are there as it names them."""
    if record.status != "ok" or record.input_digest != digest:
        return False

    for file in record.files:
        if store.find(file.key) is None:
            return False
        if store.digest(file.key) != file.sha256:
            return False
    return True


def _withdraw_old(
    stage: Stage,
    previous_record: Record | None,
    published: tuple[FileRecord, ...],
) -> None:
    """Take out what this cell alone had made before under other names; only ``local`` may replace."""
    if previous_record is None or stage.outputs.immutable:
        return

    previous_keys = {file.key for file in previous_record.files}
    published_keys = {file.key for file in published}
    old_keys = previous_keys - published_keys
    if not old_keys:
        return

    group_records = records.read_all(stage.store, stage.outputs, stage.artifact_group)
    other_records = [record for record in group_records if record.name != previous_record.name]
    digests_of_others = records.promised(other_records)
    withdrawn_keys = old_keys - digests_of_others.keys()
    for key in sorted(withdrawn_keys):
        sidecar_key = f"{key}{distributions.SIDECAR}"
        stage.store.delete(sidecar_key)
        stage.store.delete(key)


def builder_from(env: Mapping[str, str]) -> dict[str, str]:
    """Return the workflow that this process is a job of, as provenance names it; nothing outside GitHub."""
    server = env.get("GITHUB_SERVER_URL")
    workflow = env.get("GITHUB_WORKFLOW_REF")
    repository = env.get("GITHUB_REPOSITORY")
    if not (server and workflow and repository):
        return {}
    # act runs workflows on a developer's machine, with variables of GitHub's names.
    if env.get("ACT"):
        return {}

    repository_url = f"{server}/{repository}"
    run_id = env.get("GITHUB_RUN_ID", "")
    attempt = env.get("GITHUB_RUN_ATTEMPT") or "1"
    return {
        "id": f"{server}/{workflow}",
        "invocation": f"{repository_url}/actions/runs/{run_id}/attempts/{attempt}",
        "source": repository_url,
        "commit": env.get("GITHUB_SHA", ""),
    }
