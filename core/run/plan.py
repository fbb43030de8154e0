"""The plan of a run: what is built and tested, where, and why, decided once from one event.

`python -m ci configure` writes it, and with ``--plan`` completes it with where ROCm comes from,
`python -m pytorch_build resolve --plan` with versions, and `MATRIX=FILE` makes sessions of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from pydantic import Field

from core import files
from core.cell import Cell
from core.data import Document, Model, OptionalText, compact
from core.errors import DataError, nearest
from core.run import PLAIN, PLATFORMS, Platform

Stage = Literal["build_rocm", "test_rocm", "build_pytorch", "test_pytorch", "test_torch"]
STAGES: tuple[Stage, ...] = get_args(Stage)
MAX_JOBS = 256  # of one matrix in GitHub Actions
MAX_OUTPUTS = 2**20  # bytes of a job's outputs there, counted as UTF-16
FETCH = "fetch_artifacts"


class Decision(Model):
    """A yes or no with its reason, a sentence without a full stop."""

    value: bool
    reason: str


class PlanEvent(Model):
    """The event, as far as the plan follows from it."""

    name: str = Field(
        description="``pull_request``, ``push``, ``schedule``, ``workflow_dispatch``, …",
    )
    repository: str = Field(
        description="``{owner}/{name}`` of the repository that the run belongs to",
    )
    branch: OptionalText = Field(
        None,
        description="The branch; of a pull request the one it is to be merged into",
    )
    commit: OptionalText = None
    number: int = Field(0, description="Of the pull request; 0 for none")
    labels: tuple[str, ...] = Field((), description="Of the pull request, sorted")


class Upload(Model):
    """Where run outputs go."""

    store: OptionalText = Field(
        None,
        description="As ``--store`` takes it; empty where nothing is uploaded",
    )
    external_repo: OptionalText = None
    role: OptionalText = Field(
        None,
        description="ARN of the role that a job assumes to write; empty for none",
    )
    region: OptionalText = None


class RocmOrigin(Model):
    """Where the ROCm of one artifact group comes from: a run's artifacts, or the packages of an index."""

    platform: Platform
    artifact_group: str
    run_id: OptionalText = Field(None, description="The artifact run; empty for an index")
    repository: OptionalText = None
    store: OptionalText = Field(None, description="The store that has its outputs")
    external_repo: OptionalText = None
    artifacts: dict[str, str] = Field(
        {},
        description="SHA-256 of each artifact, or of the index's packages",
    )
    index_url: OptionalText = Field(None, description="The index; empty for a run")
    version: OptionalText = None
    reason: str = ""

    @property
    def row(self) -> Mapping[str, str]:
        """What a job needs: the artifact run with one digest of what it fetches, or the index."""
        row: dict[str, str] = {}
        for key in ("run_id", "repository", "store", "index_url", "version"):
            value = getattr(self, key)
            if value is not None:
                row[key] = value
        if self.run_id is not None and self.artifacts:
            row["digest"] = files.digest_of(self.artifacts)
        return row


class RocmPackages(Model):
    """Where ROCm's packages come from."""

    artifact_run_id: OptionalText = Field(
        None,
        description="The artifact run that was requested; empty for none",
    )
    artifact_repository: OptionalText = None
    artifact_store: OptionalText = Field(
        None,
        description="The store that has it; empty for the data's",
    )
    use_prebuilt_artifacts: bool = Field(
        default=False,
        description="Whether packages are made of a run's artifacts in any case",
    )
    index_url: OptionalText = Field(None, description="The index that was requested; empty for none")
    version: OptionalText = None
    version_named: bool = Field(default=False, description="Whether the event names it")
    origins: tuple[RocmOrigin, ...] = Field(
        (),
        description="Of each group; `configure --plan` fills it in",
    )


class PlannedGroup(Model):
    """One GPU family in one build variant on one platform: what ``ci_linux.yml`` is called with."""

    platform: Platform
    gpu_family: str
    gpu_targets: tuple[str, ...]
    build_variant: str = PLAIN
    artifact_group: str
    build_runner: str = Field(description="Label of the machines that build it")
    test_runner: OptionalText = Field(
        None,
        description="Label of the machines with its GPU; empty for none",
    )
    expect_failure: bool = Field(default=False, description="PyTorch is not built on it then")
    bypass_tests_for_releases: bool = Field(
        default=False,
        description="Releasable untested where no GPU is",
    )
    build_pytorch: bool = Field(default=False, description="Whether PyTorch is built for it")
    reason: str


