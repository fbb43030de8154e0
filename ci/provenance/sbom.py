"""A run's bill of materials: CycloneDX 1.6, from records alone.

https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from ci.provenance.facts import times
from ci.provenance.names import package_url, statement_path
from ci.provenance.statements import serialized
from core import files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ci.provenance.facts import MadeFile, Material, RunRecords

_TOOL = "rocm-pytorch-wheels"
_GITHUB = "git+https://github.com/"
_GIT_COMMIT, _SHA256 = "gitCommit", "sha256"


def sbom(run: RunRecords, made: Sequence[MadeFile]) -> dict[str, Any]:
    """List what a run made, and what that was made from.

    The serial number follows from the content, and the time is that of the last stage.
    """
    components = {str(one["bom-ref"]): one for one in (*_used(made), *(_file(run, one) for one in made))}
    root = {"type": "application", "bom-ref": "run", "name": run.prefix}
    edges = {"run": sorted({_ref_of(run, one) for one in made})}
    edges |= {_ref_of(run, one): sorted({_ref(used) for used in one.materials}) for one in made}
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": max(times(one.by)[1] for one in made),
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", "name": _TOOL}]},
            "component": root,
        },
        "components": [components[ref] for ref in sorted(components)],
        "dependencies": [
            {"ref": ref, "dependsOn": edges[ref]} if edges.get(ref) else {"ref": ref}
            for ref in sorted({*components, *edges})
        ],
    }
    digest = files.sha256_text(serialized(document).decode())
    return {**document, "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"{_TOOL}:{digest}").urn}


def _ref_of(run: RunRecords, made: MadeFile) -> str:
    return run.path(made.file.key)


def _ref(used: Material) -> str:
    return used.of_run or used.uri or " ".join([used.name, *used.digest.values()])


def _file(run: RunRecords, made: MadeFile) -> dict[str, Any]:
    file, record = made.file, made.by.record
    properties = {
        "artifact_group": made.group,
        "python": record.cell.python,
        "size": str(file.size),
        "stage": record.stage,
        "torch_ref": record.cell.torch_ref,
    }
    references = [{"type": "build-meta", "url": quote(run.path(made.by.document.key))}]
    if made.build_type:
        path = statement_path(made.group, file.name)
        references.append({"type": "attestation", "url": quote(path)})
    return {
        "type": "library",
        "bom-ref": _ref_of(run, made),
        "name": file.distribution,
        "version": file.version,
        "purl": package_url(file.distribution, file.version, file.name),
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
    for used in (material for one in made for material in one.materials):
        if used.of_run:
            continue
        component: dict[str, Any] = {"type": "file", "bom-ref": _ref(used), "name": used.name}
        commit = used.digest.get(_GIT_COMMIT)
        if commit:
            origin = used.uri.removeprefix("git+").rpartition("@")[0]
            component |= {"type": "library", "version": commit}
            if used.uri.startswith(_GITHUB):
                component["purl"] = (
                    f"pkg:github/{origin.removeprefix('https://github.com/')}@{commit}".lower()
                )
            component["externalReferences"] = [{"type": "vcs", "url": origin}]
        elif used.uri.startswith("pkg:"):
            component |= {"type": "library", "purl": used.uri}
        if used.digest.get(_SHA256):
            component["hashes"] = [{"alg": "SHA-256", "content": used.digest[_SHA256]}]
        yield component
