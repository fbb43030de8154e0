from __future__ import annotations

import json
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core import parallel
from core.errors import ConflictError, DataError, StoreError, WheelError
from core.stores.directory import DirectoryStore
from core.stores.location import open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TORCH, NEWER, APEX = (f"{name}-py3-none-any.whl" for name in ("torch-2.9.0", "torch-2.10.0", "apex-1.0"))


def state_key(tools: Any) -> str:
    return f"{tools.prefix}/simple/index-state.txt"


def test_one_more_wheel_touches_its_project_the_flat_page_and_what_is_remembered(
    memory: Any, tools: Any
) -> None:
    tools.publish(memory, TORCH, APEX)
    tools.index(memory)
    tools.publish(memory, NEWER)
    memory.calls.clear()
    indexed = tools.index(memory)
    changed = ["simple/torch/index.html", "simple/torch/index.json", "index.html"]
    assert sorted(indexed.written) == sorted(f"{tools.prefix}/{path}" for path in changed)
    put = {key for call, key in memory.calls if call == "put"}
    assert put == {*indexed.written, state_key(tools)}
    read = [key for call, key in memory.calls if call == "read"]
    assert read == [state_key(tools), f"{tools.manifests}/{NEWER}.json"]
    assert len([call for call, _ in memory.calls if call != "list"]) == len(read) + len(put) + 2
    assert memory.pages() == tools.anew(memory)


def test_the_number_of_requests_does_not_grow_with_the_files(tools: Any) -> None:
    counts = set()
    for many in (3, 60):
        store = tools.store()
        tools.publish(store, *(tools.wheel(f"p{number % 3}", f"{number}.0") for number in range(many)))
        tools.index(store)
        tools.publish(store, tools.wheel("p1", "1000.0"))
        store.calls.clear()
        tools.index(store)
        counts.add(len(store.calls))
    assert len(counts) == 1


def test_nothing_is_written_when_nothing_changed(memory: Any, tools: Any) -> None:
    tools.publish(memory, TORCH, APEX)
    tools.index(memory)
    memory.calls.clear()
    indexed = tools.index(memory)
    assert (indexed.written, indexed.removed, indexed.files) == ((), (), 2)
    assert {call for call, _ in memory.calls} == {"list", "find", "read"}


def test_projects_are_written_before_what_leads_to_them_and_go_after(memory: Any, tools: Any) -> None:
    tools.publish(memory, TORCH)
    tools.publish(memory, APEX)
    tools.index(memory)
    order = [key.removeprefix(f"{tools.prefix}/") for call, key in memory.calls if call == "put"][-8:]
    assert set(order[:4]) == {
        f"simple/{name}/index.{kind}" for name in ("torch", "apex") for kind in ("html", "json")
    }
    assert order[4:] == ["simple/index.html", "simple/index.json", "index.html", "simple/index-state.txt"]
    memory.objects.pop(f"{tools.manifests}/{APEX}.json")
    memory.objects.pop(f"{tools.prefix}/{APEX}")
    memory.calls.clear()
    tools.index(memory)
    done = [(call, key.removeprefix(f"{tools.prefix}/")) for call, key in memory.calls]
    acts = [one for one in done if one[0] in {"put", "delete"}]
    assert acts == [
        ("put", "simple/index.html"),
        ("put", "simple/index.json"),
        ("put", "index.html"),
        ("delete", "simple/apex/index.html"),
        ("delete", "simple/apex/index.json"),
        ("put", "simple/index-state.txt"),
    ]


