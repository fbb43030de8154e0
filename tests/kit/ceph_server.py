"""Ceph's S3 server in a folder of the test's own: one monitor, manager and OSD in memory, and a gateway.

It holds to ``If-None-Match`` and refuses an ``If-Match`` that holds. Debian has it (``radosgw``,
``ceph-mon``, ``ceph-mgr``, ``ceph-osd``); it takes 20 s to start, so tests on it need ``--ceph``.
"""

import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from core import process
from tests.kit.s3_servers import S3Server, free_port, wait_for

PROGRAMS = (
    *("ceph", "ceph-authtool", "monmaptool", "ceph-mon", "ceph-mgr", "ceph-osd"),
    *("radosgw", "radosgw-admin"),
)
_SETTINGS = Path(__file__).with_name("texts").joinpath("ceph.conf").read_text()
_TIMEOUT = 90


@contextmanager
def ceph_serving(folder: Path) -> Iterator[S3Server]:
    """Run the servers; skip, with the name, where one is not installed."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        pytest.skip(f"{', '.join(absent)} not installed (Debian: radosgw ceph-mon ceph-mgr ceph-osd)")
    monitor, gateway = free_port(), free_port()
    fsid, disk = str(uuid.uuid4()), str(uuid.uuid4())
    (folder / "ceph.conf").write_text(
        _SETTINGS.format(fsid=fsid, folder=folder, monitor=monitor, gateway=gateway)
    )
    for name in ("mon", "mgr", "osd"):
        (folder / name).mkdir()
    server = S3Server(endpoint=f"http://127.0.0.1:{gateway}")
    with ExitStack() as running:

        def run(*argv: str) -> str:
            done = process.capture(list(argv), cwd=folder, timeout=_TIMEOUT)
            return done.stdout

        def start(*argv: str) -> subprocess.Popen[Any]:
            log = running.enter_context((folder / f"{argv[0]}.out").open("wb"))
            started = subprocess.Popen([*argv, "-f"], cwd=folder, stdout=log, stderr=log)
            running.callback(_stop, started)
            return started

        def allow(name: str, *capabilities: str) -> None:
            key = run("ceph", "-c", "ceph.conf", "auth", "get-or-create", name, *capabilities)
            with (folder / "keyring").open("a") as keyring:
                keyring.write(key)

        keyring = ("ceph-authtool", "--create-keyring", "keyring", "--gen-key")
        run(*keyring, "-n", "mon.", "--cap", "mon", "allow *")
        everything = [part for one in ("mon", "osd", "mgr") for part in ("--cap", one, "allow *")]
        run("ceph-authtool", "keyring", "--gen-key", "-n", "client.admin", *everything)
        run("monmaptool", "--create", "--addv", "a", f"[v1:127.0.0.1:{monitor}]", "--fsid", fsid, "monmap")
        run(
            *("ceph-mon", "-c", "ceph.conf", "--mkfs", "-i", "a"),
            *("--monmap", "monmap", "--keyring", "keyring"),
        )
        wait_for(monitor, start("ceph-mon", "-c", "ceph.conf", "-i", "a"))
        allow("mgr.x", "mon", "allow profile mgr", "osd", "allow *")
        start("ceph-mgr", "-c", "ceph.conf", "-i", "x")
        run("ceph", "-c", "ceph.conf", "osd", "new", disk)
        allow("osd.0", "osd", "allow *", "mon", "allow profile osd", "mgr", "allow profile osd")
        run("ceph-osd", "-c", "ceph.conf", "-i", "0", "--mkfs", "--osd-uuid", disk)
        start("ceph-osd", "-c", "ceph.conf", "-i", "0")
        allow("client.rgw", "osd", "allow rwx", "mon", "allow rw")
        keys = ("--access-key", server.access_key, "--secret-key", server.secret_key)
        user = ("user", "create", "--uid", "test", "--display-name", "test")
        run("radosgw-admin", "-c", "ceph.conf", *user, *keys)
        wait_for(gateway, start("radosgw", "-c", "ceph.conf", "-n", "client.rgw"))
        yield server


def _stop(server: subprocess.Popen[Any]) -> None:
    server.terminate()
    end = time.monotonic() + 10
    while server.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    server.kill()
    server.wait()


@pytest.fixture(scope="session")
def ceph_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[S3Server]:
    """Run Ceph's S3 server for the session, if ``--ceph`` was given."""
    if not request.config.getoption("--ceph"):
        pytest.skip("--ceph was not given")
    with ceph_serving(tmp_path_factory.mktemp("ceph")) as server:
        yield server


@pytest.fixture
def ceph(ceph_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Return Ceph's S3 server, with the AWS variables set to it."""
    ceph_server.use(monkeypatch)
    return ceph_server
