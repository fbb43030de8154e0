"""The variables of a workflow's job: of one in the plan of its run, and of one that is dispatched alone."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.verbs import plan_job
from core.errors import DataError, MissingInputError, UsageError
from core.run.plan import Plan, PlannedJob, RocmOrigin
from pytorch_build.lock.source_lock import SourceLock
from tests.kit.front_doors import FrontDoorResult, run_verb, use_checkout
from tests.kit.locks import locked_project, source_lock
from tests.kit.plans import make_job, make_plan, pytorch_job

FAMILY = "gfx94X-dcgpu"
LOCK = source_lock(locked_project("torch", rocm_version="2.10+rocm7"), torch_ref="nightly")
LOCK_FILE = Path(".cache/plan/out/77-linux/manifests/source-lock-nightly.json")

BUILD = pytorch_job(
    name=f"{FAMILY}, nightly, Python 3.12",
    sessions=("fetch_artifacts", "build_rocm", "check_rocm", "build_torch", "check_wheels"),
    versions={"torch": "2.10+rocm7"},
)
TEST = make_job(
    "test_torch",
    name=f"{FAMILY}, nightly, Python 3.12, default 2/3",
    torch_ref="nightly",
    shard="2/3",
).model_copy(update={"config": "default"})
ROCM_BUILD = make_job("build_rocm", name=FAMILY, python=None)
RUN = RocmOrigin(
    platform="linux",
    artifact_group=FAMILY,
    run_id="17",
    repository="ROCm/TheRock",
    store="s3://runs",
    artifacts={"base": "1" * 64},
)
INDEX = RocmOrigin(
    platform="linux",
    artifact_group=FAMILY,
    index_url="https://packages.example/simple/",
    version="7.1",
)


def make_run_plan(*jobs: PlannedJob, origin: RocmOrigin | None = None) -> Plan:
    """Return a plan that is complete: with versions, digests of locks, and where ROCm comes from."""
    plan = make_plan(*jobs)
    origins = () if origin is None else (origin,)
    rocm = plan.rocm.model_copy(update={"version": "7.2.0", "origins": origins})
    return plan.model_copy(update={"rocm": rocm, "locks": {"linux": {"nightly": LOCK.digest()}}})


class Job:
    """A workflow's job, to which the plan of its run was handed over."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.root = root
        self.monkeypatch = monkeypatch
        self.capsys = capsys
        monkeypatch.setenv("GITHUB_ENV", str(root / "variables"))
        use_checkout(monkeypatch, plan_job, root)

    def take_over(self, plan: Plan) -> None:
        """Put a plan and its source lock where the job takes them over."""
        plan.write(self.root / ".cache/plan/plan.json")
        LOCK.write(self.root / LOCK_FILE)
        self.monkeypatch.setenv("PLAN_DIGEST", plan.digest())

    def read(self, cell: str) -> FrontDoorResult:
        """Read the job of a row."""
        self.monkeypatch.setenv("CELL", cell)
        exit_code = run_verb("ci", "plan-job", "--run-id", "77", "--platform", "linux")
        printed = self.capsys.readouterr()
        return FrontDoorResult(
            exit_code=exit_code,
            output=printed.out,
            report=printed.err,
        )

    def read_planned(self, job: PlannedJob) -> Mapping[str, str]:
        """Return the variables of a job of the plan."""
        result = self.read(json.dumps({"job": job.key, "runner": job.runner}))
        assert result.exit_code == 0, result.report
        return self.variables()

    def variables(self) -> Mapping[str, str]:
        """Return the variables that later steps have."""
        values: dict[str, str] = {}
        lines = iter((self.root / "variables").read_text().splitlines())
        for line in lines:
            name, _, end = line.partition("<<")
            values[name] = "\n".join(iter(lambda: next(lines), end))
        return values


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Job:
    return Job(tmp_path, monkeypatch, capsys)


# A job of the plan


def test_names_what_a_job_of_the_plan_builds(job: Job) -> None:
    job.take_over(make_run_plan(BUILD, TEST))

    variables = job.read_planned(BUILD)

    assert variables["GPU_FAMILY"] == FAMILY
    assert variables["BUILD_VARIANT"] == "release"
    assert variables["PYTHON_VERSION"] == "3.12"
    assert variables["TORCH_REF"] == "nightly"
    assert variables["TORCH_VERSION"] == "2.10+rocm7"
    assert variables["ROCM_PACKAGE_VERSION"] == "7.2.0"


def test_leaves_out_sessions_that_workflows_have_steps_for(job: Job) -> None:
    job.take_over(make_run_plan(BUILD))

    assert job.read_planned(BUILD)["SESSIONS"] == "build_torch check_wheels"


def test_a_job_of_pytorch_that_packages_rocm_does_so_in_a_step_of_its_own(job: Job) -> None:
    job.take_over(make_run_plan(BUILD))

    assert job.read_planned(BUILD)["BUILDS_ROCM"] == "true"


def test_a_job_that_is_handed_rocm_packages_none(job: Job) -> None:
    handed_on = BUILD.model_copy(update={"sessions": ("build_torch", "check_wheels")})
    job.take_over(make_run_plan(handed_on))

    assert job.read_planned(handed_on)["BUILDS_ROCM"] == ""


