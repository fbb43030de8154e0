"""Which cells a promoted set must have, and which version it is of."""

import pytest

from core.errors import MissingInputError, UsageError
from tests.kit import release_desk, runs
from tests.kit.release_desk import ReleaseDesk
from tests.kit.runs import RunContents

GFX94 = "gfx94X-dcgpu"
GFX1151 = "gfx1151"
TORCH_VERSION = runs.torch_version()
TORCH_SET = f"torch-{TORCH_VERSION}"


@pytest.mark.parametrize(
    ("options", "cell", "distribution"),
    [
        (("--matrix", "release", "--platform", "linux"), "gfx950-dcgpu, on linux", "torch"),
        (("--matrix", "release", "--platform", "linux"), f"{GFX94}, Python 3.13, on linux", TORCH_VERSION),
        (("--gpu-family", f"{GFX94};gfx950-dcgpu"), "gfx950-dcgpu", TORCH_VERSION),
        (("--gpu-family", GFX94, "--pythons", "3.12,3.13"), f"{GFX94}, Python 3.13, on linux", TORCH_VERSION),
        (("--gpu-family", GFX94, "--platform", "windows"), "on windows", "torch"),
    ],
    ids=["family of a matrix", "Python of a matrix", "named family", "named Python", "named platform"],
)
def test_requires_every_cell_that_was_asked_for(
    desk: ReleaseDesk,
    options: tuple[str, ...],
    cell: str,
    distribution: str,
) -> None:
    desk.stage_run(GFX94, GFX1151, contents=RunContents(torch_ref="nightly"))

    reasons = release_desk.reasons_by_cell(desk.read_refusal(*options))

    assert distribution in "".join(reasons[cell])
    assert desk.has_released_nothing()


def test_accepts_a_set_with_every_cell_of_a_matrix(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94, GFX1151, contents=RunContents(torch_ref="nightly"))

    assert desk.promote("--matrix", "ci", "--platform", "linux", "--dry-run") == 0


def test_promotes_the_named_family_alone(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94, GFX1151)

    assert desk.promote("--gpu-family", GFX94, "--pythons", "3.12") == 0

    assert desk.released_wheels(GFX94)
    assert desk.bucket.list(f"v2/{GFX1151}") == []


def test_rejects_torch_without_the_rocm_packages_that_it_requires(desk: ReleaseDesk) -> None:
    desk.publish(GFX94)
    assert desk.stage("--distributions", "pytorch") == 0

    assert f"rocm[libraries]=={runs.ROCM_VERSION}" in desk.read_refusal()


def test_promotes_torch_on_rocm_packages_that_were_promoted_before(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)

    assert desk.promote("--rocm-version", runs.ROCM_VERSION) == 0
    assert desk.released_wheels(GFX94) == [f"rocm_sdk_core-{runs.ROCM_VERSION}-py3-none-linux_x86_64.whl"]

    assert desk.promote() == 0
    assert len(desk.released_wheels(GFX94)) == 3


def test_says_that_nothing_is_staged(desk: ReleaseDesk) -> None:
    assert desk.promote() == UsageError.exit_code
    assert "No torch versions are staged" in desk.read_messages()


@pytest.fixture
def desk_with_two_versions(desk: ReleaseDesk) -> ReleaseDesk:
    """Stage two versions of torch for one family."""
    desk.stage_run(GFX94)
    later_desk = desk.with_run("18")
    later_desk.publish(GFX94, contents=RunContents(rocm_version="7.10.0a20251121"))
    assert later_desk.stage() == 0
    desk.read_messages()
    return desk


def test_promotes_the_version_that_the_named_run_has_staged(desk_with_two_versions: ReleaseDesk) -> None:
    desk = desk_with_two_versions

    assert desk.promote("--run-id", "18") == 0, desk.read_messages()

    assert desk.decision().set_name == "torch-2.10.0a0+rocm7.10.0a20251121"


@pytest.mark.parametrize(
    ("options", "error", "phrase"),
    [
        ((), UsageError, "2 torch versions"),
        (("--run-id", "19"), UsageError, "2 torch versions"),
        (
            ("--torch-version", "2.10.0a0+rocm7.10.0a20251122"),
            MissingInputError,
            "Did you mean '2.10.0a0+rocm7.10.0a2025112",
        ),
        (("--torch-version", TORCH_VERSION, "--gpu-family", GFX1151), MissingInputError, GFX94),
        (("--torch-version", TORCH_VERSION, "--rocm-version", "7.10.0"), UsageError, "--rocm-version"),
    ],
    ids=[
        "no version",
        "a run that staged none",
        "a version that is not staged",
        "a family without it",
        "two versions",
    ],
)
def test_rejects_a_choice_among_several_versions_that_is_none(
    desk_with_two_versions: ReleaseDesk,
    options: tuple[str, ...],
    error: type[UsageError],
    phrase: str,
) -> None:
    desk = desk_with_two_versions

    assert desk.promote(*options) == error.exit_code
    assert phrase in desk.read_messages()
    assert desk.has_released_nothing()


def test_promotes_the_named_one_of_several_versions(desk_with_two_versions: ReleaseDesk) -> None:
    desk = desk_with_two_versions

    assert desk.promote("--torch-version", TORCH_VERSION) == 0

    assert desk.decision().set_name == TORCH_SET
