"""Provenance of a sample's run, from its builds to an S3 server and back: real builds, real nox."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from core import process
from tests.folders import served
from tests.provenance_schemas import problems_of_bill, validate_statement

if TYPE_CHECKING:
    from core.process import Completed
    from tests.integration.s3_servers import S3Server

ROOT = Path(__file__).parents[2]
GROUP = "gfx94X-dcgpu"
RUN = "tried-1"
WHERE = ("--torch-ref=sample", f"--gpu-family={GROUP}", f"--run-id={RUN}")


class Clone:
    """A clone of this checkout with a run of the sample's ROCm and triton."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = path / "out" / f"{RUN}-linux"

    def nox(self, *words: str, **variables: str) -> Completed:
        own = {"NO_COLOR": "1", "GITHUB_ACTIONS": None, "MATRIX": None, "SOURCE_LOCK": None, **variables}
        argv = [sys.executable, "-m", "nox", "-s", *words]
        return process.capture(argv, cwd=self.path, env=process.inherited(**own), check=False)

    def content(self) -> dict[str, bytes]:
        files = [*self.run.glob("provenance/*/*.json"), self.run / "sbom.cdx.json"]
        return {path.relative_to(self.run).as_posix(): path.read_bytes() for path in files}


@pytest.fixture(scope="module", name="clone")
def clone_fixture(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    path = tmp_path_factory.mktemp("provenance") / "checkout"
    process.capture(["git", "clone", "--quiet", ROOT, path])
    clone = Clone(path)
    done = clone.nox("build_rocm", "build_triton", "provenance", "--", *WHERE)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return clone


def test_what_is_written_is_what_the_schemas_say(clone: Clone) -> None:
    content = clone.content()
    built = [path for path in (clone.run / "python" / GROUP).iterdir() if path.suffix in {".whl", ".gz"}]
    assert len(built) == len(content) - 1 == 7
    for name, text in content.items():
        if name.endswith(".intoto.json"):
            validate_statement(text)
    assert problems_of_bill(content["sbom.cdx.json"]) == ""
    lock = json.loads((clone.run / "manifests" / "source-lock-sample.json").read_text())
    (statement,) = (json.loads(text) for name, text in content.items() if "/triton-" in name)
    source = statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    assert source["digest"] == {"gitCommit": lock["projects"]["triton"]["commit"]}


def test_the_same_records_give_the_same_bytes_after_all_is_gone(clone: Clone) -> None:
    before = clone.content()
    shutil.rmtree(clone.run / "provenance")
    (clone.run / "sbom.cdx.json").unlink()
    done = clone.nox("provenance", "--", *WHERE)
    assert done.returncode == 0, done.stderr[-4000:]
    assert clone.content() == before


def test_a_wheel_is_verified_on_disk_behind_an_address_and_in_a_bucket(
    clone: Clone, rclone: S3Server
) -> None:
    (wheel,) = (clone.run / "python" / GROUP).glob("triton-*.whl")
    lock = json.loads((clone.run / "manifests" / "source-lock-sample.json").read_text())
    commit = lock["projects"]["triton"]["commit"]
    bucket = rclone.make_bucket()
    done = clone.nox("upload", "provenance", "--", *WHERE, f"--store=s3://{bucket}", **rclone.variables)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    prefix = f"{RUN}-linux"
    for name, text in clone.content().items():
        stored = rclone.client().get_object(Bucket=bucket, Key=f"{prefix}/{name}")["Body"].read()
        assert stored == text, name
    key = f"{prefix}/python/{GROUP}/{wheel.name}"
    with served(clone.path / "out") as address:
        places = (str(wheel), f"{address}/{quote(key)}", f"s3://{bucket}/{key}")
        done = clone.nox("verify", "--", *places, **rclone.variables)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert done.stdout.count(f"{wheel.name}: verified") == done.stdout.count(f"  {commit}\n") == 3
