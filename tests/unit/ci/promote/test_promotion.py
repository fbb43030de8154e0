"""Promotion and staging, stopped at every write, and two at a time."""

from functools import partial

import pytest

from ci.promote import documents, promotion
from ci.promote.documents import Decision
from ci.promote.facts import SetRequest, gather
from ci.promote.runs import chosen_files, planned_record, read_group, read_locks, stage_group
from core.errors import StoreError
from core.stores import Store
from tests.unit.ci.memory_store import KilledError, MemoryStore, audit, killed_at, stopped_everywhere
from tests.unit.ci.promote.conftest import Runs, decided

FAMILIES = ("gfx94X-dcgpu", "gfx1151")
NOW = "2026-11-21T13:00:00+00:00"


def stage_all(runs: Runs, bucket: MemoryStore) -> None:
    """Stage every family, as the verb does."""
    for family in FAMILIES:
        group = read_group(runs.store, runs.outputs, family)
        files = chosen_files(group)
        planned = planned_record(runs.store, group, files, read_locks(runs.store, runs.outputs, family, {}))
        stage_group(runs.store, bucket, planned.model_copy(update={"staged": NOW}))
        documents.write_pages(bucket, documents.STAGING, family, expected={one.key for one in files})


def promote(bucket: Store, runs: Runs, by: str = "one", at: str = NOW) -> tuple[Decision, int | None]:
    """Gather, decide and carry out, as the verb does."""
    request = SetRequest(distribution="torch", version=runs.torch)
    facts = gather(bucket, request, lambda _address: runs.store)
    decision = decided(facts, promotion.promoted_files(facts), by=by, decided=at)
    return promotion.carry_out(bucket, decision, promotion.staged_in(bucket), now=lambda: NOW, jobs=2)


@pytest.fixture
def whole(runs: Runs) -> Runs:
    for family in FAMILIES:
        runs.whole(family)
    return runs


@pytest.fixture
def staged(whole: Runs) -> MemoryStore:
    """Return a bucket in which everything is staged."""
    bucket = MemoryStore()
    stage_all(whole, bucket)
    return bucket.copy_of()


def test_a_promotion_killed_at_any_write_is_completed_by_the_next(whole: Runs, staged: MemoryStore) -> None:
    ended = stopped_everywhere(staged, partial(promote, runs=whole), "v2")
    assert len(decisions(ended)) == 1
    assert promotion.unfinished(ended) == []


def test_staging_that_is_killed_at_any_write_is_run_again_and_ends_the_same(whole: Runs) -> None:
    stopped_everywhere(MemoryStore(), partial(stage_all, whole), "v2-staging")


def test_the_order_of_writes_lets_nobody_see_half(whole: Runs, staged: MemoryStore) -> None:
    keys: list[str] = []
    staged.on_write = lambda _number, key: keys.append(key)
    staged.after_write = lambda _number, _key: audit(staged)
    promote(staged, whole)

    def kind(key: str) -> str:
        if key.startswith("manifests/"):
            return key.split("/")[1]
        name = key.rpartition("/")[2]
        return "wheel" if name.endswith((".whl", ".tar.gz")) else "sidecar" if "metadata" in name else "page"

    order = [kind(key) for key in keys]
    assert order[0] == "promoting"
    assert order[-2:] == ["decisions", "promoting"]
    for earlier, later in (("wheel", "sidecar"), ("sidecar", "v2"), ("v2", "decisions")):
        last = max(index for index, one in enumerate(order) if one == earlier)
        assert last < min(index for index, one in enumerate(order) if one == later)
    for family in FAMILIES:
        own = [kind(key) for key in keys if f"v2/{family}/" in key]
        assert own.index("v2") < own.index("page")
        assert "v2" not in own[own.index("page") :]


def test_an_interrupted_promotion_is_seen_as_such(whole: Runs, staged: MemoryStore) -> None:
    killed_at(5, after=True)(staged)
    with pytest.raises(KilledError):
        promote(staged, whole, by="the first")
    left = staged.copy_of()
    (intent,) = promotion.unfinished(left)
    assert (intent.status, intent.by) == ("promoting", "the first")
    done, _ = promote(left, whole, by="the second", at="2026-11-22T09:00:00+00:00")
    # what was decided first holds, with its grounds
    assert (done.by, done.decided, done.status) == ("the first", NOW, "promoted")
    assert promotion.unfinished(left) == []


