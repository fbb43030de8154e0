"""A nightly of every GPU family, torch ref and Python: its jobs start with variables of their real size.

The plan is the one that the front door writes. The workflows are expanded as GitHub expands them; nothing of
what jobs do is executed, but for the summary, which a receiver on this machine gets.
"""

import json
import sys
from collections.abc import Iterator, Mapping
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
from core.run.plan import MAX_JOBS, Plan, PlannedJob
from tests.kit.servers import Quiet
from tests.kit.workflow_runs import StartedJob, StartedStep, jobs_of_release, release_of, resolved

pytestmark = pytest.mark.processes

PYTHON_FOLDER = Path(sys.executable).parent
# A machine that others work on, too, may take many times as long.
TIMEOUT = 600


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Return the plan of a nightly of everything: Pythons that are named are built for every family."""
    plan_file = tmp_path_factory.mktemp("nightly") / "plan.json"
    torch_refs = " ".join(matrices().release.torch_refs)
    pythons = " ".join(matrices().release.pythons)
    command = [
        sys.executable,
        "-m",
        "ci",
        "configure",
        "--event=workflow_dispatch",
        "--release-type=nightly",
        "--changed=ci/verbs/cells.py",
        "--input=linux_amdgpu_families=all",
        "--input=windows_amdgpu_families=all",
        f"--input=pytorch_git_refs={torch_refs}",
        f"--input=pytorch_python_versions={pythons}",
        f"--output={plan_file}",
    ]
    process.capture(command, cwd=ROOT, env=process.inherited(GITHUB_OUTPUT=None), timeout=TIMEOUT)
    return resolved(Plan.read(plan_file))


def started_jobs(plan: Plan) -> Iterator[StartedJob]:
    """Yield the jobs of the releases on both platforms."""
    for platform in PLATFORMS:
        yield from jobs_of_release(release_of(plan, platform, settings={}))


def key_of(job: PlannedJob) -> tuple[str, str]:
    """Return what names a job in its plan."""
    return job.platform, job.key


def test_plans_every_ref_and_python_though_a_matrix_holds_fewer_jobs(nightly: Plan) -> None:
    builds = nightly.matrix("linux", "build_pytorch")

    assert len(builds) > MAX_JOBS
    assert {job.torch_ref for job in builds} == set(matrices().release.torch_refs)
    assert {job.python for job in builds} == set(matrices().release.pythons)


def test_a_release_starts_every_job_of_its_plan_once(nightly: Plan) -> None:
    started_keys: list[tuple[str, str]] = []
    for job in started_jobs(nightly):
        planned_job = job.planned_job
        # These fetch and publish the files of a planned job, which is started beside them.
        is_carrier = job.path.startswith(("fetch.yml", "publish.yml"))
        if planned_job is None or is_carrier:
            continue
        assert job.runner == planned_job.runner
        started_keys.append(key_of(planned_job))

    assert sorted(started_keys) == sorted(map(key_of, nightly.jobs))


def variables_in_shell(environment: Mapping[str, str]) -> dict[str, str]:
    """Start a shell with an environment; return the variables that arrive there."""
    shell = ["/bin/sh", "-c", "exec env -0"]
    printed = process.capture(shell, cwd=ROOT, env=environment, timeout=TIMEOUT).stdout
    variables: dict[str, str] = {}
    for line in printed.removesuffix("\0").split("\0"):
        name, value = line.split("=", 1)
        variables[name] = value
    return variables


@pytest.mark.nightly
def test_a_shell_starts_with_the_variables_of_every_step(nightly: Plan) -> None:
    checked_environments: set[frozenset[tuple[str, str]]] = set()
    for job in started_jobs(nightly):
        for step in job.steps:
            environment = frozenset(step.environment.items())
            if environment in checked_environments:
                continue
            checked_environments.add(environment)
            variables = variables_in_shell(step.environment)
            assert variables.items() >= environment, f"{job.path}, {step.name}"

    assert len(checked_environments) > len(nightly.jobs)


class Receiver(Quiet, BaseHTTPRequestHandler):
    """A webhook on this machine."""

    messages: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        """Note a message."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.messages.append(json.loads(content))
        self.send_response(200)
        self.end_headers()


def summary_step(plan: Plan, store: Path, webhook: str) -> StartedStep:
    """Return the last step of a release whose tests failed."""
    planned_store = plan.store.model_copy(update={"store": str(store), "external_repo": None})
    plan_with_store = plan.model_copy(update={"store": planned_store})
    run = replace(
        release_of(plan_with_store, "linux", settings={"CI_CONFIG": "", "NOTIFY_EMAIL": ""}),
        secrets={"NOTIFY_SLACK_WEBHOOK": webhook, "NOTIFY_SMTP_URL": ""},
        results={"test": "failure"},
    )
    (summary,) = [job for job in jobs_of_release(run) if job.path == "release.yml, summary"]
    return summary.steps[-1]


def test_the_summary_of_a_failed_nightly_is_sent(nightly: Plan, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    path = process.inherited().get("PATH", "")
    base_python_folder = Path(sys.base_prefix) / "bin"
    machine_variables = process.inherited(
        PATH=f"{PYTHON_FOLDER}:{base_python_folder}:{path}", MATRIX=None, GITHUB_RUN_ID=None
    )

    with answering(Receiver) as address:
        step = summary_step(nightly, store, f"{address}/hook")
        environment = {**machine_variables, **step.environment, "GITHUB_EVENT_NAME": "schedule"}
        shell = ["/bin/bash", "-c", step.command]
        completed = process.capture(shell, cwd=ROOT, env=environment, check=False, timeout=TIMEOUT)

    # The step fails as the run did, after it has sent the summary.
    assert completed.returncode != 0
    (message,) = Receiver.messages
    assert message["text"].endswith("1 failed")
    assert "test" in json.dumps(message["blocks"])
