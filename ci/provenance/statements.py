"""A statement for each file of a run, and the run's bill of materials (CycloneDX 1.6), from records alone.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://slsa.dev/spec/v1.1/provenance,
https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from ci.provenance import facts
from ci.provenance.facts import (
    PROVENANCE,
    SBOM,
    STATEMENT,
    ResourceDescriptor,
    RunFile,
    RunRecords,
    materials_of,
)
from core import files, parallel
from core.errors import ConflictError, DataError, MissingInputError, StoreError, nearest
from core.run import RunOutputs
from core.stores import Outcome, Store
from core.wheel.distributions import SIDECAR

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"

# Inputs of a build that the user or the ref's data chooses; the rest follows from these and from the tool.
_EXTERNAL_INPUTS = (
    "version",
    "rocm_extras",
    "gpu_targets",
    "flash_attention",
    "flags",
    "build_requirements",
)
# Inputs that resolvedDependencies say.
_MATERIAL_INPUTS = ("source", "rocm", "dependencies", "lock")

_TOOL = "rocm-pytorch-wheels"
_GITHUB = "https://github.com/"

# Each attempt that fails is another job's that did not.
MOST_ATTEMPTS = 64


def serialized(document: Mapping[str, Any]) -> bytes:
    """Write a document as JSON: the same document, the same bytes."""
    text = json.dumps(
        document,
        indent=2,
        sort_keys=True,
        ensure_ascii=False,
    )
    return f"{text}\n".encode()


# Statements


def statement(
    run: RunRecords,
    run_file: RunFile,
) -> dict[str, Any]:
    """Return the statement of how one file was made."""
    file = run_file.file
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": file.name, "digest": {"sha256": file.sha256}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": _build_definition(run, run_file),
            "runDetails": _run_details(run, run_file),
        },
    }


def _build_definition(
    run: RunRecords,
    run_file: RunFile,
) -> dict[str, Any]:
    record = run_file.record
    external_parameters = {
        "stage": record.stage,
        "torch_ref": record.cell.torch_ref or "",
        "gpu_family": record.cell.gpu_family or run_file.group,
        "python": record.cell.python_tag or "",
        "platform": record.platform,
        "version": run_file.file.version,
    }
    internal_parameters: dict[str, Any] = {}
    for name, value in record.inputs.items():
        if name in _EXTERNAL_INPUTS:
            external_parameters[name] = value
        elif name not in _MATERIAL_INPUTS:
            internal_parameters[name] = value
    rocm = record.inputs.get("rocm")
    if isinstance(rocm, list) and rocm:
        external_parameters["rocm_version"] = rocm[0]

    return {
        "buildType": run_file.build_type,
        "externalParameters": external_parameters,
        "internalParameters": {**internal_parameters, "input_digest": record.input_digest},
        "resolvedDependencies": [
            material.model_dump(exclude_defaults=True) for material in materials_of(run, run_file)
        ],
    }


def _run_details(
    run: RunRecords,
    run_file: RunFile,
) -> dict[str, Any]:
    builder = facts.builder_of(run_file.record)
    started, finished = facts.times(run_file.stored_record)
    document = run_file.stored_record.document
    record_path = run.path(document.key)

    byproducts = [{"name": record_path, "digest": {"sha256": document.sha256}}]
    file = run_file.file
    if file.metadata_sha256:
        sidecar_path = f"{run.path(file.key)}{SIDECAR}"
        byproducts.append({"name": sidecar_path, "digest": {"sha256": file.metadata_sha256}})
    return {
        "builder": {"id": builder.get("id") or facts.LOCAL_BUILDER},
        "metadata": {
            "invocationId": builder.get("invocation") or f"{run.prefix}/{record_path}@{started}",
            "startedOn": started,
            "finishedOn": finished,
        },
        "byproducts": byproducts,
    }


# The bill of materials


def sbom(
    run: RunRecords,
    run_files: Sequence[RunFile],
) -> dict[str, Any]:
    """List what a run made, and what that was made from.

    The serial number follows from the content, and the time is that of the last step.
    """
    components: dict[str, dict[str, Any]] = {}
    edges: dict[str, list[str]] = {}
    finish_times: list[str] = []
    for run_file in run_files:
        materials = materials_of(run, run_file)
        for material in materials:
            if not material.path_in_run:
                components[_reference(material)] = _material_component(material)
        edges[run.path(run_file.file.key)] = sorted(set(map(_reference, materials)))
        finish_times.append(facts.times(run_file.stored_record)[1])

    # What the run made says more than what names it as a material.
    for run_file in run_files:
        components[run.path(run_file.file.key)] = _file_component(run, run_file)

    edges["run"] = sorted(edges)
    dependencies: list[dict[str, Any]] = []
    for reference in sorted(components.keys() | edges.keys()):
        dependency: dict[str, Any] = {"ref": reference}
        if edges.get(reference):
            dependency["dependsOn"] = edges[reference]
        dependencies.append(dependency)

    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": max(finish_times),
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", "name": _TOOL}]},
            "component": {"type": "application", "bom-ref": "run", "name": run.prefix},
        },
        "components": [components[reference] for reference in sorted(components)],
        "dependencies": dependencies,
    }
    digest = files.sha256_text(serialized(document).decode())
    serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"{_TOOL}:{digest}").urn
    return {**document, "serialNumber": serial_number}


def _reference(material: ResourceDescriptor) -> str:
    """Return by what the bill refers to a material."""
    return material.path_in_run or material.uri or " ".join([material.name, *material.digest.values()])


def _file_component(
    run: RunRecords,
    run_file: RunFile,
) -> dict[str, Any]:
    """Describe a file that the run made."""
    file = run_file.file
    record = run_file.record
    record_path = run.path(run_file.stored_record.document.key)
    references = [{"type": "build-meta", "url": quote(record_path)}]
    if run_file.build_type is not None:
        statement_path = facts.statement_path(run_file.group, file.name)
        references.append({"type": "attestation", "url": quote(statement_path)})

    properties: list[dict[str, str]] = []
    for name, value in (
        ("artifact_group", run_file.group),
        ("python", record.cell.python_tag),
        ("size", str(file.size)),
        ("stage", record.stage),
        ("torch_ref", record.cell.torch_ref),
    ):
        if value:
            properties.append({"name": f"{_TOOL}:{name}", "value": value})

    component = {
        "type": "library",
        "bom-ref": run.path(file.key),
        "name": file.distribution,
        "version": file.version,
        "purl": facts.package_url(file.distribution, file.version, file.name),
        "hashes": [{"alg": "SHA-256", "content": file.sha256}],
        "externalReferences": references,
        "properties": properties,
    }
    if file.license:
        component["licenses"] = [_license(file.license)]
    return component


def _license(text: str) -> dict[str, Any]:
    """Name a licence: as an SPDX expression, where it is one."""
    try:
        return {"expression": canonicalize_license_expression(text)}
    except InvalidLicenseExpression:
        return {"license": {"name": text}}


def _material_component(material: ResourceDescriptor) -> dict[str, Any]:
    """Describe what the run did not make itself."""
    component: dict[str, Any] = {
        "type": "file",
        "bom-ref": _reference(material),
        "name": material.name,
    }
    commit = material.digest.get("gitCommit")
    if commit:
        origin = material.uri.removeprefix("git+").rpartition("@")[0]
        component |= {"type": "library", "version": commit}
        if material.uri.startswith(f"git+{_GITHUB}"):
            component["purl"] = f"pkg:github/{origin.removeprefix(_GITHUB)}@{commit}".lower()
        component["externalReferences"] = [{"type": "vcs", "url": origin}]
    elif material.uri.startswith("pkg:"):
        component |= {"type": "library", "purl": material.uri}

    sha256 = material.digest.get("sha256")
    if sha256:
        component["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    return component


# Writing


@dataclass(frozen=True, kw_only=True)
class WrittenProvenance:
    """What was written of a run.

    Attributes:
        statements: What became of the statement of each file that was built, by key.
        without_statement: Files that no build's record names.
        removed_keys: Statements of files that the run no longer has.
        sbom_outcome: What became of the bill; None where it could not be written, and `problem` says why.
    """

    statements: Mapping[str, Outcome]
    without_statement: Sequence[RunFile]
    removed_keys: Sequence[str]
    sbom_key: str
    sbom_outcome: Outcome | None
    problem: str = ""


def write_provenance(
    store: Store,
    outputs: RunOutputs,
    group: str = "",
) -> WrittenProvenance:
    """Write statements of a group's files, or of all, and the whole run's bill of materials.

    Jobs of one run do this at the same time: whoever was second reads the records again.
    """
    sbom_key = f"{outputs.prefix}/{SBOM}"
    for _attempt in range(MOST_ATTEMPTS):
        # What is replaced is looked at before the records are, so that no record is overlooked.
        etags: dict[str, str] = {}
        for stored_object in store.list(f"{outputs.prefix}/{PROVENANCE}"):
            etags[stored_object.key] = stored_object.etag
        stored_sbom = store.find(sbom_key)
        if stored_sbom is not None:
            etags[sbom_key] = stored_sbom.etag

        run = facts.read_run(store, outputs, group)
        try:
            return _write(store, outputs, run, group, etags)
        except ConflictError:
            continue
    raise StoreError(
        f"{sbom_key} in {store.url} was written by others {MOST_ATTEMPTS} times.",
        hint="Run it again later.",
    )


def _write(
    store: Store,
    outputs: RunOutputs,
    run: RunRecords,
    group: str,
    etags: Mapping[str, str],
) -> WrittenProvenance:
    """Write a run's provenance from its records; `etags` are of what it replaces, by key."""
    statements: dict[str, bytes] = {}
    without_statement: list[RunFile] = []
    for run_file in _require_built_files(store, outputs, run, group):
        if run_file.build_type is None:
            without_statement.append(run_file)
            continue
        path = facts.statement_path(run_file.group, run_file.file.name)
        content = serialized(statement(run, run_file))
        statements[f"{outputs.prefix}/{path}"] = content

    def put(key: str, content: bytes) -> Outcome:
        if key in etags and store.read(key) == content:
            return "unchanged"
        return store.put_bytes(key, content, if_match=etags.get(key, "")).outcome

    sbom_content, problem = _make_sbom(run, group)
    outcomes = parallel.map_in_threads(lambda key: put(key, statements[key]), statements)
    removed_keys: list[str] = []
    for key in _replaceable_statements(outputs, run, group, etags):
        if key not in statements:
            store.delete(key)
            removed_keys.append(key)

    sbom_key = f"{outputs.prefix}/{SBOM}"
    return WrittenProvenance(
        statements=dict(zip(statements, outcomes, strict=True)),
        without_statement=without_statement,
        removed_keys=removed_keys,
        sbom_key=sbom_key,
        sbom_outcome=None if sbom_content is None else put(sbom_key, sbom_content),
        problem=problem,
    )


