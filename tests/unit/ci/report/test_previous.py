from __future__ import annotations

import pytest

from ci.report.facts import earlier, has_built
from ci.report.model import CellName
from core.run.outputs import RunOutputs

CELL = CellName(group="gfx94X-dcgpu", torch_ref="release/2.10", python="cp312")


@pytest.mark.parametrize(
    ("run_id", "before"),
    [
        ("1000", ["999", "99"]),
        ("99", []),
        ("local", ["a-9", "1000", "999", "99"]),
    ],
)
def test_runs_before_are_those_with_lower_ids_the_last_first(run_id: str, before: list[str]) -> None:
    folders = [
        "99-linux",
        "999-linux",
        "1000-linux",
        "998-windows",
        "local-linux",
        "python-deps",
        "a-9-linux",
    ]
    assert earlier(folders, RunOutputs(run_id=run_id, platform="linux")) == before


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (["gfx94X-dcgpu/build_torch-release-2.10-cp312.json"], True),
        ([], False),
        (["gfx94X-dcgpu/test_smoke-release-2.10-cp312.json"], False),
        (["gfx94X-dcgpu-debug/build_torch-release-2.10-cp312.json"], False),
        (["gfx94X-dcgpu/build_torch-my-release-2.10-cp312.json"], False),
        (["gfx94X-dcgpu/build_torch-release-2.10-cp312t.json"], False),
        (
            [
                "gfx94X-dcgpu/build_torch-release-2.10-cp312.json",
                "gfx94X-dcgpu/build_apex-release-2.10-cp312.failed.json",
            ],
            False,
        ),
    ],
)
def test_a_cell_is_built_where_its_builds_are_there_and_none_failed(
    records: list[str],
    expected: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert has_built(records, [CELL]) is expected