def test_a_wheel_is_held_back_until_sidecar_and_record_are_there(memory: Any, tools: Any) -> None:
    tools.publish(memory, TORCH)
    tools.publish(memory, APEX)
    whole = dict(memory.objects)
    record, sidecar = f"{tools.manifests}/{APEX}.json", f"{tools.prefix}/{APEX}.metadata"
    del memory.objects[record], memory.objects[sidecar]
    assert [(one.stored.key, one.why) for one in tools.index(memory).held] == [
        (f"{tools.prefix}/{APEX}", "no record names it")
    ]
    memory.objects[record] = whole[record]
    assert [one.why for one in tools.index(memory).held] == ["its metadata sidecar is not there yet"]
    assert b"apex" not in memory.pages()["index.html"]
    memory.objects[sidecar] = whole[sidecar]
    memory.calls.clear()
    assert tools.index(memory).held == ()
    assert ("read", record) not in memory.calls, "what a record said is remembered"
    assert memory.pages() == tools.anew(memory)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data.replace(b"torch-2.9", b"torch-2.8", 1),
        lambda data: data.replace(b'"schema":2', b'"schema":1'),
        lambda data: data.replace(b'"form":"', b'"form":"x'),
        lambda _data: b"",
        lambda _data: b"{}\n",
        lambda _data: b"\xff\n[",
        lambda _data: b"[]\nx",
    ],
)
def test_a_damaged_memory_is_made_anew(memory: Any, tools: Any, damage: Callable[[bytes], bytes]) -> None:
    tools.publish(memory, TORCH, APEX)
    tools.index(memory)
    good = memory.pages()
    memory.put_bytes(state_key(tools), damage(good["simple/index-state.txt"]))
    tools.publish(memory, NEWER)
    assert tools.index(memory).files == 3
    assert memory.pages() == tools.anew(memory)


@pytest.mark.parametrize("path", ["index.html", "simple/index.json", "simple/torch/index.html"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_page_that_was_lost_or_overwritten_is_written_again(
    memory: Any, tools: Any, path: str, *, gone: bool
) -> None:
    tools.publish(memory, TORCH, APEX)
    tools.index(memory)
    good = memory.pages()
    if gone:
        memory.delete(f"{tools.prefix}/{path}")
    else:
        memory.put_bytes(f"{tools.prefix}/{path}", b"an older page")
    assert tools.index(memory).written == (f"{tools.prefix}/{path}",)
    assert memory.pages() == good


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "replace", "remove", "sidecar", "yank", "unyank", "failed", "index"]),
        st.sampled_from(["torch", "apex", "triton"]),
        st.sampled_from(["1.0", "1.10", "1.9", "2.0rc1+rocm7.1"]),
    ),
    max_size=14,
)


def take(store: Any, tools: Any, step: str, wheel: str) -> None:
    key = f"{tools.prefix}/{wheel}"
    if step == "publish" and key not in store.objects:
        tools.publish(store, wheel)
    elif step == "replace":
        tools.publish(store, wheel, content="again")
    elif step == "remove":
        for one in (f"{tools.manifests}/{wheel}.json", f"{key}.metadata", key):
            store.objects.pop(one, None)
    elif step == "sidecar":
        store.objects.pop(f"{key}.metadata", None)
    elif step == "failed":
        store.put_bytes(
            f"{tools.manifests}/x.failed.json", b'{"schema_version": 1, "status": "failed", "files": []}'
        )
    elif "yank" in step:
        name, version = wheel.split("-")[:2]
        reasons = {} if step == "unyank" else {wheel: "a <b>", f"{name}=={version}": "all of it"}
        store.put_bytes(f"{tools.prefix}/yanked.json", json.dumps(reasons).encode())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(STEPS)
def test_what_is_indexed_step_by_step_is_what_is_indexed_at_once(
    tools: Any, steps: list[tuple[str, str, str]]
) -> None:
    store = tools.store()
    for step, project, version in steps:
        if step == "index":
            tools.index(store)
        else:
            take(store, tools, step, tools.wheel(project, version))
    tools.index(store)
    pages, fresh = store.pages(), tools.anew(store)
    for one in (pages, fresh):
        one.pop("simple/index-state.txt", None)
    if any(key.endswith(".whl") for key in store.objects):
        if b".whl" in fresh.get("index.html", b""):
            assert pages == fresh
        else:
            assert all(b".whl" not in page for page in pages.values())


