"""Uploads as the user runs them, to a real S3 server, and over a network that fails."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from core import process
from core.cli.options import ROOT
from core.errors import MachineError
from core.stores.directory import DirectoryStore
from tests.kit.s3_proxy import proxied
from tests.kit.s3_servers import S3Server
from tests.kit.wheels import write_wheel

GROUP = "gfx90a-dcgpu"
PREFIX = "123-linux"
DROP_RIGHTS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
# Leaves half of a file, and dies.
KILLING_COPY = """
import os, runpy, shutil
from pathlib import Path
def copy(_source, target):
    Path(target).write_bytes(b"half")
    os.kill(os.getpid(), 9)
shutil.copyfile = copy
"""
FULL_DISK = ["prlimit", "--fsize=2"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with wheels, logs and artifacts, as builds leave them."""
    for number in range(6):
        files = {f"demo_{number}.py": f"X = {number}\n" * 1000}
        write_wheel(tmp_path / "dist", name=f"demo-{number}", version="1.0+rocm7.1", files=files)
    (tmp_path / "dist" / ".kpack_staging").mkdir()
    (tmp_path / "dist" / ".kpack_staging" / "half.whl").write_bytes(b"half")
    (tmp_path / "logs").mkdir()
    for number in range(20):
        (tmp_path / "logs" / f"{number}.log").write_text(f"line {number}\n")
    (tmp_path / "logs" / "large.log").write_text("line\n" * 500_000)
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "blas_lib_gfx90a-dcgpu.tar.zst").write_bytes(bytes(20 << 20))
    return tmp_path


def upload(folder: Path, bucket: str, env: Mapping[str, str]) -> str:
    """Upload the folder to a bucket; return what was printed."""
    words = ["--run-id=123", f"--artifact-group={GROUP}", f"--store=s3://{bucket}"]
    folders = [
        f"--input-dir={folder}",
        f"--logs-dir={folder / 'logs'}",
        f"--artifacts-dir={folder / 'artifacts'}",
    ]
    argv = [sys.executable, "-m", "ci", "upload", *folders, *words]
    return process.capture(argv, cwd=ROOT, env=env).stderr


def sizes_in(server: S3Server, bucket: str) -> dict[str, int]:
    """Return the keys of a bucket's objects with their sizes."""
    pages = server.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
    sizes: dict[str, int] = {}
    for page in pages:
        sizes |= {entry["Key"]: entry["Size"] for entry in page.get("Contents", ())}
    return sizes


def test_every_file_arrives(rclone: S3Server, folder: Path) -> None:
    bucket = rclone.make_bucket()

    printed = upload(folder, bucket, process.inherited(**rclone.variables))

    page = f"{rclone.endpoint}/{bucket}/{PREFIX}/python/{GROUP}/index.html"
    assert f"package_find_links_url: {page}" in printed
    sizes = sizes_in(rclone, bucket)
    assert len([key for key in sizes if key.endswith(".whl")]) == 6
    assert len([key for key in sizes if key.endswith(".whl.metadata")]) == 6
    assert sizes[f"{PREFIX}/blas_lib_gfx90a-dcgpu.tar.zst"] == 20 << 20
    # Logs are compressed; what a tool only keeps for itself stays here.
    assert sizes[f"{PREFIX}/logs/{GROUP}/large.log.gz"] < 100_000
    assert not [key for key in sizes if "staging" in key]


def test_a_second_upload_writes_nothing(rclone: S3Server, folder: Path) -> None:
    bucket = rclone.make_bucket()
    upload(folder, bucket, process.inherited(**rclone.variables))
    sizes = sizes_in(rclone, bucket)

    with proxied(rclone.endpoint) as proxy:
        printed = upload(folder, bucket, process.inherited(**rclone.at(proxy.endpoint).variables))

    assert "unchanged, 6 files" in printed
    assert sizes_in(rclone, bucket) == sizes
    writes = [request for request in proxy.requests if request.method not in {"GET", "HEAD"}]
    assert writes == []
    assert len(proxy.requests) < 25


def test_the_next_upload_removes_what_a_killed_one_left(folder: Path) -> None:
    store = DirectoryStore(folder / "out")
    words = [f"--input-dir={folder}", "--run-id=123", f"--artifact-group={GROUP}", f"--store={store.root}"]
    code = f"{KILLING_COPY}\nrunpy.run_module('ci', {{}}, '__main__')"
    killed_upload: list[str | Path] = [sys.executable, "-c", code, "upload", *words]
    assert process.capture(killed_upload, cwd=ROOT, check=False).returncode == -9
    # Files are copied side by side, and another may have begun.
    assert b"half" in [path.read_bytes() for path in store.root.rglob("half")]

    process.capture([sys.executable, "-m", "ci", "upload", *words], cwd=ROOT)

    assert list(store.root.rglob("*.part")) == []


def make_odd(name: str, logs: Path, store: Path) -> None:
    """Make a folder or a store that a machine refuses: for its rights or its depth."""
    logs.mkdir()
    (logs / "a.log").write_text("line")
    if name == "read-only store":
        store.mkdir(mode=0o555)
    elif name == "unreadable file":
        (logs / "a.log").chmod(0)
    elif name == "deep":
        folder = os.open(logs, os.O_RDONLY)
        for _level in range(1500):
            os.mkdir("d", dir_fd=folder)
            parent = folder
            folder = os.open("d", os.O_RDONLY, dir_fd=parent)
            os.close(parent)
        os.close(os.open("a.log", os.O_CREAT, dir_fd=folder))
        os.close(folder)


@pytest.mark.parametrize("name", ["read-only store", "unreadable file", "full disk", "deep", "long name"])
def test_reports_what_a_machine_refuses_as_an_ordinary_error(tmp_path: Path, name: str) -> None:
    store = tmp_path / ("n" * 300 if name == "long name" else "out")
    make_odd(name, tmp_path / "logs", store)
    # The superuser may do everything, unless it gives that up.
    argv = [*(DROP_RIGHTS if os.getuid() == 0 else []), *(FULL_DISK if name == "full disk" else [])]
    argv += [sys.executable, "-m", "ci", "upload", "--run-id=123", "--artifact-group=g"]
    argv += [f"--logs-dir={tmp_path / 'logs'}", f"--store={store}"]
    # What it prints goes through a pipe, as no file of its own can be written on a full disk.
    completed = process.capture(["bash", "-c", '"$@" 2> >(cat >&2)', "bash", *argv], cwd=ROOT, check=False)
    process.run(["rm", "-rf", tmp_path / "logs", tmp_path / "out"])  # What Python finds too deep.
    assert completed.returncode == MachineError.exit_code, completed.stderr
    assert completed.stderr.count("error: ") == 1
    assert "internal error" not in completed.stderr
