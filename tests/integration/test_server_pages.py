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
from core.stores import Store
from core.stores.location import open_store
from core.wheel import distributions
from tests.kit.s3_servers import S3Server
from tests.kit.wheels import write_wheel

# What Lambda has beside the zip, which is boto3 with all that it requires; and filelock, which is used for
# servers that ignore conditional writes, as rclone's does and S3 does not.
RUNTIME = ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six", "filelock")
# Calls the function of the zip with the event on its standard input, beside the runtime.
CALL = """
import json, sys
sys.path[:0] = sys.argv[1:3]
from ci.publish.server import handler
print(json.dumps(handler(json.load(sys.stdin), None)))
"""
RUN = RunOutputs(run_id="17", platform="linux")
GROUP = "gfx94X-dcgpu"
NOTHING_FAILED: object = {"batchItemFailures": []}


def link_runtime(folder: Path) -> None:
    """Make a folder of the packages that Lambda has, with links to those of this interpreter."""
    folder.mkdir()
    for name in RUNTIME:
        spec = find_spec(name)
        assert spec is not None
        path = Path(str(spec.origin))
        if path.name == "__init__.py":
            path = path.parent
        (folder / path.name).symlink_to(path)


@pytest.fixture
def call_function(tmp_path: Path, rclone: S3Server) -> Callable[[object], object]:
    """Return what calls the function with an event, in a process that has the zip and boto3 alone."""
    zip_file = tmp_path / "pages.zip"
    lambda_zip.write_zip(lambda_zip.collect_files(ROOT), zip_file)
    runtime = tmp_path / "runtime"
    link_runtime(runtime)

    def call(event: object) -> object:
        command: list[str | Path] = [sys.executable, "-I", "-S", "-c", CALL, zip_file, runtime]
        variables = process.inherited(**rclone.variables)
        completed = process.capture(command, cwd=tmp_path, env=variables, stdin=json.dumps(event))
        return json.loads(completed.stdout)

    return call


@pytest.fixture
def bucket(rclone: S3Server) -> str:
    return rclone.make_bucket()


@pytest.fixture
def store(bucket: str, tmp_path: Path) -> Store:
    return open_store(f"s3://{bucket}", root=tmp_path)


def queue_message(number: int, bucket: str, key: str) -> dict[str, str]:
    """Return a queue's message of S3's event that an object has changed."""
    s3_record = {
        "eventSource": "aws:s3",
        "s3": {"bucket": {"name": bucket}, "object": {"key": quote_plus(key, safe="/")}},
    }
    return {
        "eventSource": "aws:sqs",
        "messageId": str(number),
        "body": json.dumps({"Records": [s3_record]}),
    }


@pytest.mark.nightly
def test_functions_side_by_side_end_with_whole_pages(
    call_function: Callable[[object], object], bucket: str, store: Store, tmp_path: Path
) -> None:
    wheels = [write_wheel(tmp_path / "dist", version=f"2.{number}+rocm7.1") for number in range(8)]
    changed_keys: list[str] = []
    for wheel in wheels:
        record = distributions.publish(store, RUN, GROUP, wheel)
        # Messages come more than once,
        changed_keys += [record.key, record.key, f"{record.key}.metadata"]
    # and in any order.
    random.Random(1).shuffle(changed_keys)  # noqa: S311 - a test's order
    messages = [queue_message(number, bucket, key) for number, key in enumerate(changed_keys)]
    events = [
        {"Records": messages[0::3]},
        {"Records": messages[1::3]},
        {"Records": messages[2::3]},
    ]

    with ThreadPoolExecutor(len(events)) as pool:
        results = list(pool.map(call_function, events))

    assert results == [NOTHING_FAILED, NOTHING_FAILED, NOTHING_FAILED]
    folder = RUN.python_prefix(GROUP)
    for page in ("index.html", "simple/torch/index.html"):
        text = store.read(f"{folder}/{page}").decode()
        for wheel in wheels:
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            assert f"{wheel.name.replace('+', '%2B')}#sha256={digest}" in text


def test_a_deleted_wheel_leaves_the_pages(
    call_function: Callable[[object], object], bucket: str, store: Store, tmp_path: Path
) -> None:
    deleted_wheel = write_wheel(tmp_path / "dist", version="2.0+rocm7.1")
    deleted_key = distributions.publish(store, RUN, GROUP, deleted_wheel).key
    kept_wheel = write_wheel(tmp_path / "dist", version="2.1+rocm7.1")
    kept_key = distributions.publish(store, RUN, GROUP, kept_wheel).key
    call_function({"Records": [queue_message(0, bucket, kept_key)]})

    store.delete(deleted_key)
    result = call_function({"Records": [queue_message(1, bucket, deleted_key)]})

    assert result == NOTHING_FAILED
    page = store.read(f"{RUN.python_prefix(GROUP)}/index.html").decode()
    assert "torch-2.0%2B" not in page
    assert "torch-2.1%2B" in page
