"""The plan of a run: what is built and tested, where, and why, decided once from one event.

`python -m ci configure` writes it, `python -m ci find-rocm` completes it with where ROCm comes from,
`python -m pytorch_build resolve --plan` with versions, and `MATRIX=FILE` makes sessions of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import Field

from core import files
from core.data import Document, Model
from core.errors import DataError
from core.run import Platform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Stage = Literal["build_rocm", "test_rocm", "build_pytorch", "test_pytorch", "test_torch"]
STAGES: tuple[Stage, ...] = get_args(Stage)
PLATFORMS: tuple[Platform, ...] = get_args(Platform)
MAX_JOBS = 256  # of one matrix in GitHub Actions
MAX_OUTPUTS = 2**20  # bytes of a job's outputs there, counted as UTF-16
FETCH = "fetch_artifacts"


class Decision(Model):
    """A yes or no with its reason, a sentence without a full stop."""

    value: bool
    reason: str


class PlanEvent(Model):
    """The event, as far as the plan follows from it.

    Attributes:
        name: ``pull_request``, ``push``, ``schedule``, ``workflow_dispatch`` or ``workflow_call``.
        repository: ``{owner}/{name}`` of the repository that the run belongs to.
        branch: The branch; of a pull request the one it is to be merged into.
        number: Of the pull request; 0 for none.
        labels: Of the pull request, sorted.
    """

    name: str
    repository: str
    branch: str = ""
    commit: str = ""
    number: int = 0
    labels: tuple[str, ...] = ()


class Upload(Model):
    """Where run outputs go.

    Attributes:
        store: As ``--store`` takes it; "" where nothing is uploaded.
        role: ARN of the role that a job assumes to write; "" for none.
    """

    store: str = ""
    external_repo: str = ""
    role: str = ""
    region: str = ""


class RocmOrigin(Model):
    """Where the ROCm of one artifact group comes from: a run's artifacts, or the packages of an index.

    Attributes:
        run_id: The artifact run; "" for an index.
        store: The store that has its outputs.
        artifacts: SHA-256 of each artifact to fetch by the archive's name, or of the index's packages.
        index_url: The index; "" for a run.
    """

    platform: Platform
    artifact_group: str
    run_id: str = ""
    repository: str = ""
    store: str = ""
    external_repo: str = ""
    artifacts: dict[str, str] = Field(default_factory=dict)
    index_url: str = ""
    version: str = ""
    reason: str = ""

    @property
    def row(self) -> Mapping[str, str]:
        """What a job needs: the artifact run with one digest of what it fetches, or the index."""
        known = {
            "run_id": self.run_id,
            "repository": self.repository,
            "store": self.store,
            "digest": files.digest_of(self.artifacts) if self.run_id and self.artifacts else "",
            "index_url": self.index_url,
            "version": self.version,
        }
        return {name: value for name, value in known.items() if value}


class RocmPackages(Model):
    """Where ROCm's packages come from.

    Attributes:
        artifact_run_id: The artifact run that was requested; "" for none.
        artifact_store: The store that has it; "" for the one that the data names.
        use_prebuilt_artifacts: Whether they are made of a run's artifacts in any case.
        index_url: The index that was requested; "" for none.
        version_named: Whether the event names it.
        origins: What was found for each group; `find_rocm` fills it in.
    """

    artifact_run_id: str = ""
    artifact_repository: str = ""
    artifact_store: str = ""
    use_prebuilt_artifacts: bool = False
    index_url: str = ""
    version: str = ""
    version_named: bool = False
    origins: tuple[RocmOrigin, ...] = ()


class Variant(Model):
    """One GPU family in one build variant on one platform: what ``ci_linux.yml`` is called with.

    Attributes:
        build_runner: Label of the machines that build it.
        test_runner: Label of the machines with its GPU; "" for none.
        expect_failure: Whether a failure is expected, so that PyTorch is not built on it.
        bypass_tests_for_releases: Whether it may be released untested where no machine has its GPU.
        build_pytorch: Whether PyTorch is built for it.
    """

    platform: Platform
    gpu_family: str
    gpu_targets: tuple[str, ...]
    build_variant: str = "release"
    artifact_group: str
    build_runner: str
    test_runner: str = ""
    expect_failure: bool = False
    bypass_tests_for_releases: bool = False
    build_pytorch: bool = False
    reason: str


class Cell(Model):
    """One job: a chain of sessions that one machine runs.

    Attributes:
        name: For people, and unique in its matrix: ``gfx94X-dcgpu, nightly, Python 3.12``.
        stage: The matrix that it belongs to.
        sessions: The nox sessions, in order: `nox -s SESSIONS -P PYTHON -- --torch-ref … --gpu-family …`.
        artifact_group: The folder of its wheels.
        python: The Python series of the target; "" where it does not matter.
        torch_ref: The torch ref; "" for ROCm's own packages.
        config: Of upstream's tests, which configuration; "" for other jobs.
        shard: Of upstream's tests, which part: ``2/6``; "" for other jobs.
        minutes: How long its tests may take; 0 where the workflow says it.
        expect_failure: Whether a failure is expected and does not count.
        versions: Versions of the wheels to come, by distribution; `resolve` fills them in.
    """

    name: str
    platform: Platform
    stage: Stage
    sessions: tuple[str, ...]
    runner: str
    gpu_family: str
    artifact_group: str
    build_variant: str = "release"
    python: str = ""
    torch_ref: str = ""
    config: str = ""
    shard: str = ""
    minutes: int = 0
    expect_failure: bool = False
    reason: str
    versions: dict[str, str] = Field(default_factory=dict)


class LeftOut(Model):
    """What is not done, and why."""

    what: str
    reason: str


class Plan(Document):
    """What one run does.

    Attributes:
        trusted: Whether the run gets credentials, release buckets and shared caches to write to.
        upload: Whether run outputs are uploaded. Without, a job builds and checks, and nothing is tested.
        promote: Whether the wheels go on to the release index of `release_type`.
        release_type: ``ci``, ``dev``, ``nightly``, ``prerelease``.
        test_type: ``quick``, ``standard``, ``comprehensive`` or ``full``.
        test_labels: Which tests are requested, by platform; none stands for all of the type.
        rocm: What ROCm's packages are made of.
        left_out: What could be and is not in the plan.
        notes: Defaults that were taken because something could not be looked up.
        locks: Digests of source locks, by platform and torch ref; `resolve` fills them in.
    """

    schema_version: Literal[1] = 1
    event: PlanEvent
    trusted: Decision
    enable_build_jobs: Decision
    build_pytorch: Decision
    upload: Decision
    promote: Decision
    release_type: str
    test_type: str
    test_type_reason: str
    test_labels: dict[Platform, tuple[str, ...]]
    store: Upload = Upload()
    rocm: RocmPackages = RocmPackages()
    variants: tuple[Variant, ...] = ()
    cells: tuple[Cell, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    locks: dict[Platform, dict[str, str]] = Field(default_factory=dict)

    def matrix(self, platform: Platform, stage: Stage) -> Sequence[Cell]:
        """Return the jobs of one stage on one platform."""
        return [cell for cell in self.cells if (cell.platform, cell.stage) == (platform, stage)]

    def rocm_row(self, cell: Cell) -> Mapping[str, str]:
        """Return where a job's ROCm comes from; nothing where another job builds it."""
        key = cell.platform, cell.artifact_group
        found = next((one for one in self.rocm.origins if (one.platform, one.artifact_group) == key), None)
        needed = found and (found.index_url or FETCH in cell.sessions)
        return found.row if found and needed else {}

    @property
    def rocm_index(self) -> str:
        """The index that all groups with ROCm from an index share; "" where there is no such one."""
        urls = {one.index_url for one in self.rocm.origins if one.index_url}
        return urls.pop() if len(urls) == 1 else ""

    def row(self, cell: Cell) -> Mapping[str, Any]:
        """Return a job as a workflow gets it: no more than is passed on, as outputs have a limit."""
        rocm: dict[str, Any] = {**self.rocm_row(cell)}
        if self.rocm_index and rocm.get("index_url") == self.rocm_index:
            rocm = {"index": True, "version": rocm["version"]}  # the address is an output of its own
        return {
            "gpu_family": cell.gpu_family,
            "build_variant": cell.build_variant,
            # artifacts are another run's, and fetched by a step of their own
            "sessions": " ".join(one for one in cell.sessions if one != FETCH),
            "runner": cell.runner,
            "python": cell.python,
            "torch_ref": cell.torch_ref,
            **({"torch_version": cell.versions["torch"]} if "torch" in cell.versions else {}),
            **({"config": cell.config, "shard": cell.shard} if cell.config else {}),
            **({"minutes": cell.minutes} if cell.minutes else {}),
            "expect_failure": cell.expect_failure,
            **({"rocm": rocm} if rocm else {}),
        }


