"""How often a flow opens files, asks S3, starts programs, inflates and deflates members.

Counts have no noise: one file that is opened more often is seen here, and in no time that is taken.
"""

import functools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deflate
import pytest

from core.archive import Member, zips
from core.cell import GroupCell
from core.cli.options import Common
from core.errors import CheckError
from core.run.stage import Stage, StageResult, perform
from core.wheel import writer
from core.wheel.editor import edit_wheel
from core.wheel.record import verify_record
from core.wheel.writer import WheelSpec, metadata_text
from tests.bench.comparisons import Comparison, Measurement, Sample
from tests.bench.workloads import scratch_folder
from tests.kit.aws import SETTINGS
from tests.kit.front_doors import run_verb
from tests.kit.small_runs import publish_wheel
from tests.kit.wheels import write_wheel

Step = Callable[[Path], object]


@dataclass(frozen=True, kw_only=True)
class Flow:
    """What is counted, after the steps that have to come first, and how much is expected at most."""

    name: str
    work: Step
    expected: str
    first_steps: tuple[Step, ...] = ()


def put_wheels(*names: str) -> Step:
    """Return a step that writes wheels into a folder of the user's."""

    def write_wheels(root: Path) -> None:
        for name in names:
            write_wheel(root / "wheels", name=name, version="1")

    return write_wheels


def write_with_the_product(root: Path) -> None:
    """Write a wheel of one module as builds do."""
    metadata = metadata_text([("Name", "torch"), ("Version", "1")])
    spec = WheelSpec(distribution="torch", version="1", tag="py3-none-any", metadata=metadata)
    (root / "wheels").mkdir()
    writer.write_wheel(root / "wheels", spec, [Member(name="torch.py", source=b"VERSION = 1")])


def first_wheel(root: Path) -> Path:
    """Return a wheel of that folder."""
    return next((root / "wheels").iterdir())


def call(verb: str, *arguments: object) -> None:
    """Run a verb of `ci`."""
    if run_verb("ci", verb, *arguments) != 0:
        raise CheckError(f"ci {verb} failed.")


def index(root: Path) -> None:
    """Write the pages of the folder."""
    call("index", "--directory", root / "wheels")


def upload(root: Path) -> None:
    """Upload the folder to a bucket."""
    call(
        "upload",
        "--input-dir",
        root / "wheels",
        "--run-id",
        7,
        "--artifact-group",
        "gfx90a-dcgpu",
        "--store",
        "s3://bucket",
    )


def publish(root: Path) -> None:
    """Put two wheels into the run."""
    common = Common(root=root, run_id="17")
    for name in ("torch", "apex"):
        publish_wheel(common.open_store(), common.outputs, root / "dist", name=name, version="1")


def report(root: Path) -> None:
    """Write the page of the run."""
    call("report", "--run-id", "17", "--store", root / "out")


def configure(_root: Path) -> None:
    """Plan for a pull request."""
    call("configure", "--event", "pull_request", "--changed", "a.py")


def build(root: Path) -> None:
    """Perform a stage that makes the wheel."""
    cell = GroupCell(python="3.12", torch_ref="nightly", gpu_family="cpu")
    stage = Stage(name="build_torch", common=Common(root=root, run_id="17"), artifact_group="cpu", cell=cell)
    perform(stage, {"commit": "a"}, lambda: StageResult(files=(first_wheel(root),), details={}))


FLOWS = (
    Flow(name="write a wheel", work=write_with_the_product, expected="≤ 2 files"),
    Flow(
        name="verify a wheel",
        first_steps=(put_wheels("torch"),),
        work=lambda root: verify_record(first_wheel(root)),
        expected="≤ 6 files",
    ),
    Flow(
        name="rewrite a wheel's version",
        first_steps=(put_wheels("torch"),),
        work=lambda root: edit_wheel(first_wheel(root), root, version="2"),
        expected="≤ 6 files",
    ),
    Flow(
        name="index two wheels", first_steps=(put_wheels("apex", "torch"),), work=index, expected="≤ 19 files"
    ),
    Flow(
        name="index a second wheel",
        first_steps=(put_wheels("apex"), index, put_wheels("torch")),
        work=index,
        expected="≤ 14 files",
    ),
    Flow(
        name="upload two wheels",
        first_steps=(put_wheels("apex", "torch"),),
        work=upload,
        expected="≤ 33 requests",
    ),
    Flow(
        name="upload a wheel again",
        first_steps=(put_wheels("apex"), upload),
        work=upload,
        expected="≤ 9 requests",
    ),
    Flow(name="report on two wheels", first_steps=(publish,), work=report, expected="≤ 4 files"),
    Flow(name="plan for a pull request", work=configure, expected="none of these"),
    Flow(name="perform a stage", first_steps=(put_wheels("torch"),), work=build, expected="≤ 11 files"),
    Flow(
        name="perform an unchanged stage",
        first_steps=(put_wheels("torch"), build),
        work=build,
        expected="≤ 4 files",
    ),
)


def count_operations() -> Iterator[Comparison]:
    """Count what each flow does, once; its seconds are those of this one time."""
    for flow in FLOWS:
        with scratch_folder() as root, mocked_bucket():
            for step in flow.first_steps:
                step(root)
            wall_start = time.perf_counter()
            cpu_start = time.process_time()
            with counted_operations(root) as counts:
                flow.work(root)
            sample = Sample(
                wall=time.perf_counter() - wall_start,
                cpu=time.process_time() - cpu_start,
            )
        measurement = Measurement(name=flow.name, samples=[sample], note=flow.expected)
        yield Comparison(subject=measurement, note=format_counts(counts))


def format_counts(counts: Counter[str]) -> str:
    """Return how many operations of each kind there were, as the table says it."""
    if not counts:
        return "none"
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


@contextmanager
def mocked_bucket() -> Iterator[None]:
    """Be an S3 with the bucket ``bucket``."""
    from moto import mock_aws

    from core.stores.s3_client import shared_connection

    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        with mock_aws():
            connection = shared_connection()
            connection.buckets.clear()
            connection.client.create_bucket(Bucket="bucket")
            yield


# Takes what happens while a flow is counted: an audit hook cannot be removed.
WATCHERS: list[Callable[[str, tuple[Any, ...]], None]] = []


@functools.cache
def install_watch() -> None:
    """Let `watch` hear of events from now on."""
    sys.addaudithook(watch)


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Hand an event on to whoever counts now."""
    if WATCHERS:
        WATCHERS[-1](event, arguments)


@contextmanager
def counted_operations(root: Path) -> Iterator[Counter[str]]:
    """Count what happens, of files only those below a folder."""
    from moto.core.botocore_stubber import BotocoreStubber

    counts = Counter[str]()

    def see(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            counts["programs"] += 1
        is_path = event == "open" and isinstance(arguments[0], str | Path)
        if is_path and Path(arguments[0]).is_relative_to(root):
            counts["files"] += 1

    def count_calls(owner: Any, name: str, kind: str) -> None:
        function = getattr(owner, name)

        def count_call(*arguments: Any, **options: Any) -> Any:
            counts[kind] += 1
            return function(*arguments, **options)

        patch.setattr(owner, name, count_call)

    install_watch()
    with pytest.MonkeyPatch.context() as patch:
        count_calls(zips, "chunks", "members inflated")
        count_calls(deflate, "deflate_compress", "members deflated")
        count_calls(BotocoreStubber, "__call__", "requests")
        WATCHERS.append(see)
        try:
            yield counts
        finally:
            WATCHERS.pop()
