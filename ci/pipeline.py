"""The pipeline as data: its steps in order, what each needs, and which of them a flow runs.

Flows walk these steps, plans name them, and the jobs of the workflows group them. No function here reads or
writes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from core.families import CPU
from core.status import Pending
from pytorch_build.components import COMPONENTS, Component

if TYPE_CHECKING:
    from core.run.plan import PlannedJob
    from core.status import Status
    from pytorch_build.refs.torch_refs import TorchRef

# The jobs of the workflows that build, test and release.
JobKind = Literal[
    "setup",
    "build_rocm",
    "build_pytorch",
    "upload",
    "stage",
    "test_rocm",
    "test_pytorch",
    "test_torch",
    "test_report",
    "promote",
    "summary",
    # Those of the nightly image.
    "build-therock-docker",
    "build-pytorch-nightly",
    "test-pytorch-nightly",
]

# Groups of options that only some steps take.
OptionTopic = Literal[
    "artifacts",
    "rocm packages",
    "rocm source",
    "trees",
    "policy",
    "store",
    "distribution",
    "staging",
    "tested tree",
    "test part",
    "set",
    "page",
]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One part of the pipeline. Records, plans and pages know it by its name."""

    name: str
    job: JobKind  # the job of the workflows that it is a part of
    # The package, its verb, and what the session gives it besides; tests/unit/test_noxfile.py compares them.
    front_door: tuple[str, ...]
    session_name: str | None = None  # the session that does it, where it is not named like the step
    options: tuple[str, ...] = ()  # those that make the session do this step
    needs: tuple[str, ...] = ()  # the steps whose results it reads, where a run has them
    topics: tuple[OptionTopic, ...] = ()
    ignores: tuple[str, ...] = ()  # the options of a flow that have no effect on it
    component: str | None = None  # what it builds of PyTorch
    has_environment: bool = False
    has_cells: bool = False  # whether MATRIX makes a session of each Python, torch ref and GPU family
    needs_plan: bool = False  # whether only the plan of an event has it

    @property
    def session(self) -> str:
        """The session of nox that does it."""
        return self.name if self.session_name is None else self.session_name


def _build_step(component: Component) -> Step:
    """Return the step that builds a component's wheel."""
    return Step(
        name=f"build_{component.name}",
        job="build_pytorch",
        front_door=("pytorch_build", "build", component.name),
        needs=("checkout", "build_rocm", *(f"build_{name}" for name in component.built_first)),
        topics=("policy", "rocm source", "trees"),
        component=component.name,
        has_environment=True,
        has_cells=True,
    )


