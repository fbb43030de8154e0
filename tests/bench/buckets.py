"""Buckets of `rclone serve s3` on this machine: uploads, against `s5cmd` and `aws`, and promotion."""

import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from core import console, process
from core.cli.options import ROOT
from core.errors import CheckError
from core.stores.directory import DirectoryStore
from tests.bench.baselines import baseline_program
from tests.bench.comparisons import Comparison
from tests.bench.workloads import Command, Workload, measure_rounds, scratch_folder
from tests.kit import runs as pipeline_runs
from tests.kit.runs import RunContents
from tests.kit.s3_proxy import proxied
from tests.kit.s3_servers import S3Server, rclone_serving

SMALL_FILES = 2_000
SMALL_SIZE = 4 * 1024
LARGE_SIZE = 1024**3
BLOCK_SIZE = 16 * 1024**2

LATENCY = 0.02
PER_REQUEST = f"{LATENCY * 1000:.0f} ms a request"

FAMILIES = tuple(f"family-{number}" for number in range(10))
PYTHONS = tuple(f"cp3{number:02d}" for number in range(49))
# a family has two packages of ROCm and two wheels a Python
FILES_OF_FAMILY = 2 + 2 * len(PYTHONS)


CI = (sys.executable, "-m", "ci")


# Uploads


def compare_uploads(runs: int) -> Iterator[Comparison]:
    """Compare many small files, near and far, and one large one; each from nothing, and nothing changed."""
    with scratch_folder() as scratch, rclone_serving(scratch / "server") as server:
        small_files = write_small_files(scratch / "small")
        large_file = write_large_file(scratch / "large")
        title = f"{SMALL_FILES:,} files of {console.size(SMALL_SIZE)}"

        upload = Upload(title=title, folder=small_files, goal="≤ 1.5")
        yield from compare_upload(server, upload, runs)

        with proxied(server.endpoint, latency=LATENCY) as proxy:
            slow_upload = replace(upload, title=f"{title}, {PER_REQUEST}")
            yield from compare_upload(server.at(proxy.endpoint), slow_upload, runs)

        title = f"one of {console.size(LARGE_SIZE)}"
        yield from compare_upload(server, Upload(title=title, folder=large_file, goal="≤ 1.1"), runs)


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A folder that is uploaded, and what a first upload may take of the time of `s5cmd`."""

    title: str
    folder: Path
    goal: str

    def product_command(self, bucket: str) -> Command:
        """Return the command of ours: files go as logs, so that all tools write the same objects."""
        options = ("--artifact-group=g", "--run-id=17", f"--logs-dir={self.folder}")
        return [*CI, "upload", *options, f"--store=s3://{bucket}"]

    def s5cmd_command(self, bucket: str) -> Command:
        """Return the command of `s5cmd`."""
        target = f"s3://{bucket}/17-linux/logs/g/"
        return [baseline_program("s5cmd"), "sync", f"{self.folder}/", target]

    def aws_command(self, bucket: str) -> Command:
        """Return the command of Amazon's tool."""
        target = f"s3://{bucket}/17-linux/logs/g/"
        return [baseline_program("aws"), "s3", "sync", self.folder, target]


def compare_upload(server: S3Server, upload: Upload, runs: int) -> Iterator[Comparison]:
    """Compare a first upload into new buckets with other tools, and a second one into the same."""
    buckets: list[str] = []

    def new_workloads() -> Sequence[Workload]:
        # The server remembers what it listed, so each round needs new buckets; the old ones take up the disk.
        for bucket in buckets:
            shutil.rmtree(bucket_folder(server, bucket))
        buckets[:] = [server.make_bucket() for _tool in range(3)]
        product_bucket, s5cmd_bucket, aws_bucket = buckets

        product = Workload(
            name=f"upload, {upload.title}",
            action=upload.product_command(product_bucket),
            variables=server.variables,
        )
        s5cmd = Workload(
            name="`s5cmd sync`",
            action=upload.s5cmd_command(s5cmd_bucket),
            variables=server.variables,
            note=upload.goal,
        )
        aws = Workload(
            name="`aws s3 sync`",
            action=upload.aws_command(aws_bucket),
            variables=server.variables,
        )
        product_again = replace(product, name="again, nothing changed")
        s5cmd_again = replace(s5cmd, note="≤ 1.5")
        return [product, product_again, s5cmd, s5cmd_again, aws, aws]

    product, product_again, s5cmd, s5cmd_again, aws, aws_again = measure_rounds(new_workloads, runs=runs)
    yield Comparison(subject=product, baselines=[s5cmd, aws])
    yield Comparison(subject=product_again, baselines=[s5cmd_again, aws_again])


