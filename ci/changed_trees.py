"""`invoke change`: changed source trees to tested wheels, in a run that borrows what it does not build."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from ci import pipeline
from ci.flow import run_steps
from ci.interpreters import require_pythons
from ci.jobs import as_options, common_options, store_options
from core import console, files
from core.cli.options import DEFAULT_STORE, Common
from core.cli.sessions import PYTHON_OF_NOX
from core.errors import MissingInputError, UsageError
from core.run import LOCAL_RUN, is_local, records
from core.run.records import BORROWED, edited_words
from pytorch_build.build.build import copy_wheels_from_run, find_record
from pytorch_build.components import COMPONENTS
from pytorch_build.context import Context, find_context
from pytorch_build.lock.versions import python_tag
from pytorch_build.sources.snapshots import require_checkout
from pytorch_build.sources.trees import tree_copy
from rocm_packaging.origin import has_rocm, own_run

# A build records where its ROCm was from as options of an installer. These are the same of ours.
_OPTIONS_OF_INSTALLER = {"--find-links": "--rocm-find-links", "--extra-index-url": "--rocm-index-url"}


@dataclass(frozen=True, kw_only=True)
class ChangedTrees:
    """Changed source trees by component, the run that lends what they lack, and a named source of ROCm."""

    trees: Mapping[str, Path]
    lending_run_id: str = LOCAL_RUN
    policy: str | None = None
    rocm_options: tuple[str, ...] = ()

    @property
    def run_id(self) -> str:
        """The name of a run after its trees, so that the next call goes on with it."""
        paths = sorted(str(tree) for tree in self.trees.values())
        name = re.sub("[^a-z0-9]+", "-", PurePath(paths[0]).name.lower()).strip("-")
        return f"{LOCAL_RUN}-{name or 'tree'}-{files.digest_of(paths)[:8]}"


@dataclass(frozen=True, kw_only=True)
class Borrowing:
    """A run of changed trees, the run that lends to it, and the Python that both are of."""

    borrower: Context
    lender: Context
    python_tag: str  # cp312


def run_trees(
    common: Common, changes: ChangedTrees, *, run_id: str | None = None, python: str | None = None
) -> None:
    """Take changed trees to tested wheels, in a run of their own that borrows what it lacks.

    `run_id` names that run; None names it after the trees.
    """
    for tree in changes.trees.values():
        require_checkout(tree)
    if python is not None:
        require_pythons([python])

    borrowing = _borrowing(replace(common, run_id=run_id or changes.run_id), changes, python)
    _require_lender(borrowing, changes, common.store)
    borrower = borrowing.borrower
    console.say(f"run {borrower.common.run_id}:")
    for component, tree in changes.trees.items():
        snapshot = tree_copy(borrower, component, tree).snapshot()
        console.say(f"  {component}: {tree}, {edited_words(snapshot.edited_count)}")

    rocm_options = _rocm_options(borrowing, changes)
    unlent_steps = ["build_rocm", "check_rocm"] if rocm_options is None else []
    for component in pipeline.lent_components(borrower.ref, borrower.gpu_family, changes.trees):
        if borrower.ref.projects[component].prebuilt:
            continue
        if not _borrow_component(borrowing, component):
            unlent_steps.append(pipeline.BUILD_STEPS[component].name)

    steps = pipeline.steps_of_changed_trees(
        borrower.ref,
        borrower.gpu_family,
        changed_components=changes.trees,
        unlent_steps=unlent_steps,
    )
    options = _options(borrower, changes, rocm_options or (), store_options(common))
    uploading_common = replace(borrower.common, store=common.store)
    run_steps(uploading_common, borrower.ref.name, steps, options, python=python)


def _borrowing(common: Common, changes: ChangedTrees, python: str | None) -> Borrowing:
    if common.run_id == LOCAL_RUN or not is_local(common.run_id):
        raise UsageError(
            f"--run-id {common.run_id!r}: changed trees need a run of their own, which may replace wheels.",
            hint=f"Begin its name with {LOCAL_RUN}-, as in --run-id {LOCAL_RUN}-mine, or leave it out.",
        )

    # Builds leave their wheels in the default store, from which `upload` takes them to the one that is named.
    borrower = find_context(replace(common, store=DEFAULT_STORE))
    named_common = replace(borrower.common, torch_ref=borrower.ref.name, gpu_family=borrower.gpu_family)
    lending_store = DEFAULT_STORE if changes.lending_run_id == LOCAL_RUN else common.store
    lending_common = replace(named_common, run_id=changes.lending_run_id, store=lending_store)
    return Borrowing(
        borrower=replace(borrower, common=named_common),
        lender=replace(borrower, common=lending_common),
        python_tag=python_tag(python or PYTHON_OF_NOX),
    )


def _require_lender(borrowing: Borrowing, changes: ChangedTrees, store: str) -> None:
    """Refuse a run that was named and has nothing to lend. The local run need not be there."""
    lender = borrowing.lender
    if changes.lending_run_id == LOCAL_RUN:
        return
    if not records.read_all(lender.common.open_for_reading(), lender.common.outputs, lender.artifact_group):
        raise MissingInputError(
            f"Store {store} has no wheels of run {changes.lending_run_id} for {lender.artifact_group}.",
            hint="Name another run with --from-run-id, or leave it out.",
        )


def _options(
    borrower: Context, changes: ChangedTrees, rocm_options: tuple[str, ...], upload_options: tuple[str, ...]
) -> pipeline.FlowOptions:
    tree_options = [
        f"{COMPONENTS[component].tree_option}={tree}" for component, tree in changes.trees.items()
    ]
    return pipeline.FlowOptions(
        common=common_options(borrower.common),
        by_topic={
            "store": upload_options,
            "policy": as_options({"policy": changes.policy}),
            "rocm source": rocm_options,
            "trees": tuple(tree_options),
            "tested tree": as_options({"pytorch-dir": changes.trees.get("torch")}),
            "page": ("--brief",),
        },
    )


def _borrow_component(borrowing: Borrowing, component: str) -> bool:
    """Borrow a component's wheels, anew where the lender has others now; return whether the run has them."""
    borrower_record = find_record(borrowing.borrower, borrowing.python_tag, component)
    if borrower_record is not None and BORROWED not in borrower_record.details:
        console.say(f"  {component}: already built in this run")
        return True

    lent_record = find_record(borrowing.lender, borrowing.python_tag, component)
    if lent_record is None:
        if borrower_record is not None:
            console.say(f"  {component}: already built in this run")
            return True
        console.say(f"  {component}: no run has it, so it is built here")
        return False

    version = lent_record.files[0].version
    console.say(f"  {component}: {version}, borrowed from run {borrowing.lender.common.run_id}")
    is_borrowed = borrower_record is not None and _digests(borrower_record) == _digests(lent_record)
    if not is_borrowed and not borrowing.borrower.common.dry_run:
        copy_wheels_from_run(borrowing.borrower, borrowing.lender, borrowing.python_tag, component)
    return True


