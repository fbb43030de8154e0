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
from core.errors import DataError
from core.run import PLAIN, PLATFORMS, Platform

Stage = Literal["build_rocm", "test_rocm", "build_pytorch", "test_pytorch", "test_torch"]
STAGES: tuple[Stage, ...] = get_args(Stage)
MAX_JOBS = 256  # of one matrix in GitHub Actions
MAX_OUTPUTS = 2**20  # bytes of a job's outputs there, counted as UTF-16
FETCH = "fetch_artifacts"
_BUILD_ROCM = "build_rocm"
_CHECK_ROCM = "check_rocm"


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
        description="Made of a run's artifacts in any case",
    )
    index_url: OptionalText = Field(None, description="The index that was requested; empty for none")
    version: OptionalText = None
    version_named: bool = Field(default=False, description="Whether the event names it")
    origins: tuple[RocmOrigin, ...] = Field(
        (),
        description="Of each group; `configure --plan` fills it in",
    )


class Variant(Model):
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
    without_gpu: bool = Field(
        default=False, description="Tests on a machine that has no GPU to pass on to a container"
    )
    expect_failure: bool = Field(default=False, description="A failure does not count")
    reason: str
    versions: dict[str, str] = Field({}, description="Of the wheels to come; `resolve` fills them in")

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


class Plan(Document):
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
    variants: tuple[Variant, ...] = ()
    cells: tuple[PlannedJob, ...] = ()  # its jobs, under the name that plan files have for them
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
        return [job for job in self.cells if job.platform == platform and job.stage == stage]

    def rocm_row(self, job: PlannedJob) -> Mapping[str, str]:
        """Return where a job's ROCm comes from; nothing where another job builds it."""
        for origin in self.rocm.origins:
            if origin.platform != job.platform or origin.artifact_group != job.artifact_group:
                continue
            if origin.index_url is not None or FETCH in job.sessions:
                return origin.row
        return {}

    @property
    def rocm_index(self) -> str | None:
        """The index that all groups with ROCm from an index share; None where there is no such one."""
        urls = {origin.index_url for origin in self.rocm.origins}
        urls.discard(None)
        return urls.pop() if len(urls) == 1 else None

    def row(self, job: PlannedJob) -> Mapping[str, Any]:
        """Return a job as a workflow gets it: no more than is passed on, as outputs have a limit."""
        # Artifacts are fetched, and ROCm is packaged and checked, by steps with options of their own.
        other_steps = {FETCH, _CHECK_ROCM}
        if job.stage != "build_rocm":
            other_steps.add(_BUILD_ROCM)
        sessions = [session for session in job.sessions if session not in other_steps]
        row: dict[str, Any] = {
            "gpu_family": job.gpu_family,
            "build_variant": job.build_variant,
            "sessions": " ".join(sessions),
            "runner": job.runner,
            "python": job.python or "",
            "torch_ref": job.torch_ref or "",
        }
        if "torch" in job.versions:
            row["torch_version"] = job.versions["torch"]
        if job.config is not None:
            row["config"] = job.config
            row["shard"] = job.shard or ""
        if job.minutes:
            row["minutes"] = job.minutes
        if job.without_gpu:
            row["without_gpu"] = True
        if job.stage == "build_pytorch" and _BUILD_ROCM in job.sessions:
            row["builds_rocm"] = True
        row["expect_failure"] = job.expect_failure

        rocm = self.rocm_row(job)
        if "index_url" in rocm and rocm["index_url"] == self.rocm_index:
            # The address is an output of its own.
            row["rocm"] = {"index": True, "version": rocm["version"]}
        elif rocm:
            row["rocm"] = dict(rocm)
        return row


def matrices(plan: Plan) -> Mapping[str, object]:
    """Return what a workflow's jobs are made of, as job outputs name it.

    ``{platform}_{stage}_matrix`` is a list of jobs, ``{platform}_cells`` the same jobs by artifact group and
    stage, ``{platform}_promote_matrix`` a list of what is to be promoted.
    """
    written: dict[str, object] = {}
    for platform in PLATFORMS:
        for stage in STAGES:
            jobs = plan.matrix(platform, stage)
            if len(jobs) > MAX_JOBS:
                raise DataError(
                    f"{stage} on {platform} has {len(jobs)} jobs; "
                    f"a matrix of GitHub Actions holds {MAX_JOBS}.",
                    hint="Dispatch fewer GPU families, Pythons or torch refs at a time.",
                )
            written[f"{platform}_{stage}_matrix"] = [plan.row(job) for job in jobs]
        written[f"{platform}_cells"] = group_rows(plan, platform)
        written[f"{platform}_promote_matrix"] = promotions(plan, platform)
    return written


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


def group_rows(plan: Plan, platform: Platform) -> Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]:
    """Return the jobs of each artifact group: group -> stage -> rows; every group has every stage."""
    rows_by_group: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for job in plan.cells:
        if job.platform == platform:
            stages = rows_by_group.setdefault(job.artifact_group, {stage: [] for stage in STAGES})
            stages[job.stage].append(plan.row(job))
    return rows_by_group


def promotions(plan: Plan, platform: Platform) -> Sequence[Mapping[str, str]]:
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
