"""A statement for each file of a run, and the run's bill of materials (CycloneDX 1.6), from records alone.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://slsa.dev/spec/v1.1/provenance,
https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from ci.provenance import facts
from ci.provenance.facts import PROVENANCE, SBOM, STATEMENT, MadeFile, Material, RunRecords
from core import files, parallel
from core.errors import ConflictError, DataError, MissingInputError, StoreError, nearest
from core.run import RunOutputs
from core.stores import Outcome, Store
from core.wheel.distributions import SIDECAR

if TYPE_CHECKING:
    from ci.promote.runs import Recorded

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
# inputs of a build that the user or the ref's data chooses; the rest follows from these and from the tool
_CHOSEN = ("version", "rocm_extras", "gpu_targets", "flash_attention", "flags", "build_requirements")
# inputs that resolvedDependencies say
_MATERIALS = ("source", "rocm", "dependencies", "lock")
_TOOL = "rocm-pytorch-wheels"
_GITHUB = "https://github.com/"
# each that fails is another job's that did not
_TRIES = 64


def statement(run: RunRecords, made: MadeFile) -> dict[str, Any]:
    """Return the statement of how one file was made."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": made.file.name, "digest": {"sha256": made.file.sha256}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"buildDefinition": _definition(made), "runDetails": _details(run, made)},
    }


