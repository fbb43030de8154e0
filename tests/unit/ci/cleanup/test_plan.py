import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.cleanup import units
from ci.cleanup.plan import (
    Held,
    Plan,
    Policy,
    Retention,
    Rules,
    carry_out,
    plan_of,
    planned,
    retention,
)
from ci.publish.buckets import buckets
from core.data import validated
from core.errors import DataError, StoreError, UsageError
from core.stores import Store, Stored
from core.stores.directory import DirectoryStore
from tests.kit.memory_store import MemoryStore

NOW = datetime.fromtimestamp(1_800_000_000, tz=UTC)
DAY = 86_400
RUN_IDS = re.compile("[0-9]+")

RUNS = st.builds(
    lambda number, platform: f"{number}-{platform}/x",
    st.integers(1, 30),
    st.sampled_from(["linux", "windows"]),
)
RUN_NAMES = RUNS.map(lambda key: key.partition("/")[0])
STAGED = st.builds(
    lambda family, name, version: f"v2-staging/{family}/{name}-{version}-py3-none-any.whl",
    st.sampled_from(["gfx94X-dcgpu", "gfx110X-all"]),
    st.sampled_from(["torch", "rocm"]),
    st.sampled_from(["1.0", "1.10", "1.9", "2.0rc1", "2.0"]),
)
OTHERS = st.sampled_from(
    ["v2/g/torch-1.0-py3-none-any.whl", "python-deps/simple/numpy/index.html", "README.md"]
)
LISTINGS = st.dictionaries(RUNS | STAGED | OTHERS, st.floats(0, 90), max_size=25)
POLICIES = st.builds(Policy, days=st.integers(1, 60), newest=st.integers(1, 4)) | st.just(
    Policy(forever=True)
)


def stored(key: str, days: float = 0) -> Stored:
    return Stored(key=key, size=3, etag="", modified=NOW.timestamp() - days * DAY)


def listing(ages: dict[str, float]) -> list[Stored]:
    return [stored(key, days) for key, days in ages.items()]


def decide(objects: Sequence[Stored], policy: Policy, held: Held | None = None) -> Plan:
    return plan_of(units(objects), Rules(policy=policy, run_ids=RUN_IDS, now=NOW), held or Held())


def going(planned: Plan) -> set[str]:
    return {one.key for unit in planned.goes for one in unit.objects}


def why(planned: Plan) -> dict[str, str]:
    return {one.name: one.why for one in (*planned.goes, *planned.stays)}


@given(LISTINGS, POLICIES, st.data())
def test_what_goes_is_old_unlisted_unused_not_among_the_newest_and_nothing_is_lost(
    ages: dict[str, float], policy: Policy, data: st.DataObject
) -> None:
    objects = listing(ages)
    some = st.frozensets(st.sampled_from(sorted(ages)), max_size=4) if ages else st.just(frozenset())
    held = Held(
        listed=data.draw(some), in_use=data.draw(some), staged_runs=frozenset(data.draw(st.sets(RUN_NAMES)))
    )
    planned = decide(objects, policy, held)
    gone = going(planned)
    assert not gone & held.listed
    assert not gone & held.in_use
    assert not held.staged_runs & {key.partition("/")[0] for key in gone}
    assert not [key for key in gone if key.startswith(("v2/", "python-deps/")) or key == "README.md"]
    assert policy.days is not None or not gone
    assert all(ages[key] >= (policy.days or 0) for key in gone)
    for series in {one.series for one in planned.goes}:
        kept = [one for one in planned.stays if one.series == series]
        assert len(kept) >= policy.newest
        of = [one for one in (*planned.goes, *planned.stays) if one.series == series]
        newest = max(of, key=lambda unit: (unit.version or 0, unit.modified))
        assert newest in kept
    assert len(planned.goes) + len(planned.stays) == len(units(objects))
    assert all(one.why for one in (*planned.goes, *planned.stays))


@given(LISTINGS, POLICIES, st.data())
def test_a_deletion_resumes(ages: dict[str, float], policy: Policy, data: st.DataObject) -> None:
    gone = going(decide(listing(ages), policy))
    already = data.draw(st.sets(st.sampled_from(sorted(gone))) if gone else st.just(set()))
    left = {key: age for key, age in ages.items() if key not in already}
    assert going(decide(listing(left), policy)) == gone - already


