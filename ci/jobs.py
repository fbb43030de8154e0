"""The jobs of a plan, of a promotion and of the nightly image, as calls of nox.

A job is one of the workflows': the same sessions, in the same order, with the same options;
`tests/unit/ci/test_one_machine_and_workflows.py` compares the two. No function here reads or writes anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ci import pipeline
from ci.pipeline import FlowOptions, JobKind, NoxCall, OptionTopic
from core.cli.options import DEFAULT_STORE, Common
from core.run import PLAIN, Platform, group_name
from core.run.plan import Plan, PlannedJob, wheel_sets_to_promote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What must have become of the jobs that a job needs, for it to run.
StartCondition = Literal["all passed", "any passed", "any ran", "all ended"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Calls of nox that one machine makes, one after another."""

    name: str
    kind: JobKind
    calls: tuple[NoxCall, ...]
    needs: tuple[str, ...] = ()  # the jobs that it waits for
    starts_when: StartCondition = "all passed"
    must_pass: tuple[str, ...] = ()  # those of the needed jobs that must have passed in any case
    artifact_group: str | None = None  # the folder of its wheels; None where it is of several


@dataclass(frozen=True, kw_only=True)
class FlowSettings:
    """Which run a flow makes, and where it reads and writes."""

    run_id: str = "local"
    store: str = DEFAULT_STORE
    config_file: str | None = None
    force: bool = False
    distribution_store: str | None = None
    rocm_layout: str | None = None
    release_type: str | None = None

    @property
    def plan_file(self) -> str:
        """Where a flow keeps the plan of its run, below the checkout."""
        return f".cache/plan-{self.run_id}.json"

    @property
    def run_options(self) -> tuple[str, ...]:
        """The run as options, which every step takes."""
        return as_options(
            {
                "release-type": self.release_type,
                "run-id": self.run_id,
                "config-file": self.config_file,
                "force": self.force,
            }
        )

    @property
    def store_options(self) -> tuple[str, ...]:
        """The store of run outputs as options."""
        return (f"--store={self.store}",)

    @property
    def distribution_options(self) -> tuple[str, ...]:
        """The store that users install from as options; none where the release type says which."""
        return as_options({"distribution-store": self.distribution_store})


def setup_job(plan: Plan, settings: FlowSettings) -> Job:
    """Return the job that completes a plan: where ROCm comes from, and commits and versions of PyTorch."""
    steps = [pipeline.STEPS_BY_NAME["find_rocm"]]
    if plan.build_pytorch.value:
        steps.append(pipeline.STEPS_BY_NAME["resolve"])

    options = FlowOptions(common=(f"--plan={settings.plan_file}", *settings.run_options))
    calls = [NoxCall(sessions=(step.session,), options=options.for_step(step)) for step in steps]
    return Job(name="setup", kind="setup", calls=tuple(calls))


