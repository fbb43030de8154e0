"""A file's statement: in-toto Statement v1 with SLSA's provenance v1, from records alone.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://slsa.dev/spec/v1.1/provenance
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ci.provenance.facts import builder_of, times
from ci.provenance.names import names
from core.wheel.distributions import SIDECAR

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ci.provenance.facts import MadeFile, Material, RunRecords

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
# inputs of a build that a person or the ref's data chooses; the rest follows from these and from the tool
_CHOSEN = ("version", "rocm_extras", "gpu_targets", "flash_attention", "flags", "build_requirements")
# inputs that resolvedDependencies say
_MATERIALS = ("source", "rocm", "dependencies", "lock")


def statement(run: RunRecords, made: MadeFile) -> dict[str, Any]:
    """Say of one file how it was made."""
    return {
        "_type": STATEMENT_TYPE,
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
    external = {
        "stage": record.stage,
        "torch_ref": record.cell.torch_ref,
        "gpu_family": record.cell.gpu_family or made.group,
        "python": record.cell.python,
        "platform": record.platform,
        **{name: inputs[name] for name in _CHOSEN if name in inputs},
    }
    if isinstance(inputs.get("rocm"), list) and inputs["rocm"]:
        external["rocm_version"] = inputs["rocm"][0]
    external.setdefault("version", made.file.version)
    internal = {
        **{name: value for name, value in inputs.items() if name not in {*_CHOSEN, *_MATERIALS}},
        "input_digest": record.input_digest,
    }
    return {
        "buildType": made.build_type,
        "externalParameters": external,
        "internalParameters": internal,
        "resolvedDependencies": [_descriptor(one) for one in made.materials],
    }


def _details(run: RunRecords, made: MadeFile) -> dict[str, Any]:
    builder = builder_of(made.by.record)
    began, ended = times(made.by)
    here = f"{run.prefix}/{run.path(made.by.document.key)}@{began}"
    byproducts = [{"name": run.path(made.by.document.key), "digest": {"sha256": made.by.document.sha256}}]
    if made.file.metadata_sha256:
        sidecar = f"{run.path(made.file.key)}{SIDECAR}"
        byproducts.append({"name": sidecar, "digest": {"sha256": made.file.metadata_sha256}})
    return {
        "builder": {"id": builder.get("id") or names().builders.local},
        "metadata": {
            "invocationId": builder.get("invocation") or here,
            "startedOn": began,
            "finishedOn": ended,
        },
        "byproducts": byproducts,
    }


def _descriptor(one: Material) -> dict[str, Any]:
    said = {"name": one.name, "uri": one.uri, "digest": dict(one.digest), "annotations": dict(one.notes)}
    return {name: value for name, value in said.items() if value}
