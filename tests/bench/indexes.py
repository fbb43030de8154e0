"""Indexes of ten thousand wheels, against `piprepo` and `dumb-pypi`; and of one wheel more."""

import hashlib
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.publish.index import Records, write_index
from core import files
from core.run import RunOutputs
from core.stores.directory import DirectoryStore
from tests.bench.baselines import program
from tests.bench.measuring import Figure, quiet, seconds

WHEELS, PROJECTS, PER_RECORD = 10_000, 100, 10
OUTPUTS = RunOutputs(run_id="9", platform="linux")
GROUP = "g"
_RUNS = 5


@dataclass
class Timed:
    """A store, and the processor's seconds that were spent in it; no folder, as an index sees it."""

    store: DirectoryStore
    spent: float = 0.0
    calls: int = 0
    turn: threading.Lock = field(default_factory=threading.Lock)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if not callable(found):
            return found

        def timed(*arguments: object, **how: object) -> object:
            with self.turn:
                started = time.thread_time()
                try:
                    return found(*arguments, **how)
                finally:
                    self.spent += time.thread_time() - started
                    self.calls += 1

        return timed


def figures() -> Sequence[Figure]:
    """Compare an index from nothing with other people's of the same names, and measure one wheel more."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        names = [wheel_name(number) for number in range(WHEELS)]
        store = DirectoryStore(place / "store")
        for at in range(0, WHEELS, PER_RECORD):
            publish(store, names[at : at + PER_RECORD], f"build-{at}")
        return [*_from_nothing(place, store, names), _one_more(store)]


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
        recorded.append(
            {
                "name": name,
                "key": key,
                "size": len(data),
                "sha256": store.digest(key),  # from now on it is remembered, as after an upload
                "requires_python": ">=3.10",
                "metadata_sha256": hashlib.sha256(metadata).hexdigest(),
            }
        )
    document = {"schema_version": 1, "stage": record, "status": "ok", "files": recorded}
    path = store.root / OUTPUTS.record_key(GROUP, record)
    files.made(path.parent)
    path.write_text(json.dumps(document, indent=2), encoding="utf-8")


def _from_nothing(place: Path, store: DirectoryStore, names: Sequence[str]) -> Sequence[Figure]:
    pages = store.root / OUTPUTS.python_prefix(GROUP)
    theirs = files.made(place / "piprepo")
    for name in names:
        (theirs / name).touch()
    listed = place / "packages.json"
    listed.write_text("\n".join(json.dumps(_listed(name)) for name in names), encoding="utf-8")
    ours = [sys.executable, "-m", "ci", "index", "--run-id", OUTPUTS.run_id, "--artifact-group", GROUP]
    dumb = [program("dumb-pypi"), "--package-list-json", listed, "--output-dir", place / "dumb"]
    tools = {
        "ours": ([*ours, "--store", store.url], (pages / "simple", pages / "index.html")),
        "piprepo build": ([program("piprepo"), "build", theirs], (theirs / "simple",)),
        "dumb-pypi": ([*dumb, "--packages-url", "../../"], (place / "dumb",)),
    }
    times: dict[str, list[float]] = {name: [] for name in tools}
    for _ in range(_RUNS):  # in turn, so that a machine's drift hits all
        for name, (argv, made) in tools.items():
            for path in made:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            times[name].append(seconds(lambda argv=argv: quiet([str(word) for word in argv])))  # type: ignore[misc]
    middle = {name: statistics.median(found) for name, found in times.items()}
    return [
        Figure(
            subject=f"index of {WHEELS:,} wheels: flat, HTML, JSON, hashes, metadata",
            baseline=baseline,
            times=(middle["ours"], middle[baseline]),
            note=note,
        )
        for baseline, note in (("piprepo build", "which writes no hashes"), ("dumb-pypi", "goal: under 0.25"))
    ]


def _listed(name: str) -> dict[str, str]:
    digest = f"sha256={hashlib.sha256(name.encode()).hexdigest()}"
    return {"filename": name, "hash": digest, "core_metadata": digest, "requires_python": ">=3.10"}


def _one_more(store: DirectoryStore) -> Figure:
    """Measure what an index takes beside the store: reading, comparing, rendering; and all of it."""
    own, whole, calls = [], [], set()
    for number in range(2 * _RUNS):
        publish(store, [f"project_7-3.{number}-py3-none-any.whl"], f"one-{number}")
        timed = Timed(store)
        source = Records(store=timed, prefix=OUTPUTS.manifests_prefix(GROUP))
        started = time.process_time()  # what others do on the machine meanwhile is not the index's
        write_index(timed, OUTPUTS.python_prefix(GROUP), source, title=f"{GROUP} ({OUTPUTS.prefix})")
        taken = time.process_time() - started
        own.append(taken - timed.spent)
        whole.append(taken)
        calls.add(timed.calls)
    return Figure(
        subject=f"one wheel more than {WHEELS:,}, processor's seconds without the store's",
        baseline="with them",
        times=(statistics.median(own[1:]), statistics.median(whole[1:])),
        note=f"goal: under 0.05 s; {'/'.join(map(str, sorted(calls)))} requests",
    )
