import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from core import parallel
from core.errors import ConflictError, DataError, StoreError, WheelError
from core.stores.directory import DirectoryStore
from tests.unit.ci.memory_store import MemoryStore
from tests.unit.ci.publish.index.indexed import MANIFESTS, PREFIX, anew, index, pages, publish, wheel_name

TORCH, NEWER, APEX = (f"{name}-py3-none-any.whl" for name in ("torch-2.9.0", "torch-2.10.0", "apex-1.0"))


def state_key() -> str:
    return f"{PREFIX}/simple/index-state.txt"


def test_one_more_wheel_touches_its_project_the_flat_page_and_what_is_remembered(memory: MemoryStore) -> None:
    publish(memory, TORCH, APEX)
    index(memory)
    publish(memory, NEWER)
    memory.calls.clear()
    indexed = index(memory)
    changed = ["simple/torch/index.html", "simple/torch/index.json", "index.html"]
    assert sorted(indexed.written) == sorted(f"{PREFIX}/{path}" for path in changed)
    put = {key for call, key in memory.calls if call == "put"}
    assert put == {*indexed.written, state_key()}
    read = [key for call, key in memory.calls if call == "read"]
    assert read == [state_key(), f"{MANIFESTS}/{NEWER}.json"]
    assert len([call for call, _ in memory.calls if call != "list"]) == len(read) + len(put) + 2
    assert pages(memory) == anew(memory)


def test_the_number_of_requests_does_not_grow_with_the_files() -> None:
    counts = set()
    for many in (3, 60):
        store = MemoryStore(folder_pages=False)
        publish(store, *(wheel_name(f"p{number % 3}", f"{number}.0") for number in range(many)))
        index(store)
        publish(store, wheel_name("p1", "1000.0"))
        store.calls.clear()
        index(store)
        counts.add(len(store.calls))
    assert len(counts) == 1


def test_projects_are_written_before_what_leads_to_them_and_go_after(memory: MemoryStore) -> None:
    publish(memory, TORCH)
    publish(memory, APEX)
    index(memory)
    order = [key.removeprefix(f"{PREFIX}/") for call, key in memory.calls if call == "put"][-8:]
    assert set(order[:4]) == {
        f"simple/{name}/index.{kind}" for name in ("torch", "apex") for kind in ("html", "json")
    }
    assert order[4:] == ["simple/index.html", "simple/index.json", "index.html", "simple/index-state.txt"]
    memory.objects.pop(f"{MANIFESTS}/{APEX}.json")
    memory.objects.pop(f"{PREFIX}/{APEX}")
    memory.calls.clear()
    index(memory)
    done = [(call, key.removeprefix(f"{PREFIX}/")) for call, key in memory.calls]
    acts = [one for one in done if one[0] in {"put", "delete"}]
    assert acts == [
        ("put", "simple/index.html"),
        ("put", "simple/index.json"),
        ("put", "index.html"),
        ("delete", "simple/apex/index.html"),
        ("delete", "simple/apex/index.json"),
        ("put", "simple/index-state.txt"),
    ]


def test_a_wheel_is_held_back_until_sidecar_and_record_are_there(memory: MemoryStore) -> None:
    publish(memory, TORCH)
    publish(memory, APEX)
    whole = dict(memory.objects)
    record, sidecar = f"{MANIFESTS}/{APEX}.json", f"{PREFIX}/{APEX}.metadata"
    del memory.objects[record], memory.objects[sidecar]
    assert [(one.stored.key, one.why) for one in index(memory).held] == [
        (f"{PREFIX}/{APEX}", "no record names it")
    ]
    memory.objects[record] = whole[record]
    assert [one.why for one in index(memory).held] == ["its metadata sidecar does not exist yet"]
    assert b"apex" not in pages(memory)["index.html"]
    memory.objects[sidecar] = whole[sidecar]
    memory.calls.clear()
    assert index(memory).held == ()
    assert ("read", record) not in memory.calls, "what a record said is remembered"
    assert pages(memory) == anew(memory)


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
def test_a_damaged_memory_is_made_anew(memory: MemoryStore, damage: Callable[[bytes], bytes]) -> None:
    publish(memory, TORCH, APEX)
    index(memory)
    good = pages(memory)
    memory.put_bytes(state_key(), damage(good["simple/index-state.txt"]))
    publish(memory, NEWER)
    assert index(memory).files == 3
    assert pages(memory) == anew(memory)


