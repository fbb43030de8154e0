"""Runs of a wheel or two, each with the record of the step that built it."""

from collections.abc import Sequence
from pathlib import Path

from core.run import RunOutputs
from core.run.records import FileRecord
from core.stores import Store
from tests.kit import runs, wheels

GROUP = "g"


def publish_wheel(
    store: Store,
    run: RunOutputs,
    folder: Path,
    *,
    name: str = "torch",
    version: str = "2.10.0+rocm7.1",
    group: str = GROUP,
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
) -> FileRecord:
    """Put a wheel into a run, with the record of a build of its own; return what that says of the wheel."""
    path = wheels.write_wheel(folder, name=name, version=version, tag=tag, requires=requires)
    (record,) = runs.publish_files(
        store,
        run,
        [path],
        step=f"build_{name}_{version}",
        family=group,
        python="cp312",
        torch_ref="nightly",
    )
    return record