def test_a_replaced_file_is_refused_by_its_etag_though_its_size_is_the_same(memory: Any, tools: Any) -> None:
    tools.publish(memory, TORCH)
    tools.index(memory)
    before = memory.pages()
    memory.put_bytes(f"{tools.prefix}/{TORCH}", TORCH.swapcase().encode())
    with pytest.raises(StoreError, match="differs from its record"):
        tools.index(memory)
    assert memory.pages() == before
    indexed = tools.index(memory, strict=False)
    assert [one.why.partition(" in ")[2] for one in indexed.held] == ["memory differs from its record."]
    assert b".whl" not in memory.pages()["index.html"]


def test_an_absent_file_is_left_out_where_it_may_be(memory: Any, tools: Any) -> None:
    tools.publish(memory, TORCH, APEX)
    tools.index(memory)
    data = memory.objects.pop(f"{tools.prefix}/{APEX}")
    with pytest.raises(StoreError, match="is recorded but not in"):
        tools.index(memory)
    assert tools.index(memory, strict=False).files == 1
    memory.objects[f"{tools.prefix}/{APEX}"] = data
    assert tools.index(memory, strict=False).files == 2
    assert memory.pages() == tools.anew(memory)


@pytest.mark.parametrize(
    "name", ["torch-<b>-py3-none-any.whl", "<script>-1.0-py3-none-any.whl", "torch-1.0.whl", "torch-x.tar.gz"]
)
def test_a_name_that_is_none_is_refused_with_nothing_written(memory: Any, tools: Any, name: str) -> None:
    tools.publish(memory, TORCH)
    memory.put_bytes(f"{tools.prefix}/{name}", b"")
    with pytest.raises(WheelError, match="is no"):
        tools.index(memory)
    assert memory.pages() == {}
    assert tools.index(memory, strict=False).files == 1


@pytest.mark.parametrize("said", [b"[]", b"{", b'{"torch==2.9.0": 1}', b'{"torch==x": ""}', b'{"x": ""}'])
def test_reasons_for_yanks_that_are_none_are_refused(memory: Any, tools: Any, said: bytes) -> None:
    tools.publish(memory, TORCH)
    memory.put_bytes(f"{tools.prefix}/yanked.json", said)
    with pytest.raises(DataError, match="does not say what is yanked"):
        tools.index(memory)
    assert memory.pages() == {}


def test_a_record_that_is_none_is_refused(memory: Any, tools: Any) -> None:
    tools.publish(memory, TORCH)
    for said in (
        b"{}",
        b'{"schema_version": 2}',
        b"[",
        b'{"schema_version": 1, "status": "ok", "files": [{}]}',
    ):
        memory.put_bytes(f"{tools.manifests}/x.json", said)
        with pytest.raises(DataError, match=r"x\.json is no record"):
            tools.index(memory)


def test_a_server_that_refuses_a_condition_that_holds_is_written_without_it(tools: Any) -> None:
    store = tools.store(stern=True)
    for wheel in (TORCH, NEWER):
        tools.publish(store, wheel)
        tools.index(store)
    assert store.pages() == tools.anew(store)