def write_small_files(folder: Path) -> Path:
    """Write many files of a few lines each."""
    folder.mkdir()
    for number in range(SMALL_FILES):
        line = f"{number:08d} a line of a log\n"
        content = line * (SMALL_SIZE // len(line))
        (folder / f"file-{number}.xml").write_text(content, encoding="utf-8")
    return folder


def write_large_file(folder: Path) -> Path:
    """Write one file that cannot be compressed much."""
    folder.mkdir()
    block = random.Random(5).randbytes(BLOCK_SIZE)  # noqa: S311 - bytes that nothing compresses
    (folder / "large.bin").write_bytes(block * (LARGE_SIZE // BLOCK_SIZE))
    return folder


def bucket_folder(server: S3Server, bucket: str) -> Path:
    """Return where the server keeps a bucket: its folder is ours."""
    return Path(str(server.folder), bucket)


# Promotion


def compare_promotion(runs: int) -> Iterator[Comparison]:
    """Compare promoting ten families, many objects at a time, with one of them, one after the other."""
    file_count = len(FAMILIES) * FILES_OF_FAMILY
    with scratch_folder() as scratch, rclone_serving(scratch / "server") as server:
        store = DirectoryStore(scratch / "runs")
        publish_families(store, scratch / "dist")
        buckets_of_one: list[str] = []
        buckets_of_all: list[str] = []

        with proxied(server.endpoint, latency=LATENCY) as proxy:
            variables = server.at(proxy.endpoint).variables

            def new_workloads() -> Sequence[Workload]:
                bucket_of_one = server.make_bucket()
                bucket_of_all = server.make_bucket()
                stage_run(server, bucket_of_one, store, "--gpu-family", FAMILIES[0])
                stage_run(server, bucket_of_all, store)
                buckets_of_one.append(bucket_of_one)
                buckets_of_all.append(bucket_of_all)
                # only the requests of the last round are counted
                proxy.clear()
                return [
                    Workload(
                        name=f"promote {file_count:,} wheels, {PER_REQUEST}",
                        action=release_command("promote", bucket_of_all),
                        variables=variables,
                    ),
                    Workload(
                        name=f"one by one: {FILES_OF_FAMILY}, times {len(FAMILIES)}",
                        action=release_command("promote", bucket_of_one, "--jobs", "1"),
                        variables=variables,
                        scale=len(FAMILIES),
                        note="≤ 0.125 by wall",
                    ),
                ]

            together, one_by_one = measure_rounds(new_workloads, runs=runs, warm_up=False)
            paths = [request.path for request in proxy.requests]
            request_count = sum(path.startswith(f"{buckets_of_all[-1]}/") for path in paths)

        for bucket in buckets_of_one:
            check_promoted(bucket_folder(server, bucket), FILES_OF_FAMILY)
        for bucket in buckets_of_all:
            check_promoted(bucket_folder(server, bucket), file_count)

    yield Comparison(subject=together, baselines=[one_by_one], note=f"{request_count:,} requests")


def publish_families(store: DirectoryStore, folder: Path) -> None:
    """Put the wheels of every family into a run."""
    contents = RunContents(pythons=PYTHONS)
    outputs = pipeline_runs.run_outputs("17")
    for family in FAMILIES:
        pipeline_runs.publish_complete_run(store, outputs, folder, family=family, contents=contents)


def stage_run(server: S3Server, bucket: str, store: DirectoryStore, *options: str) -> None:
    """Put the run's wheels up for testing in a bucket, without delay."""
    command = release_command("stage", bucket, "--run-id", "17", "--store", store.url, *options)
    process.capture(command, cwd=ROOT, env=process.inherited(**server.variables))


def release_command(verb: str, bucket: str, *options: str) -> Sequence[str]:
    """Return the command of ours for the nightly releases in a bucket."""
    return [
        *CI,
        verb,
        "--distribution-store",
        f"s3://{bucket}",
        "--release-type",
        "nightly",
        *options,
    ]


def check_promoted(folder: Path, wheel_count: int) -> None:
    """Raise an error if a bucket's release has not all of the wheels."""
    names = [path.name for path in (folder / "v2").rglob("*")]
    promoted_count = sum(name.endswith((".whl", ".tar.gz")) for name in names)
    if promoted_count != wheel_count:
        raise CheckError(f"{promoted_count} of {wheel_count} wheels were promoted.")