def matrices(plan: Plan) -> Mapping[str, object]:
    """Return what a workflow's jobs are made of, as job outputs name it.

    ``{platform}_{stage}_matrix`` is a list of jobs, ``{platform}_cells`` the same jobs by artifact group and
    stage, ``{platform}_promote_matrix`` a list of what is to be promoted. A matrix with more jobs than GitHub
    takes is a `DataError`.
    """
    written: dict[str, object] = {}
    limit = f"a matrix of GitHub Actions holds {MAX_JOBS}"
    for platform in PLATFORMS:
        for stage in STAGES:
            cells = plan.matrix(platform, stage)
            if len(cells) > MAX_JOBS:
                raise DataError(
                    f"{stage} on {platform} has {len(cells)} jobs; {limit}.",
                    hint="Dispatch fewer GPU families, Pythons or torch refs at a time.",
                )
            written[f"{platform}_{stage}_matrix"] = [plan.row(cell) for cell in cells]
        written[f"{platform}_cells"] = grouped(plan, platform)
        written[f"{platform}_promote_matrix"] = promotions(plan, platform)
    return written


def refuse_outputs(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return a job's outputs; a `DataError` if GitHub would not take them."""
    size = 2 * sum(map(len, values.values()))
    if size > MAX_OUTPUTS:
        raise DataError(
            f"The plan's outputs are {size / 2**20:.2f} MiB; GitHub takes one of a job.",
            hint="Dispatch fewer GPU families, Pythons or torch refs at a time.",
        )
    return values


def grouped(plan: Plan, platform: Platform) -> Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]:
    """Return the jobs of each artifact group: group -> stage -> rows; every group has every stage."""
    groups = dict.fromkeys(cell.artifact_group for cell in plan.cells if cell.platform == platform)
    return {
        group: {
            stage: [plan.row(cell) for cell in plan.matrix(platform, stage) if cell.artifact_group == group]
            for stage in STAGES
        }
        for group in groups
    }


def promotions(plan: Plan, platform: Platform) -> Sequence[Mapping[str, str]]:
    """Return what is to be promoted: a torch version of a family, with every Python it is built for.

    Families have a folder each in a release index, so a failing one does not hold others back. What is
    expected to fail is not waited for.
    """
    if not plan.promote.value:
        return []
    sets: dict[tuple[str, str], list[Cell]] = {}
    for cell in plan.matrix(platform, "build_pytorch"):
        if "torch" in cell.versions and not cell.expect_failure:
            sets.setdefault((cell.artifact_group, cell.versions["torch"]), []).append(cell)
    return [
        {
            "name": f"{group}, torch {version}",
            "gpu_family": cells[0].gpu_family,
            "build_variant": cells[0].build_variant,
            "torch_ref": cells[0].torch_ref,
            "torch_version": version,
            "pythons": ",".join(dict.fromkeys(cell.python for cell in cells)),
        }
        for (group, version), cells in sets.items()
    ]