def serialized(value: Mapping[str, Any]) -> bytes:
    """Write a document as JSON: the same document, the same bytes."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _definition(made: MadeFile) -> dict[str, Any]:
    record = made.by.record
    inputs = record.inputs
    rocm = inputs.get("rocm")
    return {
        "buildType": made.build_type,
        "externalParameters": {
            "stage": record.stage,
            "torch_ref": record.cell.torch_ref or "",
            "gpu_family": record.cell.gpu_family or made.group,
            "python": record.cell.python_tag or "",
            "platform": record.platform,
            "version": made.file.version,
            **{name: inputs[name] for name in _CHOSEN if name in inputs},
            **({"rocm_version": rocm[0]} if isinstance(rocm, list) and rocm else {}),
        },
        "internalParameters": {
            **{name: value for name, value in inputs.items() if name not in {*_CHOSEN, *_MATERIALS}},
            "input_digest": record.input_digest,
        },
        "resolvedDependencies": [
            {name: value for name, value in one.model_dump(exclude={"of_run"}).items() if value}
            for one in made.materials
        ],
    }


def _details(run: RunRecords, made: MadeFile) -> dict[str, Any]:
    builder = facts.builder_of(made.by.record)
    began, ended = facts.times(made.by)
    record = run.path(made.by.document.key)
    byproducts = [{"name": record, "digest": {"sha256": made.by.document.sha256}}]
    if made.file.metadata_sha256:
        sidecar = f"{run.path(made.file.key)}{SIDECAR}"
        byproducts.append({"name": sidecar, "digest": {"sha256": made.file.metadata_sha256}})
    return {
        "builder": {"id": builder.get("id") or facts.names().builders["local"]},
        "metadata": {
            "invocationId": builder.get("invocation") or f"{run.prefix}/{record}@{began}",
            "startedOn": began,
            "finishedOn": ended,
        },
        "byproducts": byproducts,
    }


def sbom(run: RunRecords, made: Sequence[MadeFile]) -> dict[str, Any]:
    """List what a run made, and what that was made from.

    The serial number follows from the content, and the time is that of the last stage.
    """
    components = {str(one["bom-ref"]): one for one in (*_used(made), *(_made(run, one) for one in made))}
    edges = {run.path(one.file.key): sorted({_ref(used) for used in one.materials}) for one in made}
    edges["run"] = sorted(edges)
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": max(facts.times(one.by)[1] for one in made),
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", "name": _TOOL}]},
            "component": {"type": "application", "bom-ref": "run", "name": run.prefix},
        },
        "components": [components[ref] for ref in sorted(components)],
        "dependencies": [
            {"ref": ref, "dependsOn": edges[ref]} if edges.get(ref) else {"ref": ref}
            for ref in sorted({*components, *edges})
        ],
    }
    digest = files.sha256_text(serialized(document).decode())
    return {**document, "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"{_TOOL}:{digest}").urn}


def _ref(used: Material) -> str:
    return used.of_run or used.uri or " ".join([used.name, *used.digest.values()])


def _made(run: RunRecords, made: MadeFile) -> dict[str, Any]:
    file, record = made.file, made.by.record
    properties = {
        "artifact_group": made.group,
        "python": record.cell.python_tag or "",
        "size": str(file.size),
        "stage": record.stage,
        "torch_ref": record.cell.torch_ref or "",
    }
    references = [{"type": "build-meta", "url": quote(run.path(made.by.document.key))}]
    if made.build_type:
        references.append({"type": "attestation", "url": quote(facts.statement_path(made.group, file.name))})
    return {
        "type": "library",
        "bom-ref": run.path(file.key),
        "name": file.distribution,
        "version": file.version,
        "purl": facts.package_url(file.distribution, file.version, file.name),
        "hashes": [{"alg": "SHA-256", "content": file.sha256}],
        **({"licenses": [_license(file.license)]} if file.license else {}),
        "externalReferences": references,
        "properties": [
            {"name": f"{_TOOL}:{name}", "value": value} for name, value in properties.items() if value
        ],
    }


def _license(text: str) -> dict[str, Any]:
    """Name a licence: as an SPDX expression, where it is one."""
    try:
        return {"expression": canonicalize_license_expression(text)}
    except InvalidLicenseExpression:
        return {"license": {"name": text}}


def _used(made: Sequence[MadeFile]) -> Iterator[dict[str, Any]]:
    """Describe what the run did not make itself."""
    for used in (material for one in made for material in one.materials if not material.of_run):
        component: dict[str, Any] = {"type": "file", "bom-ref": _ref(used), "name": used.name}
        if commit := used.digest.get("gitCommit"):
            origin = used.uri.removeprefix("git+").rpartition("@")[0]
            component |= {"type": "library", "version": commit}
            if used.uri.startswith(f"git+{_GITHUB}"):
                component["purl"] = f"pkg:github/{origin.removeprefix(_GITHUB)}@{commit}".lower()
            component["externalReferences"] = [{"type": "vcs", "url": origin}]
        elif used.uri.startswith("pkg:"):
            component |= {"type": "library", "purl": used.uri}
        if sha256 := used.digest.get("sha256"):
            component["hashes"] = [{"alg": "SHA-256", "content": sha256}]
        yield component


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
            return _written(store, outputs, facts.read_run(store, outputs, known, group), group, seen)
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
    chosen = facts.made_files(run, group)
    built = [one for one in chosen if one.build_type]
    if not built:
        what = "only uploads" if chosen else "no stage that made files"
        raise MissingInputError(
            f"Run {outputs.run_id} has no record of a build: {what}.",
            hint="Provenance is of what the run's own stages built: nox -s build_torch, build_rocm, ….",
        )
    paths = {facts.statement_path(one.group, one.file.name): one for one in built}
    documents = {f"{outputs.prefix}/{path}": serialized(statement(run, one)) for path, one in paths.items()}
    bill, problem = _bill(run, group)

    def put(pair: tuple[str, bytes]) -> Outcome:
        key, content = pair
        if key in seen and store.read(key) == content:
            return "unchanged"
        return store.put_bytes(key, content, if_match=seen.get(key, "")).outcome

    outcomes = parallel.map_in_threads(put, documents.items())
    folders = tuple(f"{outputs.prefix}/{PROVENANCE}/{name}/" for name in ([group] if group else run.groups))
    # only a run that may replace wheels has statements of no file
    old = (key for key in sorted(seen) if key.startswith(folders) and key.endswith(STATEMENT))
    removed = () if outputs.immutable else tuple(key for key in old if key not in documents)
    for key in removed:
        store.delete(key)
    bill_key = f"{outputs.prefix}/{SBOM}"
    return Written(
        made=tuple(zip(built, outcomes, strict=True)),
        without=tuple(one for one in chosen if not one.build_type),
        removed=removed,
        sbom=bill_key,
        sbom_outcome=put((bill_key, bill)) if bill else None,
        problem=problem,
    )


def _bill(run: RunRecords, group: str) -> tuple[bytes, str]:
    """Write the bill, or return why not: what is wrong in another group only costs the bill."""
    try:
        if run.unreadable:
            raise run.unreadable[0]
        return serialized(sbom(run, facts.made_files(run))), ""
    except DataError as problem:
        if not group:
            raise
        return b"", problem.message
