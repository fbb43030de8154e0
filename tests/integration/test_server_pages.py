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


@pytest.fixture(name="function")
def function_fixture(tmp_path: Path, rclone: S3Server) -> Callable[[object], object]:
    """Call the function with an event, in a process that has the zip and boto3 alone."""
    packed = tmp_path / "pages.zip"
    lambda_zip.write(lambda_zip.bundle(ROOT), packed)
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    for name in RUNTIME:
        spec = find_spec(name)
        assert spec is not None
        place = Path(str(spec.origin))
        place = place.parent if place.name == "__init__.py" else place
        (runtime / place.name).symlink_to(place)

    def call(event: object) -> object:
        command: list[str | Path] = [sys.executable, "-I", "-S", "-c", CALL, packed, runtime]
        env = process.inherited(**rclone.variables)
        said = process.capture(command, cwd=tmp_path, env=env, stdin=json.dumps(event))
        return json.loads(said.stdout)

    return call


def message(number: int, bucket: str, key: str) -> dict[str, str]:
    told = {"bucket": {"name": bucket}, "object": {"key": quote_plus(key, safe="/")}}
    body = json.dumps({"Records": [{"eventSource": "aws:s3", "s3": told}]})
    return {"eventSource": "aws:sqs", "messageId": str(number), "body": body}


def test_functions_side_by_side_end_with_whole_pages(
    function: Callable[[object], object], rclone: S3Server, tmp_path: Path, make_wheel: Callable[..., Path]
) -> None:
    bucket = rclone.make_bucket()
    store = open_store(f"s3://{bucket}", root=tmp_path)
    wheels = [make_wheel(tmp_path / "dist", "torch", f"2.{number}+rocm7.1") for number in range(8)]
    files = [distributions.publish(store, RUN, GROUP, wheel) for wheel in wheels]
    keys = [key for one in files for key in (one.key, f"{one.key}.metadata", one.key)]
    random.Random(1).shuffle(keys)  # noqa: S311 - a test's order
    messages = [message(number, bucket, key) for number, key in enumerate(keys)]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(function, [{"Records": messages[start::3]} for start in range(3)]))
    assert answers == [{"batchItemFailures": []}] * 3
    folder = RUN.python_prefix(GROUP)
    for page in ("index.html", "simple/torch/index.html"):
        text = store.read(f"{folder}/{page}").decode()
        for wheel in wheels:
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            assert f"{wheel.name.replace('+', '%2B')}#sha256={digest}" in text
    store.delete(files[0].key)
    assert function({"Records": [message(0, bucket, files[0].key)]}) == {"batchItemFailures": []}
    assert "torch-2.0%2B" not in store.read(f"{folder}/index.html").decode()
