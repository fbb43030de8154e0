from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from ci.cleanup.plan import Held, Plan, Policy, Rules, carry_out, plan_of
from ci.cleanup.units import units
from core.errors import StoreError
from core.stores.directory import DirectoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from core.stores import Store

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
STAGED = [
    f"v2-staging/g/torch-{version}-py3-none-any.whl{suffix}"
    for version in ("1.0", "2.0")
    for suffix in ("", ".metadata")
]


class Killed(BaseException):
    pass


class Recorder(DirectoryStore):
    """Notes what is deleted, and dies at a deletion."""

    def __init__(self, root: Path, dies_at: int = -1) -> None:
        super().__init__(root)
        object.__setattr__(self, "gone", [])
        object.__setattr__(self, "dies_at", dies_at)

    def delete(self, key: str) -> None:
        gone: list[str] = self.__dict__["gone"]
        if len(gone) == self.__dict__["dies_at"]:
            raise Killed
        super().delete(key)
        gone.append(key)


def fill(root: Path, keys: Sequence[str]) -> DirectoryStore:
    store = DirectoryStore(root)
    for key in keys:
        store.put_bytes(key, key.encode())
    return store


def flat(store: Store, folder: str, without: frozenset[str] = frozenset()) -> None:
    """Write a staging folder's page as the indexer would: what has its sidecar, less what is to go."""
    keys = [one.key for one in store.list(folder)]
    wheels = [key for key in keys if key.endswith(".whl") and f"{key}.metadata" in keys]
    links = "".join(f'<a href="{key.rpartition("/")[2]}">x</a>' for key in wheels if key not in without)
    store.put_bytes(f"{folder}/index.html", links.encode())


def decided(store: DirectoryStore) -> Plan:
    now = datetime.fromtimestamp(LATER, tz=UTC)
    return plan_of(units(store.list("")), Rules(policy=POLICY, run_ids="[0-9]+", now=now), Held())


def keys(store: DirectoryStore) -> list[str]:
    return [one.key for one in store.list("")]


def test_pages_go_first_then_sidecars_then_wheels_then_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.parallel.each", lambda action, items: [action(one) for one in items])
    fill(tmp_path, [*RUN, "2-linux/x"])
    store = Recorder(tmp_path)
    assert carry_out(store, decided(store), rewrite=flat, in_use=frozenset) == len(RUN)
    gone: list[str] = store.__dict__["gone"]
    kinds = [
        0 if "index" in key else 1 if key.endswith(".metadata") else 2 if key.endswith((".whl", ".gz")) else 3
        for key in gone
    ]
    assert kinds == sorted(kinds)
    assert sorted(gone) == sorted(RUN)
    assert keys(store) == ["2-linux/x"]


@pytest.mark.parametrize("step", range(len(RUN) + 3))
def test_killed_at_any_deletion_it_ends_as_if_undisturbed_and_no_page_ever_lists_what_is_gone(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.parallel.each", lambda action, items: [action(one) for one in items])
    whole = fill(tmp_path, [*RUN, "2-linux/x", *STAGED])
    flat(whole, "v2-staging/g")
    dying = Recorder(tmp_path, dies_at=step)
    try:
        carry_out(dying, decided(whole), rewrite=flat, in_use=frozenset)
    except Killed:
        page = whole.read("v2-staging/g/index.html").decode()
        there = keys(whole)
        for version in ("1.0", "2.0"):
            name = f"torch-{version}-py3-none-any.whl"
            assert name not in page or f"v2-staging/g/{name}" in there
    carry_out(whole, decided(whole), rewrite=flat, in_use=frozenset)
    assert keys(whole) == ["2-linux/x", "v2-staging/g/index.html", *STAGED[2:]]
    assert "torch-1.0" not in whole.read("v2-staging/g/index.html").decode()
    assert not decided(whole).goes


def test_where_no_page_follows_nothing_that_is_listed_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci.cleanup.plan._PAUSE", 0.0)
    store = fill(tmp_path, STAGED)
    flat(store, "v2-staging/g")
    with pytest.raises(StoreError, match=r"go on listing torch-1.0"):
        carry_out(store, decided(store), rewrite=lambda *_: None, in_use=frozenset, patience=0.01)
    assert STAGED[0] in keys(store)


def test_a_server_that_follows_the_sidecars_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fill(tmp_path, STAGED)
    flat(store, "v2-staging/g")
    waited = []

    def server(_seconds: float) -> None:
        waited.append(STAGED[0] in keys(store) and STAGED[1] not in keys(store))
        flat(store, "v2-staging/g")

    monkeypatch.setattr("time.sleep", server)
    carry_out(store, decided(store), rewrite=lambda *_: None, in_use=frozenset)
    assert waited == [True]
    assert keys(store) == ["v2-staging/g/index.html", *STAGED[2:]]


@pytest.mark.parametrize("late", [0, 1])
def test_a_promotion_that_begins_meanwhile_keeps_its_files(tmp_path: Path, late: int) -> None:
    store = fill(tmp_path, STAGED)
    flat(store, "v2-staging/g")
    asked: list[int] = []

    def in_use() -> frozenset[str]:
        asked.append(1)
        return frozenset({STAGED[0]} if len(asked) > late else ())

    with pytest.raises(StoreError, match="began meanwhile"):
        carry_out(store, decided(store), rewrite=flat, in_use=in_use)
    assert set(STAGED) <= set(keys(store))
