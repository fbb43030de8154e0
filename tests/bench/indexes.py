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
from tests.bench.measuring import Figure, Words, Work, in_turn, program, removing, scratch

WHEELS, MANY = 10_000, 100_000
PROJECTS, PER_RECORD = 100, 10
OUTPUTS = RunOutputs(run_id="9", platform="linux")
GROUP = "g"


def figures(runs: int, *, large: bool) -> Iterator[Figure]:
    """Compare an index from nothing with other people's of the same names, and measure one wheel more."""
    for size in (WHEELS, *([MANY] if large else [])):
        with scratch() as place:
            names = [wheel_name(number) for number in range(size)]
            store = DirectoryStore(place / "store")
            for at in range(0, size, PER_RECORD):
                publish(store, names[at : at + PER_RECORD], f"build-{at}")
            yield _from_nothing(place, store, names, runs)
            yield _one_more(store, size, runs)


def wheel_name(number: int) -> str:
    """Name a wheel as nightly builds of many projects are."""
    project, build = number % PROJECTS, number // PROJECTS
    version = f"2.{build}.0.dev20260822+rocm7.{number % 7}"
    return f"project_{project}-{version}-cp312-cp312-manylinux_2_28_x86_64.whl"


def publish(store: DirectoryStore, names: Sequence[str], record: str) -> None:
    """Put wheels as `upload` does: files, sidecars, the record that names them; without its checks."""
    recorded = []
    for name in names:
        key, data = f"{OUTPUTS.python_prefix(GROUP)}/{name}", name.encode()
        metadata = f"Metadata-Version: 2.1\nName: {name.split('-')[0]}\nRequires-Python: >=3.10\n".encode()
        for path, content in ((store.root / key, data), (store.root / f"{key}.metadata", metadata)):
            files.made(path.parent)
            path.write_bytes(content)
        # from now on the digest is remembered, as after an upload
        digests = {"sha256": store.digest(key), "metadata_sha256": hashlib.sha256(metadata).hexdigest()}
        row = {"name": name, "key": key, "size": len(data), "requires_python": ">=3.10"}
        recorded.append({**row, **digests})
    document = {"schema_version": 1, "stage": record, "status": "ok", "files": recorded}
    path = store.root / OUTPUTS.record_key(GROUP, record)
    files.made(path.parent)
    path.write_text(json.dumps(document, indent=2), encoding="utf-8")


def _from_nothing(place: Path, store: DirectoryStore, names: Sequence[str], runs: int) -> Figure:
    pages = store.root / OUTPUTS.python_prefix(GROUP)
    theirs, listed = files.made(place / "piprepo"), place / "packages.json"
    with listed.open("w", encoding="utf-8") as stream:
        for name in names:
            (theirs / name).touch()
            digest = f"sha256={hashlib.sha256(name.encode()).hexdigest()}"
            row = {"filename": name, "hash": digest, "core_metadata": digest, "requires_python": ">=3.10"}
            stream.write(json.dumps(row) + "\n")
    ours = [sys.executable, "-m", "ci", "index", "--run-id", OUTPUTS.run_id, "--artifact-group", GROUP]
    made, where = place / "dumb", ("--packages-url", "../../", "--output-dir")
    dumb: Words = [program("dumb-pypi"), "--package-list-json", listed, *where, made]

    few = len(names) == WHEELS
    title = f"index of {len(names):,} wheels: flat, HTML, JSON, hashes, metadata"
    goal = "≤ 1.5 by CPU" if few else "≤ 2.4 by CPU"
    build: Words = [program("piprepo"), "build", theirs]
    clear = removing(pages / "simple", pages / "index.html")
    works = [
        Work(title, [*ours, "--store", store.url], before=clear, note="" if few else "≤ 200 MiB"),
        Work("`piprepo build`: no hashes", build, before=removing(theirs / "simple"), note=goal),
        Work("`dumb-pypi`", dumb, before=removing(made), note="≤ 0.25"),
    ]
    subject, *baselines = in_turn(works[: 3 if few else 2], runs=runs)
    return Figure(subject, baselines)


def _one_more(store: DirectoryStore, size: int, runs: int) -> Figure:
    """Measure what an index takes where one wheel came; Python and its imports are there."""
    number = count()

    def put() -> None:
        at = next(number)
        publish(store, [f"project_7-3.{at}-py3-none-any.whl"], f"one-{at}")

    def index() -> None:
        source = RecordSource(store=store, prefix=OUTPUTS.manifests_prefix(GROUP))
        write_index(store, OUTPUTS.python_prefix(GROUP), source, title=f"{GROUP} ({OUTPUTS.prefix})")

    note = "without Python's start" + ("; ≤ 0.15 s" if size == WHEELS else "")
    work = Work(f"one wheel more than {size:,}", index, before=put, note=note)
    return Figure(in_turn([work], runs=runs)[0])
