"""A nightly of every GPU family, torch ref and Python: its jobs start with variables of their real size.

The plan is the one that the front door writes. The workflows are expanded as GitHub expands them; nothing of
what jobs do is executed, but for the summary, which a receiver on this machine gets.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ci.plan.data import matrices
from core import process
from core.cli.options import ROOT
from core.http_server import answering
from core.run import PLATFORMS
from core.run.plan import MAX_JOBS, Plan
from tests.kit.servers import Quiet
from tests.kit.workflow_runs import StartedJob, StartedStep, jobs_of_release, release_of, resolved

pytestmark = pytest.mark.processes

BIN = Path(sys.executable).parent
# A machine that others work on, too, may take many times as long.
TIMEOUT = 600


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The plan of a nightly of everything: Pythons that are named are built for every family."""
    plan_file = tmp_path_factory.mktemp("nightly") / "plan.json"
    event = ("--event=workflow_dispatch", "--release-type=nightly", "--changed=ci/verbs/cells.py")
    inputs = {
        "linux_amdgpu_families": "all",
        "windows_amdgpu_families": "all",
        "pytorch_git_refs": " ".join(matrices().release.torch_refs),
        "pytorch_python_versions": " ".join(matrices().release.pythons),
    }
    options = [f"--input={name}={value}" for name, value in inputs.items()]
    command = (sys.executable, "-m", "ci", "configure", *event, *options, f"--output={plan_file}")
    process.capture(command, cwd=ROOT, env=process.inherited(GITHUB_OUTPUT=None), timeout=TIMEOUT)
    return resolved(Plan.read(plan_file))


def started_jobs(plan: Plan) -> Iterator[StartedJob]:
    """Yield the jobs of the releases on both platforms."""
    for platform in PLATFORMS:
        yield from jobs_of_release(release_of(plan, platform, settings={}))


def test_everything_that_there_is_can_be_planned(nightly: Plan) -> None:
    builds = nightly.matrix("linux", "build_pytorch")

    # More than one matrix of all of them would hold.
    assert len(builds) > MAX_JOBS
    assert {job.torch_ref for job in builds} == {*matrices().release.torch_refs}
    assert {job.python for job in builds} == {*matrices().release.pythons}


def test_a_release_starts_every_job_of_its_plan_once(nightly: Plan) -> None:
    started: list[str] = []
    for job in started_jobs(nightly):
        is_carrier = job.path.startswith(("fetch.yml", "publish.yml"))
        if job.planned_job is not None and not is_carrier:
            started.append(f"{job.planned_job.platform} {job.planned_job.key}")
            assert job.runner == job.planned_job.runner

    assert sorted(started) == sorted(f"{job.platform} {job.key}" for job in nightly.jobs)


@pytest.mark.nightly
def test_a_shell_starts_with_the_variables_of_every_step(nightly: Plan) -> None:
    checked_environments: set[frozenset[tuple[str, str]]] = set()
    for job in started_jobs(nightly):
        for step in job.steps:
            variables = frozenset(step.environment.items())
            if variables in checked_environments:
                continue
            checked_environments.add(variables)
            shell = ["/bin/sh", "-c", "exec env -0"]
            completed = process.capture(shell, cwd=ROOT, env=step.environment, timeout=TIMEOUT)
            arrived = dict(line.split("=", 1) for line in completed.stdout.split("\0") if line)
            assert arrived.items() >= step.environment.items(), f"{job.path}, {step.name}"

    assert len(checked_environments) > len(nightly.jobs)


class Receiver(Quiet, BaseHTTPRequestHandler):
    """A webhook on this machine."""

    messages: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        """Note a message."""
        self.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()


def summary_step(plan: Plan, store: Path, webhook: str) -> StartedStep:
    """Return the last step of a release whose tests failed."""
    plan_with_store = plan.model_copy(
        update={"store": plan.store.model_copy(update={"store": str(store), "external_repo": None})}
    )
    run = replace(
        release_of(plan_with_store, "linux", settings={"CI_CONFIG": "", "NOTIFY_EMAIL": ""}),
        secrets={"NOTIFY_SLACK_WEBHOOK": webhook, "NOTIFY_SMTP_URL": ""},
        results={"test": "failure"},
    )
    (summary,) = [job for job in jobs_of_release(run) if job.path == "release.yml, summary"]
    return summary.steps[-1]


def test_the_summary_of_a_nightly_is_told(nightly: Plan, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    path = process.inherited().get("PATH", "")
    machine = process.inherited(
        PATH=f"{BIN}:{Path(sys.base_prefix) / 'bin'}:{path}", MATRIX=None, GITHUB_RUN_ID=None
    )

    with answering(Receiver) as address:
        step = summary_step(nightly, tmp_path / "store", f"{address}/hook")
        environment = {**machine, **step.environment, "GITHUB_EVENT_NAME": "schedule"}
        shell = ["/bin/bash", "-c", step.command]
        completed = process.capture(shell, cwd=ROOT, env=environment, check=False, timeout=TIMEOUT)

    # It fails as the run did, after it has told so.
    assert completed.returncode != 0
    (message,) = Receiver.messages
    assert message["text"].endswith("1 failed")
    assert "test" in json.dumps(message["blocks"])
