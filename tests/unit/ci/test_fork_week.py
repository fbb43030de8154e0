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


EVERY_WORKFLOW = json.dumps([workflow.tree["name"] for workflow in workflows().values()])
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
    bare_names = {name.removeprefix("s3://") for name in names}

    unowned_names = {job.machine} - fork.machines - GITHUB_MACHINES
    unowned_names |= bare_names & upstream.stores
    unowned_names |= bare_names & upstream.machines
    if fork.families:
        unowned_names |= names & upstream.families
    for role in names_in(job, ROLE):
        if ":123456789012:" not in role:
            unowned_names.add(role)
    return unowned_names


# --- Runs ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class World:
    """A fork, and a folder for its files."""

    fork: Fork
    folder: Path
    nights: dict[str, Sequence[SimulatedJob]] = field(default_factory=dict)  # one is like the other

    @property
    def config_file(self) -> Path | None:
        return None if self.fork.file is None else self.folder / "own.toml"

    def run(self, file: str, event: Event) -> Sequence[SimulatedJob]:
        """Return the jobs of a run that start."""
        use_user_file(self.config_file)
        planned_run = PlannedRun(folder=self.folder, event=event, config_file=self.config_file)
        return Simulation(event=event, run_step=planned_run.run_step).run(file)

    def event(self, name: str, payload: Mapping[str, object] | None = None, **inputs: str) -> Event:
        github = github_event(name, FORK, payload)
        return Event(github=github, inputs=inputs, variables=self.fork.variables)

    def scheduled_runs(self, day: datetime) -> Mapping[str, Sequence[SimulatedJob]]:
        """Return the jobs that the clock starts on a day, by the workflow's file."""
        runs: dict[str, Sequence[SimulatedJob]] = {}
        for file in files_of_day(day):
            if file not in self.nights:
                self.nights[file] = self.run(file, self.event("schedule"))
            runs[file] = self.nights[file]
        return runs


def make_world(name: str, folder: Path) -> World:
    """Return a fork of these, with its file written."""
    world = World(fork=FORKS[name], folder=folder)
    if world.config_file is not None:
        world.config_file.write_text(world.fork.file or "", encoding="utf-8")
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
    # Sunday is 0.
    return day_of_week == "*" or int(day_of_week) == day.isoweekday() % 7


WEEK = [MONDAY + timedelta(days=number) for number in range(7)]


@pytest.mark.parametrize("day", WEEK, ids=lambda day: f"{day:%A}")
def test_nothing_of_a_night_is_upstreams(world: World, day: datetime, upstream: Upstream) -> None:
    for file, jobs in world.scheduled_runs(day).items():
        for job in jobs:
            assert not foreign_names(job, world.fork, upstream), f"{file}: {job.path}"


@pytest.mark.parametrize("day", WEEK, ids=lambda day: f"{day:%A}")
def test_nothing_runs_by_the_clock_that_nobody_asked_for(world: World, day: datetime) -> None:
    requested = json.loads(world.fork.schedules or "[]")

    for file, jobs in world.scheduled_runs(day).items():
        assert bool(jobs) == (workflows()[file].tree["name"] in requested), file


EVENTS = {
    "a push": ("ci.yml", "push", push(), {}),
    "a push to a branch": ("ci.yml", "push", push("topic"), {}),
    "a merge queue": ("ci.yml", "merge_group", merge_group(), {}),
    "a pull request": ("ci.yml", "pull_request", pull_request("build:pytorch", head=FORK), {}),
    "a fork's pull request": ("ci.yml", "pull_request", pull_request("build:pytorch", head="x/y"), {}),
    "tests of torch": ("ci.yml", "pull_request", pull_request("test:torch", head=FORK), {}),
    "all families": ("ci.yml", "pull_request", pull_request("ci:run-all-archs", head=FORK), {}),
    "a dispatch": ("ci.yml", "workflow_dispatch", {}, {}),
    "a dispatch of all": ("ci.yml", "workflow_dispatch", {}, {"linux_amdgpu_families": "all"}),
    "maintenance": ("maintenance.yml", "workflow_dispatch", {}, {}),
    "a nightly": (
        "release_portable_linux_pytorch_wheels.yml",
        "workflow_dispatch",
        {},
        {"release_type": "nightly"},
    ),
    "a release on Windows": ("release_windows_pytorch_wheels.yml", "workflow_dispatch", {}, {}),
}


