"""What goes from a store and what stays, and the deletion of it."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.cleanup.deletion import carry_out
from ci.cleanup.plan import (
    DeletionPlan,
    ProtectedObjects,
    Retention,
    RetentionPolicy,
    RetentionRules,
    decide,
    plan_deletion,
    retention,
)
from ci.cleanup.units import find_units
from ci.promote import documents
from ci.promote.documents import Decision, PromotedFile, StagedFile, StagingRecord
from ci.publish.buckets import buckets
from ci.publish.index import is_page
from core.data import validated
from core.errors import DataError, StoreError, UsageError
from core.stores import Content, PutResult, Stored
from tests.kit.memory_store import MemoryStore
from tests.kit.stores import keys_below, stored_object
from tests.kit.wheels import sha256, wheel_filename

NOW = datetime.fromtimestamp(1_800_000_000, tz=UTC)
DAY = 86_400
RUN_IDS = re.compile("[0-9]+")
Ages = Mapping[str, float]


def listing(ages: Ages) -> list[Stored]:
    """Return a listing of objects of these ages in days."""
    return [stored_object(key, modified=NOW.timestamp() - days * DAY) for key, days in ages.items()]


def decide_by_age(
    ages: Ages,
    policy: RetentionPolicy,
    protected: ProtectedObjects | None = None,
) -> DeletionPlan:
    """Decide about a store whose objects have these ages in days."""
    rules = RetentionRules(
        policy=policy,
        run_ids=RUN_IDS,
        now=NOW,
    )
    return decide(find_units(listing(ages)), rules, protected or ProtectedObjects())


def keys_that_go(plan: DeletionPlan) -> set[str]:
    """Return the keys of a plan that are to be deleted."""
    keys: set[str] = set()
    for unit in plan.going:
        keys.update(unit.keys)
    return keys


def reasons_of(plan: DeletionPlan) -> dict[str, str]:
    """Return why each unit goes or stays, by name."""
    return {unit.name: unit.reason for unit in (*plan.going, *plan.staying)}


# Any store, any policy


RUNS = st.builds("{}-{}/x".format, st.integers(1, 30), st.sampled_from(["linux", "windows"]))
RUN_NAMES = RUNS.map(lambda key: key.partition("/")[0])
STAGED = st.builds(
    "v2-staging/{}/{}-{}-py3-none-any.whl".format,
    st.sampled_from(["gfx94X-dcgpu", "gfx110X-all"]),
    st.sampled_from(["torch", "rocm"]),
    st.sampled_from(["1.0", "1.10", "1.9", "2.0rc1", "2.0"]),
)
KEPT_KEYS = ["v2/g/torch-1.0-py3-none-any.whl", "python-deps/simple/numpy/index.html", "README.md"]
LISTINGS = st.dictionaries(RUNS | STAGED | st.sampled_from(KEPT_KEYS), st.floats(0, 90), max_size=25)
POLICIES = st.builds(RetentionPolicy, days=st.integers(1, 60), newest=st.integers(1, 4)) | st.just(
    RetentionPolicy(forever=True)
)


@st.composite
def held_keys(draw: st.DrawFn, ages: Ages) -> ProtectedObjects:
    """Draw what must not go of a listing."""
    keys = st.frozensets(st.sampled_from(sorted(ages)), max_size=4) if ages else st.just(frozenset[str]())
    return ProtectedObjects(
        listed_in_releases=draw(keys),
        in_promotion=draw(keys),
        staged_runs=frozenset(draw(st.sets(RUN_NAMES, max_size=4))),
    )


@given(LISTINGS, POLICIES, st.data())
def test_deletes_only_what_is_old_and_nobody_uses(
    ages: Ages,
    policy: RetentionPolicy,
    data: st.DataObject,
) -> None:
    protected = data.draw(held_keys(ages))

    keys = keys_that_go(decide_by_age(ages, policy, protected))

    assert not keys & protected.listed_in_releases
    assert not keys & protected.in_promotion
    assert not protected.staged_runs & {key.partition("/")[0] for key in keys}
    assert not keys & set(KEPT_KEYS)
    if policy.days is None:
        assert keys == set()
    else:
        assert all(ages[key] >= policy.days for key in keys)


@given(LISTINGS, POLICIES, st.data())
def test_keeps_the_newest_of_each_series(
    ages: Ages,
    policy: RetentionPolicy,
    data: st.DataObject,
) -> None:
    plan = decide_by_age(ages, policy, data.draw(held_keys(ages)))

    for series in {unit.series for unit in plan.going}:
        staying = [unit for unit in plan.staying if unit.series == series]
        every_unit = [unit for unit in (*plan.going, *plan.staying) if unit.series == series]
        newest = max(every_unit, key=lambda unit: (unit.version or 0, unit.modified))
        assert len(staying) >= policy.newest
        assert newest in staying


@given(LISTINGS, POLICIES, st.data())
def test_decides_about_every_unit_and_says_why(
    ages: Ages,
    policy: RetentionPolicy,
    data: st.DataObject,
) -> None:
    plan = decide_by_age(ages, policy, data.draw(held_keys(ages)))

    every_unit = (*plan.going, *plan.staying)
    assert len(every_unit) == len(find_units(listing(ages)))
    assert "" not in reasons_of(plan).values()


@given(LISTINGS, POLICIES, st.data())
def test_completes_a_deletion_that_was_interrupted(
    ages: Ages,
    policy: RetentionPolicy,
    data: st.DataObject,
) -> None:
    keys = keys_that_go(decide_by_age(ages, policy))
    deleted = data.draw(st.sets(st.sampled_from(sorted(keys)))) if keys else set[str]()
    remaining = {key: days for key, days in ages.items() if key not in deleted}

    assert keys_that_go(decide_by_age(remaining, policy)) == keys - deleted


@given(LISTINGS, st.integers(1, 60), st.integers(1, 4))
def test_a_longer_or_wider_policy_never_deletes_more(
    ages: Ages,
    days: int,
    newest: int,
) -> None:
    keys = keys_that_go(decide_by_age(ages, RetentionPolicy(days=days, newest=newest)))

    assert keys_that_go(decide_by_age(ages, RetentionPolicy(days=days + 1, newest=newest))) <= keys
    assert keys_that_go(decide_by_age(ages, RetentionPolicy(days=days, newest=newest + 1))) <= keys


# Reasons


OLD_RUNS = {f"{number}-linux/x": 40.0 + number for number in range(1, 8)}


@pytest.mark.parametrize(
    ("run", "phrase"),
    [
        ("100-linux", "not 30 days old"),
        ("1-linux", "newest 2"),
        ("2-linux", "42 days old, kept for 30"),
        ("5-linux", "release index"),
        ("6-linux", "promotion"),
        ("7-linux", "staging"),
        ("mine-linux", "user"),
    ],
    ids=["young", "among the newest", "old", "listed", "in promotion", "staged", "named by a user"],
)
def test_says_why_a_run_goes_or_stays(run: str, phrase: str) -> None:
    protected = ProtectedObjects(
        listed_in_releases=frozenset({"5-linux/x"}),
        in_promotion=frozenset({"6-linux/x"}),
        staged_runs=frozenset({"7-linux", "17-linux"}),
    )
    ages = {**OLD_RUNS, "100-linux/x": 1, "mine-linux/x": 99}

    plan = decide_by_age(ages, RetentionPolicy(days=30, newest=2), protected)

    assert phrase in reasons_of(plan)[run]
    assert keys_that_go(plan) == {"2-linux/x", "3-linux/x", "4-linux/x"}


def test_says_that_runs_are_kept_forever() -> None:
    reasons = reasons_of(decide_by_age(OLD_RUNS, RetentionPolicy(forever=True)))

    assert len(reasons) == len(OLD_RUNS)
    assert set(reasons.values()) == {"kept forever"}


def test_counts_days_to_the_second() -> None:
    ages = {"9-linux/x": 0, "1-linux/x": 30, "2-linux/x": 30 - 1 / DAY}

    assert keys_that_go(decide_by_age(ages, RetentionPolicy(days=30, newest=1))) == {"1-linux/x"}


def test_keeps_a_version_that_one_which_stays_requires() -> None:
    keys = list(map("v2-staging/g/rocm-{}-py3-none-any.whl".format, (1, 2, 3)))
    protected = ProtectedObjects(pinned=frozenset({"v2-staging/g/rocm 1"}))

    plan = decide_by_age(dict.fromkeys(keys, 50), RetentionPolicy(days=30, newest=1), protected)

    assert keys_that_go(plan) == {keys[1]}
    assert "requires" in reasons_of(plan)["v2-staging/g/rocm 1"]


def test_deletes_nothing_where_the_clock_is_wrong() -> None:
    with pytest.raises(StoreError, match="clock"):
        decide_by_age({"1-linux/x": -2, "2-linux/x": 90}, RetentionPolicy(days=30, newest=1))


def test_reads_each_sidecar_of_chained_pins_once() -> None:
    # The first project's old version requires the next one's, and so on; only the first may go.
    store = MemoryStore()
    sidecars: list[str] = []
    for number in range(5):
        for version in ("1", "2"):
            key = f"v2-staging/g/{wheel_filename(name=f'p{number}', version=version)}"
            pins_next = number == 0 or version == "1"
            pin = f"Requires-Dist: p{number + 1}==1\n" if pins_next else ""
            store.put_bytes(key, b"")
            store.put_bytes(f"{key}.metadata", pin.encode())
            sidecars.append(f"{key}.metadata")

    plan = plan_deletion(store, RULES)

    (unit,) = plan.going
    assert unit.name == "v2-staging/g/p0 1"
    assert sorted(store.keys_of_calls("read")) == sidecars[1:]


# Policies


def test_keeps_releases_forever() -> None:
    assert retention().policies["release"].forever


def test_has_a_policy_for_every_release_type() -> None:
    assert buckets().release_types.keys() <= retention().policies.keys()


def test_proposes_a_name_for_an_unknown_policy() -> None:
    with pytest.raises(UsageError, match="'nightly'"):
        retention().policy("nigthly")


@pytest.mark.parametrize(
    ("policy", "phrase"),
    [
        ({}, "days or forever"),
        ({"days": 3, "forever": True}, "days or forever"),
        ({"days": 30, "expire_days": 20}, "expire_days"),
        ({"forever": True, "expire_days": 20}, "expire_days"),
    ],
    ids=["neither days nor forever", "both", "expires too early", "expires what is kept"],
)
def test_rejects_a_policy_that_contradicts_itself(
    policy: dict[str, Any],
    phrase: str,
) -> None:
    with pytest.raises(DataError, match=phrase):
        validated(policy, RetentionPolicy, where="x")


def test_rejects_a_broken_expression_for_run_ids() -> None:
    data = {"run_ids": "[", "at_most_percent": 5, "abort_uploads_days": 1, "policies": {}}

    with pytest.raises(DataError, match="run_ids"):
        validated(data, Retention, where="x")


# Deletion


FAMILY = "g"
STAGING_FOLDER = f"v2-staging/{FAMILY}"
RULES = RetentionRules(
    policy=RetentionPolicy(days=30, newest=1),
    run_ids=RUN_IDS,
    now=NOW,
)
OLD_WHEEL = f"{STAGING_FOLDER}/{wheel_filename(version='1.0')}"
NEW_WHEEL = f"{STAGING_FOLDER}/{wheel_filename(version='2.0')}"
RUN_KEYS = [
    "1-linux/python/g/index.html",
    "1-linux/python/g/simple/torch/index.html",
    "1-linux/python/g/simple/index-state.txt",
    "1-linux/python/g/torch-1.0-py3-none-any.whl.metadata",
    "1-linux/python/g/torch-1.0-py3-none-any.whl",
    "1-linux/python/g/rocm-1.0.tar.gz",
    "1-linux/manifests/g/build.json",
    "1-linux/a_lib_generic.tar.zst",
]


def stage(store: MemoryStore, keys: Sequence[str]) -> None:
    """Stage wheels, with the record that names them, and write the pages."""
    files: list[StagedFile] = []
    for key in keys:
        name = key.rpartition("/")[2]
        metadata = f"Name: {name}\n".encode()
        store.put_bytes(key, name.encode())
        store.put_bytes(f"{key}.metadata", metadata)
        file = StagedFile(
            name=name,
            key=key,
            source_key=f"17-linux/python/{FAMILY}/{name}",
            size=len(name),
            sha256=sha256(name.encode()),
            distribution="torch",
            version=name.split("-")[1],
            metadata_sha256=sha256(metadata),
        )
        files.append(file)
    record = StagingRecord(
        family=FAMILY,
        run_id="17",
        platform="linux",
        store="elsewhere",
        prefix="17-linux",
        artifact_group=FAMILY,
        staged="2026-11-21",
        files=tuple(files),
        records=(),
    )
    store.put_bytes(documents.staging_record_key(FAMILY, "17-linux"), documents.serialized(record))
    documents.write_pages(store, documents.STAGING, FAMILY, expected=keys)


@pytest.fixture
def staged() -> MemoryStore:
    """Return a store in which an old and a new version are staged, of which the old one is to go."""
    store = MemoryStore(folder_pages=False)
    stage(store, [OLD_WHEEL, NEW_WHEEL])
    return store


def plan_for(store: MemoryStore) -> DeletionPlan:
    """Decide about everything in a store."""
    return decide(find_units(store.list("")), RULES, ProtectedObjects())


def kind_of_key(key: str) -> str:
    """Return what an object is, for the order in which a deletion takes it."""
    if is_page(key):
        return "page"
    if key.endswith(".metadata"):
        return "sidecar"
    return "distribution" if key.endswith((".whl", ".tar.gz")) else "other"


def test_deletes_pages_then_sidecars_then_wheels_then_the_rest() -> None:
    store = MemoryStore(objects=dict.fromkeys(RUN_KEYS, b"content"), moments={})
    # A later write is younger.
    store.put_bytes("2-linux/x", b"x")

    assert carry_out(store, plan_for(store)) == len(RUN_KEYS)

    deleted = store.keys_of_calls("delete")
    kinds = list(map(kind_of_key, deleted))
    order = ["page", "sidecar", "distribution", "other"]
    assert sorted(deleted) == sorted(RUN_KEYS)
    assert kinds == sorted(kinds, key=order.index)
    assert list(store.objects) == ["2-linux/x"]


def test_deletes_a_staged_version_from_pages_and_store(staged: MemoryStore) -> None:
    carry_out(staged, plan_for(staged))

    assert keys_below(staged, "v2-staging", suffix=".whl") == [NEW_WHEEL]
    page = staged.objects[f"{STAGING_FOLDER}/index.html"]
    assert b"torch-2.0" in page
    assert b"torch-1.0" not in page


class ServerPagesStore(MemoryStore):
    """A store in which a server writes the pages, at its own pace: those that clients write are lost."""

    is_server_writing = False

    def put_bytes(
        self,
        key: str,
        data: Content,
        *,
        if_match: str | None = None,
        replace: bool = True,
        is_known_absent: bool = False,
    ) -> PutResult:
        if is_page(key) and not self.is_server_writing:
            return PutResult("unchanged", "")
        return super().put_bytes(
            key,
            data,
            if_match=if_match,
            replace=replace,
            is_known_absent=is_known_absent,
        )

    def write_pages_as_server(self) -> None:
        """Write the pages of what has its sidecar."""
        self.is_server_writing = True
        documents.write_pages(self, documents.STAGING, FAMILY, expected=())
        self.is_server_writing = False


@pytest.fixture
def server_store(staged: MemoryStore) -> ServerPagesStore:
    """Return the same staging where a server writes the pages."""
    return ServerPagesStore(objects=dict(staged.objects), folder_pages=False)


class Clock:
    """A clock that only sleeping moves; `sleeps` tells how often somebody slept."""

    def __init__(self, on_sleep: Callable[[], None] | None = None) -> None:
        self.now = 0.0
        self.sleeps = 0
        self.on_sleep = on_sleep

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.sleeps += 1
        if self.on_sleep is not None:
            self.on_sleep()


def test_keeps_a_wheel_that_pages_go_on_listing(
    server_store: ServerPagesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    monkeypatch.setattr(time, "sleep", clock.sleep)

    with pytest.raises(StoreError) as raised:
        carry_out(server_store, plan_for(server_store))

    assert OLD_WHEEL.rpartition("/")[2] in raised.value.message
    assert OLD_WHEEL in server_store.objects
    assert clock.sleeps > 1


def test_waits_for_the_server_to_unlist_what_has_no_sidecar(
    server_store: ServerPagesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_pages() -> None:
        assert OLD_WHEEL in server_store.objects
        assert f"{OLD_WHEEL}.metadata" not in server_store.objects
        server_store.write_pages_as_server()

    clock = Clock(on_sleep=write_pages)
    monkeypatch.setattr(time, "sleep", clock.sleep)

    carry_out(server_store, plan_for(server_store))

    assert clock.sleeps == 1
    assert keys_below(server_store, "v2-staging", suffix=".whl") == [NEW_WHEEL]


def begin_promotion(store: MemoryStore) -> None:
    """Leave the intent of a promotion of the old version."""
    name = OLD_WHEEL.rpartition("/")[2]
    file = PromotedFile(
        family=FAMILY,
        name=name,
        key=f"v2/{FAMILY}/{name}",
        size=1,
        sha256="0" * 64,
        distribution="torch",
        version="1.0",
        staged_key=OLD_WHEEL,
        staged_sha256="0" * 64,
    )
    intent = Decision(
        set_name="torch-1.0",
        identity="1",
        release_type="nightly",
        decided="2026-11-21",
        by="the release job",
        staging=(),
        rulings=(),
        files=(file,),
    )
    store.put_bytes(intent.intent_key, documents.serialized(intent))


def test_keeps_the_files_of_a_promotion_that_began_after_the_plan(staged: MemoryStore) -> None:
    plan = plan_for(staged)
    begin_promotion(staged)
    objects_before = dict(staged.objects)

    with pytest.raises(StoreError) as raised:
        carry_out(staged, plan)

    assert OLD_WHEEL in raised.value.message
    assert staged.objects == objects_before


def test_keeps_the_files_of_a_promotion_that_began_while_pages_were_written(staged: MemoryStore) -> None:
    plan = plan_for(staged)

    def begin_once(_number: int, _key: str) -> None:
        staged.on_write = lambda _number, _key: None
        begin_promotion(staged)

    staged.on_write = begin_once

    with pytest.raises(StoreError) as raised:
        carry_out(staged, plan)

    assert OLD_WHEEL in raised.value.message
    assert OLD_WHEEL in staged.objects
    assert f"{OLD_WHEEL}.metadata" in staged.objects