class PlannedJob(Model):
    """A chain of sessions that one machine runs for a cell."""

    name: str = Field(description="Unique in its matrix: ``gfx94X-dcgpu, nightly, Python 3.12``")
    platform: Platform
    stage: Stage = Field(description="The matrix that it belongs to")
    sessions: tuple[str, ...] = Field(description="The sessions of nox, in order")
    runner: str
    gpu_family: str
    artifact_group: str = Field(description="The folder of its wheels")
    build_variant: str = PLAIN
    python: OptionalText = Field(
        None,
        description="The Python series of the target; empty where it does not matter",
    )
    torch_ref: OptionalText = Field(
        None,
        description="The torch ref; empty for ROCm's own packages",
    )
    config: OptionalText = Field(
        None,
        description="Of upstream's tests, which configuration; empty for other jobs",
    )
    shard: OptionalText = Field(
        None,
        description="Of upstream's tests, which part: ``2/6``; empty for other jobs",
    )
    minutes: int = Field(0, description="How long its tests may take; 0 where the workflow says it")
    hosted: bool = Field(
        default=False,
        description="On a machine of GitHub's, which ends a job after six hours",
    )
    without_gpu: bool = Field(
        default=False, description="Tests on a machine that has no GPU to pass on to a container"
    )
    expect_failure: bool = Field(default=False, description="A failure does not count")
    reason: str
    versions: dict[str, str] = Field({}, description="Of the wheels to come; `resolve` fills them in")

    @property
    def key(self) -> str:
        """Its name among all jobs of its platform: ``build_rocm gfx94X-dcgpu``."""
        return f"{self.stage} {self.name}"

    @property
    def cell(self) -> Cell:
        """What it builds or tests."""
        return Cell(
            platform=self.platform,
            gpu_family=self.gpu_family,
            build_variant=None if self.build_variant == PLAIN else self.build_variant,
            python=self.python,
            torch_ref=self.torch_ref,
            config=self.config,
            shard=self.shard,
        )


class LeftOut(Model):
    """What is not done, and why."""

    what: str
    reason: str


class Plan(Document, validate_by_alias=True, validate_by_name=True):
    """What one run does."""

    schema_version: Literal[1] = 1
    event: PlanEvent
    trusted: Decision = Field(
        description="Whether it gets credentials, release buckets, shared caches",
    )
    enable_build_jobs: Decision
    build_pytorch: Decision
    upload: Decision = Field(
        description="Without uploads a job builds and checks, and nothing is tested",
    )
    promote: Decision = Field(
        description="Whether the wheels go on to the release index of `release_type`",
    )
    release_type: str = Field(description="``ci``, ``dev``, ``nightly``, ``prerelease``")
    test_type: str = Field(description="``quick``, ``standard``, ``comprehensive`` or ``full``")
    test_type_reason: str
    test_labels: dict[Platform, tuple[str, ...]] = Field(
        description="Requested besides those of the test type",
    )
    store: Upload = Upload()
    rocm: RocmPackages = Field(
        RocmPackages(),
        description="What ROCm's packages are made of",
    )
    variants: tuple[PlannedGroup, ...] = ()
    jobs: tuple[PlannedJob, ...] = Field((), alias="cells")  # the name that plan files have for them
    left_out: tuple[LeftOut, ...] = Field(
        (),
        description="What could be and is not in the plan",
    )
    notes: tuple[str, ...] = Field(
        (),
        description="Defaults taken for what could not be looked up",
    )
    locks: dict[Platform, dict[str, str]] = Field(
        {},
        description="Digests by torch ref; `resolve`'s",
    )

    def matrix(self, platform: Platform, stage: Stage) -> Sequence[PlannedJob]:
        """Return the jobs of one stage on one platform."""
        return [job for job in self.jobs if job.platform == platform and job.stage == stage]

    def rocm_row(self, job: PlannedJob) -> Mapping[str, str]:
        """Return where a job's ROCm comes from; nothing where another job builds it."""
        for origin in self.rocm.origins:
            if origin.platform != job.platform or origin.artifact_group != job.artifact_group:
                continue
            if origin.index_url is not None or FETCH in job.sessions:
                return origin.row
        return {}

    def row(self, job: PlannedJob) -> Mapping[str, Any]:
        """Return a job as a workflow gets it: its key, and what GitHub has to know before the job starts.

        `plan_job` reads all the rest in the plan's file.
        """
        row: dict[str, Any] = {"job": job.key, "runner": job.runner}
        if job.minutes:
            row["minutes"] = job.minutes
        for flag in ("hosted", "without_gpu", "expect_failure"):
            if getattr(job, flag):
                row[flag] = True
        if self.fetches(job):
            row["fetch"] = True
        return row

    def fetches(self, job: PlannedJob) -> bool:
        """Return whether a job packages, builds on or tests what lies in a bucket."""
        rocm = self.rocm_row(job)
        if job.stage == "build_rocm":
            return "run_id" in rocm
        return job.stage.startswith("test_") or "index_url" not in rocm

    def find_job(self, platform: Platform, key: str) -> PlannedJob:
        """Return the job with a key on a platform; a `DataError` if there is none."""
        jobs = {job.key: job for job in self.jobs if job.platform == platform}
        if key not in jobs:
            raise DataError(f"The plan has no job {key!r} on {platform}. {nearest(key, jobs)}")
        return jobs[key]