def jobs_or_refusal(world: World, name: str) -> Sequence[SimulatedJob] | UsageError:
    """Return the jobs that an event starts, or why its plan is refused."""
    file, event_name, payload, inputs = EVENTS[name]
    try:
        return world.run(file, world.event(event_name, payload, **inputs))
    except UsageError as refusal:
        return refusal


@pytest.mark.parametrize("name", EVENTS)
def test_nothing_that_people_start_is_upstreams(world: World, name: str, upstream: Upstream) -> None:
    jobs = jobs_or_refusal(world, name)

    if isinstance(jobs, UsageError):
        # What the fork has no bucket or no family for is refused, before anything is built.
        assert re.search(r"has no bucket|no GPU family", jobs.message)
        return
    assert jobs
    for job in jobs:
        assert not foreign_names(job, world.fork, upstream), job.path


@pytest.mark.parametrize("day", WEEK[-1:], ids=lambda day: f"{day:%A}")
def test_maintenance_keeps_the_forks_stores_by_the_forks_roles(world: World, day: datetime) -> None:
    jobs = world.scheduled_runs(day).get("maintenance.yml", [])
    kept_stores = {job.variables["STORE"] for job in jobs if job.name in {"mirror", "retention"}}

    assert kept_stores <= world.fork.stores
    for job in jobs:
        if job.name == "mirror":
            roles = {step.inputs["role"] for step in job.steps if "role" in step.inputs}
            assert all("my-" in role and "-mirror" in role for role in roles)


# --- What the guide says of its nights --------------------------------------------------------


@pytest.fixture
def guides_nights(tmp_path: Path) -> World:
    return make_world("the guide's nights", tmp_path)


def row_of_guide(workflow: str) -> str:
    """Return what the guide's table says that a workflow does every night."""
    (row,) = [line for line in GUIDE.splitlines() if line.startswith(f"| `{workflow}` |")]
    return row


def test_the_guide_says_what_ci_does_every_night(guides_nights: World) -> None:
    row = row_of_guide("CI")

    jobs = guides_nights.run("ci.yml", guides_nights.event("schedule"))

    on_own_machines = [job for job in jobs if job.machine in guides_nights.fork.machines]
    tests_of_torch = [job for job in on_own_machines if job.variables.get("TORCH_TESTS") == "default"]
    assert f"the {len(on_own_machines) - len(tests_of_torch)} jobs of a push" in row
    assert f"in {len(tests_of_torch)} more" in row
    for machine in guides_nights.fork.machines:
        assert f"`{machine}`" in row
    assert {job.variables["RUN_STORE"] for job in on_own_machines} == {"s3://my-wheels"}
    assert "`s3://my-wheels`" in row


def test_the_guide_says_what_a_nightly_release_does(guides_nights: World) -> None:
    row = row_of_guide("Release PyTorch wheels (Linux)")
    file = "release_portable_linux_pytorch_wheels.yml"

    jobs = guides_nights.run(file, guides_nights.event("schedule"))

    (build,) = [job for job in jobs if job.file == "build_pytorch.yml" and job.name == "build"]
    for name in ("TORCH_REF", "GPU_FAMILY", "RUN_STORE"):
        assert f"`{build.variables[name]}`" in row
    assert f"Python {build.variables['PYTHON_VERSION']}" in row
    (promotion,) = [job for job in jobs if job.name == "promote"]
    assert promotion.environment == "nightly"


def test_a_nightly_release_of_the_guides_first_file_alone_is_refused(tmp_path: Path) -> None:
    world = make_world("the guide's file", tmp_path)
    event = world.event("workflow_dispatch", {}, release_type="nightly")

    with pytest.raises(UsageError, match="nightly") as caught:
        world.run("release_portable_linux_pytorch_wheels.yml", event)

    assert "[buckets.release_types.nightly]" in str(caught.value.hint)


def test_the_guide_names_every_workflow_that_has_a_schedule() -> None:
    scheduled = {workflow.tree["name"] for workflow in workflows().values() if "schedule" in workflow.on}
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## Schedules\n")
    table, _, _ = section.partition("```json")

    assert scheduled <= set(re.findall(r"`([^`]+)`", table))
