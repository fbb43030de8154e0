"""Promotion of 1,000 wheels from bucket to bucket, behind a proxy that makes each request wait."""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from core import process
from core.cli.options import ROOT
from core.errors import CheckError
from core.stores.directory import DirectoryStore
from tests.bench.measuring import Figure, seconds
from tests.integration.s3_proxy import proxied
from tests.integration.s3_servers import S3Server, rclone_serving
from tests.unit.ci.promote.conftest import Runs

# a family has two packages of ROCm and two wheels a Python
FAMILIES, PYTHONS = 10, 49
FILES = 2 + 2 * PYTHONS
LATENCY = 0.02


def figures() -> Sequence[Figure]:
    """Compare promoting ten families, many objects at a time, with one of them, one after the other."""
    with tempfile.TemporaryDirectory() as name, rclone_serving(Path(name) / "server") as server:
        runs = Runs(store=DirectoryStore(Path(name) / "runs"), folder=Path(name) / "dist")
        families = [f"family-{number}" for number in range(FAMILIES)]
        for family in families:
            runs.whole(family, [f"cp3{number:02d}" for number in range(PYTHONS)])
        few, all_of_them = server.make_bucket(), server.make_bucket()
        run = ("--run-id", runs.run_id, "--store", runs.store.url)
        _call(server, "stage", few, *run, "--gpu-family", families[0])
        _call(server, "stage", all_of_them, *run)
        with proxied(server.endpoint, latency=LATENCY) as proxy:
            slow = server.at(proxy.endpoint)
            one = seconds(lambda: _call(slow, "promote", few, "--jobs", "1"))
            asked = len(proxy.requests)
            proxy.clear()
            many = seconds(lambda: _call(slow, "promote", all_of_them))
            requests = len(proxy.requests)
        _require_released(server, few, FILES)
        _require_released(server, all_of_them, FILES * FAMILIES)
    return (
        Figure(
            subject=f"promote {FAMILIES * FILES:,} wheels, {LATENCY * 1000:.0f} ms a request",
            baseline=f"one after the other: {FILES} wheels, times {FAMILIES}",
            times=(many, one * FAMILIES),
            note=f"{requests:,} requests; the baseline's were {asked:,}",
        ),
    )


def _call(server: S3Server, verb: str, bucket: str, *words: str) -> None:
    where = ["--distribution-store", f"s3://{bucket}", "--release-type", "nightly"]
    env = process.inherited(**server.variables)
    process.capture([sys.executable, "-m", "ci", verb, *where, *words], cwd=ROOT, env=env)


def _require_released(server: S3Server, bucket: str, count: int) -> None:
    """Refuse to time a promotion that left something out."""
    pages = server.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="v2/")
    keys = [one["Key"] for page in pages for one in page.get("Contents", ())]
    found = sum(key.endswith((".whl", ".tar.gz")) for key in keys)
    if found != count:
        raise CheckError(f"{found} of {count} wheels were promoted.")
