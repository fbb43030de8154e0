"""The jobs of the workflows as a graph that one machine runs: pure functions from a plan to nox calls.

A node is one job of a workflow: the same sessions, in the same order, with the same options.
`tests/unit/ci/test_workflows.py` holds the two to each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.run.outputs import PLAIN
from core.run.plan import promotions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.run.outputs import Platform
    from core.run.plan import Cell, Plan

REPORT_OF_TESTS = "test_report"
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
class Node:
    """One job."""

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
    store: str = "out"
    options: tuple[str, ...] = ()
    distribution_store: str = ""
    rocm_layout: str = ""

    @property
    def run(self) -> tuple[str, ...]:
        """The run as options."""
        return (f"--run-id={self.run_id}", *self.options)

    @property
    def written(self) -> tuple[str, ...]:
        """The run and its store as options."""
        return (f"--run-id={self.run_id}", f"--store={self.store}", *self.options)


def completing(plan: Plan, target: Target) -> Node:
    """Return the job that completes the plan: where ROCm comes from, and commits and versions of PyTorch."""
    posargs = (f"--plan={PLAN_FILE}", *target.run)
    found = Call(sessions=("find_rocm",), posargs=posargs)
    resolved = (Call(sessions=("resolve",), posargs=posargs),) if plan.build_pytorch.value else ()
    return Node(name="resolve", stage="setup", calls=(found, *resolved))


def nodes(plan: Plan, platform: Platform, target: Target) -> Sequence[Node]:
    """Give the jobs of a plan that `resolve` completed, on one platform.

    ROCm's packages -> their tests; PyTorch's wheels on them -> their tests; a report on all tests, which a
    promotion goes by; then what is promoted, and the run's page.
    """
    kind = f"--release-type={plan.release_type}"
    rocm = {one.artifact_group: _rocm(one, plan, target, kind) for one in plan.matrix(platform, "build_rocm")}
    rocm_tests = [
        _test(one, plan, target, kind, _names(rocm, one)) for one in plan.matrix(platform, "test_rocm")
    ]
    builds = {
        _key(one): _build(one, plan, target, kind, _names(rocm, one))
        for one in plan.matrix(platform, "build_pytorch")
    }
    tests = [
        _test(one, plan, target, kind, (builds[_key(one)].name,))
        for stage in ("test_pytorch", "test_torch")
        for one in plan.matrix(platform, stage)
    ]
    tested = tuple(one.name for one in (*rocm_tests, *tests))
    made = [*rocm.values(), *rocm_tests, *builds.values(), *tests]
    if tested:
        made.append(_tests_report(kind, target, tested))
    sets = [_promotion(row, platform, target, kind, made) for row in promotions(plan, platform)]
    everything = tuple(one.name for one in (*made, *sets))
    report = Call(sessions=("report",), posargs=(kind, *target.written))
    last = Node(name="report", stage="summary", calls=(report,), needs=everything, tolerant=True)
    return (*made, *sets, last) if made else ()


def _names(found: dict[str, Node], cell: Cell) -> tuple[str, ...]:
    return (found[cell.artifact_group].name,) if cell.artifact_group in found else ()


def _key(cell: Cell) -> tuple[str, str, str]:
    return cell.artifact_group, cell.python, cell.torch_ref


def _upload(cell: Cell, target: Target, kind: str) -> Call:
    posargs = (*_group(cell.gpu_family, cell.build_variant), kind, *target.written)
    return Call(sessions=("upload", "provenance"), posargs=posargs)


def _where(cell: Cell) -> tuple[str, ...]:
    ref = (f"--torch-ref={cell.torch_ref}",) if cell.torch_ref else ()
    return (*ref, *_group(cell.gpu_family, cell.build_variant))


def _group(gpu_family: str, build_variant: str) -> tuple[str, ...]:
    variant = () if build_variant == PLAIN else (f"--build-variant={build_variant}",)
    return (f"--gpu-family={gpu_family}", *variant)


def _rocm(cell: Cell, plan: Plan, target: Target, kind: str) -> Node:
    version = (f"--version={plan.rocm.version}",) if plan.rocm.version else ()
    layout = (f"--rocm-layout={target.rocm_layout}",) if target.rocm_layout else ()
    posargs = (*_where(cell), *version, *layout, kind, *target.run)
    built = Call(sessions=("build_rocm",), posargs=posargs)
    return Node(
        name=f"build_rocm {cell.name}",
        stage="build_rocm",
        calls=(*_fetch(cell, plan, target, kind), built, _upload(cell, target, kind)),
    )


def _fetch(cell: Cell, plan: Plan, target: Target, kind: str) -> tuple[Call, ...]:
    """Fetch the artifacts that the plan pins, in the job that packages them."""
    if "fetch_artifacts" not in cell.sessions:
        return ()
    rocm = plan.rocm_row(cell)
    names = ("run_id", "repository", "store", "digest")
    pinned = tuple(f"--artifact-{name.replace('_', '-')}={rocm[name]}" for name in names if rocm.get(name))
    posargs = (*pinned, *_group(cell.gpu_family, cell.build_variant), kind, *target.run)
    return (Call(sessions=("fetch_artifacts",), posargs=posargs),)


def _build(cell: Cell, plan: Plan, target: Target, kind: str, needs: tuple[str, ...]) -> Node:
    sessions = tuple(one for one in cell.sessions if one != "fetch_artifacts")
    index = _index(cell, plan)
    # what follows -- goes to every session of a call, and checks take no source of ROCm
    checks = tuple(one for one in sessions if one.startswith("check_")) if index else ()
    steps = ((tuple(one for one in sessions if one not in checks), index), (checks, ()))
    built = tuple(
        Call(sessions=some, python=cell.python, posargs=(*_where(cell), *rocm, kind, *target.run))
        for some, rocm in steps
        if some
    )
    return Node(
        name=f"build_pytorch {cell.name}",
        stage="build_pytorch",
        calls=(*_fetch(cell, plan, target, kind), *built, _upload(cell, target, kind)),
        needs=needs,
    )


def _index(cell: Cell, plan: Plan) -> tuple[str, ...]:
    rocm = plan.rocm_row(cell)
    if not rocm.get("index_url"):
        return ()
    return f"--rocm-index-url={rocm['index_url']}", f"--rocm-version={rocm['version']}"


def _test(cell: Cell, plan: Plan, target: Target, kind: str, needs: tuple[str, ...]) -> Node:
    part = (f"--config={cell.config}", f"--shard={cell.shard}") if cell.config else ()
    posargs = (*_where(cell), *_index(cell, plan), *part, kind, *target.written)
    call = Call(sessions=cell.sessions, python=cell.python, posargs=posargs)
    return Node(name=f"{cell.stage} {cell.name}", stage=cell.stage, calls=(call,), needs=needs)


def _tests_report(kind: str, target: Target, tested: tuple[str, ...]) -> Node:
    """Give the job that puts the parts of tests together; it tells what failed, too, so it runs after all."""
    call = Call(sessions=("test_report",), posargs=(kind, *target.written))
    return Node(
        name=REPORT_OF_TESTS,
        stage="test_report",
        calls=(call,),
        needs=tested,
        tolerant=True,
        wants_results=True,
    )


def _promotion(
    chosen: Mapping[str, str], platform: Platform, target: Target, kind: str, made: Sequence[Node]
) -> Node:
    family = _group(chosen["gpu_family"], chosen["build_variant"])
    store = (f"--distribution-store={target.distribution_store}",) if target.distribution_store else ()
    shared = (*family, f"--platform={platform}", kind, *target.written, *store)
    version = (f"--torch-version={chosen['torch_version']}", f"--pythons={chosen['pythons']}")
    # what decides are records of tests, so they are waited for, and a failed one is the decision's to weigh
    needs = tuple(
        one.name for one in made if set(family) <= set(one.calls[-1].posargs) or one.name == REPORT_OF_TESTS
    )
    return Node(
        name=f"promote {chosen['name']}",
        stage="promote",
        calls=(
            Call(sessions=("stage",), posargs=shared),
            Call(sessions=("promote",), posargs=(*shared, *version)),
        ),
        needs=needs,
        tolerant=True,
    )
