"""Statements, read by the attestation framework's own library: unknown fields and wrong types are errors."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.json_format import ParseError

from ci.provenance.facts import made_files
from ci.provenance.statements import serialized, statement
from core.run.records import parse, serialize
from tests import provenance_samples as samples
from tests.provenance_schemas import validate_statement


def of(run: Any, name: str) -> dict[str, Any]:
    made = next(one for one in made_files(run) if one.file.name == name)
    return statement(run, made)


@pytest.mark.parametrize(
    "file", [samples.ROCM, samples.CORE, samples.TRITON, samples.TORCH], ids=lambda one: one.distribution
)
def test_every_statement_is_one(file: Any) -> None:
    validate_statement(serialized(of(samples.run(), file.name)))


def test_the_library_would_see_what_is_wrong() -> None:
    said = of(samples.run(), samples.TORCH.name)
    with pytest.raises(ParseError):
        validate_statement(serialized({**said, "subjects": []}))
    with pytest.raises(ParseError):
        validate_statement(serialized({**said, "predicate": {**said["predicate"], "builder": {}}}))
    with pytest.raises(ValueError, match="digest required"):
        validate_statement(serialized({**said, "subject": [{"name": "x"}]}))


def test_it_says_what_was_asked_for_and_who_built() -> None:
    said = of(samples.run(), samples.TORCH.name)
    assert said["subject"] == [{"name": samples.TORCH.name, "digest": {"sha256": samples.TORCH.sha256}}]
    definition, details = said["predicate"]["buildDefinition"], said["predicate"]["runDetails"]
    assert definition["externalParameters"] == {
        "stage": "build_torch",
        "torch_ref": samples.REF,
        "gpu_family": samples.GROUP,
        "python": "cp312",
        "platform": "linux",
        "version": samples.TORCH.version,
        "rocm_version": "7.10.0",
        "rocm_extras": [],
        "gpu_targets": ["gfx942"],
        "flags": {"USE_MAGMA": "0"},
    }
    assert definition["internalParameters"] == {
        "python": "3.12.4",
        "code": samples.digest("code"),
        "input_digest": samples.digest("inputs"),
    }
    assert definition["resolvedDependencies"][0] == {
        "name": "torch",
        "uri": f"git+{samples.ORIGIN}@{samples.TORCH_COMMIT}",
        "digest": {"gitCommit": samples.TORCH_COMMIT},
        "annotations": {"role": "source", "ref": "release/2.10"},
    }
    assert details["builder"] == {"id": samples.WORKFLOW}
    assert details["metadata"] == {
        "invocationId": samples.BUILDER["invocation"],
        "startedOn": "2026-11-20T22:00:00Z",
        "finishedOn": "2026-11-20T22:01:31Z",
    }
    key = f"manifests/{samples.GROUP}/build_torch-release-2.10-cp312.json"
    assert details["byproducts"][0] == {
        "name": key,
        "digest": {"sha256": samples.recorded(samples.torch_record()).document.sha256},
    }


def test_a_machine_of_ones_own_claims_to_be_no_workflow() -> None:
    details = of(samples.run(), samples.TRITON.name)["predicate"]["runDetails"]
    assert details["builder"]["id"].endswith("#a-machine-of-ones-own")
    assert details["metadata"]["invocationId"].startswith("down-stream/123-linux/manifests/")


def test_what_a_later_version_records_is_kept() -> None:
    run = samples.run(torch=samples.torch_record(compiler={"name": "clang"}))
    internal = of(run, samples.TORCH.name)["predicate"]["buildDefinition"]["internalParameters"]
    assert internal["compiler"] == {"name": "clang"}
    validate_statement(serialized(of(run, samples.TORCH.name)))


def test_the_same_records_give_the_same_bytes() -> None:
    first = serialized(of(samples.run(), samples.TORCH.name))
    # a record that was read back has its keys in another order
    again = parse(serialize(samples.torch_record(code=samples.digest("code"))), where="here")
    shuffled = again.model_copy(update={"inputs": dict(reversed(again.inputs.items()))})
    assert serialized(of(samples.run(torch=again), samples.TORCH.name)) == first
    assert samples.recorded(shuffled).document.sha256 != samples.recorded(again).document.sha256
