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
from core.errors import ConflictError, DataError, MissingInputError, StoreError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ci.promote.run_records import Recorded
    from ci.provenance.facts import MadeFile, RunRecords
    from core.run.outputs import RunOutputs
    from core.stores import Outcome, Store

# each that fails is another job's that did not
_TRIES = 64


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written."""

    made: tuple[tuple[MadeFile, Outcome], ...]
    without: tuple[MadeFile, ...]
    sbom: str
    sbom_outcome: Outcome | None
    problem: str = ""
    removed: tuple[str, ...] = ()


def write_provenance(store: Store, outputs: RunOutputs, group: str = "") -> Written:
    """Write statements of a group's files, or of all, and the whole run's bill of materials.

    Jobs of one run do this at the same time: whoever was second reads the records again.
    """
    prefix = outputs.prefix
    known: dict[tuple[str, str], Recorded] = {}
    for _ in range(_TRIES):
        # what is replaced is looked at before the records are, so that no record is overlooked
        seen = {stored.key: stored.etag for stored in store.list(f"{prefix}/{PROVENANCE}")}
        bill = store.find(f"{prefix}/{SBOM}")
        seen |= {bill.key: bill.etag} if bill else {}
        try:
            return _written(store, outputs, read_run(store, outputs, known, group), group, seen)
        except ConflictError:
            continue
    raise StoreError(
        f"{prefix}/{SBOM} in {store.url} was written by others {_TRIES} times.", hint="Run it again later."
    )


def _written(
    store: Store, outputs: RunOutputs, run: RunRecords, group: str, seen: Mapping[str, str]
) -> Written:
    if group and group not in run.groups:
        raise MissingInputError(
            f"Run {outputs.run_id} has no records of group {group!r} in {store.url}.",
            hint=nearest(group, run.groups),
        )
    chosen = made_files(run, group)
    built = [one for one in chosen if one.build_type]
    _require(built, chosen, outputs)
    documents = {_key(outputs, one): serialized(statement(run, one)) for one in built}
    bill_key = f"{outputs.prefix}/{SBOM}"
    bill, problem = _bill(run, group)

    def put(pair: tuple[str, bytes]) -> Outcome:
        key, content = pair
        if key in seen and store.read(key) == content:
            return "unchanged"
        return store.put_bytes(key, content, if_match=seen.get(key, ""))

    outcomes = parallel.each(put, documents.items())
    folders = tuple(f"{outputs.prefix}/{PROVENANCE}/{name}/" for name in ([group] if group else run.groups))
    old = [key for key in sorted(seen) if key.startswith(folders) and key not in documents]
    return Written(
        made=tuple(zip(built, outcomes, strict=True)),
        without=tuple(one for one in chosen if not one.build_type),
        removed=_removed(store, outputs, old),
        sbom=bill_key,
        sbom_outcome=put((bill_key, bill)) if bill else None,
        problem=problem,
    )


def _bill(run: RunRecords, group: str) -> tuple[bytes, str]:
    """Write the bill, or say why not: another group's records are no reason to write none of this one's."""
    try:
        if run.unreadable:
            raise run.unreadable[0]
        return serialized(sbom(run, made_files(run))), ""
    except DataError as problem:
        if not group:
            raise
        return b"", problem.message


def _key(outputs: RunOutputs, made: MadeFile) -> str:
    return f"{outputs.prefix}/{statement_path(made.group, made.file.name)}"


def _require(built: Sequence[MadeFile], chosen: Sequence[MadeFile], outputs: RunOutputs) -> None:
    if not built:
        what = "only uploads" if chosen else "no stage that made files"
        raise MissingInputError(
            f"Run {outputs.run_id} has no record of a build: {what}.",
            hint="Provenance is of what the run's own stages built: nox -s build_torch, build_rocm, ….",
        )


def _removed(store: Store, outputs: RunOutputs, old: Sequence[str]) -> tuple[str, ...]:
    """Take statements away that are of no file; only a run that may replace wheels has such."""
    gone = tuple(key for key in old if key.endswith(STATEMENT)) if not outputs.immutable else ()
    for key in gone:
        store.delete(key)
    return gone