def matrices(plan: Plan) -> Mapping[str, object]:
    """Return what a workflow's jobs are made of, as job outputs name it.

    ``{platform}_groups`` is a list of artifact groups with their jobs by stage, ``{platform}_stages`` has the
    names of the stages that have jobs, ``{platform}_promote_matrix`` lists what is to be promoted.
    """
    written: dict[str, object] = {}
    for platform in PLATFORMS:
        groups = group_rows(plan, platform)
        wheel_sets = wheel_sets_to_promote(plan, platform)
        _refuse_size(groups, f"{platform} has {len(groups)} artifact groups")
        _refuse_size(wheel_sets, f"{len(wheel_sets)} sets of wheels are to be promoted on {platform}")

        stages = [stage for stage in STAGES if plan.matrix(platform, stage)]
        written[f"{platform}_groups"] = groups
        written[f"{platform}_stages"] = " ".join(stages)
        written[f"{platform}_promote_matrix"] = wheel_sets
    return written


def _refuse_size(rows: Sequence[object], rows_in_words: str) -> None:
    """Refuse what a matrix of GitHub Actions does not take."""
    if len(rows) > MAX_JOBS:
        raise DataError(
            f"{rows_in_words}; a matrix of GitHub Actions holds {MAX_JOBS}.",
            hint="Dispatch fewer GPU families, Pythons or torch refs at a time.",
        )


def job_outputs(plan: Plan, values: Mapping[str, object]) -> Mapping[str, str]:
    """Write a plan's matrices and other values as a job's outputs; a `DataError` if too many."""
    values = {**values, **matrices(plan), "plan_digest": plan.digest()}
    outputs: dict[str, str] = {}
    for name, value in values.items():
        if value is None:
            outputs[name] = ""
        elif isinstance(value, str):
            outputs[name] = value
        else:
            outputs[name] = compact(value)

    # GitHub counts UTF-16.
    size = 2 * sum(len(text) for text in outputs.values())
    if size > MAX_OUTPUTS:
        raise DataError(
            f"The plan's outputs are {size / 2**20:.2f} MiB; GitHub takes 1 MiB from a job.",
            hint="Dispatch fewer GPU families, Pythons or torch refs at a time.",
        )
    return outputs


def group_rows(plan: Plan, platform: Platform) -> Sequence[Mapping[str, object]]:
    """Return the artifact groups of a platform, each with its jobs by stage; every group has every stage.

    A workflow calls another one for each group, so that no matrix has more jobs than those of one group.
    """
    rows_by_group: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for job in plan.jobs:
        if job.platform == platform:
            stages = rows_by_group.setdefault(job.artifact_group, {stage: [] for stage in STAGES})
            stages[job.stage].append(plan.row(job))

    groups: list[Mapping[str, object]] = []
    for artifact_group, stages in rows_by_group.items():
        for stage, rows in stages.items():
            _refuse_size(rows, f"{stage} of {artifact_group} on {platform} has {len(rows)} jobs")
        groups.append({"artifact_group": artifact_group, **stages})
    return groups


def wheel_sets_to_promote(plan: Plan, platform: Platform) -> Sequence[Mapping[str, str]]:
    """Return what is to be promoted: a torch version of a family, with every Python it is built for.

    Families have a folder each in a release index, so a failing one does not hold others back. What is
    expected to fail is not waited for.
    """
    if not plan.promote.value:
        return []

    sets: dict[tuple[str, str], list[PlannedJob]] = {}
    for job in plan.matrix(platform, "build_pytorch"):
        if "torch" in job.versions and not job.expect_failure:
            sets.setdefault((job.artifact_group, job.versions["torch"]), []).append(job)

    rows: list[Mapping[str, str]] = []
    for (artifact_group, version), jobs in sets.items():
        pythons = dict.fromkeys(job.python for job in jobs if job.python is not None)
        first_job = jobs[0]
        row = {
            "name": f"{artifact_group}, torch {version}",
            "gpu_family": first_job.gpu_family,
            "build_variant": first_job.build_variant,
            "torch_ref": first_job.torch_ref or "",
            "torch_version": version,
            "pythons": ",".join(pythons),
        }
        rows.append(row)
    return rows
