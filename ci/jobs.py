"""A run's jobs as calls of nox: pure functions of a plan, whose steps are those of `ci.pipeline`.

A job is one of the workflows': the same sessions, in the same order, with the same options;
`tests/unit/ci/test_workflows.py` compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from ci import pipeline
from core.cli.options import DEFAULT_STORE, Common
from core.run import PLAIN, Platform, this_platform
from core.run.plan import FETCH, Plan, PlannedJob, promotions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BUILDS = {step.component: step.name for step in pipeline.STEPS if step.component is not None}
JOBS: dict[str, tuple[str, ...]] = {
    step.job: tuple(other.name for other in pipeline.steps_of_job(step.job)) for step in pipeline.STEPS
}
SESSIONS = tuple(step.name for step in pipeline.STEPS)
# one for each Python, torch ref and GPU family, which `MATRIX` makes cells of
MATRIX_SESSIONS = (*BUILDS.values(), *JOBS["test_pytorch"], *JOBS["test_torch"])

TEST_REPORT = "test_report"
PLAN_FILE = ".cache/plan.json"


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of nox, as a workflow's step has it."""

    sessions: tuple[str, ...]
    python: str = ""
    posargs: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The words after ``nox``."""
        python = ("-P", self.python) if self.python else ()
        return ("-s", *self.sessions, *python, "--", *self.posargs)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job; a tolerant one runs after failures, too, but not where nothing ran whose results it wants."""

    name: str
    stage: str
    calls: tuple[Call, ...]
    needs: tuple[str, ...] = ()
    tolerant: bool = False
    wants_results: bool = False


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a flow reads and writes."""

    run_id: str = "local"
    store: str = DEFAULT_STORE
    config_file: str = ""
    force: bool = False
    distribution_store: str = ""
    rocm_layout: str = ""
    release_type: str = ""

    @property
    def run(self) -> tuple[str, ...]:
        """The run as options."""
        where = {"run_id": self.run_id, "config_file": self.config_file, "force": self.force}
        return _options(release_type=self.release_type, **where)

    @property
    def written(self) -> tuple[str, ...]:
        """The run and its store as options."""
        return (*self.run, f"--store={self.store}")


def setup_job(plan: Plan, target: Target) -> Job:
    """Return the job that completes the plan: where ROCm comes from, and commits and versions of PyTorch."""
    _configure, find_rocm, resolve = JOBS["setup"]
    sessions = (find_rocm, resolve) if plan.build_pytorch.value else (find_rocm,)
    posargs = (f"--plan={PLAN_FILE}", *target.run)
    calls = tuple(Call(sessions=(one,), posargs=posargs) for one in sessions)
    return Job(name="resolve", stage="setup", calls=calls)


def plan_jobs(plan: Plan, platform: Platform, target: Target) -> Sequence[Job]:
    """Return the jobs of a plan that `resolve` completed, on one platform.

    ROCm's packages -> their tests; PyTorch's wheels on them -> their tests; a report on all tests, which a
    promotion goes by; then what is promoted, and the run's page.
    """
    graph = _Graph(plan=plan, target=replace(target, release_type=plan.release_type))
    rocm = {one.artifact_group: graph.rocm(one) for one in plan.matrix(platform, "build_rocm")}

    def of_rocm(cell: PlannedJob) -> tuple[str, ...]:
        return (rocm[cell.artifact_group].name,) if cell.artifact_group in rocm else ()

    rocm_tests = [graph.test(one, of_rocm(one)) for one in plan.matrix(platform, "test_rocm")]
    builds = {
        (one.artifact_group, one.python, one.torch_ref): graph.build(one, of_rocm(one))
        for one in plan.matrix(platform, "build_pytorch")
    }
    tests = [
        graph.test(one, (builds[one.artifact_group, one.python, one.torch_ref].name,))
        for one in (*plan.matrix(platform, "test_pytorch"), *plan.matrix(platform, "test_torch"))
    ]
    made = [*rocm.values(), *rocm_tests, *builds.values(), *tests]
    if tested := tuple(one.name for one in (*rocm_tests, *tests)):
        made.append(graph.last(TEST_REPORT, TEST_REPORT, tested, wants_results=True))
    sets = [graph.promotion(row, platform, made) for row in promotions(plan, platform)]
    every = (*made, *sets)
    return (*every, graph.last("report", "summary", tuple(one.name for one in every))) if made else ()


@dataclass(frozen=True, kw_only=True)
class _Graph:
    plan: Plan
    target: Target

    def rocm(self, cell: PlannedJob) -> Job:
        options = _options(version=self.plan.rocm.version, rocm_layout=self.target.rocm_layout)
        built = Call(sessions=("build_rocm",), posargs=(*_where(cell), *options, *self.target.run))
        checked = Call(sessions=JOBS["build_rocm"][2:], posargs=(*_where(cell), *self.target.run))
        calls = (*self._fetch(cell), built, checked, self._upload(cell))
        return Job(name=f"build_rocm {cell.name}", stage="build_rocm", calls=calls)

    def build(self, cell: PlannedJob, needs: tuple[str, ...]) -> Job:
        sessions = (one for one in cell.sessions if one != FETCH)
        index = self._index(cell)
        # what follows -- goes to every session of a call, and checks take no source of ROCm
        built = (
            Call(
                sessions=tuple(some),
                python=cell.python or "",
                posargs=(*_where(cell), *rocm, *self.target.run),
            )
            for rocm, some in groupby(sessions, key=lambda one: () if one.startswith("check_") else index)
        )
        calls = (*self._fetch(cell), *built, self._upload(cell))
        return Job(name=f"build_pytorch {cell.name}", stage="build_pytorch", calls=calls, needs=needs)

    def test(self, cell: PlannedJob, needs: tuple[str, ...]) -> Job:
        part = _options(config=cell.config, shard=cell.shard)
        posargs = (*_where(cell), *self._index(cell), *part, *self.target.written)
        call = Call(sessions=cell.sessions, python=cell.python or "", posargs=posargs)
        return Job(name=f"{cell.stage} {cell.name}", stage=cell.stage, calls=(call,), needs=needs)

    def last(self, name: str, stage: str, needs: tuple[str, ...], *, wants_results: bool = False) -> Job:
        """Return a job that reports on others, so it runs after all of them, failed ones too."""
        call = Call(sessions=JOBS[stage], posargs=self.target.written)
        facts = {"tolerant": True, "wants_results": wants_results}
        return Job(name=name, stage=stage, calls=(call,), needs=needs, **facts)

    def promotion(self, chosen: Mapping[str, str], platform: Platform, made: Sequence[Job]) -> Job:
        family = _group(chosen["gpu_family"], chosen["build_variant"])
        version = _options(torch_version=chosen["torch_version"], pythons=chosen["pythons"])
        # what decides are records of tests, so they are waited for, and the decision weighs a failed one
        needs = tuple(
            one.name for one in made if {*family} <= {*one.calls[-1].posargs} or one.name == TEST_REPORT
        )
        calls = _promotion_calls(self.target, platform, family, version)
        return Job(name=f"promote {chosen['name']}", stage="promote", calls=calls, needs=needs, tolerant=True)

    def _upload(self, cell: PlannedJob) -> Call:
        group = _group(cell.gpu_family, cell.build_variant)
        return Call(sessions=JOBS["upload"], posargs=(*group, *self.target.written))

    def _fetch(self, cell: PlannedJob) -> tuple[Call, ...]:
        """Fetch the artifacts that the plan pins, in the job that packages them."""
        if FETCH not in cell.sessions:
            return ()
        rocm, names = self.plan.rocm_row(cell), ("run_id", "repository", "store", "digest")
        pinned = _options(**{f"artifact_{name}": rocm.get(name) for name in names})
        group = _group(cell.gpu_family, cell.build_variant)
        return (Call(sessions=(FETCH,), posargs=(*pinned, *group, *self.target.run)),)

    def _index(self, cell: PlannedJob) -> tuple[str, ...]:
        rocm = self.plan.rocm_row(cell)
        if not rocm.get("index_url"):
            return ()
        return f"--rocm-index-url={rocm['index_url']}", f"--rocm-version={rocm['version']}"


def _options(**named: object) -> tuple[str, ...]:
    """Write options: flags that are set, and others with their values, where they have one."""
    given = {name.replace("_", "-"): value for name, value in named.items() if value}
    return tuple(f"--{name}" if value is True else f"--{name}={value}" for name, value in given.items())


def _where(cell: PlannedJob) -> tuple[str, ...]:
    return (*_options(torch_ref=cell.torch_ref), *_group(cell.gpu_family, cell.build_variant))


def _group(gpu_family: str, build_variant: str) -> tuple[str, ...]:
    return _options(gpu_family=gpu_family, build_variant="" if build_variant == PLAIN else build_variant)


def _promotion_calls(
    target: Target, platform: Platform, family: Sequence[str], version: Sequence[str]
) -> tuple[Call, ...]:
    store = _options(platform=platform, distribution_store=target.distribution_store)
    shared = (*family, *target.written, *store)
    stage, promote = JOBS["promote"]
    return Call(sessions=(stage,), posargs=shared), Call(sessions=(promote,), posargs=(*shared, *version))


def promotion_job(
    target: Target, release_type: str, gpu_family: str, torch_version: str, pythons: str
) -> Job:
    """Return the job that promotes what the options name; what they do not name is left to `promote`."""
    version = _options(torch_version=torch_version, pythons=pythons)
    target, family = replace(target, release_type=release_type), _options(gpu_family=gpu_family)
    calls = _promotion_calls(target, this_platform(), family, version)
    return Job(name="promote", stage="promote", calls=calls)


def nightly_jobs(torch_ref: str, gpu_family: str, python: str, registry: str) -> Sequence[Job]:
    """Return the jobs of `therock-nightly.yml` for one GPU family."""
    family, ref = f"--gpu-family={gpu_family}", f"--torch-ref={torch_ref}"
    inside = _options(
        archive="image.tar",
        image=f"pytorch-therock-rocm-ci-{gpu_family.lower()}",
        sessions=" ".join((*BUILDS.values(), "check_wheels", "index")),
        session_python=python,
    )
    made = _options(image="ubuntu-rocm", gpu_family=gpu_family, output="image.tar", push=registry)
    image = Call(sessions=("build_image",), posargs=made)
    built = Call(sessions=("in_image",), posargs=(*inside, ref, family))
    report = Call(sessions=JOBS["summary"], posargs=(family,))
    test = Call(sessions=JOBS["test_pytorch"], python=python, posargs=(ref, family))
    return (
        Job(name="image", stage="build-therock-docker", calls=(image,)),
        Job(name="pytorch", stage="build-pytorch-nightly", calls=(built, report), needs=("image",)),
        Job(name="test", stage="test-pytorch-nightly", calls=(test,), needs=("pytorch",)),
    )


def common_options(common: Common) -> tuple[str, ...]:
    """Return the options that every step of a run takes. Steps that read or write the store take it, too."""
    names = ("torch_ref", "gpu_family", "run_id", "release_type", "config_file", "force")
    return _options(**{name: getattr(common, name) for name in names})


def store_options(common: Common) -> tuple[str, ...]:
    """Return the option for the store that a run is uploaded to; none where that is the builds' own."""
    return _options(store=common.store) if common.store != DEFAULT_STORE else ()