def _digests(record: records.Record) -> set[str]:
    return {file.sha256 for file in record.files}


def _rocm_options(borrowing: Borrowing, changes: ChangedTrees) -> tuple[str, ...] | None:
    """Return the options that lead to ROCm, and say where it is from; None where this run has to build it."""
    borrower = borrowing.borrower
    if not borrower.gpu:
        return ()
    if changes.rocm_options:
        console.say(f"  ROCm: as {' '.join(changes.rocm_options)} says")
        return changes.rocm_options

    run_options = _rocm_options_of_runs(borrowing)
    if run_options is not None:
        return run_options

    if borrower.ref.rocm_version:
        console.say(f"  ROCm: {borrower.ref.rocm_version}, no run has it, so it is built here")
        return None
    console.say(f"  ROCm: from the release index of {borrower.gpu_family}")
    return ()


def _rocm_options_of_runs(borrowing: Borrowing) -> tuple[str, ...] | None:
    """Return the options that lead to the ROCm of one of the two runs; None where neither has any."""
    borrower = borrowing.borrower
    lender = borrowing.lender
    if has_rocm(own_run(borrower.common, borrower.artifact_group)):
        console.say(f"  ROCm: from run {borrower.common.run_id}")
        return ()

    lending_run_id = lender.common.run_id
    if has_rocm(own_run(lender.common, lender.artifact_group)):
        console.say(f"  ROCm: from run {lending_run_id}")
        options = [f"--rocm-run-id={lending_run_id}"]
        if lender.common.store != DEFAULT_STORE:
            options.append(f"--rocm-store={lender.common.store}")
        return tuple(options)

    torch_record = find_record(lender, borrowing.python_tag, "torch")
    if torch_record is None or not torch_record.details.get("rocm_options"):
        return None
    version = torch_record.inputs["rocm"][0]
    console.say(f"  ROCm: {version}, from where the torch of run {lending_run_id} had it")
    return _recorded_rocm_options(torch_record)


def _recorded_rocm_options(torch_record: records.Record) -> tuple[str, ...]:
    """Return the options that lead to the ROCm that a torch was built against.

    Its record has an installer's options, each followed by its value.
    """
    options = [f"--rocm-version={torch_record.inputs['rocm'][0]}"]
    recorded_options: Sequence[str] = torch_record.details["rocm_options"]
    for position in range(0, len(recorded_options), 2):
        option = _OPTIONS_OF_INSTALLER[recorded_options[position]]
        options.append(f"{option}={recorded_options[position + 1]}")
    return tuple(options)
