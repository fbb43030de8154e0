"""Plans whose ROCm is found: GitHub's recorded answers, and artifacts in a bucket that refuses strangers."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from core import process
from core.cli.options import ROOT
from core.http_server import answering
from core.run import RunOutputs
from core.run.plan import Plan
from rocm_packaging.artifacts import scan
from tests.kit.artifact_archives import pack_all
from tests.kit.s3_servers import S3Server
from tests.kit.servers import Quiet

RECORDED = ROOT / "tests/unit/ci/recorded/workflow_runs.json"
RED_RUN = "17123441190"
RUN_OF_FORK = "17123441170"
GREEN_RUN = "17123441166"
FAMILY = "gfx94X-dcgpu"
DATA = """
[rocm]
order = ["newest"]

[rocm.runs.ci]
repository = "ROCm/TheRock"
store = "s3://{bucket}"
"""


def answer_of_github(runs: Sequence[Mapping[str, Any]], address: str) -> tuple[int, object]:
    """Return the status and the answer to a question for one run, or for those of a workflow."""
    url = urlsplit(address)
    if "/workflows/" not in url.path:
        for run in runs:
            if url.path.endswith(f"/{run['id']}"):
                return 200, run
        return 404, {"message": "Not Found"}

    filters = dict(parse_qsl(url.query))
    matching_runs: list[Mapping[str, Any]] = []
    for run in runs:
        has_branch = filters.get("branch") in {None, run["head_branch"]}
        has_ended_so = filters.get("status") in {None, "", run["conclusion"]}
        if has_branch and has_ended_so:
            matching_runs.append(run)
    return 200, {"workflow_runs": matching_runs}


@pytest.fixture(scope="module")
def github() -> Iterator[str]:
    """Serve GitHub's recorded answers; yield the address."""
    runs = json.loads(RECORDED.read_text(encoding="utf-8"))["workflow_runs"]

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = answer_of_github(runs, self.path)
            body = json.dumps(content).encode()
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
    for run in (RED_RUN, RUN_OF_FORK, GREEN_RUN):
        pack_all(split_artifacts, rclone_server.folder / name / f"{run}-linux")
    return name


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A downstream's job: the variables that it has, and a folder for what it writes."""

    folder: Path
    variables: Mapping[str, str]

    def call(self, package: str, *arguments: str, **variables: str) -> process.Completed:
        """Call a front door."""
        command = [sys.executable, "-m", package, *arguments]
        env = process.inherited(**{**self.variables, **variables})
        return process.capture(command, cwd=ROOT, env=env, check=False)

    @property
    def plan_file(self) -> Path:
        """Where the plan lies."""
        return self.folder / "plan.json"

    @property
    def run(self) -> tuple[str, ...]:
        """The options that name the run."""
        return ("--run-id=9", f"--store={self.folder / 'out'}")

    def find_rocm(self, **variables: str) -> process.Completed:
        """Plan a dispatch of one family, and find its ROCm."""
        event = [
            "--event=workflow_dispatch",
            "--repository=acme/wheels",
            f"--output={self.plan_file}",
        ]
        plan = self.call("ci", "configure", *event, f"--input=linux_amdgpu_families={FAMILY}")
        assert plan.returncode == 0, plan.stderr
        return self.call("ci", "configure", f"--plan={self.plan_file}", *self.run, **variables)


@pytest.fixture
def desk(tmp_path: Path, github: str, bucket: str, rclone_server: S3Server) -> Desk:
    """Return the desk of a downstream, whose configuration names the bucket."""
    (tmp_path / "ci.toml").write_text(DATA.format(bucket=bucket), encoding="utf-8")
    variables = {
        **rclone_server.variables,
        "GITHUB_API_URL": github,
        "CI_CONFIG": str(tmp_path / "ci.toml"),
        "GITHUB_OUTPUT": str(tmp_path / "outputs"),
    }
    return Desk(folder=tmp_path, variables=variables)


@pytest.mark.nightly
def test_pins_the_newest_green_run(desk: Desk, bucket: str) -> None:
    completed = desk.find_rocm()

    assert completed.returncode == 0, completed.stderr
    plan = Plan.read(desk.plan_file)
    (origin,) = plan.rocm.origins
    assert origin.run_id == GREEN_RUN
    assert origin.store == f"s3://{bucket}"
    assert origin.repository == "ROCm/TheRock"
    assert len(origin.artifacts) > 10
    stored_plan = desk.folder / "out" / RunOutputs(run_id="9", platform="linux").plan_key
    assert Plan.read(stored_plan) == plan
    outputs = (desk.folder / "outputs").read_text(encoding="utf-8")
    assert plan.digest() in outputs


@pytest.mark.nightly
def test_fetches_and_packages_what_is_pinned(desk: Desk) -> None:
    desk.find_rocm()
    (origin,) = Plan.read(desk.plan_file).rocm.origins
    run_options = [
        f"--artifact-run-id={origin.row['run_id']}",
        f"--artifact-store={origin.row['store']}",
        *desk.run,
        f"--gpu-family={FAMILY}",
    ]
    folder = desk.folder / "artifacts"

    digest = f"--artifact-digest={origin.row['digest']}"
    fetch = desk.call("ci", "fetch-artifacts", *run_options, digest, f"--output-dir={folder}")
    build_options = [*desk.run, f"--gpu-family={FAMILY}", "--version=10.1.0.dev0"]
    build = desk.call("rocm_packaging", "build", f"--artifact-dir={folder}", *build_options)

    assert fetch.returncode == 0, fetch.stderr
    names = {artifact.path.name for artifact in scan(folder)}
    assert names == {name.partition(".")[0] for name in origin.artifacts}
    assert build.returncode == 0, build.stderr


@pytest.mark.nightly
def test_refuses_to_fetch_what_is_not_pinned(desk: Desk) -> None:
    desk.find_rocm()
    (origin,) = Plan.read(desk.plan_file).rocm.origins

    refused = desk.call(
        "ci",
        "fetch-artifacts",
        f"--artifact-run-id={origin.row['run_id']}",
        f"--artifact-store={origin.row['store']}",
        f"--artifact-digest={'0' * 64}",
        *desk.run,
        f"--gpu-family={FAMILY}",
    )

    assert refused.returncode != 0
    assert "pinned" in refused.stderr


@pytest.mark.nightly
def test_says_at_once_that_its_store_refuses_it(desk: Desk, bucket: str) -> None:
    refused = desk.find_rocm(AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")

    assert refused.returncode != 0
    assert FAMILY in refused.stderr
    assert bucket in refused.stderr
