from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.cli.options import Common
from core.run import RunOutputs, records
from core.run.records import Cell, FileRecord, Record
from core.stores import Store
from core.wheel import distributions


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A run in a store in a folder, and what fills it."""

    common: Common
    store: Store
    outputs: RunOutputs
    root: Path
    publish: Callable[..., FileRecord]
    record_of: Callable[..., Record]
    make_wheel: Callable[..., Path]


@pytest.fixture
def common(tmp_path: Path) -> Common:
    return Common(root=tmp_path, run_id="17")


@pytest.fixture
def store(common: Common) -> Store:
    return common.open_store()


@pytest.fixture
def outputs(common: Common) -> RunOutputs:
    return common.outputs


@pytest.fixture
def record_of(outputs: RunOutputs) -> Callable[..., Record]:
    """Write down what a stage made, as the stage would."""

    def make(*files: FileRecord, stage: str = "build_torch", **facts: Any) -> Record:
        values = {"run_id": outputs.run_id, "platform": "linux", "started": records.now(), "seconds": 2.5}
        cell = Cell(python="cp312", torch_ref="nightly")
        return Record(stage=stage, files=files, **{**values, "cell": cell, **facts})

    return make


@pytest.fixture
def publish(
    store: Store,
    outputs: RunOutputs,
    tmp_path: Path,
    make_wheel: Callable[..., Path],
    record_of: Callable[..., Record],
) -> Callable[..., FileRecord]:
    """Put a wheel into the run, with the record of a stage that made it."""

    def put(
        name: str = "torch", version: str = "2.10.0+rocm7.1", *, group: str = "g", **facts: Any
    ) -> FileRecord:
        path = make_wheel(tmp_path / "dist", name, version, **facts)
        one = distributions.publish(store, outputs, group, path)
        records.write(store, outputs, group, record_of(one, stage=f"build_{name}_{version}"))
        return one

    return put


@pytest.fixture
def lab(
    common: Common,
    publish: Callable[..., FileRecord],
    record_of: Callable[..., Record],
    make_wheel: Callable[..., Path],
) -> Lab:
    return Lab(
        common=common,
        store=common.open_store(),
        outputs=common.outputs,
        root=common.root,
        publish=publish,
        record_of=record_of,
        make_wheel=make_wheel,
    )
