from pathlib import Path

import pytest

from core.cli.options import Common
from core.errors import StoreError
from core.run import records
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from pytorch_build.lock.stored import publish_lock

MONDAY = "2026-03-02T05:06:08+00:00"
TUESDAY = "2026-03-03T05:06:08+00:00"


def make_lock(*, commit: str = "a" * 40) -> SourceLock:
    torch = LockedProject(
        project="torch", origin="https://invalid/torch", ref="main", commit=commit, base_version="2.10.0"
    )
    return SourceLock(torch_ref="mine", release_type="dev", projects={"torch": torch})


@pytest.fixture
def common(tmp_path: Path) -> Common:
    return Common(root=tmp_path, run_id="17")


def stored_lock(common: Common) -> SourceLock:
    key = common.outputs.source_lock_key("mine")
    return SourceLock.model_validate_json(common.open_store().read(key))


def test_records_when_a_lock_was_resolved(common: Common, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "now", lambda: MONDAY)

    returned = publish_lock(common, make_lock())

    assert returned.resolved == MONDAY
    assert stored_lock(common) == returned


def test_keeps_the_first_time_where_the_same_commits_are_resolved_again(
    common: Common, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "now", lambda: MONDAY)
    publish_lock(common, make_lock())

    monkeypatch.setattr(records, "now", lambda: TUESDAY)
    returned = publish_lock(common, make_lock())

    assert returned.resolved == MONDAY
    assert stored_lock(common).resolved == MONDAY


def test_refuses_other_commits_in_a_run_that_may_not_change(common: Common) -> None:
    publish_lock(common, make_lock())

    with pytest.raises(StoreError, match="source-lock-mine"):
        publish_lock(common, make_lock(commit="b" * 40))

    assert stored_lock(common).project("torch").commit == "a" * 40


def test_takes_the_lock_of_a_job_that_wrote_the_same_commits_first(
    common: Common, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "now", lambda: MONDAY)
    store = common.open_store()
    key = common.outputs.source_lock_key("mine")
    other_lock = make_lock().model_copy(update={"resolved": TUESDAY})

    def write_other_lock() -> str:
        """Let the other job write between this job's look at the store and its own write."""
        store.put_bytes(key, other_lock.model_dump_json().encode())
        return MONDAY

    monkeypatch.setattr(records, "now", write_other_lock)
    returned = publish_lock(common, make_lock())

    assert returned.resolved == TUESDAY
    assert stored_lock(common).resolved == TUESDAY


def test_the_time_is_no_part_of_the_digest() -> None:
    lock = make_lock()

    assert lock.model_copy(update={"resolved": MONDAY}).digest() == lock.digest()


def test_reads_locks_of_older_runs() -> None:
    content = make_lock().model_dump(mode="json", exclude={"resolved"})

    assert SourceLock.model_validate(content).resolved is None
