"""Uploads as the user runs them, to a real S3 server, and over a network that fails."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from core import files, process
from core.cli.options import ROOT
from core.errors import MachineError, MissingInputError
from core.stores.directory import DirectoryStore
from core.stores.s3_client import PROBE
from tests.kit.s3_proxy import proxied
from tests.kit.s3_servers import S3Server

GROUP = "gfx90a-dcgpu"
PREFIX = "123-linux"
DROP_RIGHTS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
FULL_DISK = ["prlimit", "--fsize=2"]


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path, make_wheel: Callable[..., Path]) -> Path:
    for number in range(6):
        make_wheel(tmp_path / "dist", f"demo-{number}", "1.0+rocm7.1", content=f"X = {number}\n" * 1000)
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
    words = ["--run-id=123", f"--artifact-group={GROUP}", f"--store=s3://{bucket}"]
    folders = [
        f"--input-dir={folder}",
        f"--logs-dir={folder / 'logs'}",
        f"--artifacts-dir={folder / 'artifacts'}",
    ]
    argv = [sys.executable, "-m", "ci", "upload", *folders, *words]
    return process.capture(argv, cwd=ROOT, env=env).stderr


def state(server: S3Server, bucket: str) -> dict[str, int]:
    pages = server.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return {one["Key"]: one["Size"] for page in pages for one in page.get("Contents", ())}


def test_everything_arrives_once(rclone: S3Server, folder: Path) -> None:
    bucket, env = rclone.make_bucket(), process.inherited(**rclone.variables)
    said = upload(folder, bucket, env)
    page = f"{rclone.endpoint}/{bucket}/{PREFIX}/python/{GROUP}/index.html"
    assert f"package_find_links_url: {page}" in said
    found = state(rclone, bucket)
    assert sum(key.endswith(".whl") for key in found) == 6
    assert sum(key.endswith(".whl.metadata") for key in found) == 6
    assert found[f"{PREFIX}/blas_lib_gfx90a-dcgpu.tar.zst"] == 20 << 20
    assert found[f"{PREFIX}/logs/{GROUP}/large.log.gz"] < 100_000
    assert not [key for key in found if "staging" in key]
    with proxied(rclone.endpoint) as proxy:
        again = upload(folder, bucket, process.inherited(**rclone.at(proxy.endpoint).variables))
        assert "unchanged, 6 files" in again
        # and what asks the server whether it holds pages of folders: this one does not
        writes = [one for one in proxy.requests if one.method not in {"GET", "HEAD"}]
        assert all(PROBE in one.path for one in writes)
        assert len(proxy.requests) < 25
    assert state(rclone, bucket) == found


def test_what_a_killed_upload_left_in_a_folder_goes_with_the_next_stage(folder: Path) -> None:
    store = DirectoryStore(folder / "out")
    words = ["--run-id=123", f"--artifact-group={GROUP}", f"--store={store.root}"]
    dies = "shutil.copyfile = lambda _, half: Path(half).write_bytes(b'half') and os.kill(os.getpid(), 9)"
    code = "import os, runpy, shutil\nfrom pathlib import Path\n"
    code += f"{dies}\nrunpy.run_module('ci', {{}}, '__main__')"

    def parts() -> set[str]:
        return {path.name for path in store.parts.rglob("*") if path.is_file() and path.suffix != ".lock"}

    with files.workspace(store.parts) as others:
        (others / "goes on").touch()
        argv: list[str | Path] = [sys.executable, "-c", code, "upload", f"--input-dir={folder}", *words]
        assert process.capture(argv, cwd=ROOT, check=False).returncode == -9
        assert parts() > {"goes on"}
        argv = [sys.executable, "-m", "ci", "index", *words]
        assert process.capture(argv, cwd=ROOT, check=False).returncode == MissingInputError.exit_code
        assert parts() == {"goes on"}
    assert list(store.parts.iterdir()) == []


def make_odd(name: str, logs: Path, store: Path) -> None:
    """Make a folder or a store that a machine refuses: for its rights, its names or their depth."""
    logs.mkdir()
    (logs / "a.log").write_text("line")
    if name == "read-only store":
        store.mkdir(mode=0o555)
    elif name == "unreadable file":
        (logs / "a.log").chmod(0)
    elif name == "not UTF-8":
        (logs / os.fsdecode(b"\xff.log")).touch()
    elif name == "deep":
        at = os.open(logs, os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("d", dir_fd=at)
            above, at = at, os.open("d", os.O_RDONLY, dir_fd=at)
            os.close(above)
        os.close(os.open("a.log", os.O_CREAT, dir_fd=at))
        os.close(at)


@pytest.mark.parametrize(
    "name", ["read-only store", "unreadable file", "full disk", "not UTF-8", "surrogate", "deep", "long name"]
)
def test_what_a_machine_refuses_is_an_ordinary_error(tmp_path: Path, name: str) -> None:
    store = tmp_path / ("n" * 300 if name == "long name" else "out")
    make_odd(name, tmp_path / "logs", store)
    # the superuser may do everything, unless it gives that up
    argv = [*(DROP_RIGHTS if os.getuid() == 0 else []), *(FULL_DISK if name == "full disk" else [])]
    group = "g\udcff" if name == "surrogate" else "g"
    argv += [sys.executable, "-m", "ci", "upload", "--run-id=123", f"--artifact-group={group}"]
    done = process.capture(
        [*argv, f"--logs-dir={tmp_path / 'logs'}", f"--store={store}"], cwd=ROOT, check=False
    )
    process.run(["rm", "-rf", tmp_path / "logs", tmp_path / "out"])  # what Python finds too deep
    assert done.returncode == MachineError.exit_code, done.stderr
    assert done.stderr.count("error: ") == 1
    assert "internal error" not in done.stderr
