"""Which tests a release requires, as the data says: known names, and steps that plans run."""

from pathlib import Path

import pytest

from ci.promote.policy import TEST_STEPS, gates
from core.data import use_user_file
from core.errors import DataError
from pytorch_build.test import upstream_tests
from pytorch_build.test.report import ReportOrigin
from tests.kit.planning import plan_event


def test_plans_test_all_that_a_release_of_their_type_requires() -> None:
    for row in gates().required:
        # A release is a candidate's set, which was tested as a prerelease.
        for release_type in set(row.release_types) - {"release"}:
            versions = {"rocm_package_version": "10.1.0rc1"}
            plan = plan_event("schedule", inputs_of_call=versions, release_type=release_type)
            tested = {
                (cell.gpu_family, cell.platform, cell.python, step_of(cell.config or ""))
                for cell in plan.jobs
                if cell.stage == "test_torch"
            }
            for family in row.families:
                for platform in row.platforms:
                    required = {(family, platform, python, row.stage) for python in row.pythons}
                    assert required <= tested


def test_knows_the_step_of_every_test_configuration() -> None:
    configurations = upstream_tests.load_configurations().configurations

    assert set(TEST_STEPS) == {"test_smoke", "test_rocm", *map(step_of, configurations)}


def step_of(config: str) -> str:
    """Return the name of the step that tests torch in a configuration."""
    return ReportOrigin(stage="test_torch", config=config).stage_name()


@pytest.mark.parametrize(
    ("line", "phrase"),
    [
        ('gates.where_run = ["test_toch"]', "'test_torch'"),
        ("families.gfx94x-dcgpu = { rocm = [], pytorch = [] }", "'gfx94X-dcgpu'"),
        ('required = [{ stage = "test_smokes" }]', "'test_smoke'"),
        ('required = [{ stage = "test_smokes" }]', "promotion.required[0]"),
    ],
    ids=["unknown step", "unknown family", "unknown required step", "place of an unknown required step"],
)
def test_rejects_a_users_gates_with_unknown_names(tmp_path: Path, line: str, phrase: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f"[promotion]\n{line}\n")
    use_user_file(path)

    with pytest.raises(DataError) as raised:
        gates()

    assert phrase in str(raised.value)
