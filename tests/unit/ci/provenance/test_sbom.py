"""A run's bill of materials, held against CycloneDX's own schema, formats included."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from ci.provenance.facts import made_files
from ci.provenance.statements import sbom, serialized
from tests import provenance_samples as samples
from tests.provenance_schemas import problems_of_bill

PLACE = f"python/{samples.GROUP}"


def of(run: Any) -> dict[str, Any]:
    return sbom(run, made_files(run))


def component(bill: dict[str, Any], ref: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in bill["components"] if one["bom-ref"] == ref)
    return found


def test_it_is_one_by_the_schema() -> None:
    bill = of(samples.run())
    assert problems_of_bill(serialized(bill)) == ""
    broken = {
        **bill,
        "components": [{**bill["components"][0], "hashes": [{"alg": "SHA256", "content": "x"}]}],
    }
    assert "hashes" in problems_of_bill(serialized(broken))


def test_every_edge_leads_to_a_component() -> None:
    bill = of(samples.run())
    refs = [one["bom-ref"] for one in bill["components"]]
    assert len(refs) == len(set(refs))
    assert {one["ref"] for one in bill["dependencies"]} == {"run", *refs}
    assert {to for one in bill["dependencies"] for to in one.get("dependsOn", ())} <= set(refs)
    edges = {one["ref"]: one.get("dependsOn", []) for one in bill["dependencies"]}
    assert edges["run"] == sorted(ref for ref in refs if ref.startswith("python/"))
    wheel = edges[f"{PLACE}/{samples.TORCH.name}"]
    assert f"git+{samples.ORIGIN}@{samples.TORCH_COMMIT}" in wheel
    assert f"{PLACE}/{samples.TRITON.name}" in wheel


def test_a_wheel_is_named_as_others_name_it() -> None:
    wheel = component(of(samples.run()), f"{PLACE}/{samples.TORCH.name}")
    assert (wheel["name"], wheel["version"]) == ("torch", samples.TORCH.version)
    assert wheel["hashes"] == [{"alg": "SHA-256", "content": samples.TORCH.sha256}]
    assert wheel["purl"].startswith("pkg:pypi/torch@2.10.0%2Brocm7.10.0?file_name=")
    urls = {one["type"]: one["url"] for one in wheel["externalReferences"]}
    assert urls["attestation"].startswith(f"provenance/{samples.GROUP}/torch-2.10.0%2Brocm")
    assert urls["build-meta"] == f"manifests/{samples.GROUP}/build_torch-release-2.10-cp312.json"


def test_licences_are_those_that_wheels_name() -> None:
    bill = of(samples.run())
    licenses = {one["name"]: one.get("licenses") for one in bill["components"] if "licenses" in one}
    assert licenses["rocm-sdk-core"] == [{"expression": "Apache-2.0 WITH LLVM-exception AND MIT"}]
    assert licenses["torch"] == [{"expression": "BSD-3-Clause"}]
    assert licenses["triton"] == [{"license": {"name": "MIT License"}}]
    assert "rocm" not in licenses


def test_sources_are_components_at_their_commit() -> None:
    source = component(of(samples.run()), f"git+{samples.ORIGIN}@{samples.TORCH_COMMIT}")
    assert source["purl"] == f"pkg:github/rocm/pytorch@{samples.TORCH_COMMIT}"
    assert source["version"] == samples.TORCH_COMMIT
    assert source["externalReferences"] == [{"type": "vcs", "url": samples.ORIGIN}]


def test_the_same_records_give_the_same_bytes_and_other_ones_another_serial() -> None:
    first, again = of(samples.run()), of(samples.run())
    assert serialized(first) == serialized(again)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f-]{17}", first["serialNumber"])
    other = of(samples.run(torch=samples.torch_record(code="x")))
    later = of(
        samples.run(samples.record("build_apex", samples.file("apex-1.whl", "apex", "1"), seconds=9000))
    )
    assert other["serialNumber"] == first["serialNumber"]
    assert later["serialNumber"] != first["serialNumber"]


def test_its_time_is_that_of_the_last_stage() -> None:
    moment = of(samples.run())["metadata"]["timestamp"]
    assert datetime.fromisoformat(moment) == datetime.fromisoformat("2026-11-20T22:01:31Z")


def test_what_was_uploaded_is_listed_with_nothing_below_it() -> None:
    upload = samples.record("upload-1", samples.file("own-1-py3-none-any.whl", "own", "1"), python="", ref="")
    bill = of(samples.run(upload))
    assert problems_of_bill(serialized(bill)) == ""
    wheel = component(bill, f"{PLACE}/own-1-py3-none-any.whl")
    assert [one["type"] for one in wheel["externalReferences"]] == ["build-meta"]
    assert {"ref": wheel["bom-ref"]} in bill["dependencies"]
