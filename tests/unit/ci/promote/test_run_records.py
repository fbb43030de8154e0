from __future__ import annotations

from typing import TYPE_CHECKING

from ci.promote.runs import read_group

if TYPE_CHECKING:
    from tests.unit.ci.promote.conftest import Runs


def test_the_manifest_of_a_rocm_build_is_no_record(runs: Runs) -> None:
    runs.build_rocm("gfx110X-all")
    before = read_group(runs.store, runs.outputs, "gfx110X-all")
    key = f"{runs.outputs.manifests_prefix('gfx110X-all')}/therock_manifest.json"
    runs.store.put_bytes(key, b'{"rocm_version": "7.10.0"}')
    assert read_group(runs.store, runs.outputs, "gfx110X-all") == before
    assert before.records
