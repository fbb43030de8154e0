"""Buckets of `rclone serve s3` on this machine: uploads, against `s5cmd` and `aws`, and promotion."""

import random
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from core import console, process
from core.cli.options import ROOT
from core.errors import CheckError
from core.stores.directory import DirectoryStore
from tests.bench.measuring import Figure, Words, Work, in_turn, program, scratch
from tests.kit import runs as pipeline_runs
from tests.kit.runs import RunContents
from tests.kit.s3_proxy import proxied
from tests.kit.s3_servers import S3Server, rclone_serving

SMALL, SMALL_SIZE = 2_000, 4 << 10
LARGE_SIZE = 1 << 30
LATENCY = 0.02
# a family has two packages of ROCm and two wheels a Python
FAMILIES, PYTHONS = 10, 49
FILES = 2 + 2 * PYTHONS


def figures(runs: int) -> Iterator[Figure]:
    """Compare many small files, near and far, and one large one; each from nothing, and nothing changed."""
    with scratch() as place, rclone_serving(place / "server") as server:
        small, large = _small(place / "small"), _large(place / "large")
        many = f"{SMALL:,} files of {console.size(SMALL_SIZE)}"
        yield from _compared(server, many, small, runs, goal="≤ 1.5")
        with proxied(server.endpoint, latency=LATENCY) as proxy:
            slow = server.at(proxy.endpoint)
            yield from _compared(
                slow, f"{many}, {LATENCY * 1000:.0f} ms a request", small, runs, goal="≤ 1.5"
            )
        yield from _compared(server, f"one of {console.size(LARGE_SIZE)}", large, runs, goal="≤ 1.1")


def _compared(server: S3Server, title: str, folder: Path, runs: int, *, goal: str) -> Iterator[Figure]:
    """Upload into new buckets in each run: the server remembers what it listed."""
    made: list[str] = []

    def works() -> Sequence[Work]:
        while made:
            shutil.rmtree(Path(str(server.folder), made.pop()))  # free the disk; the server's folder is ours
        made.extend(server.make_bucket() for _ in range(3))
        to, aws, s5 = (f"s3://{bucket}" for bucket in made)
        ours = ("--artifact-group=g", "--run-id=17", f"--logs-dir={folder}", f"--store={to}")
        calls: Mapping[str, Words] = {
            f"upload, {title}": [sys.executable, "-m", "ci", "upload", *ours],
            "`s5cmd sync`": [program("s5cmd"), "sync", f"{folder}/", f"{s5}/17-linux/logs/g/"],
            "`aws s3 sync`": [program("aws"), "s3", "sync", folder, f"{aws}/17-linux/logs/g/"],
        }
        return [
            Work(name, call, env=server.variables, note=most if "s5cmd" in name else "")
            for name, call in calls.items()
            for most in (goal, "≤ 1.5")
        ]

    ours, again, *others = in_turn(works, runs=runs)
    yield Figure(ours, others[::2])
    yield Figure(replace(again, name="again, nothing changed"), others[1::2])


def _small(folder: Path) -> Path:
    folder.mkdir()
    for number in range(SMALL):
        line = f"{number:08d} a line of a log\n"
        (folder / f"file-{number}.xml").write_text(line * (SMALL_SIZE // len(line)), encoding="utf-8")
    return folder


def _large(folder: Path) -> Path:
    folder.mkdir()
    block = random.Random(5).randbytes(16 << 20)  # noqa: S311 - bytes that nothing compresses
    (folder / "large.bin").write_bytes(block * (LARGE_SIZE // len(block)))
    return folder


def promotion(runs: int) -> Iterator[Figure]:
    """Compare promoting ten families, many objects at a time, with one of them, one after the other."""
    with scratch() as place, rclone_serving(place / "server") as server:
        store = DirectoryStore(place / "runs")
        outputs = pipeline_runs.run_outputs("17")
        families = [f"family-{number}" for number in range(FAMILIES)]
        contents = RunContents(pythons=tuple(f"cp3{number:02d}" for number in range(PYTHONS)))
        for family in families:
            pipeline_runs.publish_complete_run(
                store, outputs, place / "dist", family=family, contents=contents
            )
        run = ("--run-id", outputs.run_id, "--store", store.url)
        buckets: dict[str, int] = {}
        with proxied(server.endpoint, latency=LATENCY) as proxy:
            far = server.at(proxy.endpoint).variables

            def works() -> Sequence[Work]:
                few, every = server.make_bucket(), server.make_bucket()
                for bucket, words in ((few, ("--gpu-family", families[0])), (every, ())):
                    env = process.inherited(**server.variables)
                    process.capture(_call("stage", bucket, *run, *words), cwd=ROOT, env=env)
                proxy.clear()
                buckets.update({few: FILES, every: FILES * FAMILIES})
                many = f"promote {FAMILIES * FILES:,} wheels, {LATENCY * 1000:.0f} ms a request"
                one, alone = f"one by one: {FILES}, times {FAMILIES}", _call("promote", few, "--jobs", "1")
                return [
                    Work(many, _call("promote", every), env=far),
                    Work(one, alone, env=far, times=FAMILIES, note="≤ 0.125 by wall"),
                ]

            ours, baseline = in_turn(works, runs=runs, warm=False)
            *_, every = buckets
            requests = sum(one.path.startswith(f"{every}/") for one in proxy.requests)
        for bucket, count in buckets.items():
            released = Path(str(server.folder), bucket, "v2").rglob("*")
            if (found := sum(one.name.endswith((".whl", ".tar.gz")) for one in released)) != count:
                raise CheckError(f"{found} of {count} wheels were promoted.")
    yield Figure(ours, [baseline], f"{requests:,} requests")


def _call(verb: str, bucket: str, *words: str) -> Sequence[str]:
    where = ["--distribution-store", f"s3://{bucket}", "--release-type", "nightly"]
    return [sys.executable, "-m", "ci", verb, *where, *words]
