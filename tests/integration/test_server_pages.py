"""The zip of the pages function, run as Lambda runs it, against a real S3 server."""

import hashlib
import json
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote_plus

import pytest

from ci.verbs import lambda_zip
from core import process
from core.cli.options import ROOT
from core.run import RunOutputs
from core.stores.location import open_store
from core.wheel import distributions
from tests.kit.s3_servers import S3Server
from tests.kit.wheels import write_wheel

# filelock is for servers that ignore conditional writes, as rclone's does and S3 does not
RUNTIME = ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six", "filelock")
CALL = """
import json, sys
sys.path[:0] = sys.argv[1:3]
from ci.publish.server import handler
print(json.dumps(handler(json.load(sys.stdin), None)))
"""
RUN = RunOutputs(run_id="17", platform="linux")
GROUP = "gfx94X-dcgpu"
NOTHING_FAILED: object = {"batchItemFailures": []}


@pytest.fixture
def call_function(tmp_path: Path, rclone: S3Server) -> Callable[[object], object]:
    """Return what calls the function with an event, in a process that has the zip and boto3 alone."""
    packed = tmp_path / "pages.zip"
    lambda_zip.write_zip(lambda_zip.collect_files(ROOT), packed)
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    for name in RUNTIME:
        spec = find_spec(name)
        assert spec is not None
        module = Path(str(spec.origin))
        package_or_module = module.parent if module.name == "__init__.py" else module
        (runtime / package_or_module.name).symlink_to(package_or_module)

    def call(event: object) -> object:
        command: list[str | Path] = [sys.executable, "-I", "-S", "-c", CALL, packed, runtime]
        env = process.inherited(**rclone.variables)
        return json.loads(process.capture(command, cwd=tmp_path, env=env, stdin=json.dumps(event)).stdout)

    return call


def queue_message(number: int, bucket: str, key: str) -> dict[str, str]:
    """Return a queue's message of S3's event that an object has changed."""
    change = {"bucket": {"name": bucket}, "object": {"key": quote_plus(key, safe="/")}}
    body = json.dumps({"Records": [{"eventSource": "aws:s3", "s3": change}]})
    return {"eventSource": "aws:sqs", "messageId": str(number), "body": body}


@pytest.mark.nightly
def test_functions_side_by_side_end_with_whole_pages(
    call_function: Callable[[object], object], rclone: S3Server, tmp_path: Path
) -> None:
    bucket = rclone.make_bucket()
    store = open_store(f"s3://{bucket}", root=tmp_path)
    wheels = [write_wheel(tmp_path / "dist", version=f"2.{number}+rocm7.1") for number in range(8)]
    files = [distributions.publish(store, RUN, GROUP, wheel) for wheel in wheels]
    # Messages come more than once, and in any order.
    keys = [file.key for file in files] * 2 + [f"{file.key}.metadata" for file in files]
    random.Random(1).shuffle(keys)  # noqa: S311 - a test's order
    messages = [queue_message(number, bucket, key) for number, key in enumerate(keys)]

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(call_function, [{"Records": messages[start::3]} for start in range(3)]))

    assert answers == [NOTHING_FAILED] * 3
    folder = RUN.python_prefix(GROUP)
    for page in ("index.html", "simple/torch/index.html"):
        text = store.read(f"{folder}/{page}").decode()
        for wheel in wheels:
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            assert f"{wheel.name.replace('+', '%2B')}#sha256={digest}" in text


def test_a_deleted_wheel_leaves_the_pages(
    call_function: Callable[[object], object], rclone: S3Server, tmp_path: Path
) -> None:
    bucket = rclone.make_bucket()
    store = open_store(f"s3://{bucket}", root=tmp_path)
    wheels = [write_wheel(tmp_path / "dist", version=version) for version in ("2.0+rocm7.1", "2.1+rocm7.1")]
    deleted, kept = [distributions.publish(store, RUN, GROUP, wheel) for wheel in wheels]
    call_function({"Records": [queue_message(0, bucket, kept.key)]})

    store.delete(deleted.key)
    answer = call_function({"Records": [queue_message(1, bucket, deleted.key)]})

    assert answer == NOTHING_FAILED
    page = store.read(f"{RUN.python_prefix(GROUP)}/index.html").decode()
    assert "torch-2.0%2B" not in page
    assert "torch-2.1%2B" in page
