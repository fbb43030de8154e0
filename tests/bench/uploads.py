"""Uploads to `rclone serve s3` on this machine, against `s5cmd sync` and `aws s3 sync`."""

import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from core import console, process
from core.cli.options import ROOT
from tests.bench.baselines import program
from tests.bench.measuring import Figure, seconds
from tests.integration.s3_servers import S3Server, rclone_serving

Upload = Callable[[Path, str], object]

SMALL, SMALL_SIZE = 2_000, 4 << 10
LARGE_SIZE = 1 << 30
_RUNS = 3


def figures() -> Sequence[Figure]:
    """Compare many small files, and one large one; each from nothing, and again with nothing changed."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        folders = (
            (f"{SMALL:,} files of {console.size(SMALL_SIZE)}", _small(place / "small")),
            (f"one of {console.size(LARGE_SIZE)}", _large(place / "large")),
        )
        with rclone_serving(place / "server") as server:
            tools = _tools(server)
            return [figure for title, folder in folders for figure in _compared(server, tools, title, folder)]


def _compared(server: S3Server, tools: Mapping[str, Upload], title: str, folder: Path) -> Sequence[Figure]:
    """Run the tools in turn, each into buckets of its own, so that a machine's drift hits all."""
    first: dict[str, list[float]] = {name: [] for name in tools}
    again: dict[str, list[float]] = {name: [] for name in tools}
    for _ in range(_RUNS):
        for name, tool in tools.items():
            bucket = server.make_bucket()
            upload = partial(tool, folder, bucket)
            first[name].append(seconds(upload))
            again[name].append(seconds(upload))
            _empty(server, bucket)
    ours, *baselines = tools
    return [
        Figure(
            subject=f"{what}, {title}",
            baseline=baseline,
            times=(statistics.median(times[ours]), statistics.median(times[baseline])),
        )
        for what, times in (("upload", first), ("again, nothing changed", again))
        for baseline in baselines
    ]


def _tools(server: S3Server) -> Mapping[str, Upload]:
    """Return what brings a folder into a bucket."""
    env = process.inherited(**server.variables)
    s5cmd, aws = program("s5cmd"), program("aws")

    def ours(folder: Path, bucket: str) -> None:
        words = [f"--logs-dir={folder}", "--artifact-group=g", "--run-id=17", f"--store=s3://{bucket}"]
        process.capture([sys.executable, "-m", "ci", "upload", *words], cwd=ROOT, env=env)

    def theirs(folder: Path, bucket: str) -> None:
        process.capture([s5cmd, "sync", f"{folder}/", f"s3://{bucket}/17-linux/logs/g/"], env=env)

    def amazons(folder: Path, bucket: str) -> None:
        process.capture([aws, "s3", "sync", folder, f"s3://{bucket}/17-linux/logs/g/"], env=env)

    return {"nox -s upload": ours, "s5cmd sync": theirs, "aws s3 sync": amazons}


def _small(folder: Path) -> Path:
    folder.mkdir()
    for number in range(SMALL):
        line = f"{number:08d} a line of a log\n"
        (folder / f"file-{number}.xml").write_text(line * (SMALL_SIZE // len(line)), encoding="utf-8")
    return folder


def _large(folder: Path) -> Path:
    folder.mkdir()
    block = random.Random(5).randbytes(16 << 20)  # noqa: S311 - bytes that nothing compresses
    with (folder / "large.bin").open("wb") as stream:
        for _ in range(LARGE_SIZE // len(block)):
            stream.write(block)
    return folder


def _empty(server: S3Server, bucket: str) -> None:
    """Free the disk; the server's folder is ours."""
    if server.folder is not None:
        shutil.rmtree(server.folder / bucket)