def _require_built_files(
    store: Store,
    outputs: RunOutputs,
    run: RunRecords,
    group: str,
) -> Sequence[RunFile]:
    """Return a group's files; refuse a group without a build."""
    if group and group not in run.groups:
        raise MissingInputError(
            f"Run {outputs.run_id} has no records of group {group!r} in {store.url}.",
            hint=nearest(group, run.groups),
        )

    run_files = facts.run_files(run, group)
    if any(run_file.build_type is not None for run_file in run_files):
        return run_files
    contents = "only uploads" if run_files else "no stage that made files"
    raise MissingInputError(
        f"Run {outputs.run_id} has no record of a build: {contents}.",
        hint="Provenance is of what the run's own stages built: nox -s build_torch, build_rocm, ….",
    )


def _make_sbom(run: RunRecords, group: str) -> tuple[bytes | None, str]:
    """Return the bill, or why there is none: what is wrong in another group only costs the bill."""
    try:
        if run.unreadable:
            raise run.unreadable[0]
        return serialized(sbom(run, facts.run_files(run))), ""
    except DataError as problem:
        if not group:
            raise
        return None, problem.message


def _replaceable_statements(
    outputs: RunOutputs,
    run: RunRecords,
    group: str,
    keys: Iterable[str],
) -> Sequence[str]:
    """Return a group's statements, of which those of files that are gone go.

    Only a run that may replace wheels has such.
    """
    if outputs.immutable:
        return ()
    groups = [group] if group else list(run.groups)
    folders = tuple(f"{outputs.prefix}/{PROVENANCE}/{name}/" for name in groups)
    return [key for key in sorted(keys) if key.startswith(folders) and key.endswith(STATEMENT)]
