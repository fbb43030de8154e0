"""The life of a stage that makes files: unchanged inputs, work, run outputs, record, closing table."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from core import console, files, process
from core.cell import GroupCell
from core.cli import this_again
from core.cli.options import Common, environment
from core.data import compact
from core.errors import InterruptedStageError, StoreError, fatal, origin
from core.run import RunOutputs, records
from core.run.records import FileRecord, Record
from core.stores import Store
from core.stores.location import OverlayStore
from core.wheel import distributions

_DIGEST = re.compile("[0-9a-f]{64}")
BUILDER = "builder"  # where a record's details have it


@dataclass(frozen=True, kw_only=True)
class Made:
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


def perform(
    stage: Stage,
    inputs: Mapping[str, Any],
    work: Callable[[], Made],
    *,
    so_far: Mapping[str, Any] | None = None,
) -> Record | Sequence[str]:
    """Do a stage's work, unless a record says that it was done from the same inputs.

    The record may be this cell's or another's of the same stage and group, and lie here or where CI
    left the run: another attempt of a job takes what the one before has uploaded. What ends the work early is
    recorded first, with what `work` has put into `so_far`. A dry run that leaves work undone returns why it
    would do it.
    """
    store, name = stage.store, records.record_name(stage.name, stage.cell)
    before = records.read(store, stage.outputs, stage.artifact_group, name)
    digest = files.digest_of(inputs)
    made: Record | None = None
    if not stage.common.force:
        if before is not None and _holds(store, before, digest):
            console.done(f"{stage.name}: unchanged, nothing to do (--force does it again)")
            return _finished(stage, before)
        made = _taken(stage, digest)
    if made is None:
        if stage.common.dry_run:
            reasons = _changes(stage, inputs, before)
            for reason in reasons:
                console.say(f"{stage.name}: would run: {reason}")
            return reasons
        known = {"inputs": dict(inputs), "input_digest": digest}
        ninja = before.details.get("ninja", ()) if before else ()
        with console.as_last_time(before.seconds if before else 0, [one["edges"] for one in ninja]):
            made = _worked(stage, known, work, so_far)
    _withdraw_old(stage, before, made.files)
    return _finished(stage, made)


def _changes(stage: Stage, inputs: Mapping[str, Any], before: Record | None) -> Sequence[str]:
    """Say why a stage would do its work: what is not as in the record from before."""
    if before is None:
        return ("it was not done yet",)
    found = tuple(_differences("", before.inputs, json.loads(json.dumps(inputs, default=str))))
    return found or ("--force asks for it" if stage.common.force else "what it made is not there as it was",)


def _differences(where: str, old: object, new: object) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({**old, **new}):
            yield from _differences(f"{where}.{key}" if where else key, old.get(key), new.get(key))
    elif old != new:
        known = (one[:12] if isinstance(one, str) and _DIGEST.fullmatch(one) else one for one in (old, new))
        was, now = ("nothing" if one in (None, "") else compact(one) for one in known)
        yield f"{where} was {was} and is {now}"


def _finished(stage: Stage, record: Record) -> Record:
    """Write a success's record, which ends that of a failure since the last one; show what there is."""
    records.write(stage.store, stage.outputs, stage.artifact_group, record)
    if stage.output_dir is not None and not stage.common.dry_run:
        for one in record.files:
            fetched = stage.store.fetch(one.key, stage.common.cache / "fetched")
            files.copy(fetched, stage.output_dir / one.name)
            console.say(f"copied to {stage.output_dir / one.name}")
    took = console.duration(record.seconds)
    rows = [(one.name, console.size(one.size), took, one.sha256[:12]) for one in record.files]
    console.table(("file", "size", "time", "sha256"), rows)
    return record