@given(LISTINGS, st.integers(1, 60), st.integers(1, 4))
def test_a_longer_or_wider_policy_never_takes_more(ages: dict[str, float], days: int, newest: int) -> None:
    objects = listing(ages)
    gone = going(decide(objects, Policy(days=days, newest=newest)))
    assert going(decide(objects, Policy(days=days + 1, newest=newest))) <= gone
    assert going(decide(objects, Policy(days=days, newest=newest + 1))) <= gone


def test_each_reason_is_said() -> None:
    ages = {f"{number}-linux/x": 40.0 + number for number in range(1, 8)}
    ages |= {"100-linux/x": 1, "mine-linux/x": 99}
    held = Held(
        listed=frozenset({"5-linux/x"}),
        in_use=frozenset({"6-linux/x"}),
        staged_runs=frozenset({"7-linux", "17-linux"}),
    )
    assert why(decide(listing(ages), Policy(days=30, newest=2), held)) == {
        "100-linux": "not 30 days old",
        "1-linux": "among the newest 2",
        "2-linux": "42 days old, kept for 30",
        "3-linux": "43 days old, kept for 30",
        "4-linux": "44 days old, kept for 30",
        "5-linux": "a release index lists it",
        "6-linux": "a promotion uses it",
        "7-linux": "something in staging came from it",
        "mine-linux": "a user named it",
    }
    assert set(why(decide(listing(ages), Policy(forever=True))).values()) == {"kept forever"}
    # the day counts to the second
    policy = Policy(days=30, newest=1)
    objects = [stored("9-linux/x"), stored("1-linux/x", 30), stored("2-linux/x", 30 - 1 / DAY)]
    assert going(decide(objects, policy)) == {"1-linux/x"}
    # a required version stays
    objects = [stored(f"v2-staging/g/rocm-{number}-py3-none-any.whl", 50) for number in (1, 2, 3)]
    planned = decide(objects, policy, Held(required=frozenset({"v2-staging/g/rocm 1"})))
    assert going(planned) == {"v2-staging/g/rocm-2-py3-none-any.whl"}
    assert why(planned)["v2-staging/g/rocm 1"] == "a version that stays requires it"


def test_of_chained_pins_each_sidecar_is_read_once() -> None:
    store = MemoryStore()
    names = [f"p{number}-{version}-py3-none-any.whl" for number in range(5) for version in (1, 2)]
    for name in names:
        pin = f"Requires-Dist: p{int(name[1]) + 1}==1\n" if name[1] == "0" or name[3] == "1" else ""
        store.put_bytes(f"v2-staging/g/{name}", b"")
        store.put_bytes(f"v2-staging/g/{name}.metadata", pin.encode())
    made = planned(store, Rules(policy=POLICY, run_ids=RUN_IDS, now=datetime.fromtimestamp(LATER, tz=UTC)))
    assert [one.name for one in made.goes] == ["v2-staging/g/p0 1"]
    read = sorted(key for call, key in store.calls if call == "read")
    assert read == [f"v2-staging/g/{name}.metadata" for name in names[1:]]


def test_a_wrong_clock_deletes_nothing() -> None:
    with pytest.raises(StoreError, match="clock is wrong"):
        decide([stored("1-linux/x", -2), stored("2-linux/x", 90)], Policy(days=30, newest=1))


