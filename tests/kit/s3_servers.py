"""S3 servers on the loopback interface for tests: rclone's, in a folder of the test's own.

A test asks for `rclone` (the usual AWS variables are set to it), and a bucket: `rclone.make_bucket()`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config

from core import process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from types_boto3_s3 import S3Client

_START_SECONDS = 30


@dataclass(frozen=True, kw_only=True)
class S3Server:
    """A running server: its user may do everything, rclone's keeps each bucket as a folder in `folder`."""

    endpoint: str
    access_key: str = "access-key"
    secret_key: str = "secret-key"  # noqa: S105 - of a server on this machine
    folder: Path | None = None
    pid: int = 0

    @property
    def variables(self) -> dict[str, str]:
        """The environment that leads AWS clients (and s5cmd) here, and to no settings of the user's."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "S3_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def at(self, endpoint: str) -> S3Server:
        """Return the same server behind another address, such as a proxy's."""
        return replace(self, endpoint=endpoint)

    def client(self) -> S3Client:
        settings = Config(
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        session = boto3.session.Session(
            aws_access_key_id=self.access_key, aws_secret_access_key=self.secret_key, region_name="us-east-1"
        )
        client: S3Client = session.client("s3", endpoint_url=self.endpoint, config=settings)
        return client

    def make_bucket(self, name: str = "") -> str:
        """Make a bucket of the test's own, and return its name."""
        name = name or f"bucket-{uuid.uuid4().hex[:12]}"
        client = self.client()
        client.create_bucket(Bucket=name)
        client.close()
        return name

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Set the variables in this process, for the time of a test."""
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in self.variables.items():
            monkeypatch.setenv(name, value)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def wait_for(port: int, server: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            pytest.fail(f"The S3 server ended with status {server.returncode}.")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"The S3 server did not listen within {_START_SECONDS} s.")


def program(name: str) -> str:
    """Find a program that the tool's own lock installs, beside this interpreter or on the PATH."""
    import sys

    in_environment = Path(sys.executable).with_name(name)
    path = str(in_environment) if in_environment.is_file() else shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is not installed; requirements.txt has it.")
    return path


@contextmanager
def rclone_serving(folder: Path, *, is_public: bool = False) -> Iterator[S3Server]:
    """Serve a folder as S3: path style, no conditional writes, one user; a public one serves everybody."""
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    port = free_port()
    server = S3Server(endpoint=f"http://127.0.0.1:{port}", folder=data)
    with (folder / "rclone.log").open("wb") as log:
        options = {"--config": os.devnull, "--addr": f"127.0.0.1:{port}"}
        if not is_public:
            options["--auth-key"] = f"{server.access_key},{server.secret_key}"
        argv = [program("rclone"), "serve", "s3", str(data), *chain.from_iterable(options.items())]
        running = subprocess.Popen(argv, stdout=log, stderr=log, env=process.inherited())
        try:
            wait_for(port, running)
            yield replace(server, pid=running.pid)
        finally:
            running.terminate()
            running.wait(10)


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with rclone_serving(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture
def rclone(rclone_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    rclone_server.use(monkeypatch)
    return rclone_server
