"""The first week of a fork: what its workflows do by the clock, and when somebody does something.

Every run is simulated, with the plans that the fork's own file gives.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ci.plan.data import load
from ci.publish.buckets import buckets
from core.cli.options import ROOT
from core.data import use_user_file
from core.errors import UsageError
from core.families import families as all_families
from tests.kit.planned_runs import PlannedRun, github_event
from tests.kit.planning import merge_group, pull_request, push
from tests.kit.simulated_runs import Event, SimulatedJob, Simulation
from tests.kit.workflow_files import workflows

GUIDE = (ROOT / "docs" / "fork_and_downstream.md").read_text(encoding="utf-8")
MONDAY = datetime(2026, 11, 23)  # noqa: DTZ001 - of the clock that crons are in
FORK = "my-organisation/wheels"
GITHUB_MACHINES = {"ubuntu-24.04", "windows-2022"}
NAME = re.compile(r"[A-Za-z0-9][\w./:-]*")
ROLE = re.compile(r"arn:aws:iam::\d+:role/[\w-]+")

ONE_MACHINE = """\
[families.gfx1151-desk]
targets = ["gfx1151"]

[matrix.ci]
gpu_families = { linux = ["gfx1151-desk"] }

[upload]
store = "/srv/wheels"

[runners.self_hosted]
my-machine = "my-organisation"

[runners.machines.linux]
build = "my-machine"

[runners.families.gfx1151-desk.linux]
test_runner = "my-machine"
"""


def blocks_of_guide(language: str) -> Sequence[str]:
    """Return the files that the guide shows in a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Fork:
    """A copy of the repository, with what its owner has set."""

    file: str | None = None
    schedules: str = ""
    other_variables: Mapping[str, str] = field(default_factory=dict)
    families: frozenset[str] = frozenset()
    machines: frozenset[str] = frozenset()
    stores: frozenset[str] = frozenset()

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables of the repository."""
        if not self.schedules:
            return self.other_variables
        return {**self.other_variables, "SCHEDULES": self.schedules}


FORKS = {
    "a copy without settings": Fork(),
    "the guide's file": Fork(
        file=blocks_of_guide("toml")[0],
        families=frozenset({"gfx94X-lab"}),
        machines=frozenset({"my-builder", "my-mi300"}),
        stores=frozenset({"s3://my-wheels"}),
    ),
    "the guide's nights": Fork(
        file="".join(blocks_of_guide("toml")[:2]),
        schedules=blocks_of_guide("json")[0],
        families=frozenset({"gfx94X-lab"}),
        machines=frozenset({"my-builder", "my-mi300"}),
        stores=frozenset({"s3://my-wheels", "s3://my-nightly-wheels", "s3://my-releases"}),
    ),
    "one machine": Fork(
        file=ONE_MACHINE,
        schedules=json.dumps(["CI", "Release PyTorch wheels (Linux)", "maintenance", "therock-nightly"]),
        other_variables={"DISTRIBUTION_STORE": "/srv/releases", "IMAGE_FAMILIES": "gfx1151-desk"},
        families=frozenset({"gfx1151-desk"}),
        machines=frozenset({"my-machine"}),
        stores=frozenset({"/srv/wheels", "/srv/releases"}),
    ),
}


# --- Who has what ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """What a fork's runs may not name."""

    families: frozenset[str]
    machines: frozenset[str]
    stores: frozenset[str]


@pytest.fixture(scope="module")
def upstream() -> Upstream:
    use_user_file(None)
    names: set[str] = set()
    for run_bucket in buckets().release_types.values():
        names |= {run_bucket.bucket, run_bucket.external_bucket}
    for distribution in buckets().distributions.values():
        names.add(distribution.bucket)
    return Upstream(
        families=frozenset(all_families()) - {"cpu"},
        machines=frozenset(load().runners.self_hosted),
        stores=frozenset(names - {""}),
    )


def names_in(job: SimulatedJob, pattern: re.Pattern[str]) -> set[str]:
    """Return the names of a form in everything that a job gets."""
    names: set[str] = set()
    for text in job.texts():
        names.update(pattern.findall(text))
    return names


def foreign_names(job: SimulatedJob, fork: Fork, upstream: Upstream) -> set[str]:
    """Return the stores, roles, machines and families that a job names and that are not the fork's."""
    names = names_in(job, NAME)
    names_without_scheme = {name.removeprefix("s3://") for name in names}

    foreign = {job.machine} - fork.machines - GITHUB_MACHINES
    foreign |= names_without_scheme & upstream.stores
    foreign |= names_without_scheme & upstream.machines
    if fork.families:
        foreign |= names & upstream.families
    for role in names_in(job, ROLE):
        # The account in the guide's examples.
        if ":123456789012:" not in role:
            foreign.add(role)
    return foreign