def jobs_of_plan(plan: Plan, platform: Platform, settings: FlowSettings) -> Sequence[Job]:
    """Return the jobs of a plan that `resolve` completed, on one platform.

    ROCm's packages -> PyTorch's wheels on them -> staging, where they are to be released -> tests -> a report
    on all tests -> what is promoted -> the run's page.
    """
    plan_settings = replace(settings, release_type=plan.release_type)

    rocm_build_jobs = {
        cell.artifact_group: _build_job(plan, plan_settings, cell, rocm_build_job=None)
        for cell in plan.matrix(platform, "build_rocm")
    }
    torch_build_jobs = {
        _build_key(cell): _build_job(
            plan, plan_settings, cell, rocm_build_job=rocm_build_jobs.get(cell.artifact_group)
        )
        for cell in plan.matrix(platform, "build_pytorch")
    }
    wheel_sets = wheel_sets_to_promote(plan, platform)
    staging_jobs: dict[str, Job] = {}
    if wheel_sets:
        staging_jobs = _staging_jobs(
            plan, plan_settings, platform, [*rocm_build_jobs.values(), *torch_build_jobs.values()]
        )

    # ROCm of an index is built by no job of the plan, and nothing is staged where nothing is released.
    rocm_test_jobs = []
    for cell in plan.matrix(platform, "test_rocm"):
        rocm_build_job = rocm_build_jobs.get(cell.artifact_group)
        staging_job = staging_jobs.get(cell.artifact_group)
        rocm_test_jobs.append(_test_job(plan, plan_settings, cell, rocm_build_job, staging_job))

    torch_test_jobs = []
    for cell in (*plan.matrix(platform, "test_pytorch"), *plan.matrix(platform, "test_torch")):
        torch_build_job = torch_build_jobs[_build_key(cell)]
        staging_job = staging_jobs.get(cell.artifact_group)
        torch_test_jobs.append(_test_job(plan, plan_settings, cell, torch_build_job, staging_job))

    # ROCm's tests need not wait for PyTorch, unless they install what was staged with it.
    jobs = [*rocm_build_jobs.values()]
    if not staging_jobs:
        jobs += rocm_test_jobs
    jobs += torch_build_jobs.values()
    jobs += staging_jobs.values()
    if staging_jobs:
        jobs += rocm_test_jobs
    jobs += torch_test_jobs
    if rocm_test_jobs or torch_test_jobs:
        jobs.append(
            _closing_job(
                "test_report", plan_settings, [*rocm_test_jobs, *torch_test_jobs], starts_when="any ran"
            )
        )
    jobs += [_promotion_job_of_set(wheel_set, plan_settings, platform, jobs) for wheel_set in wheel_sets]
    if jobs:
        jobs.append(_closing_job("summary", plan_settings, jobs, starts_when="all ended"))
    return jobs


def _build_key(cell: PlannedJob) -> tuple[str, str | None, str | None]:
    """Return what tests of PyTorch and the build that they install have in common."""
    return cell.artifact_group, cell.python, cell.torch_ref


def _build_job(plan: Plan, settings: FlowSettings, cell: PlannedJob, *, rocm_build_job: Job | None) -> Job:
    """Return the job that builds a cell, and uploads what it has built."""
    packages = as_options({"version": plan.rocm.version, "rocm-layout": settings.rocm_layout})
    build_options = _cell_options(plan, settings, cell, {"rocm packages": packages})
    upload_options = FlowOptions(
        common=_group_options(settings, cell.gpu_family, cell.build_variant),
        by_topic={"store": settings.store_options},
    )

    build_steps = pipeline.steps_of_plan_cell(cell)
    upload_steps = pipeline.steps_of_job("upload")
    return Job(
        name=f"{cell.stage} {cell.name}",
        kind=cell.stage,
        calls=(
            *pipeline.nox_calls(build_steps, build_options, python=cell.python),
            *pipeline.nox_calls(upload_steps, upload_options),
        ),
        needs=_names_of([rocm_build_job]),
        artifact_group=cell.artifact_group,
    )


def _staging_jobs(
    plan: Plan, settings: FlowSettings, platform: Platform, build_jobs: Sequence[Job]
) -> dict[str, Job]:
    """Return the jobs that put wheels up for testing, by artifact group."""
    jobs: dict[str, Job] = {}
    for cell in plan.matrix(platform, "build_pytorch"):
        group = cell.artifact_group
        if group in jobs:
            continue
        options = FlowOptions(
            common=_group_options(settings, cell.gpu_family, cell.build_variant),
            by_topic=_release_topics(settings, platform),
        )
        jobs[group] = Job(
            name=f"stage {group}",
            kind="stage",
            calls=tuple(pipeline.nox_calls(pipeline.steps_of_job("stage"), options)),
            needs=_names_of([job for job in build_jobs if job.artifact_group == group]),
            # What is staged of a family whose other builds failed is tested, and cannot be promoted.
            starts_when="any passed",
            artifact_group=group,
        )
    return jobs