def decisions(store: MemoryStore) -> list[Decision]:
    return [documents.read(store, one.key, Decision) for one in store.list(documents.DECISIONS)]


def but_for_who(store: MemoryStore) -> dict[str, bytes]:
    return {key: data for key, data in store.objects.items() if not key.startswith(documents.DECISIONS)}


@pytest.mark.parametrize("ignores_conditions", [False, True])
def test_another_promotion_of_the_set_between_any_two_writes_ends_with_one_result(
    whole: Runs, staged: MemoryStore, *, ignores_conditions: bool
) -> None:
    staged.ignores_conditions = ignores_conditions
    undisturbed = staged.copy_of()
    promote(undisturbed, whole)
    for number in range(1, undisturbed.writes + 1):
        store = staged.copy_of()

        def other(now: int, _key: str, *, number: int = number, store: MemoryStore = store) -> None:
            if now == number:
                store.on_write = lambda _number, _key: None
                promote(store, whole, by="the other")

        store.on_write = other
        done, _ = promote(store, whole, by="one")
        (held,) = decisions(store)
        assert done == held
        assert held.by in {"one", "the other"}
        assert promotion.unfinished(store) == []
        audit(store)
        assert but_for_who(store) == but_for_who(undisturbed), number


def test_a_wheel_overwritten_before_or_during_promotion_is_not_listed(
    whole: Runs, staged: MemoryStore
) -> None:
    key = next(key for key in staged.objects if key.startswith("v2-staging") and key.endswith(".whl"))
    taken, other = key.replace("v2-staging", "v2"), staged.copy_of()
    other.objects[taken] = b"released before"
    with pytest.raises(StoreError, match="exists in memory with other bytes"):
        promote(other, whole)
    assert other.objects[taken] == b"released before"
    assert decisions(other) == []

    def overwrite(number: int, _key: str) -> None:
        if number == 1:  # the intent, after the decision
            staged.objects[key] = b"other bytes"

    staged.on_write = overwrite
    with pytest.raises(StoreError, match="was to be copied"):
        promote(staged, whole)
    assert not [one for one in staged.objects if one.endswith(".html") and one.startswith("v2/")]
    assert len(promotion.unfinished(staged)) == 1


def listed(version: str, store: MemoryStore) -> bool:
    pages = [data for key, data in store.objects.items() if key.startswith("v2/") and key.endswith(".html")]
    return version.encode() in b"".join(pages)


def test_half_of_a_promotion_is_not_listed_by_another_one(whole: Runs, staged: MemoryStore) -> None:
    """The wheels of an interrupted set lie there, and no other set's pages show them."""
    killed_at(14, after=True)(staged)
    with pytest.raises(KilledError):
        promote(staged, whole)
    left = staged.copy_of()
    half = [key for key in left.objects if key.startswith("v2/")]
    assert half
    whole.run_id, whole.rocm = "18", "7.10.0a20251122"
    for family in FAMILIES:
        whole.whole(family)
    stage_all(whole, left)
    promote(left, whole)
    assert (listed("20251122", left), listed("20251120", left)) == (True, False)
    whole.run_id, whole.rocm = "17", "7.10.0a20251120"
    promote(left, whole)
    assert listed("20251122", left)
    assert listed("20251120", left)


def test_promoting_again_restores_what_was_removed(whole: Runs, staged: MemoryStore) -> None:
    promote(staged, whole)
    before = dict(staged.objects)
    key = next(key for key in staged.objects if key.startswith("v2/") and key.endswith(".whl"))
    del staged.objects[key]
    assert promote(staged, whole)[1] == 1
    assert staged.objects == before
    for lost in ("index.html", "simple/torch/index.html"):
        del staged.objects[f"v2/{FAMILIES[0]}/{lost}"]
    assert promote(staged, whole)[1] is None
    assert staged.objects == before
