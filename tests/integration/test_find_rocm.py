"""Plans whose ROCm is found: GitHub's recorded answers, and artifacts in a bucket that refuses strangers."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from core import process
from core.cli.options import ROOT
from core.http import answering
from core.run import RunOutputs
from core.run.plan import Plan
from rocm_packaging.artifacts import scan
from tests.kit.artifact_archives import pack_all
from tests.kit.s3_servers import S3Server
from tests.kit.servers import Quiet

RECORDED = ROOT / "tests/unit/ci/recorded/workflow_runs.json"
RED, FORK, GREEN = "17123441190", "17123441170", "17123441166"
FAMILY = "gfx94X-dcgpu"
DATA = """
[rocm]
order = ["newest"]

[rocm.runs.ci]
repository = "ROCm/TheRock"
store = "s3://{bucket}"
"""


@pytest.fixture(scope="module")
def github() -> Iterator[str]:
    """Serve GitHub's recorded answers; give the address."""
    runs = json.loads(RECORDED.read_text(encoding="utf-8"))["workflow_runs"]

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url, status = urlsplit(self.path), 200
            asked = {name: values[0] for name, values in parse_qs(url.query).items()}
            chosen = [one for one in runs if asked.get("branch", one["head_branch"]) == one["head_branch"]]
            if asked.get("status"):
                chosen = [one for one in chosen if one["conclusion"] == asked["status"]]
            answer: object = {"workflow_runs": chosen}
            if "/workflows/" not in url.path:
                found = [one for one in runs if url.path.endswith(f"/{one['id']}")]
                status, answer = (200, found[0]) if found else (404, {"message": "Not Found"})
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with answering(Handler) as address:
        yield address


@pytest.fixture(scope="module")
def bucket(rclone_server: S3Server, split_artifacts: Path) -> str:
    """Make a bucket with the sample's artifacts of a red, a fork's and a green run."""
    name = rclone_server.make_bucket()
    assert rclone_server.folder is not None
    for run in (RED, FORK, GREEN):
        pack_all(split_artifacts, rclone_server.folder / name / f"{run}-linux")
    return name


@dataclass(frozen=True, kw_only=True)
class Desk:
    folder: Path
    env: dict[str, str]

    def call(self, package: str, *words: str, **env: str) -> process.Completed:
        argv = [sys.executable, "-m", package, *words]
        inherited = process.inherited(**{**self.env, **env})
        return process.capture(argv, cwd=ROOT, env=inherited, check=False)

    def plan(self, **env: str) -> tuple[process.Completed, Plan]:
        """Plan a dispatch of one family, and find its ROCm."""
        file = self.folder / "plan.json"
        words = ["--event=workflow_dispatch", "--repository=acme/wheels", f"--output={file}"]
        made = self.call("ci", "configure", *words, f"--input=linux_amdgpu_families={FAMILY}")
        assert made.returncode == 0, made.stderr
        store = f"--store={self.folder / 'out'}"
        return self.call("ci", "find-rocm", f"--plan={file}", "--run-id=9", store, **env), Plan.read(file)


@pytest.fixture
def desk(tmp_path: Path, github: str, bucket: str, rclone_server: S3Server) -> Desk:
    (tmp_path / "ci.toml").write_text(DATA.format(bucket=bucket), encoding="utf-8")
    variables = {
        **rclone_server.variables,
        "GITHUB_API_URL": github,
        "CI_CONFIG": str(tmp_path / "ci.toml"),
        "GITHUB_OUTPUT": str(tmp_path / "outputs"),
    }
    return Desk(folder=tmp_path, env=variables)


def test_the_newest_green_run_is_pinned_fetched_and_packaged(desk: Desk, bucket: str) -> None:
    said, plan = desk.plan()
    assert said.returncode == 0, said.stderr
    (origin,) = plan.rocm.origins
    assert (origin.run_id, origin.store, origin.repository) == (GREEN, f"s3://{bucket}", "ROCm/TheRock")
    assert len(origin.artifacts) > 10
    written = desk.folder / "out" / RunOutputs(run_id="9", platform="linux").plan_key
    assert Plan.read(written) == plan
    assert f'"digest":"{origin.row["digest"]}"' in (desk.folder / "outputs").read_text(encoding="utf-8")
    pinned = [
        f"--artifact-{name.replace('_', '-')}={origin.row[name]}" for name in ("run_id", "store", "digest")
    ]
    folder = desk.folder / "artifacts"
    run = ("--run-id=9", f"--store={desk.folder / 'out'}", f"--gpu-family={FAMILY}")
    fetched = desk.call("ci", "fetch-artifacts", *pinned, *run, f"--output-dir={folder}")
    assert fetched.returncode == 0, fetched.stderr
    assert {one.path.name for one in scan(folder)} == {name.partition(".")[0] for name in origin.artifacts}
    built = desk.call("rocm_packaging", "build", f"--artifact-dir={folder}", *run, "--version=10.1.0.dev0")
    assert built.returncode == 0, built.stderr
    changed = desk.call("ci", "fetch-artifacts", *pinned[:2], f"--artifact-digest={'0' * 64}", *run)
    assert "are not those that the plan pinned" in changed.stderr


def test_a_plan_says_at_once_that_its_store_refuses_it(desk: Desk, bucket: str) -> None:
    said, _ = desk.plan(AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    assert said.returncode != 0
    assert f"There is no ROCm for {FAMILY} on linux" in said.stderr
    assert bucket in said.stderr
