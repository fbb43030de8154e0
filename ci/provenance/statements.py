"""A statement for each file of a run, and the run's bill of materials (CycloneDX 1.6), from records alone.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://slsa.dev/spec/v1.1/provenance,
https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from ci.provenance import facts
from ci.provenance.facts import (
    PROVENANCE,
    SBOM,
    STATEMENT,
    RecordedFile,
    ResourceDescriptor,
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
    recorded_file: RecordedFile,
) -> dict[str, Any]:
    """Return the statement of how one file was made."""
    file = recorded_file.file
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": file.name, "digest": {"sha256": file.sha256}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": _build_definition(run, recorded_file),
            "runDetails": _run_details(run, recorded_file),
        },
    }


def _build_definition(
    run: RunRecords,
    recorded_file: RecordedFile,
) -> dict[str, Any]:
    record = recorded_file.record
    external_parameters = {
        "stage": record.stage,
        "torch_ref": record.cell.torch_ref or "",
        "gpu_family": record.cell.gpu_family or recorded_file.group,
        "python": record.cell.python_tag or "",
        "platform": record.platform,
        "version": recorded_file.file.version,
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
        "buildType": recorded_file.build_type,
        "externalParameters": external_parameters,
        "internalParameters": {**internal_parameters, "input_digest": record.input_digest},
        "resolvedDependencies": [_without_empty(material) for material in materials_of(run, recorded_file)],
    }


def _without_empty(material: ResourceDescriptor) -> dict[str, Any]:
    """Return the fields of a descriptor that say something."""
    return {name: value for name, value in material.model_dump().items() if value}


def _run_details(
    run: RunRecords,
    recorded_file: RecordedFile,
) -> dict[str, Any]:
    builder = facts.builder_of(recorded_file.record)
    started, finished = facts.times(recorded_file.stored_record)
    document = recorded_file.stored_record.document
    record_path = run.path(document.key)

    byproducts = [{"name": record_path, "digest": {"sha256": document.sha256}}]
    file = recorded_file.file
    if file.metadata_sha256:
        sidecar_path = f"{run.path(file.key)}{SIDECAR}"
        byproducts.append({"name": sidecar_path, "digest": {"sha256": file.metadata_sha256}})
    return {
        "builder": {"id": builder.get("id") or facts.names().builders["local"]},
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
    recorded_files: Sequence[RecordedFile],
) -> dict[str, Any]:
    """List what a run made, and what that was made from.

    The serial number follows from the content, and the time is that of the last step.
    """
    components: dict[str, dict[str, Any]] = {}
    edges: dict[str, list[str]] = {}
    finish_times: list[str] = []
    for recorded_file in recorded_files:
        materials = materials_of(run, recorded_file)
        for material in materials:
            if not material.path_in_run:
                components[_reference(material)] = _material_component(material)
        edges[run.path(recorded_file.file.key)] = sorted(set(map(_reference, materials)))
        finish_times.append(facts.times(recorded_file.stored_record)[1])

    # What the run made says more than what names it as a material.
    for recorded_file in recorded_files:
        components[run.path(recorded_file.file.key)] = _file_component(run, recorded_file)

    edges["run"] = sorted(edges)
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
        "dependencies": [
            _dependency(reference, edges.get(reference, ()))
            for reference in sorted(components.keys() | edges.keys())
        ],
    }
    digest = files.sha256_text(serialized(document).decode())
    serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"{_TOOL}:{digest}").urn
    return {**document, "serialNumber": serial_number}


def _reference(material: ResourceDescriptor) -> str:
    """Return by what the bill refers to a material."""
    return material.path_in_run or material.uri or " ".join([material.name, *material.digest.values()])


def _dependency(
    reference: str,
    materials: Sequence[str],
) -> dict[str, Any]:
    if not materials:
        return {"ref": reference}
    return {"ref": reference, "dependsOn": materials}


def _file_component(
    run: RunRecords,
    recorded_file: RecordedFile,
) -> dict[str, Any]:
    """Describe a file that the run made."""
    file = recorded_file.file
    record = recorded_file.record
    record_path = run.path(recorded_file.stored_record.document.key)
    references = [{"type": "build-meta", "url": quote(record_path)}]
    if recorded_file.build_type is not None:
        statement_path = facts.statement_path(recorded_file.group, file.name)
        references.append({"type": "attestation", "url": quote(statement_path)})

    properties: list[dict[str, str]] = []
    for name, value in (
        ("artifact_group", recorded_file.group),
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
    without_statement: Sequence[RecordedFile]
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
        writer = _Writer(
            store=store,
            outputs=outputs,
            run=run,
            group=group,
            etags=etags,
        )
        try:
            return writer.write()
        except ConflictError:
            continue
    raise StoreError(
        f"{sbom_key} in {store.url} was written by others {MOST_ATTEMPTS} times.",
        hint="Run it again later.",
    )


@dataclass(frozen=True, kw_only=True)
class _Writer:
    """Writes a run's provenance from its records; `etags` are of what it replaces, by key."""

    store: Store
    outputs: RunOutputs
    run: RunRecords
    group: str
    etags: Mapping[str, str]

    def write(self) -> WrittenProvenance:
        recorded_files = self._recorded_files()
        statements: dict[str, bytes] = {}
        without_statement: list[RecordedFile] = []
        for recorded_file in recorded_files:
            if recorded_file.build_type is None:
                without_statement.append(recorded_file)
                continue
            path = facts.statement_path(recorded_file.group, recorded_file.file.name)
            content = serialized(statement(self.run, recorded_file))
            statements[f"{self.outputs.prefix}/{path}"] = content

        sbom_content, problem = self._make_sbom()
        outcomes = parallel.map_in_threads(lambda key: self._put(key, statements[key]), statements)
        removed_keys = self._remove_statements(statements)

        sbom_key = f"{self.outputs.prefix}/{SBOM}"
        sbom_outcome = None if sbom_content is None else self._put(sbom_key, sbom_content)
        return WrittenProvenance(
            statements=dict(zip(statements, outcomes, strict=True)),
            without_statement=without_statement,
            removed_keys=removed_keys,
            sbom_key=sbom_key,
            sbom_outcome=sbom_outcome,
            problem=problem,
        )

    def _recorded_files(self) -> Sequence[RecordedFile]:
        """Return the group's files; refuse a group without a build."""
        run_id = self.outputs.run_id
        if self.group and self.group not in self.run.groups:
            raise MissingInputError(
                f"Run {run_id} has no records of group {self.group!r} in {self.store.url}.",
                hint=nearest(self.group, self.run.groups),
            )

        recorded_files = facts.recorded_files(self.run, self.group)
        if any(recorded_file.build_type is not None for recorded_file in recorded_files):
            return recorded_files
        contents = "only uploads" if recorded_files else "no stage that made files"
        raise MissingInputError(
            f"Run {run_id} has no record of a build: {contents}.",
            hint="Provenance is of what the run's own stages built: nox -s build_torch, build_rocm, ….",
        )

    def _make_sbom(self) -> tuple[bytes | None, str]:
        """Return the bill, or why there is none: what is wrong in another group only costs the bill."""
        try:
            if self.run.unreadable:
                raise self.run.unreadable[0]
            return serialized(sbom(self.run, facts.recorded_files(self.run))), ""
        except DataError as problem:
            if not self.group:
                raise
            return None, problem.message

    def _put(self, key: str, content: bytes) -> Outcome:
        if key in self.etags and self.store.read(key) == content:
            return "unchanged"
        etag = self.etags.get(key, "")
        return self.store.put_bytes(key, content, if_match=etag).outcome

    def _remove_statements(self, statements: Mapping[str, bytes]) -> Sequence[str]:
        """Remove statements of files that are gone: only a run that may replace wheels has them."""
        if self.outputs.immutable:
            return ()

        groups = [self.group] if self.group else list(self.run.groups)
        folders = tuple(f"{self.outputs.prefix}/{PROVENANCE}/{group}/" for group in groups)
        removed_keys: list[str] = []
        for key in sorted(self.etags):
            if key.startswith(folders) and key.endswith(STATEMENT) and key not in statements:
                self.store.delete(key)
                removed_keys.append(key)
        return removed_keys