def _test_job(
    plan: Plan,
    settings: FlowSettings,
    cell: PlannedJob,
    build_job: Job | None,
    staging_job: Job | None,
) -> Job:
    """Return the job that tests a cell, of what was staged where a job does that."""
    topics: dict[OptionTopic, tuple[str, ...]] = {
        "test part": as_options({"config": cell.config, "shard": cell.shard}),
    }
    if staging_job is not None:
        topics["staging"] = ("--staged", *settings.distribution_options)
    options = _cell_options(plan, settings, cell, topics)
    return Job(
        name=f"{cell.stage} {cell.name}",
        kind=cell.stage,
        calls=tuple(pipeline.nox_calls(pipeline.steps_of_plan_cell(cell), options, python=cell.python)),
        needs=_names_of([build_job, staging_job]),
        artifact_group=cell.artifact_group,
    )


def _closing_job(
    kind: Literal["test_report", "summary"],
    settings: FlowSettings,
    jobs: Sequence[Job],
    *,
    starts_when: StartCondition,
) -> Job:
    """Return a job that reports on others, so it runs after failed ones, too."""
    options = FlowOptions(
        common=settings.run_options,
        by_topic={"store": settings.store_options, "distribution": settings.distribution_options},
    )
    calls = pipeline.nox_calls(pipeline.steps_of_job(kind), options)
    name = "report" if kind == "summary" else kind
    return Job(name=name, kind=kind, calls=tuple(calls), needs=_names_of(jobs), starts_when=starts_when)


def _promotion_job_of_set(
    wheel_set: Mapping[str, str], settings: FlowSettings, platform: Platform, jobs: Sequence[Job]
) -> Job:
    """Return the job that promotes one set of wheels.

    Its decision rests on the records of tests, so it waits for all of them, and weighs a failed one itself.
    """
    artifact_group = group_name(wheel_set["gpu_family"], wheel_set["build_variant"])
    needed_jobs = [job for job in jobs if job.kind == "test_report" or job.artifact_group == artifact_group]
    builds = [job for job in needed_jobs if job.kind in {"build_rocm", "build_pytorch", "stage"}]
    options = FlowOptions(
        common=_group_options(settings, wheel_set["gpu_family"], wheel_set["build_variant"]),
        by_topic={
            **_release_topics(settings, platform),
            "set": as_options({"torch-version": wheel_set["torch_version"], "pythons": wheel_set["pythons"]}),
        },
    )
    return Job(
        name=f"promote {wheel_set['name']}",
        kind="promote",
        calls=tuple(pipeline.nox_calls(pipeline.steps_of_job("promote"), options)),
        needs=_names_of(needed_jobs),
        starts_when="all ended",
        must_pass=_names_of(builds),
    )


def promotion_job(
    settings: FlowSettings,
    *,
    release_type: str,
    platform: str | None = None,
    gpu_family: str | None = None,
    torch_version: str | None = None,
    pythons: str | None = None,
) -> Job:
    """Return the job that stages and promotes what is named; what is not is left to the sessions."""
    settings = replace(settings, release_type=release_type)
    options = FlowOptions(
        common=(*as_options({"gpu-family": gpu_family}), *settings.run_options),
        by_topic={
            **_release_topics(settings, platform),
            "set": as_options({"torch-version": torch_version, "pythons": pythons}),
        },
    )
    steps = (*pipeline.steps_of_job("stage"), *pipeline.steps_of_job("promote"))
    return Job(name="promote", kind="promote", calls=tuple(pipeline.nox_calls(steps, options)))


