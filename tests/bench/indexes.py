"""Indexes of ten thousand wheels and more, against `piprepo` and `dumb-pypi`; and of one wheel more."""

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from ci.publish.index import RecordSource, write_index
from core import files
from core.run import RunOutputs
from core.stores.directory import DirectoryStore
from tests.bench.baselines import baseline_program
from tests.bench.comparisons import Comparison
from tests.bench.workloads import Workload, measure_in_turn, remove, scratch_folder

WHEELS = 10_000
MANY_WHEELS = 100_000
PROJECTS = 100
WHEELS_OF_RECORD = 10

OUTPUTS = RunOutputs(run_id="9", platform="linux")
GROUP = "g"


def compare_indexes(runs: int, *, large: bool) -> Iterator[Comparison]:
    """Compare an index from nothing with other people's of the same names, and measure one wheel more."""
    wheel_counts = [WHEELS]
    if large:
        wheel_counts.append(MANY_WHEELS)

    for wheel_count in wheel_counts:
        with scratch_folder() as scratch:
            store = DirectoryStore(scratch / "store")
            names = [wheel_name(number) for number in range(wheel_count)]
            for start in range(0, wheel_count, WHEELS_OF_RECORD):
                publish_wheels(store, names[start : start + WHEELS_OF_RECORD], f"build-{start}")

            yield compare_new_index(scratch, store, names, runs)
            yield measure_additional_wheel(store, wheel_count, runs)


def wheel_name(number: int) -> str:
    """Return a name such as those that nightly builds of many projects have."""
    project = number % PROJECTS
    build = number // PROJECTS
    version = f"2.{build}.0.dev20260822+rocm7.{number % 7}"
    return f"project_{project}-{version}-cp312-cp312-manylinux_2_28_x86_64.whl"


def publish_wheels(store: DirectoryStore, names: Sequence[str], stage: str) -> None:
    """Put wheels as `upload` does: files, sidecars, the record that names them; without its checks."""
    document = {
        "schema_version": 1,
        "stage": stage,
        "status": "ok",
        "files": [publish_wheel(store, name) for name in names],
    }
    record = store.root / OUTPUTS.record_key(GROUP, stage)
    files.ensure_folder(record.parent)
    record.write_text(json.dumps(document, indent=2), encoding="utf-8")


def publish_wheel(store: DirectoryStore, name: str) -> dict[str, object]:
    """Put a wheel and its metadata into a store, and return its row in the record."""
    key = f"{OUTPUTS.python_prefix(GROUP)}/{name}"
    content = name.encode()
    project, *_ = name.split("-")
    metadata = f"Metadata-Version: 2.1\nName: {project}\nRequires-Python: >=3.10\n".encode()

    wheel = store.root / key
    files.ensure_folder(wheel.parent)
    wheel.write_bytes(content)
    wheel.with_name(f"{name}.metadata").write_bytes(metadata)

    return {
        "name": name,
        "key": key,
        "size": len(content),
        "requires_python": ">=3.10",
        # from now on the store remembers the digest, as after an upload
        "sha256": store.digest(key),
        "metadata_sha256": hashlib.sha256(metadata).hexdigest(),
    }


def compare_new_index(scratch: Path, store: DirectoryStore, names: Sequence[str], runs: int) -> Comparison:
    """Compare an index where there was none with those of other people's tools."""
    is_small = len(names) == WHEELS
    pages = store.root / OUTPUTS.python_prefix(GROUP)
    piprepo_folder = scratch / "piprepo"
    create_empty_wheels(piprepo_folder, names)
    workloads = [
        Workload(
            name=f"index of {len(names):,} wheels: flat, HTML, JSON, hashes, metadata",
            action=[
                sys.executable,
                "-m",
                "ci",
                "index",
                "--run-id",
                OUTPUTS.run_id,
                "--artifact-group",
                GROUP,
                "--store",
                store.url,
            ],
            prepare=lambda: remove(pages / "simple", pages / "index.html"),
            note="" if is_small else "≤ 200 MiB",
        ),
        Workload(
            name="`piprepo build`: no hashes",
            action=[baseline_program("piprepo"), "build", piprepo_folder],
            prepare=lambda: remove(piprepo_folder / "simple"),
            note="≤ 1" if is_small else "≤ 1.2 by CPU",
        ),
    ]
    if is_small:
        workloads.append(dumb_pypi_workload(scratch, names))

    subject, *baselines = measure_in_turn(workloads, runs=runs)
    return Comparison(subject=subject, baselines=baselines)


def create_empty_wheels(folder: Path, names: Sequence[str]) -> None:
    """Create files of the names, which are all that `piprepo` reads."""
    folder.mkdir()
    for name in names:
        (folder / name).touch()


def dumb_pypi_workload(scratch: Path, names: Sequence[str]) -> Workload:
    """Return what writes an index by `dumb-pypi`, out of a list of wheels."""
    lines: list[str] = []
    for name in names:
        digest = hashlib.sha256(name.encode()).hexdigest()
        row = {
            "filename": name,
            "hash": f"sha256={digest}",
            "core_metadata": f"sha256={digest}",
            "requires_python": ">=3.10",
        }
        lines.append(json.dumps(row) + "\n")
    wheel_list = scratch / "packages.json"
    wheel_list.write_text("".join(lines), encoding="utf-8")

    output = scratch / "dumb"
    return Workload(
        name="`dumb-pypi`",
        action=[
            baseline_program("dumb-pypi"),
            "--package-list-json",
            wheel_list,
            "--packages-url",
            "../../",
            "--output-dir",
            output,
        ],
        prepare=lambda: remove(output),
        note="≤ 0.25",
    )


def measure_additional_wheel(store: DirectoryStore, wheel_count: int, runs: int) -> Comparison:
    """Measure what an index takes where one wheel came; Python and its imports are there."""
    numbers = count()

    def publish_next_wheel() -> None:
        number = next(numbers)
        publish_wheels(store, [f"project_7-3.{number}-py3-none-any.whl"], f"one-{number}")

    def update_index() -> None:
        source = RecordSource(store=store, prefix=OUTPUTS.manifests_prefix(GROUP))
        write_index(store, OUTPUTS.python_prefix(GROUP), source, title=f"{GROUP} ({OUTPUTS.prefix})")

    note = "without Python's start"
    if wheel_count == WHEELS:
        note += "; ≤ 0.15 s"
    workload = Workload(
        name=f"one wheel more than {wheel_count:,}",
        action=update_index,
        prepare=publish_next_wheel,
        note=note,
    )
    (subject,) = measure_in_turn([workload], runs=runs)
    return Comparison(subject=subject)