@pytest.mark.parametrize("path", ["index.html", "simple/index.json", "simple/torch/index.html"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_page_lost_or_overwritten_is_written_again(memory: MemoryStore, path: str, *, gone: bool) -> None:
    publish(memory, TORCH, APEX)
    index(memory)
    good = pages(memory)
    if gone:
        memory.delete(f"{PREFIX}/{path}")
    else:
        memory.put_bytes(f"{PREFIX}/{path}", b"an older page")
    assert index(memory).written == (f"{PREFIX}/{path}",)
    assert pages(memory) == good


CHANGES = ("publish", "replace", "remove", "sidecar", "promised", "yank", "unyank", "failed", "forget")
STEPS = st.lists(
    st.tuples(
        st.sampled_from((*CHANGES, "index")),
        st.sampled_from(["torch", "apex", "triton"]),
        st.sampled_from(["1.0", "1.10", "1.9", "2.0rc1+rocm7.1"]),
    ),
    max_size=14,
)


def take(store: Any, step: str, wheel: str) -> None:
    key = f"{PREFIX}/{wheel}"
    if step == "publish" and key not in store.objects:
        publish(store, wheel)
    elif step == "replace":
        publish(store, wheel, content="again")
    elif step == "remove":
        named = (f"{MANIFESTS}/{one}.json" for one in (wheel, f"another of {wheel}"))
        for one in (*named, f"{key}.metadata", key):
            store.objects.pop(one, None)
    elif step == "promised" and key in store.objects:
        publish(store, wheel, record=f"another of {wheel}", requires_python=">=3.12")
    elif step == "forget":
        store.objects.pop(state_key(), None)
    elif step == "sidecar":
        store.objects.pop(f"{key}.metadata", None)
    elif step == "failed":
        store.put_bytes(
            f"{MANIFESTS}/x.failed.json", b'{"schema_version": 1, "status": "failed", "files": []}'
        )
    elif "yank" in step:
        name, version = wheel.split("-")[:2]
        reasons = {} if step == "unyank" else {wheel: "a <b>", f"{name}=={version}": "all of it"}
        store.put_bytes(f"{PREFIX}/yanked.json", json.dumps(reasons).encode())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(STEPS)
@example([(step, "torch", "1.0") for step in ("publish", "index", "remove", "publish")])
@example([(step, "torch", "1.0") for step in ("publish", "index", "promised")])
def test_what_is_indexed_step_by_step_is_what_is_indexed_at_once(steps: list[tuple[str, str, str]]) -> None:
    store = MemoryStore(folder_pages=False, moments={})
    for step, project, version in steps:
        if step == "index":
            index(store)
        else:
            take(store, step, wheel_name(project, version))
    index(store)
    found, fresh = pages(store), anew(store)
    for one in (found, fresh):
        one.pop("simple/index-state.txt", None)
    if any(key.endswith(".whl") for key in store.objects):
        if b".whl" in fresh.get("index.html", b""):
            assert found == fresh
        else:
            assert all(b".whl" not in page for page in found.values())


def test_a_replaced_file_is_refused_by_its_etag_though_its_size_is_the_same(memory: MemoryStore) -> None:
    publish(memory, TORCH)
    index(memory)
    before = pages(memory)
    memory.put_bytes(f"{PREFIX}/{TORCH}", TORCH.swapcase().encode())
    with pytest.raises(StoreError, match="differs from its record"):
        index(memory)
    assert pages(memory) == before
    indexed = index(memory, strict=False)
    assert [one.why.partition(" in ")[2] for one in indexed.held] == ["memory differs from its record."]
    assert b".whl" not in pages(memory)["index.html"]


def test_an_absent_file_is_left_out_where_it_may_be(memory: MemoryStore) -> None:
    publish(memory, TORCH, APEX)
    index(memory)
    data = memory.objects.pop(f"{PREFIX}/{APEX}")
    with pytest.raises(StoreError, match="is recorded but not in"):
        index(memory)
    assert index(memory, strict=False).files == 1
    memory.objects[f"{PREFIX}/{APEX}"] = data
    assert index(memory, strict=False).files == 2
    assert pages(memory) == anew(memory)


@pytest.mark.parametrize(
    "name", ["torch-<b>-py3-none-any.whl", "<script>-1.0-py3-none-any.whl", "torch-1.0.whl", "torch-x.tar.gz"]
)
def test_a_name_that_is_none_is_refused_with_nothing_written(memory: MemoryStore, name: str) -> None:
    publish(memory, TORCH)
    memory.put_bytes(f"{PREFIX}/{name}", b"")
    with pytest.raises(WheelError, match="is not"):
        index(memory)
    assert pages(memory) == {}
    assert index(memory, strict=False).files == 1


@pytest.mark.parametrize(
    "said",
    [
        *(b"[]", b"{", b'{"torch==2.9.0": 1}', b'{"torch==x": ""}', b'{"x": ""}'),
        *(b"[" * 99999, b'{"a==1": "\\ud800"}'),
    ],
)
def test_reasons_for_yanks_that_are_none_are_refused(memory: MemoryStore, said: bytes) -> None:
    publish(memory, TORCH)
    memory.put_bytes(f"{PREFIX}/yanked.json", said)
    with pytest.raises(DataError, match="does not say what is yanked"):
        index(memory)
    assert pages(memory) == {}


def test_unlisted_yanks_are_named(memory: MemoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    publish(memory, TORCH)
    reasons = dict.fromkeys(["torch==2.9.0", TORCH, "torch==2.9.1", "trch==2.9.0", APEX], "")
    memory.put_bytes(f"{PREFIX}/yanked.json", json.dumps(reasons).encode())
    index(memory)
    said = capsys.readouterr().err
    assert said.count("nothing is listed for") == 3
    assert said.count("Did you mean 'torch==2.9.0'?") == 2
    assert f"for {APEX!r}, which it yanks.\n" in said


def test_a_record_that_is_none_is_refused(memory: MemoryStore) -> None:
    publish(memory, TORCH)
    for said in (
        b"{}",
        b'{"schema_version": 2}',
        b"[",
        b'{"schema_version": 1, "status": "ok", "files": [{}]}',
    ):
        memory.put_bytes(f"{MANIFESTS}/x.json", said)
        with pytest.raises(DataError, match=r"x\.json is not a record"):
            index(memory)


def test_an_older_listing_that_is_written_last_is_mended() -> None:
    """One writer lists, stops; another lists more and writes; the first goes on, conditions ignored."""
    store = MemoryStore(ignores_conditions=True, folder_pages=False)
    publish(store, TORCH)

    def late(call: str, _key: str) -> None:
        if call == "put":
            store.before = lambda _call, _key: None
            publish(store, NEWER)
            index(store)

    store.before = late
    index(store)
    assert pages(store) == anew(store)
    assert NEWER.encode() in pages(store)["index.html"]


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("careless", [False, True])
def test_a_writer_that_is_killed_at_any_request_leaves_what_the_next_one_completes(*, careless: bool) -> None:
    for last in range(200):
        store = MemoryStore(ignores_conditions=careless, folder_pages=False)
        publish(store, TORCH, APEX)
        index(store)
        for key in (f"{MANIFESTS}/{TORCH}.json", f"{PREFIX}/{APEX}"):
            store.objects.pop(key)
        publish(store, TORCH, NEWER, "triton-3.0-py3-none-any.whl")
        left = [last]

        def stop(_call: str, _key: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        store.before = stop
        try:
            index(store)
        except Killed:
            store.before = lambda _call, _key: None
            for name, page in pages(store).items():
                if name.endswith(".html") and name != "simple/index.html":
                    assert b"triton" not in page or f"{PREFIX}/triton-3.0-py3-none-any.whl" in store.objects
            index(store)
            assert pages(store) == anew(store)
        else:
            assert last > 10
            return
    pytest.fail("the index never ended")


def both_upload_and_index(store: Any, number: int) -> None:
    wheels = [wheel_name(f"p{number % 5}", f"{number}.0"), wheel_name("torch", f"2.{number}")]
    publish(store, *wheels)
    index(store)


@pytest.mark.parametrize("kind", ["directory", "memory", "careless"])
def test_thirty_two_jobs_at_once_end_with_a_complete_page(tmp_path: Path, kind: str) -> None:
    store: Any = (
        DirectoryStore(tmp_path)
        if kind == "directory"
        else MemoryStore(ignores_conditions=kind == "careless", folder_pages=False)
    )
    if kind != "directory":
        chance = random.Random(7)  # noqa: S311 - the same each time
        pause = threading.Event()
        store.before = lambda _call, _key: pause.wait(chance.random() * 0.002) and None
    parallel.each(lambda number: both_upload_and_index(store, number), range(32), jobs=32)
    page = store.read(f"{PREFIX}/index.html").decode()
    assert page.count("<li>") == 64
    for number in range(32):
        for wheel, project in (
            (wheel_name(f"p{number % 5}", f"{number}.0"), f"p{number % 5}"),
            (wheel_name("torch", f"2.{number}"), "torch"),
        ):
            assert f">{wheel}</a>" in page
            for suffix in ("html", "json"):
                assert wheel in store.read(f"{PREFIX}/simple/{project}/index.{suffix}").decode()
    before = {one.key: one.etag for one in store.list("run")}
    assert index(store).written == ()
    assert {one.key: one.etag for one in store.list("run")} == before


def test_others_who_always_come_first_are_an_error_in_the_end(memory: MemoryStore) -> None:
    publish(memory, TORCH)

    def first(call: str, key: str) -> None:
        if call == "put":
            memory.objects[key] = str(len(memory.calls)).encode()

    memory.before = first
    with pytest.raises(StoreError, match="written by others 100 times") as caught:
        index(memory)
    assert not isinstance(caught.value, ConflictError)


def test_a_bucket_gets_the_page_of_a_folder_under_its_own_name_too() -> None:
    store = MemoryStore(folder_pages=True)
    publish(store, TORCH)
    publish(store, APEX)
    index(store)
    folders = {f"{PREFIX}/simple/{name}" for name in ("", "torch/", "apex/")}
    assert {key for key in store.objects if key.endswith("/")} == folders
    for folder in folders:
        assert store.objects[folder] == store.objects[f"{folder}index.html"]
    assert index(store).written == ()
    store.objects.pop(f"{PREFIX}/simple/torch/")
    assert index(store).written == (f"{PREFIX}/simple/torch/",)
    store.objects.pop(f"{MANIFESTS}/{APEX}.json")
    store.objects = {key: value for key, value in store.objects.items() if APEX not in key}
    index(store, strict=False)
    assert {key for key in store.objects if "/apex/" in key} == set()