def test_a_job_of_rocm_alone_packages_it_as_its_session(job: Job) -> None:
    job.take_over(make_run_plan(ROCM_BUILD))

    variables = job.read_planned(ROCM_BUILD)

    assert variables["SESSIONS"] == "build_rocm"
    assert variables["BUILDS_ROCM"] == ""


def test_gives_the_source_lock_of_the_torch_ref(job: Job) -> None:
    job.take_over(make_run_plan(BUILD))

    assert SourceLock.from_compact(job.read_planned(BUILD)["SOURCE_LOCK"]) == LOCK


def test_packages_of_rocm_have_no_source_lock(job: Job) -> None:
    job.take_over(make_run_plan(ROCM_BUILD))

    assert job.read_planned(ROCM_BUILD)["SOURCE_LOCK"] == ""


def test_names_the_artifact_run_with_one_digest(job: Job) -> None:
    plan = make_run_plan(BUILD, origin=RUN)
    job.take_over(plan)

    variables = job.read_planned(BUILD)

    assert variables["ARTIFACT_RUN_ID"] == "17"
    assert variables["ARTIFACT_REPOSITORY"] == "ROCm/TheRock"
    assert variables["ARTIFACT_STORE"] == "s3://runs"
    assert variables["ARTIFACT_DIGEST"] == plan.rocm_row(BUILD)["digest"]


def test_names_the_index_that_rocm_comes_from(job: Job) -> None:
    job.take_over(make_run_plan(BUILD, TEST, origin=INDEX))

    for planned_job in (BUILD, TEST):
        variables = job.read_planned(planned_job)
        assert variables["ROCM_PACKAGE_INDEX_URL"] == "https://packages.example/simple/"
        assert variables["ROCM_PACKAGE_VERSION"] == "7.1"
        assert variables["ARTIFACT_RUN_ID"] == ""


def test_names_the_part_of_upstreams_tests(job: Job) -> None:
    job.take_over(make_run_plan(TEST))

    variables = job.read_planned(TEST)

    assert variables["TORCH_TESTS"] == "default"
    assert variables["TORCH_TESTS_PART"] == "2/3"


def test_refuses_another_plan_than_that_of_the_run(job: Job) -> None:
    job.take_over(make_run_plan(BUILD))
    make_run_plan(BUILD, TEST).write(job.root / ".cache/plan/plan.json")

    result = job.read(json.dumps({"job": BUILD.key}))

    assert result.exit_code == DataError.exit_code
    assert "digest" in result.report
    assert not (job.root / "variables").exists()


def test_refuses_another_lock_than_that_of_the_plan(job: Job) -> None:
    job.take_over(make_run_plan(BUILD))
    changed_lock = source_lock(locked_project("torch", rocm_version="2.11+rocm7"), torch_ref="nightly")
    changed_lock.write(job.root / LOCK_FILE)

    result = job.read(json.dumps({"job": BUILD.key}))

    assert result.exit_code == DataError.exit_code
    assert "source-lock-nightly.json" in result.report


def test_refuses_a_job_that_the_plan_does_not_have(job: Job) -> None:
    job.take_over(make_run_plan(BUILD))

    result = job.read(json.dumps({"job": TEST.key}))

    assert result.exit_code == DataError.exit_code
    assert TEST.key in result.report


def test_refuses_a_plan_that_was_not_handed_over(job: Job) -> None:
    job.monkeypatch.setenv("PLAN_DIGEST", "1" * 64)

    assert job.read(json.dumps({"job": BUILD.key})).exit_code == MissingInputError.exit_code


# A job that is dispatched alone

DISPATCHED = {
    "job": f"test_pytorch {FAMILY}, nightly, Python 3.12",
    "runner": "our-mi300",
    "gpu_family": FAMILY,
    "build_variant": "release",
    "sessions": "test_torch",
    "torch_tests": "inductor",
    "minutes": 300,
    "python": "3.12",
    "torch_ref": "nightly",
    "torch_version": "",
    "source_lock": "",
    "fetch": True,
    "index_url": "https://packages.example/simple/",
    "rocm": {"index_url": ""},
}


def test_a_dispatched_job_says_everything_itself(job: Job) -> None:
    assert job.read(json.dumps(DISPATCHED)).exit_code == 0

    variables = job.variables()
    assert variables["SESSIONS"] == "test_torch"
    assert variables["TORCH_TESTS"] == "inductor"
    assert variables["TORCH_TESTS_PART"] == ""
    assert variables["PACKAGE_INDEX_URL"] == "https://packages.example/simple/"
    assert variables["SOURCE_LOCK"] == ""


def test_both_kinds_of_jobs_set_the_same_variables(job: Job) -> None:
    assert job.read(json.dumps(DISPATCHED)).exit_code == 0
    names = {*job.variables()}

    job.take_over(make_run_plan(BUILD))

    assert names == {*job.read_planned(BUILD)}


@pytest.mark.parametrize(
    "change",
    [{"familly": "gfx1151"}, {"gpu_family": None}, {"rocm": {"url": "x"}}],
    ids=["name", "family", "rocm"],
)
def test_refuses_a_dispatched_job_that_is_not_one(job: Job, change: Mapping[str, object]) -> None:
    result = job.read(json.dumps({**DISPATCHED, **change}))

    assert result.exit_code == DataError.exit_code
    assert "CELL" in result.report


def test_refuses_to_read_no_job(job: Job) -> None:
    assert job.read("").exit_code == UsageError.exit_code