STEPS = (
    Step(
        name="configure",
        job="setup",
        front_door=("ci", "configure"),
        ignores=("build-variant", "force"),
        needs_plan=True,
    ),
    Step(
        name="find_rocm",
        job="setup",
        front_door=("ci", "configure"),
        session_name="configure",  # which completes a plan that it wrote before: --plan FILE
        needs=("configure",),
        ignores=("build-variant", "force"),
        needs_plan=True,
    ),
    Step(
        name="resolve",
        job="setup",
        front_door=("pytorch_build", "resolve"),
        needs=("configure",),
        ignores=("build-variant", "force"),
    ),
    Step(
        name="fetch_artifacts",
        job="build_rocm",
        front_door=("ci", "fetch-artifacts"),
        needs=("find_rocm",),
        topics=("artifacts",),
        ignores=("torch-ref",),
        needs_plan=True,
    ),
    Step(
        name="build_rocm",
        job="build_rocm",
        front_door=("rocm_packaging", "build"),
        needs=("fetch_artifacts",),
        topics=("rocm packages",),
    ),
    Step(
        name="check_rocm",
        job="build_rocm",
        front_door=("pytorch_build", "check-wheels"),
        session_name="check_wheels",
        options=("--rocm",),
        needs=("build_rocm",),
        ignores=("force",),
    ),
    Step(
        name="checkout",
        job="build_pytorch",
        front_door=("pytorch_build", "checkout"),
        needs=("resolve",),
        ignores=("build-variant",),
    ),
    *(_build_step(component) for component in COMPONENTS.values()),
    Step(
        name="check_wheels",
        job="build_pytorch",
        front_door=("pytorch_build", "check-wheels"),
        # Whichever of them a ref has.
        needs=tuple(f"build_{name}" for name in COMPONENTS),
        topics=("policy",),
        ignores=("force",),
    ),
    Step(
        name="upload",
        job="upload",
        front_door=("ci", "upload"),
        needs=("build_rocm", "check_wheels"),
        topics=("store",),
        ignores=("torch-ref", "force"),
    ),
    Step(
        name="provenance",
        job="upload",
        front_door=("ci", "provenance"),
        needs=("upload",),
        topics=("store",),
        ignores=("torch-ref", "force"),
    ),
    Step(
        name="stage",
        job="stage",
        front_door=("ci", "stage"),
        needs=("upload",),
        topics=("store", "distribution"),
        ignores=("torch-ref", "force"),
        needs_plan=True,
    ),
    Step(
        name="test_rocm",
        job="test_rocm",
        front_door=("rocm_packaging", "test"),
        needs=("build_rocm", "stage"),
        topics=("store", "staging"),
        has_environment=True,
        needs_plan=True,
    ),
    Step(
        name="test_smoke",
        job="test_pytorch",
        front_door=("pytorch_build", "test-smoke"),
        needs=("upload", "stage"),
        topics=("rocm source", "store", "staging"),
        has_environment=True,
        has_cells=True,
    ),
    Step(
        name="test_torch",
        job="test_torch",
        front_door=("pytorch_build", "test-torch"),
        needs=("upload", "stage"),
        topics=("rocm source", "tested tree", "test part", "store", "staging"),
        has_environment=True,
        has_cells=True,
    ),
    Step(
        name="test_report",
        job="test_report",
        front_door=("pytorch_build", "test-report"),
        needs=("test_rocm", "test_smoke", "test_torch"),
        topics=("store",),
        ignores=("torch-ref", "force"),
        needs_plan=True,
    ),
    Step(
        name="promote",
        job="promote",
        front_door=("ci", "promote"),
        needs=("stage", "test_report"),
        topics=("store", "distribution", "set"),
        ignores=("torch-ref", "force"),
        needs_plan=True,
    ),
    Step(
        name="report",
        job="summary",
        front_door=("ci", "report"),
        needs=("provenance", "test_report", "promote"),
        topics=("page", "store", "distribution"),
        ignores=("force",),
    ),
)

STEPS_BY_NAME: Mapping[str, Step] = MappingProxyType({step.name: step for step in STEPS})

# Those that MATRIX makes cells of.
SESSIONS_WITH_CELLS = tuple(step.session for step in STEPS if step.has_cells)

BUILD_STEPS: Mapping[str, Step] = MappingProxyType(
    {step.component: step for step in STEPS if step.component is not None}
)

# A changed tree is built on what another run lends, so these are done only where nothing is lent.
_LENT_STEPS = (
    "resolve",
    "build_rocm",
    "check_rocm",
    "checkout",
    *(f"build_{name}" for name in COMPONENTS),
)


@dataclass(frozen=True, kw_only=True)
class FlowOptions:
    """The options of a flow's steps: those of all that have a use for them, and those of each topic."""

    common: tuple[str, ...] = ()
    by_topic: Mapping[OptionTopic, tuple[str, ...]] = field(default_factory=dict)

    def for_step(self, step: Step) -> tuple[str, ...]:
        """Return the options of one step."""
        return self.for_call([step])

    def for_call(self, steps: Sequence[Step]) -> tuple[str, ...]:
        """Return the options of steps that share a call of nox, which have the same ones of their own."""
        options = list(steps[0].options)
        for option in self.common:
            name = option.partition("=")[0].removeprefix("--")
            if not all(name in step.ignores for step in steps):
                options.append(option)
        return (*options, *self._of_topics(steps[0]))

    def own(self, step: Step) -> tuple[str, ...]:
        """Return the options that a step shares only with steps that have them, too."""
        return (*step.options, *self._of_topics(step))

    def _of_topics(self, step: Step) -> Sequence[str]:
        options: list[str] = []
        for topic in step.topics:
            options += self.by_topic.get(topic, ())
        return options


@dataclass(frozen=True, kw_only=True)
class NoxCall:
    """One call of nox: sessions with the same options."""

    sessions: tuple[str, ...]
    options: tuple[str, ...]
    python: str | None = None  # of the sessions' environments; None for nox's own

    @property
    def words(self) -> tuple[str, ...]:
        """The words after ``nox``."""
        python = () if self.python is None else ("-P", self.python)
        return ("-s", *self.sessions, *python, "--", *self.options)


def steps_of_ref(ref: TorchRef, gpu_family: str) -> tuple[Sequence[Step], Mapping[str, str]]:
    """Return the steps from a torch ref to tested wheels of a GPU family, or of ``cpu``.

    Also why others are left out, by their names.
    """
    steps: list[Step] = []
    left_out: dict[str, str] = {}
    for step in STEPS:
        if step.needs_plan:
            continue
        reason = _reason_to_leave_out(step, ref, gpu_family)
        if reason is None:
            steps.append(step)
        else:
            left_out[step.name] = reason
    return steps, left_out


