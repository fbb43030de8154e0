"""Puts statements and the bill of materials into a run: statements first, each whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.provenance.facts import made_files
from ci.provenance.names import PROVENANCE, SBOM, STATEMENT, statement_path
from ci.provenance.reading import read_run
from ci.provenance.sbom import sbom
from ci.provenance.statements import serialized, statement
from core import parallel
from core.errors import ConflictError, MissingInputError, StoreError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ci.provenance.facts import MadeFile, RunRecords
    from core.outputs import RunOutputs
    from core.stores import Outcome, Store, Stored

_TRIES = 8


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written.

    Attributes:
        made: The files that have a statement, with what became of it.
        without: Files that no build's record names.
        sbom: The bill's key.
        sbom_outcome: What became of it.
        removed: Statements of files that the run has no more.
    """

    made: tuple[tuple[MadeFile, Outcome], ...]
    without: tuple[MadeFile, ...]
    sbom: str
    sbom_outcome: Outcome
    removed: tuple[str, ...] = ()


def write_provenance(store: Store, outputs: RunOutputs, group: str = "") -> Written:
    """Write statements of a group's files, or of all, and the whole run's bill of materials.

    Jobs of one run write the bill at the same time: whoever was second reads the records again.

    Raises:
        MissingInputError: The run has no records, or none of a build in the group.
        DataError: A record is none, or of another schema; nothing is written.
        StoreError: Others wrote the bill all the time.
    """
    key = f"{outputs.prefix}/{SBOM}"
    # what it replaces is looked at before the records are, so that no record is overlooked
    present, run = store.find(key), read_run(store, outputs)
    if group and group not in run.groups:
        raise MissingInputError(
            f"Run {outputs.run_id} has no records of group {group!r} in {store.url}.",
            hint=nearest(group, run.groups),
        )
    chosen = made_files(run, group)
    built = [one for one in chosen if one.build_type]
    _require(built, chosen, outputs)
    documents = [serialized(statement(run, one)) for one in built]
    outcomes = _put_statements(store, outputs, built, documents)
    groups = [group] if group else sorted(run.groups)
    return Written(
        made=tuple(zip(built, outcomes, strict=True)),
        without=tuple(one for one in chosen if not one.build_type),
        removed=_remove_old(store, outputs, built, groups),
        sbom=key,
        sbom_outcome=_put_bill(store, outputs, key, present, run),
    )


def _put_bill(
    store: Store, outputs: RunOutputs, key: str, present: Stored | None, run: RunRecords
) -> Outcome:
    for _ in range(_TRIES):
        bill = serialized(sbom(run, made_files(run)))
        if present is not None and store.read(key) == bill:
            return "unchanged"
        try:
            return store.put_bytes(key, bill, if_match=present.etag if present else "")
        except ConflictError:
            present, run = store.find(key), read_run(store, outputs)
    raise StoreError(
        f"{key} in {store.url} was written by others {_TRIES} times.", hint="Run it again later."
    )


def _require(built: Sequence[MadeFile], chosen: Sequence[MadeFile], outputs: RunOutputs) -> None:
    if not built:
        what = "only uploads" if chosen else "no stage that made files"
        raise MissingInputError(
            f"Run {outputs.run_id} has no record of a build: {what}.",
            hint="Provenance is of what the run's own stages built: nox -s build_torch, build_rocm, ….",
        )


def _put_statements(
    store: Store, outputs: RunOutputs, built: Sequence[MadeFile], documents: Sequence[bytes]
) -> Sequence[Outcome]:
    keys = [f"{outputs.prefix}/{statement_path(one.group, one.file.name)}" for one in built]
    there = {stored.key for stored in store.list(f"{outputs.prefix}/{PROVENANCE}")}

    def put(pair: tuple[str, bytes]) -> Outcome:
        key, content = pair
        if key in there and store.read(key) == content:
            return "unchanged"
        return store.put_bytes(key, content)

    return parallel.each(put, zip(keys, documents, strict=True))


def _remove_old(
    store: Store, outputs: RunOutputs, built: Sequence[MadeFile], groups: Sequence[str]
) -> tuple[str, ...]:
    """Take statements away that are of no file; only a run that may replace wheels has such."""
    if outputs.immutable:
        return ()
    kept = {f"{outputs.prefix}/{statement_path(one.group, one.file.name)}" for one in built}
    listed = [
        stored.key for group in groups for stored in store.list(f"{outputs.prefix}/{PROVENANCE}/{group}")
    ]
    old = tuple(key for key in listed if key.endswith(STATEMENT) and key not in kept)
    for key in old:
        store.delete(key)
    return old