def test_an_older_listing_that_is_written_last_is_mended(tools: Any) -> None:
    """One writer lists, stops; another lists more and writes; the first goes on, conditions ignored."""
    store = tools.store(careless=True)
    tools.publish(store, TORCH)

    def late(call: str, _key: str) -> None:
        if call == "put":
            store.before = lambda _call, _key: None
            tools.publish(store, NEWER)
            tools.index(store)

    store.before = late
    tools.index(store)
    assert store.pages() == tools.anew(store)
    assert NEWER.encode() in store.pages()["index.html"]


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("careless", [False, True])
def test_a_writer_that_is_killed_at_any_request_leaves_what_the_next_one_completes(
    tools: Any, *, careless: bool
) -> None:
    for last in range(200):
        store = tools.store(careless=careless)
        tools.publish(store, TORCH, APEX)
        tools.index(store)
        for key in (f"{tools.manifests}/{TORCH}.json", f"{tools.prefix}/{APEX}"):
            store.objects.pop(key)
        tools.publish(store, TORCH, NEWER, "triton-3.0-py3-none-any.whl")
        left = [last]

        def stop(_call: str, _key: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        store.before = stop
        try:
            tools.index(store)
        except Killed:
            store.before = lambda _call, _key: None
            for name, page in store.pages().items():
                if name.endswith(".html") and name != "simple/index.html":
                    assert (
                        b"triton" not in page
                        or f"{tools.prefix}/triton-3.0-py3-none-any.whl" in store.objects
                    )
            tools.index(store)
            assert store.pages() == tools.anew(store)
        else:
            assert last > 10
            return
    pytest.fail("the index never ended")


def both_upload_and_index(store: Any, tools: Any, number: int) -> None:
    wheels = [tools.wheel(f"p{number % 5}", f"{number}.0"), tools.wheel("torch", f"2.{number}")]
    tools.publish(store, *wheels)
    tools.index(store)


@pytest.mark.parametrize("kind", ["directory", "memory", "careless"])
def test_thirty_two_jobs_at_once_end_with_a_complete_page(tools: Any, tmp_path: Path, kind: str) -> None:
    store: Any = DirectoryStore(tmp_path) if kind == "directory" else tools.store(careless=kind == "careless")
    if kind != "directory":
        chance = random.Random(7)  # noqa: S311 - the same each time
        pause = threading.Event()
        store.before = lambda _call, _key: pause.wait(chance.random() * 0.002) and None
    parallel.each(lambda number: both_upload_and_index(store, tools, number), range(32), jobs=32)
    page = store.read(f"{tools.prefix}/index.html").decode()
    assert page.count("<li>") == 64
    for number in range(32):
        for wheel, project in (
            (tools.wheel(f"p{number % 5}", f"{number}.0"), f"p{number % 5}"),
            (tools.wheel("torch", f"2.{number}"), "torch"),
        ):
            assert f">{wheel}</a>" in page
            for suffix in ("html", "json"):
                assert wheel in store.read(f"{tools.prefix}/simple/{project}/index.{suffix}").decode()
    before = {one.key: one.etag for one in store.list("run")}
    assert tools.index(store).written == ()
    assert {one.key: one.etag for one in store.list("run")} == before


def test_others_who_always_come_first_are_an_error_in_the_end(memory: Any, tools: Any) -> None:
    tools.publish(memory, TORCH)

    def first(call: str, key: str) -> None:
        if call == "put":
            memory.clock += 1
            memory.objects[key] = (b"x", str(memory.clock), memory.clock)

    memory.before = first
    with pytest.raises(StoreError, match="written by others 100 times") as caught:
        tools.index(memory)
    assert not isinstance(caught.value, ConflictError)


def test_open_store_gives_what_an_index_needs(tools: Any, tmp_path: Path) -> None:
    store = open_store(str(tmp_path), root=tmp_path)
    tools.publish(store, TORCH)
    assert tools.index(store).files == 1


def test_a_bucket_gets_the_page_of_a_folder_under_its_own_name_too(tools: Any) -> None:
    store = tools.store()
    store.folders = True
    tools.publish(store, TORCH)
    tools.publish(store, APEX)
    tools.index(store)
    folders = {f"{tools.prefix}/simple/{name}" for name in ("", "torch/", "apex/")}
    assert {key for key in store.objects if key.endswith("/")} == folders
    for folder in folders:
        assert store.objects[folder][0] == store.objects[f"{folder}index.html"][0]
    assert tools.index(store).written == ()
    store.objects.pop(f"{tools.prefix}/simple/torch/")
    assert tools.index(store).written == (f"{tools.prefix}/simple/torch/",)
    store.objects.pop(f"{tools.manifests}/{APEX}.json")
    store.objects = {key: value for key, value in store.objects.items() if APEX not in key}
    tools.index(store, strict=False)
    assert {key for key in store.objects if "/apex/" in key} == set()
