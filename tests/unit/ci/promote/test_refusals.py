"""What a refused promotion leaves: the pages of staging say that a set is not released, and why."""

import pytest

from ci.promote import documents, promotion
from ci.promote.documents import Refusal
from core.errors import StoreError
from tests.kit import release_desk, runs
from tests.kit.release_desk import ReleaseDesk
from tests.kit.runs import RunContents

FAMILY = "gfx94X-dcgpu"
OTHER_FAMILY = "gfx1151"
SET_NAME = f"torch-{runs.torch_version()}"
HEADING = f"Not released: {SET_NAME} for linux"


def staging_page(desk: ReleaseDesk, family: str = FAMILY) -> str:
    """Return the flat page of what is up for testing."""
    return desk.bucket.read(f"v2-staging/{family}/index.html").decode()


def fail_smoke_test(desk: ReleaseDesk, *, error: str = "3 of 22 failed.") -> None:
    """Leave the record of a smoke test that failed."""
    runs.write_record(
        desk.run_store,
        desk.run,
        step="test_smoke",
        family=FAMILY,
        python=runs.PYTHON,
        torch_ref=runs.TORCH_REF,
        error=error,
    )


@pytest.fixture
def refused_desk(desk: ReleaseDesk) -> ReleaseDesk:
    """Stage two families, and refuse their promotion, as a test of one has failed."""
    desk.stage_run(FAMILY, OTHER_FAMILY)
    fail_smoke_test(desk)
    desk.read_refusal()
    return desk


def test_page_says_that_a_set_is_not_released_and_why(refused_desk: ReleaseDesk) -> None:
    page = staging_page(refused_desk)

    assert f"<h2>{HEADING}</h2>" in page
    assert "the release job was refused its promotion at 20" in page
    assert f"<li>{FAMILY}, Python 3.12, on linux: test_smoke failed: 3 of 22 failed.</li>" in page


def test_page_of_every_family_of_the_set_says_so(refused_desk: ReleaseDesk) -> None:
    page = staging_page(refused_desk, OTHER_FAMILY)

    assert HEADING in page
    assert f"{FAMILY}, Python 3.12, on linux: test_smoke failed" in page


def test_page_lists_the_wheels_as_before(refused_desk: ReleaseDesk) -> None:
    page = staging_page(refused_desk)

    assert f">torch-{runs.torch_version()}-cp312-cp312-linux_x86_64.whl</a>" in page
    assert refused_desk.check_indexes() == 0


def test_page_shows_words_of_a_test_as_text(desk: ReleaseDesk) -> None:
    desk.stage_run(FAMILY)
    fail_smoke_test(desk, error='<a href="torch-9-py3-none-any.whl">x</a>')

    desk.read_refusal()

    assert '<a href="torch-9' not in staging_page(desk)
    assert "&lt;a href=" in staging_page(desk)


def test_a_later_success_ends_the_refusal(refused_desk: ReleaseDesk) -> None:
    desk = refused_desk
    desk.publish(FAMILY)

    assert desk.promote() == 0

    for family in (FAMILY, OTHER_FAMILY):
        assert "Not released" not in staging_page(desk, family)
    assert desk.bucket.list(documents.REFUSALS) == []


def test_a_second_refusal_replaces_the_first(refused_desk: ReleaseDesk) -> None:
    fail_smoke_test(refused_desk, error="The driver is old.")

    refused_desk.read_refusal()

    page = staging_page(refused_desk)
    assert page.count("Not released") == 1
    assert "The driver is old." in page
    assert "3 of 22" not in page


def test_staging_another_set_keeps_the_refusal(refused_desk: ReleaseDesk) -> None:
    later_desk = refused_desk.with_run("18")
    later_desk.publish(FAMILY, contents=RunContents(rocm_version="7.10.0a20251121"))

    assert later_desk.stage() == 0

    assert HEADING in staging_page(refused_desk)


def test_dry_run_leaves_no_refusal(desk: ReleaseDesk) -> None:
    desk.stage_run(FAMILY)
    fail_smoke_test(desk)
    objects_before = release_desk.etags_in(desk.bucket)

    desk.read_refusal("--dry-run")

    assert release_desk.etags_in(desk.bucket) == objects_before


def test_a_released_set_is_not_said_to_be_refused(desk: ReleaseDesk) -> None:
    desk.promote_run(FAMILY)
    fail_smoke_test(desk)

    desk.read_refusal()

    assert "Not released" not in staging_page(desk)
    assert desk.bucket.list(documents.REFUSALS) == []


def test_names_the_set_the_cell_and_who_was_refused(refused_desk: ReleaseDesk) -> None:
    (stored_object,) = refused_desk.bucket.list(f"{documents.REFUSALS}/{OTHER_FAMILY}")

    refusal = documents.read(refused_desk.bucket, stored_object.key, Refusal)

    assert refusal.key == stored_object.key
    assert refusal.set_name == SET_NAME
    assert refusal.platform == "linux"
    assert refusal.by == "the release job"
    assert all(key.startswith(f"v2-staging/{OTHER_FAMILY}/") for key in refusal.staged_keys)
    assert len(refusal.staged_keys) == 4


def test_the_refusal_is_said_where_it_cannot_be_written(
    desk: ReleaseDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.stage_run(FAMILY)
    fail_smoke_test(desk)

    def forbid(*_arguments: object, **_options: object) -> None:
        raise StoreError("Access denied.")

    monkeypatch.setattr(promotion, "record_refusal", forbid)

    desk.read_messages()
    assert desk.promote() != 0

    messages = desk.read_messages()
    assert "The pages of staging do not say that it is refused: Access denied." in messages
    assert "test_smoke failed: 3 of 22 failed." in messages