def _worked(
    stage: Stage, known: Mapping[str, Any], work: Callable[[], Made], so_far: Mapping[str, Any] | None
) -> Record:
    """Do the work and put its files into the run; record what is `known` of it, and what ends it early."""
    process.work()
    store, outputs, group = stage.store, stage.outputs, stage.artifact_group
    started, clock = records.now(), time.monotonic()

    def record(**facts: Any) -> Record:  # noqa: ANN401 - fields of Record, which checks them
        return Record(
            stage=stage.name,
            run_id=outputs.run_id,
            platform=outputs.platform,
            cell=replace(stage.cell, build_variant=stage.common.build_variant or None),
            started=started,
            seconds=round(time.monotonic() - clock, 3),
            **known,
            **facts,
        )

    def logged() -> str:
        """Put the log into the run; return its key."""
        key = f"{outputs.logs_prefix(group)}/{stage.log.name}"
        if not stage.log.is_file():
            return ""
        store.put_file(key, stage.log, sha256=files.sha256(stage.log), replace=True)
        return key

    try:
        with process.logged(stage.log):
            made = work()
        published = tuple(
            distributions.publish(store, outputs, group, path, sha256=made.digests.get(path.name, ""))
            for path in made.files
        )
    except (Exception, KeyboardInterrupt) as problem:
        ended = fatal(problem)
        said = origin(ended) or ended
        details = {**(so_far or {}), **said.details}
        said.log = said.log or (stage.log if stage.log.is_file() else None)
        facts: dict[str, Any] = {"exit_code": ended.exit_code, "error": console.mask(str(ended))}
        facts["again"] = console.mask(this_again())
        if isinstance(ended, InterruptedStageError):
            facts["error"] = "interrupted"
        elif said.cause:
            facts["cause"] = said.cause.masked()
        records.write(store, outputs, group, record(status="failed", details=details, log=logged(), **facts))
        raise
    builder = builder_from(environment())
    return record(
        files=published, log=logged(), details={**made.details, **({BUILDER: builder} if builder else {})}
    )


def _taken(stage: Stage, digest: str) -> Record | None:
    """Take what was made from the same inputs elsewhere in the run, and put it here."""
    here, there = stage.store, stage.common.open_for_reading()
    found = _made_alike(stage, here, digest)
    if found is None and isinstance(there, OverlayStore):
        found = there.query(lambda behind: _made_alike(stage, behind, digest))
    if found is None:
        return None
    store, record = found
    files_here = record.files
    if store.url != here.url and not stage.common.dry_run:
        process.work()
        with console.group(f"{stage.name}: fetching what was made from the same inputs"):
            files_here = tuple(_fetched(stage, store, one) for one in record.files)
    console.done(
        f"{stage.name}: unchanged, taken from {store.url}: {record.name} was made from the same inputs "
        "(--force does it again)"
    )
    return record.model_copy(update={"cell": stage.cell, "files": files_here})


def _made_alike(stage: Stage, store: Store, digest: str) -> tuple[Store, Record] | None:
    start = stage.outputs.record_key(stage.artifact_group, stage.name).removesuffix(".json")
    for stored in store.list(stage.outputs.manifests_prefix(stage.artifact_group)):
        if stored.key.startswith((f"{start}-", f"{start}.json")):
            record = records.parse(store.read(stored.key), where=stored.key)
            if record.stage == stage.name and record.files and _holds(store, record, digest):
                return store, record
    return None


def _fetched(stage: Stage, store: Store, one: FileRecord) -> FileRecord:
    path = store.fetch(one.key, stage.common.cache / "fetched")
    if files.sha256(path) != one.sha256:
        raise StoreError(
            f"{one.key} in {store.url} is not the file that its record names.",
            hint="Find out who replaced it, or build it again with --force.",
        )
    put = distributions.publish(stage.store, stage.outputs, stage.artifact_group, path, sha256=one.sha256)
    return one.model_copy(update={"key": put.key})


def _holds(store: Store, before: Record, digest: str) -> bool:
    return (before.status, before.input_digest) == ("ok", digest) and all(
        store.find(one.key) is not None and store.digest(one.key) == one.sha256 for one in before.files
    )


def _withdraw_old(stage: Stage, before: Record | None, published: tuple[FileRecord, ...]) -> None:
    """Take out what this cell alone had made before under other names; only ``local`` may replace."""
    if before is None or stage.outputs.immutable:
        return
    gone = {one.key for one in before.files} - {one.key for one in published}
    if gone:
        kept = records.read_all(stage.store, stage.outputs, stage.artifact_group)
        still = records.promised([one for one in kept if one.name != before.name])
        for key in sorted(gone - still.keys()):
            stage.store.delete(f"{key}{distributions.SIDECAR}")
            stage.store.delete(key)


def builder_from(env: Mapping[str, str]) -> dict[str, str]:
    """Name the workflow that this process is a job of."""
    server, workflow, repository = (
        env.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_WORKFLOW_REF", "GITHUB_REPOSITORY")
    )
    if not (server and workflow and repository) or env.get("ACT"):
        return {}
    attempt = f"{env.get('GITHUB_RUN_ID', '')}/attempts/{env.get('GITHUB_RUN_ATTEMPT') or '1'}"
    return {
        "id": f"{server}/{workflow}",
        "invocation": f"{server}/{repository}/actions/runs/{attempt}",
        "source": f"{server}/{repository}",
        "commit": env.get("GITHUB_SHA", ""),
    }