def test_the_data_has_a_policy_for_every_release_type() -> None:
    assert retention().policies["release"].forever
    assert buckets().release_types.keys() <= retention().policies.keys()
    with pytest.raises(UsageError, match="nightly"):
        retention().policy("nigthly")


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({}, "either days or forever"),
        ({"days": 3, "forever": True}, "either days or forever"),
        ({"days": 30, "expire_days": 20}, "must not be before days"),
        ({"forever": True, "expire_days": 20}, "must not be before days"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(policy: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        validated(policy, Policy, where="x")
    data = {"run_ids": "[", "at_most_percent": 5, "abort_uploads_days": 1, "policies": {}}
    with pytest.raises(DataError, match="valid regular expression"):
        validated(data, Retention, where="x")


LATER = datetime.now(UTC).timestamp() + 100 * 86_400
POLICY = Policy(days=30, newest=1)
RUN = [
    "1-linux/python/g/index.html",
    "1-linux/python/g/simple/torch/index.html",
    "1-linux/python/g/simple/index-state.txt",
    "1-linux/python/g/torch-1.0-py3-none-any.whl.metadata",
    "1-linux/python/g/torch-1.0-py3-none-any.whl",
    "1-linux/python/g/rocm-1.0.tar.gz",
    "1-linux/manifests/g/build.json",
    "1-linux/a_lib_generic.tar.zst",
]
IN_STAGING = [
    f"v2-staging/g/torch-{version}-py3-none-any.whl{suffix}"
    for version in ("1.0", "2.0")
    for suffix in ("", ".metadata")
]


class Recorder(DirectoryStore):
    gone: ClassVar[list[str]] = []

    def delete(self, key: str) -> None:
        super().delete(key)
        self.gone.append(key)


def fill(root: Path, keys: Sequence[str]) -> DirectoryStore:
    store = DirectoryStore(root)
    for key in keys:
        store.put_bytes(key, key.encode())
    return store


def flat(store: Store, folder: str, without: frozenset[str] = frozenset()) -> None:
    """Write a staging folder's page as the indexer would: what has its sidecar, less what is to go."""
    there = [one.key for one in store.list(folder)]
    wheels = [key for key in there if key.endswith(".whl") and f"{key}.metadata" in there]
    links = "".join(f'<a href="{key.rpartition("/")[2]}">x</a>' for key in wheels if key not in without)
    store.put_bytes(f"{folder}/index.html", links.encode())


def decided(store: DirectoryStore) -> Plan:
    now = datetime.fromtimestamp(LATER, tz=UTC)
    return plan_of(units(store.list("")), Rules(policy=POLICY, run_ids=RUN_IDS, now=now), Held())


@pytest.fixture(autouse=True)
def _pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci.cleanup.plan._rewrite", flat)
    monkeypatch.setattr("core.parallel.each", lambda action, items: [action(one) for one in items])


def keys_in(store: DirectoryStore) -> list[str]:
    return [one.key for one in store.list("")]


def test_pages_go_first_then_sidecars_then_wheels_then_the_rest(tmp_path: Path) -> None:
    fill(tmp_path, [*RUN, "2-linux/x"])
    store = Recorder(tmp_path)
    store.gone.clear()
    assert carry_out(store, decided(store)) == len(RUN)
    gone = store.gone
    kinds = [
        0 if "index" in key else 1 if key.endswith(".metadata") else 2 if key.endswith((".whl", ".gz")) else 3
        for key in gone
    ]
    assert kinds == sorted(kinds)
    assert sorted(gone) == sorted(RUN)
    assert keys_in(store) == ["2-linux/x"]


def test_what_pages_still_list_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_PAUSE", 0.0), ("_PATIENCE", 0.01), ("_rewrite", lambda *_: None)):
        monkeypatch.setattr(f"ci.cleanup.plan.{name}", value)
    store = fill(tmp_path, IN_STAGING)
    flat(store, "v2-staging/g")
    with pytest.raises(StoreError, match=r"go on listing torch-1.0"):
        carry_out(store, decided(store))
    assert IN_STAGING[0] in keys_in(store)


def test_a_server_that_follows_sidecars_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fill(tmp_path, IN_STAGING)
    flat(store, "v2-staging/g")
    waited = []

    def server(_seconds: float) -> None:
        waited.append(IN_STAGING[0] in keys_in(store) and IN_STAGING[1] not in keys_in(store))
        flat(store, "v2-staging/g")

    monkeypatch.setattr("time.sleep", server)
    monkeypatch.setattr("ci.cleanup.plan._rewrite", lambda *_: None)
    carry_out(store, decided(store))
    assert waited == [True]
    assert keys_in(store) == ["v2-staging/g/index.html", *IN_STAGING[2:]]


@pytest.mark.parametrize("late", [0, 1])
def test_new_promotions_keep_their_files(tmp_path: Path, late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fill(tmp_path, IN_STAGING)
    flat(store, "v2-staging/g")
    asked: list[int] = []

    def in_use(_store: Store) -> frozenset[str]:
        asked.append(1)
        return frozenset({IN_STAGING[0]} if len(asked) > late else ())

    monkeypatch.setattr("ci.cleanup.plan.in_promotion", in_use)
    with pytest.raises(StoreError, match="began meanwhile"):
        carry_out(store, decided(store))
    assert set(IN_STAGING) <= set(keys_in(store))