# --- Runs ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class World:
    """A fork, and a folder for its files."""

    fork: Fork
    folder: Path
    nights: dict[str, Sequence[SimulatedJob]] = field(default_factory=dict)  # each night is like the first

    @property
    def config_file(self) -> Path | None:
        """The repository's own data, where the fork has any."""
        if self.fork.file is None:
            return None
        return self.folder / "own.toml"

    def run(self, file: str, event: Event) -> Sequence[SimulatedJob]:
        """Return the jobs of a run that start."""
        use_user_file(self.config_file)
        planned_run = PlannedRun(folder=self.folder, event=event, config_file=self.config_file)
        return Simulation(event=event, run_step=planned_run.run_step).run(file)

    def event(
        self,
        name: str,
        *,
        payload: Mapping[str, object] | None = None,
        inputs: Mapping[str, str] | None = None,
    ) -> Event:
        """Return an event in the fork's repository."""
        github = github_event(name, FORK, payload)
        return Event(github=github, inputs=inputs or {}, variables=self.fork.variables)

    def scheduled_runs(self, day: datetime) -> Mapping[str, Sequence[SimulatedJob]]:
        """Return the jobs that the clock starts on a day, by the workflow's file."""
        runs: dict[str, Sequence[SimulatedJob]] = {}
        for file in files_of_day(day):
            if file not in self.nights:
                event = self.event("schedule")
                self.nights[file] = self.run(file, event)
            runs[file] = self.nights[file]
        return runs


def make_world(name: str, folder: Path) -> World:
    """Return a fork of these, with its file written."""
    world = World(fork=FORKS[name], folder=folder)
    if world.config_file is not None and world.fork.file is not None:
        world.config_file.write_text(world.fork.file, encoding="utf-8")
    return world


@pytest.fixture(scope="module", params=FORKS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(request.param, tmp_path_factory.mktemp("fork"))


def files_of_day(day: datetime) -> Iterator[str]:
    """Yield the workflows that have a schedule on a day."""
    for name, workflow in workflows().items():
        for schedule in workflow.on.get("schedule", []):
            if is_on_day(schedule["cron"], day):
                yield name


def is_on_day(cron: str, day: datetime) -> bool:
    """Return whether a schedule of one time, with days of the week alone, is on a day."""
    minute, hour, day_of_month, month, day_of_week = cron.split()
    assert minute.isdigit()
    assert hour.isdigit()
    assert (day_of_month, month) == ("*", "*")
    if day_of_week == "*":
        return True
    # Sunday is 0.
    return int(day_of_week) == day.isoweekday() % 7


WEEK = [MONDAY + timedelta(days=number) for number in range(7)]
SUNDAY = WEEK[-1]
EVERY_DAY = pytest.mark.parametrize("day", WEEK, ids="{:%A}".format)


@EVERY_DAY
def test_nothing_of_a_night_is_upstreams(world: World, day: datetime, upstream: Upstream) -> None:
    for file, jobs in world.scheduled_runs(day).items():
        for job in jobs:
            names = foreign_names(job, world.fork, upstream)
            assert not names, f"{file}: {job.path}"


@EVERY_DAY
def test_nothing_runs_by_the_clock_that_nobody_asked_for(world: World, day: datetime) -> None:
    requested = json.loads(world.fork.schedules or "[]")

    for file, jobs in world.scheduled_runs(day).items():
        is_requested = workflows()[file].tree["name"] in requested
        assert bool(jobs) == is_requested, file


def test_maintenance_keeps_the_forks_stores(world: World) -> None:
    jobs = world.scheduled_runs(SUNDAY).get("maintenance.yml", [])

    for job in jobs:
        if job.name in {"mirror", "retention"}:
            assert job.variables["STORE"] in world.fork.stores, job.path


def test_maintenance_mirrors_with_the_forks_role(world: World) -> None:
    jobs = world.scheduled_runs(SUNDAY).get("maintenance.yml", [])

    for job in jobs:
        for step in job.steps:
            if job.name == "mirror" and "role" in step.inputs:
                role = step.inputs["role"]
                assert "my-" in role
                assert "-mirror" in role


# --- What people start -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Start:
    """What somebody does in a fork, and the workflow that it starts.

    Attributes:
        file: The workflow.
        event: The name of GitHub's event.
        payload: What GitHub says of it.
        inputs: What is entered in the form of a dispatch.
    """

    file: str
    event: str
    payload: Mapping[str, object] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)


def start_pull_request(label: str, *, head: str = FORK) -> Start:
    """Return the start of CI by a pull request with a label, from a repository."""
    payload = pull_request(label, head=head)
    return Start(file="ci.yml", event="pull_request", payload=payload)


