"""Sets that are removed, and releases that are yanked, through the verb `index`."""

import re

import pytest

from core.errors import UsageError
from tests.kit import release_desk, runs
from tests.kit.release_desk import ReleaseDesk

GFX94 = "gfx94X-dcgpu"
GFX1151 = "gfx1151"
TORCH_VERSION = runs.torch_version()
ROCM_SET = f"rocm-{runs.ROCM_VERSION}"
TORCH_SET = f"torch-{TORCH_VERSION}"


def test_removing_a_set_changes_nothing_without_write(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94)
    objects_before = release_desk.etags_in(desk.bucket)

    assert desk.check_indexes("--remove", TORCH_SET) == 0

    assert release_desk.etags_in(desk.bucket) == objects_before
    assert "nothing is changed yet" in desk.read_messages()


def test_rejects_removing_a_set_that_was_never_released(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94)

    assert desk.check_indexes("--remove", "torch-2", "--write") == UsageError.exit_code
    assert f"Did you mean {TORCH_SET!r}?" in desk.read_messages()


def words_in_index(
    desk: ReleaseDesk,
    area: str,
    family: str,
) -> str:
    """Return the flat page and the keys of an index as one text."""
    page = desk.bucket.read(f"{area}/{family}/index.html").decode()
    keys = release_desk.keys_in(desk.bucket, f"{area}/{family}")
    return "\n".join([page, *keys])


def test_removes_a_set_from_the_release_index_and_from_staging(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94, GFX1151)

    assert desk.check_indexes("--remove", TORCH_SET, "--write") == 0
    assert desk.check_indexes() == 0

    messages = desk.read_messages()
    assert re.search(rf"{re.escape(TORCH_SET)} is removed, \d+ files; \d+ pages", messages)
    for family in (GFX94, GFX1151):
        released = words_in_index(desk, "v2", family)
        assert "torch" not in released
        assert "rocm_sdk_core" not in released
        staged = words_in_index(desk, "v2-staging", family)
        assert "torch" not in staged
        assert "rocm_sdk_core" in staged


def test_says_what_to_do_where_nothing_is_left_to_yank(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94)
    assert desk.check_indexes("--remove", TORCH_SET, "--write") == 0
    desk.read_messages()

    assert desk.check_indexes("--yank", "torch==1", "--reason", "x", "--write") == UsageError.exit_code
    assert "--store" in desk.read_messages()


def test_completes_a_removal_that_was_interrupted(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94, GFX1151)
    (record,) = desk.bucket.list(f"manifests/v2/{GFX94}")
    desk.bucket.delete(record.key)
    assert desk.check_indexes("--write") == 0

    assert desk.check_indexes("--remove", TORCH_SET, "--write") == 0
    assert desk.check_indexes() == 0

    for family in (GFX94, GFX1151):
        assert "torch" not in words_in_index(desk, "v2", family)


def test_says_which_rocm_packages_stay_staged_after_a_removal(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94)
    assert desk.check_indexes("--remove", TORCH_SET, "--write") == 0

    assert desk.promote() == UsageError.exit_code

    messages = desk.read_messages()
    assert "No torch versions are staged" in messages
    assert f"--rocm-version {runs.ROCM_VERSION}" in messages


def test_keeps_files_of_a_removed_set_that_another_set_has(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)
    assert desk.promote("--rocm-version", runs.ROCM_VERSION) == 0
    assert desk.promote() == 0

    assert desk.check_indexes("--remove", TORCH_SET, "--write") == 0

    released = words_in_index(desk, "v2", GFX94)
    assert "torch" not in released
    assert "rocm_sdk_core" in released


def test_removing_the_last_set_leaves_no_wheel(desk: ReleaseDesk) -> None:
    desk.stage_run(GFX94)
    assert desk.promote("--rocm-version", runs.ROCM_VERSION) == 0
    assert desk.promote() == 0
    assert desk.check_indexes("--remove", TORCH_SET, "--write") == 0

    assert desk.check_indexes("--remove", ROCM_SET, "--write") == 0
    assert desk.check_indexes() == 0

    keys = release_desk.keys_in(desk.bucket)
    assert [key for key in keys if key.endswith((".whl", ".tar.gz"))] == []


@pytest.mark.parametrize(
    "options",
    [
        ("--yank", f"torch=={TORCH_VERSION}", "--write"),
        ("--yank", "torch==2", "--reason", "x"),
    ],
    ids=["no reason", "a version that was never released"],
)
def test_rejects_a_yank_without_a_reason_or_a_released_version(
    desk: ReleaseDesk, options: tuple[str, ...]
) -> None:
    desk.promote_run(GFX94)
    objects_before = release_desk.etags_in(desk.bucket)

    assert desk.check_indexes(*options) == UsageError.exit_code
    assert release_desk.etags_in(desk.bucket) == objects_before


def test_proposes_the_released_version_for_a_yank(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94)

    desk.check_indexes("--yank", "torch==2", "--reason", "x")

    assert f"Did you mean 'torch=={TORCH_VERSION}'?" in desk.read_messages()


def test_yanks_a_version_in_every_index_that_has_it(desk: ReleaseDesk) -> None:
    desk.promote_run(GFX94, GFX1151)
    requirement = f"torch=={TORCH_VERSION}"

    # The second reason takes the place of the first, and is text in a page.
    for reason in ("wrong sums", "wrong <results>"):
        assert desk.check_indexes("--yank", requirement, "--reason", reason, "--write") == 0
        assert f"{requirement} is yanked" in desk.read_messages()

    for family in (GFX94, GFX1151):
        page = desk.bucket.read(f"v2/{family}/simple/torch/index.html").decode()
        assert 'data-yanked="wrong &lt;results&gt;"' in page
        assert desk.bucket.list(f"v2-staging/{family}/yanked.json") == []
    assert desk.check_indexes() == 0