def nightly_jobs(*, torch_ref: str, gpu_family: str, python: str, repository: str | None) -> Sequence[Job]:
    """Return the jobs of `therock-nightly.yml` for one GPU family.

    `repository` is ``REGISTRY/REPOSITORY``, where the image is pushed to; None keeps it on this machine.
    """
    cell_options = (f"--torch-ref={torch_ref}", f"--gpu-family={gpu_family}")
    sessions = [step.session for step in pipeline.STEPS if step.component is not None]

    build_image = NoxCall(
        sessions=("build_image",),
        options=as_options(
            {"image": "ubuntu-rocm", "gpu-family": gpu_family, "output": "image.tar", "push": repository}
        ),
    )
    build_inside = NoxCall(
        sessions=("in_image",),
        options=(
            *as_options(
                {
                    "archive": "image.tar",
                    "image": f"pytorch-therock-rocm-ci-{gpu_family.lower()}",
                    "sessions": " ".join((*sessions, "check_wheels", "index")),
                    "session-python": python,
                }
            ),
            *cell_options,
        ),
    )
    report = NoxCall(sessions=("report",), options=(f"--gpu-family={gpu_family}",))
    test = NoxCall(sessions=("test_smoke",), options=cell_options, python=python)
    return (
        Job(name="image", kind="build-therock-docker", calls=(build_image,)),
        Job(name="pytorch", kind="build-pytorch-nightly", calls=(build_inside, report), needs=("image",)),
        Job(name="test", kind="test-pytorch-nightly", calls=(test,), needs=("pytorch",)),
    )


def _cell_options(
    plan: Plan, settings: FlowSettings, cell: PlannedJob, topics: Mapping[OptionTopic, tuple[str, ...]]
) -> FlowOptions:
    """Return the options of a plan's job: what it is of, where its ROCm is from, and the run."""
    rocm = plan.rocm_row(cell)
    rocm_source: tuple[str, ...] = ()
    if rocm.get("index_url"):
        rocm_source = (f"--rocm-index-url={rocm['index_url']}", f"--rocm-version={rocm['version']}")

    artifact_options = as_options(
        {
            "artifact-run-id": rocm.get("run_id"),
            "artifact-repository": rocm.get("repository"),
            "artifact-store": rocm.get("store"),
            "artifact-digest": rocm.get("digest"),
        }
    )
    return FlowOptions(
        common=(
            *as_options({"torch-ref": cell.torch_ref}),
            *_group_options(settings, cell.gpu_family, cell.build_variant),
        ),
        by_topic={
            "artifacts": artifact_options,
            "rocm source": rocm_source,
            "store": settings.store_options,
            **topics,
        },
    )


def _release_topics(settings: FlowSettings, platform: str | None) -> dict[OptionTopic, tuple[str, ...]]:
    return {
        "store": settings.store_options,
        "distribution": (*as_options({"platform": platform}), *settings.distribution_options),
    }


def _group_options(settings: FlowSettings, gpu_family: str, build_variant: str) -> tuple[str, ...]:
    """Return what every step of an artifact group takes: which group it is, and the run."""
    variant = None if build_variant == PLAIN else build_variant
    return (*as_options({"gpu-family": gpu_family, "build-variant": variant}), *settings.run_options)


def _names_of(jobs: Sequence[Job | None]) -> tuple[str, ...]:
    return tuple(job.name for job in jobs if job is not None)


def common_options(common: Common) -> tuple[str, ...]:
    """Return the options that every step of a run takes. Steps that read or write the store take it, too."""
    return as_options(
        {
            "torch-ref": common.torch_ref,
            "gpu-family": common.gpu_family,
            "run-id": common.run_id,
            "release-type": common.release_type,
            "config-file": common.config_file,
            "force": common.force,
        }
    )


def store_options(common: Common) -> tuple[str, ...]:
    """Return the option for the store that a run is uploaded to; none where that is the builds' own."""
    if common.store == DEFAULT_STORE:
        return ()
    return (f"--store={common.store}",)


def as_options(values: Mapping[str, object]) -> tuple[str, ...]:
    """Return options as a command line has them: flags that are set, and others that have a value."""
    options: list[str] = []
    for name, value in values.items():
        if value is True:
            options.append(f"--{name}")
        elif value:
            options.append(f"--{name}={value}")
    return tuple(options)