def _reason_to_leave_out(step: Step, ref: TorchRef, gpu_family: str) -> str | None:
    """Return why a ref has no use for a step; None where it has."""
    if step.component is not None:
        return _reason_not_to_build(step.component, ref, gpu_family)
    if step.name in {"build_rocm", "check_rocm"}:
        return _reason_not_to_package_rocm(ref, gpu_family)
    if step.name == "test_torch":
        return _reason_not_to_test_torch(ref)
    return None


def _reason_not_to_build(component: str, ref: TorchRef, gpu_family: str) -> str | None:
    if component not in ref.components:
        return f"not built for {ref.name}"
    if COMPONENTS[component].serves_gpus_only and gpu_family == CPU:
        return f"family cpu has no use for {component}"
    return None


def _reason_not_to_package_rocm(ref: TorchRef, gpu_family: str) -> str | None:
    if gpu_family == CPU:
        return "family cpu has no ROCm"

    # Only a ref that names its version of ROCm brings the artifacts, too.
    if not ref.rocm_version:
        return f"ROCm comes from the release index of {gpu_family}"
    return None


def _reason_not_to_test_torch(ref: TorchRef) -> str | None:
    if "torch" not in ref.components:
        return f"torch is not built for {ref.name}"

    if ref.has_whole_tests:
        return "upstream's tests take hours: run them with nox -s test_torch"
    return None


def steps_of_changed_trees(
    ref: TorchRef,
    gpu_family: str,
    *,
    changed_components: Collection[str],
    unlent_steps: Collection[str],
) -> Sequence[Step]:
    """Return the steps from changed source trees to tested wheels.

    `unlent_steps` are those whose results no run can lend, so that they are done here.
    """
    own_steps = {BUILD_STEPS[component].name for component in changed_components}
    own_steps.update(unlent_steps)

    steps_of_whole_ref, _left_out = steps_of_ref(ref, gpu_family)
    steps: list[Step] = []
    for step in STEPS:
        if step.name in _LENT_STEPS:
            is_included = step.name in own_steps
        elif step.name == "test_torch":
            # Here they are tests of the changed tree, however long they take.
            is_included = "torch" in changed_components
        else:
            is_included = step in steps_of_whole_ref
        if is_included:
            steps.append(step)
    return steps


def lent_components(ref: TorchRef, gpu_family: str, changed_components: Collection[str]) -> Sequence[str]:
    """Return the components that the builds of changed trees need, in the order in which they are built."""
    needed_steps: set[str] = set()
    for component in changed_components:
        needed_steps.update(BUILD_STEPS[component].needs)

    components: list[str] = []
    steps, _left_out = steps_of_ref(ref, gpu_family)
    for step in steps:
        if step.component is None or step.component in changed_components:
            continue
        if step.name in needed_steps:
            components.append(step.component)

    return components


def steps_of_plan_cell(cell: PlannedJob) -> Sequence[Step]:
    """Return the steps of one job of a plan."""
    return [STEPS_BY_NAME[name] for name in cell.sessions]


def steps_of_job(job: JobKind) -> Sequence[Step]:
    """Return the steps that a job of the workflows groups."""
    return [step for step in STEPS if step.job == job]


def nox_calls(steps: Sequence[Step], options: FlowOptions, *, python: str | None = None) -> Sequence[NoxCall]:
    """Return the calls of nox for steps, in order.

    Neighbours with the same options of their own share a call: nox gives what follows ``--`` to all of its
    sessions, and the noxfile takes out what has an effect in others alone.
    """
    groups: list[list[Step]] = []
    for step in steps:
        if groups and options.own(groups[-1][0]) == options.own(step):
            groups[-1].append(step)
        else:
            groups.append([step])

    calls: list[NoxCall] = []
    for group in groups:
        sessions = tuple(step.session for step in group)
        calls.append(NoxCall(sessions=sessions, options=options.for_call(group), python=python))
    return calls


def without_leading_up_to_date(
    steps: Sequence[Step],
    look: Callable[[Step], Status],
) -> Sequence[Step]:
    """Return the steps without those at the beginning that have nothing to do.

    The first step with work may change the inputs of every later one, so no later one is looked at.
    """
    for position, step in enumerate(steps):
        if isinstance(look(step), Pending):
            return steps[position:]
    return ()