STARTS = {
    "a push": Start(file="ci.yml", event="push", payload=push()),
    "a push to a branch": Start(file="ci.yml", event="push", payload=push("topic")),
    "a merge queue": Start(file="ci.yml", event="merge_group", payload=merge_group()),
    "a pull request": start_pull_request("build:pytorch"),
    "a fork's pull request": start_pull_request("build:pytorch", head="x/y"),
    "tests of torch": start_pull_request("test:torch"),
    "all families": start_pull_request("ci:run-all-archs"),
    "a dispatch": Start(file="ci.yml", event="workflow_dispatch"),
    "a dispatch of all": Start(
        file="ci.yml",
        event="workflow_dispatch",
        inputs={"linux_amdgpu_families": "all"},
    ),
    "maintenance": Start(file="maintenance.yml", event="workflow_dispatch"),
    "a nightly": Start(
        file="release_portable_linux_pytorch_wheels.yml",
        event="workflow_dispatch",
        inputs={"release_type": "nightly"},
    ),
    "a release on Windows": Start(
        file="release_windows_pytorch_wheels.yml",
        event="workflow_dispatch",
    ),
}


def jobs_or_refusal(world: World, start: Start) -> Sequence[SimulatedJob] | UsageError:
    """Return the jobs that start, or why their plan is refused."""
    event = world.event(start.event, payload=start.payload, inputs=start.inputs)
    try:
        return world.run(start.file, event)
    except UsageError as refusal:
        return refusal


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_nothing_that_people_start_is_upstreams(world: World, start: Start, upstream: Upstream) -> None:
    jobs = jobs_or_refusal(world, start)

    if isinstance(jobs, UsageError):
        # What the fork has no bucket or no family for is refused, before anything is built.
        assert re.search(r"has no bucket|no GPU family", jobs.message)
        return
    assert jobs
    for job in jobs:
        names = foreign_names(job, world.fork, upstream)
        assert not names, job.path


# --- What the guide says of its nights --------------------------------------------------------


@pytest.fixture
def guides_nights(tmp_path: Path) -> World:
    return make_world("the guide's nights", tmp_path)


def row_of_guide(workflow: str) -> str:
    """Return what the guide's table says that a workflow does every night."""
    row: str
    (row,) = re.findall(rf"^\| `{re.escape(workflow)}` \|.*$", GUIDE, re.MULTILINE)
    return row


def job_of_file(jobs: Sequence[SimulatedJob], file: str, name: str) -> SimulatedJob:
    """Return the one job of a run that stands in a workflow under a name."""
    (job,) = [job for job in jobs if job.file == file and job.name == name]
    return job


def test_the_guide_says_what_ci_does_every_night(guides_nights: World) -> None:
    row = row_of_guide("CI")
    machines = guides_nights.fork.machines

    jobs = guides_nights.run("ci.yml", guides_nights.event("schedule"))

    jobs_on_machines = [job for job in jobs if job.machine in machines]
    tests_of_torch = [job for job in jobs_on_machines if job.variables.get("TORCH_TESTS") == "default"]
    jobs_of_a_push = len(jobs_on_machines) - len(tests_of_torch)
    assert f"the {jobs_of_a_push} jobs of a push" in row
    assert f"in {len(tests_of_torch)} more" in row
    for machine in machines:
        assert f"`{machine}`" in row


def test_the_guide_says_where_nightly_runs_of_ci_are_kept(guides_nights: World) -> None:
    jobs = guides_nights.run("ci.yml", guides_nights.event("schedule"))

    jobs_with_store = 0
    for job in jobs:
        if job.machine in guides_nights.fork.machines:
            assert job.variables["RUN_STORE"] == "s3://my-wheels", job.path
            jobs_with_store += 1
    assert jobs_with_store > 0
    assert "`s3://my-wheels`" in row_of_guide("CI")


def test_the_guide_says_what_a_nightly_release_does(guides_nights: World) -> None:
    row = row_of_guide("Release PyTorch wheels (Linux)")
    file = "release_portable_linux_pytorch_wheels.yml"

    jobs = guides_nights.run(file, guides_nights.event("schedule"))

    build = job_of_file(jobs, "build_pytorch.yml", "build")
    for name in ("TORCH_REF", "GPU_FAMILY", "RUN_STORE"):
        assert f"`{build.variables[name]}`" in row
    assert f"Python {build.variables['PYTHON_VERSION']}" in row
    promotion = job_of_file(jobs, "release.yml", "promote")
    assert promotion.environment == "nightly"


def test_a_nightly_release_of_the_guides_first_file_alone_is_refused(tmp_path: Path) -> None:
    world = make_world("the guide's file", tmp_path)
    event = world.event("workflow_dispatch", inputs={"release_type": "nightly"})

    with pytest.raises(UsageError, match="nightly") as caught:
        world.run("release_portable_linux_pytorch_wheels.yml", event)

    assert "[buckets.release_types.nightly]" in str(caught.value.hint)


def test_the_guide_names_every_workflow_that_has_a_schedule() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## Schedules\n")
    table, _, _ = section.partition("```json")
    names = re.findall(r"`([^`]+)`", table)

    for workflow in workflows().values():
        if "schedule" in workflow.on:
            assert workflow.tree["name"] in names
