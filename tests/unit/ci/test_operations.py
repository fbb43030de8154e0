"""What flows do, counted: no noise trips it, and one file that is opened more does."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import deflate
import pytest

from core.archive import zips
from core.cli import Verb, main
from core.run.records import Cell
from core.run.stage import Made, Stage, perform
from core.wheel.editor import edit_wheel
from core.wheel.record import verify_record
from pytorch_build.test.target.wheel_test_index import Index
from tests.unit.ci.conftest import Lab

Act = Callable[[Lab], object]
VERBS = tuple(Verb(name, f"ci.verbs.{name}", name) for name in ("configure", "index", "report", "upload"))
TESTS = tuple(f"test/test_{one % 9}.py::Test::test_{one}" for one in range(99))
# takes what happens while a flow is counted: an audit hook cannot be removed
WATCHED: list[Callable[[str, tuple[Any, ...]], None]] = []


def call(*words: object) -> None:
    assert main("ci", "", VERBS, list(map(str, words))) == 0


def wheels(*names: str) -> Act:
    return lambda lab: [lab.make_wheel(lab.root / "wheels", name, "1") for name in names]


def one(lab: Lab) -> Path:
    return next((lab.root / "wheels").iterdir())


def index(lab: Lab) -> None:
    call("index", "--directory", lab.root / "wheels")


def upload(lab: Lab) -> None:
    where = ("--artifact-group", "gfx90a-dcgpu", "--store", "s3://bucket")
    call("upload", "--input-dir", lab.root / "wheels", "--run-id", 7, *where)


def stage(lab: Lab) -> None:
    cell = Cell(python="cp312", torch_ref="nightly", gpu_family="cpu")
    built = Stage(name="build_torch", common=lab.common, artifact_group="cpu", cell=cell)
    perform(built, {"commit": "a"}, lambda: Made(files=(one(lab),), details={}))


# a flow: what comes before; processes, files of its folder that are opened, requests to S3, members that are
# inflated and deflated, patterns that are compiled
FLOWS: Mapping[str, tuple[tuple[Act, ...], Act, dict[str, int]]] = {
    "write a wheel": ((), wheels("torch"), {"opened": 2, "deflated": 4}),
    "verify it": ((wheels("torch"),), lambda lab: verify_record(one(lab)), {"opened": 7, "inflated": 5}),
    "rewrite its version": (
        (wheels("torch"),),
        lambda lab: edit_wheel(one(lab), lab.root, version="2"),
        {"opened": 7, "inflated": 1, "deflated": 1},
    ),
    "index": ((wheels("apex", "torch"),), index, {"opened": 29, "inflated": 2}),
    "index one more": ((wheels("apex"), index, wheels("torch")), index, {"opened": 21, "inflated": 1}),
    "upload": ((wheels("apex", "torch"),), upload, {"opened": 8, "requests": 42, "inflated": 2}),
    "upload again": ((wheels("apex"), upload), upload, {"opened": 3, "requests": 9, "inflated": 1}),
    "report": (
        (lambda lab: lab.publish(), lambda lab: lab.publish("apex", "1")),
        lambda lab: call("report", "--run-id", lab.common.run_id, "--store", lab.store.url),
        {"opened": 4},
    ),
    "configure": ((), lambda _: call("configure", "--event", "pull_request", "--changed", "a.py"), {}),
    "stage": ((wheels("torch"),), stage, {"opened": 12, "inflated": 1}),
    "unchanged stage": ((wheels("torch"), stage), stage, {"opened": 4}),
    "skip rules": (
        (),
        lambda _: Index(TESTS[:9]).places((), {f"{test}[*]": re.escape(test) for test in TESTS}),
        {"compiled": 9},
    ),
}


@pytest.fixture(name="_watched", scope="module")
def _watched_fixture() -> None:
    sys.addaudithook(lambda event, arguments: WATCHED[-1](event, arguments) if WATCHED else None)


@pytest.mark.processes
@pytest.mark.usefixtures("s3", "_watched")
@pytest.mark.parametrize("flow", FLOWS)
def test_no_flow_does_more_than_it_did(flow: str, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from moto.core.botocore_stubber import BotocoreStubber  # a second, as in `aws`

    prepare, act, expected = FLOWS[flow]
    found = Counter[str]()

    def see(event: str, arguments: tuple[Any, ...]) -> None:
        named = event == "open" and isinstance(arguments[0], (str, Path))
        found["opened"] += named and Path(arguments[0]).is_relative_to(lab.root)
        found["processes"] += event == "subprocess.Popen"

    def count(owner: Any, name: str, kind: str) -> None:
        function = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            found[kind] += 1
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)

    for step in prepare:
        step(lab)
    count(zips, "chunks", "inflated")
    count(deflate, "deflate_compress", "deflated")
    count(BotocoreStubber, "__call__", "requests")
    if flow == "skip rules":
        count(re, "compile", "compiled")
    WATCHED.append(see)
    try:
        act(lab)
    finally:
        WATCHED.pop()
    assert {kind: count for kind, count in found.items() if count > expected.get(kind, 0)} == {}
    assert +found == expected, "less than before: pin the better number"
