"""`promote`: a set of staged wheels into the release index, by tests, as a whole or not at all.

A set is a torch version over its families: all its wheels, and the ROCm packages that they need.
"""

import argparse
import getpass
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import groupby

from ci.plan.data import runners
from ci.promote import documents, promotion
from ci.promote.candidates import promised_wheels, rewrite_candidate
from ci.promote.documents import Decision, Override
from ci.promote.facts import SetFacts, SetRequest, gather
from ci.promote.policy import PromotionPolicy, decide, gates
from ci.promote.version_change import RocmChange, final_of, keep_targets, rename_set
from ci.publish.buckets import buckets
from ci.verbs.cells import cells_by_session, load_matrix
from ci.verbs.stage import add_distribution_options, distribution_store_of
from core import console
from core.cell import GroupCell
from core.cli.options import (
    DEFAULT_STORE,
    GROUP_OPTIONS,
    RUN_OPTIONS,
    Common,
    common_from,
    environment,
    split_list,
)
from core.cli.sessions import command_again
from core.errors import CheckError, FatalError, ServiceError, StoreError, UsageError
from core.files import ensure_folder
from core.run import LOCAL_RUN, group_name, records
from core.run.locations import distribution_store
from core.stores import Store
from core.stores.location import open_store
from pytorch_build.lock.versions import python_tag
from pytorch_build.refs.torch_refs import load_refs

_OPTIONS = {
    "the set": (
        (
            "--torch-version",
            "V",
            "torch's whole version (default: the only one staged, or staged of --run-id)",
        ),
        ("--rocm-version", "V", "ROCm's own packages alone, of this version"),
        ("--pythons", "A,B", "Pythons each family must have (default: any has)"),
        ("--matrix", "NAME", "a matrix whose cells must all be there: release, ci, FILE"),
    ),
    "the decision": (
        ("--override-by", "NAME", "who overrides the tests"),
        ("--override-reason", "TEXT", "why"),
        ("--by", "NAME", "who promotes (default: this job's actor)"),
    ),
    "a release of a release candidate": (
        ("--from-version", "V", "ROCm's version of it, like 7.10.0rc2"),
        ("--version", "V", "ROCm's version of the release, like 7.10.0"),
        ("--from-release-type", "TYPE", "whose bucket has it staged (default: prerelease)"),
        ("--gpu-targets", "A,B", "gfx targets that it has device code for (default: the candidate's)"),
        ("--from-store", "STORE", "the store that has it staged"),
    ),
}

_DRY_RUN_HINT = (
    "A dry run writes nothing, and still reads the bucket: what is staged and how it was tested decides. "
    "Give a role or a network that can read it, or a folder with its files: --distribution-store DIR."
)

COMMON_OPTIONS = (*GROUP_OPTIONS, *RUN_OPTIONS, "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_distribution_options(parser)
    for title, options in _OPTIONS.items():
        group = parser.add_argument_group(title)
        for name, metavar, text in options:
            group.add_argument(
                name,
                default="",
                metavar=metavar,
                help=text,
            )
    parser.epilog = "--gpu-family takes a list (a;b): families that the set must have, and no other."


def run(arguments: argparse.Namespace) -> None:
    """Promote a set, or in a dry run say what would be promoted."""
    common = common_from(arguments)
    try:
        _promote(arguments, common)
    except (StoreError, ServiceError) as problem:
        if not common.dry_run:
            raise
        raise type(problem)(problem.message, hint=_DRY_RUN_HINT) from problem


def _promote(arguments: argparse.Namespace, common: Common) -> None:
    """Gather, decide, show, and carry out."""
    change = _read_change(arguments, common)
    override = _read_override(arguments)

    # Opened for writing, in a dry run too: nothing is written before it ends.
    store = distribution_store_of(arguments, common, dry_run=False)
    staging_store = store
    if change is not None:
        staging_store = _open_candidate_store(arguments, common)
    request = _read_request(arguments, common, staging_store, change)

    facts = gather(staging_store, request, _run_store_opener(common), jobs=arguments.jobs)
    if change is not None:
        facts = keep_targets(facts, change)
    policy = PromotionPolicy(
        runners=runners(),
        gates=gates(),
        release_type=common.release_type,
    )
    decision = decide(
        facts,
        policy,
        override,
        by=arguments.by or _actor(environment()),
        decided=records.now(),
    )
    _show_decision(facts, decision)
    if decision.reasons:
        # A candidate is staged in another type's store, which a release does not write to.
        if change is None and not common.dry_run:
            _record_refusal(store, facts, decision)
        raise _refusal_error(decision)

    staged_files = decision.files
    if change is not None:
        decision = rename_set(decision, request.distribution, request.version, change)
    _warn_of_unfinished(store, decision)
    promotion.require_same_targets(store, decision)
    if common.dry_run:
        _show_plan(store, decision)
        return

    source = staging_store
    if change is not None and not promotion.is_done(store, decision):
        scratch = ensure_folder(common.cache / "promotion" / decision.identity)
        expected = promised_wheels(facts, change)
        released_files, source = rewrite_candidate(staging_store, staged_files, change, scratch, expected)
        decision = decision.model_copy(update={"files": released_files})
    promoted, new_count = promotion.carry_out(
        store,
        decision,
        source,
        clock=records.now,
        jobs=arguments.jobs,
    )
    promotion.update_refusals(store, promoted.artifact_groups)
    _show_promotion(store, promoted, new_count)


def _record_refusal(
    store: Store,
    facts: SetFacts,
    decision: Decision,
) -> None:
    """Write a refusal down; whoever promotes learns its reasons, even where that fails."""
    try:
        promotion.record_refusal(store, facts, decision)
    except FatalError as problem:
        console.warn(f"The pages of staging do not say that it is refused: {problem}")


def _warn_of_unfinished(store: Store, decision: Decision) -> None:
    """Name the promotions that are running, or were interrupted."""
    for intent in documents.unfinished(store):
        message = f"{intent.set_name} is being promoted by {intent.by} since {intent.decided}, "
        message += "or was interrupted"
        if intent.set_name == decision.set_name:
            message += "; this promotion continues it"
        console.warn(f"{message}.")


# Options


def _read_change(
    arguments: argparse.Namespace,
    common: Common,
) -> RocmChange | None:
    """Return which release candidate becomes which release, if one does, and which targets it keeps."""
    old = arguments.from_version
    new = arguments.version
    if not (old or new):
        if arguments.gpu_targets:
            raise UsageError(
                "--gpu-targets changes wheels, and a name stands for the same bytes forever.",
                hint="Give it where a candidate becomes a release (--from-version, --version), or build for "
                "fewer targets.",
            )
        return None

    if not (old and new):
        raise UsageError(
            "A release candidate becomes a release with --from-version and --version.",
            hint="Like --from-version 7.10.0rc2 --version 7.10.0.",
        )
    if arguments.gpu_targets and not split_list(arguments.gpu_targets):
        raise UsageError("--gpu-targets is empty.")
    change = final_of(old, split_list(arguments.gpu_targets))
    if change.new != new:
        raise UsageError(f"ROCm {old} becomes {change.new}, not {new}.")
    if common.release_type != "release":
        raise UsageError(
            f"A release candidate does not become a {common.release_type}.",
            hint="Give --release-type release.",
        )
    return change


def _read_override(arguments: argparse.Namespace) -> Override | None:
    by = arguments.override_by.strip()
    reason = arguments.override_reason.strip()
    if bool(by) != bool(reason):
        raise UsageError(
            "An override of the tests needs a name and a reason.",
            hint="Give both: --override-by NAME --override-reason TEXT.",
        )
    return (
        Override(
            by=by,
            reason=reason,
        )
        if by
        else None
    )


def _open_candidate_store(
    arguments: argparse.Namespace,
    common: Common,
) -> Store:
    """Open the store that has a release candidate staged."""
    address = arguments.from_store
    if not address:
        address = distribution_store(buckets(), arguments.from_release_type or "prerelease")
    return open_store(address, root=common.root)


def _run_store_opener(common: Common) -> Callable[[str], Store]:
    """Return what opens a run's store: where it was staged from, unless another store is named."""

    def open_run_store(address: str) -> Store:
        if common.store != DEFAULT_STORE:
            address = common.store
        return open_store(address, root=common.root)

    return open_run_store


def _read_request(
    arguments: argparse.Namespace,
    common: Common,
    staging_store: Store,
    change: RocmChange | None,
) -> SetRequest:
    if arguments.torch_version and arguments.rocm_version:
        raise UsageError("--torch-version and --rocm-version name two sets.", hint="Promote one at a time.")

    version = arguments.torch_version or arguments.rocm_version
    gpu_families = split_list(common.gpu_family)
    artifact_groups = [group_name(gpu_family, common.build_variant) for gpu_family in gpu_families]
    return SetRequest(
        distribution="rocm" if arguments.rocm_version else "torch",
        version=version or _only_version(staging_store, change, common.run_id),
        artifact_groups=tuple(artifact_groups),
        platforms=(arguments.platform,) if arguments.platform else (),
        python_tags=tuple(map(python_tag, split_list(arguments.pythons))),
        cells=_cells(arguments, common) if arguments.matrix else (),
    )


def _only_version(
    staging_store: Store,
    change: RocmChange | None,
    run_id: str,
) -> str:
    """Return the only torch version that is staged; of a candidate, the only one with its ROCm.

    Of several versions it is the one that was staged of the run that the user names.
    """
    torch_versions = documents.staged_versions(staging_store)
    if change is not None:
        torch_versions = frozenset(filter(change.is_of_candidate, torch_versions))
    if len(torch_versions) == 1:
        return min(torch_versions)

    # The local run is the default, so nobody may have named it.
    if run_id != LOCAL_RUN:
        versions_of_run = torch_versions & documents.staged_versions(staging_store, run_id=run_id)
        if len(versions_of_run) == 1:
            return min(versions_of_run)

    rocm_words = "" if change is None else f" of ROCm {change.old}"
    if torch_versions:
        hint = f"Give one with --torch-version: {', '.join(sorted(torch_versions))}"
    else:
        rocm_versions = documents.staged_versions(staging_store, "rocm")
        hint = "Stage one first."
        if rocm_versions:
            hint = f"ROCm's own packages are: --rocm-version {' or '.join(sorted(rocm_versions))}."
    raise UsageError(
        f"{len(torch_versions) or 'No'} torch versions{rocm_words} are staged in {staging_store.url}.",
        hint=hint,
    )


def _cells(
    arguments: argparse.Namespace,
    common: Common,
) -> tuple[GroupCell, ...]:
    """Return the cells of a matrix, on the chosen platform or on all."""
    matrix = load_matrix(arguments.matrix, common.root)
    platforms = [arguments.platform] if arguments.platform else list(matrix.gpu_families)
    cells: list[GroupCell] = []
    for platform in platforms:
        sessions = cells_by_session(matrix, load_refs(platform=platform), platform)
        # Every wheel is tested, so this session has every cell.
        for cell in sessions["test_smoke"]:
            group_cell = GroupCell(
                artifact_group=group_name(cell.gpu_family or "", common.build_variant),
                platform=platform,
                torch_ref=cell.torch_ref,
                python=cell.python,
            )
            cells.append(group_cell)
    return tuple(cells)


def _actor(variables: Mapping[str, str]) -> str:
    """Name who runs this: the actor of a GitHub job with its address, else the machine's user."""
    actor = variables.get("GITHUB_ACTOR", "")
    if actor:
        repository = variables.get("GITHUB_REPOSITORY", "")
        run_id = variables.get("GITHUB_RUN_ID", "")
        return f"{actor} ({repository}/{run_id})"
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"


# What is shown


def _show_decision(facts: SetFacts, decision: Decision) -> None:
    """Print the decision on each cell."""
    rulings = {(ruling.family, ruling.platform, ruling.python): ruling for ruling in decision.rulings}
    blocked_cells = {reason.cell for reason in decision.reasons}
    file_counts = Counter(wheel.cell for wheel in facts.wheels)
    rows: list[tuple[str, ...]] = []
    for cell in sorted(file_counts.keys() | blocked_cells):
        family = cell.artifact_group or ""
        platform = cell.platform or ""
        ruling = rulings.get((family, platform, cell.python_tag))
        rule = "refused"
        steps: set[str] = set()
        if ruling is not None:
            steps = {evidence.stage for evidence in ruling.evidence}
            if cell not in blocked_cells:
                rule = ruling.rule
        python = cell.python_tag or "any"
        file_count = str(file_counts[cell])
        step_names = ", ".join(sorted(steps))
        rows.append((family, platform, python, file_count, rule, step_names))
    console.table(("family", "platform", "Python", "files", "rule", "tests"), rows, title=facts.set_name)


def _refusal_error(decision: Decision) -> CheckError:
    """Return the error that says why a set must not be released, cell by cell."""
    lines: list[str] = []
    for cell, reasons in groupby(decision.reasons, key=lambda reason: reason.cell):
        lines.append(f"  {str(cell) or 'the set'}:")
        lines += [f"    {reason.message}" for reason in reasons]
    hint = "Correct it, stage again where wheels changed, test, and promote again."
    if all(reason.overridable for reason in decision.reasons):
        override_options = ("--override-by", "NAME", "--override-reason", "TEXT")
        hint = f"Test again, or override the tests: {command_again(*override_options)}"
    return CheckError(
        f"{decision.set_name} is not promoted, for {console.counted(len(decision.reasons), 'reason')}:\n"
        + "\n".join(lines),
        hint=hint,
    )


def _show_plan(store: Store, decision: Decision) -> None:
    """Print what a promotion would write."""
    rows: list[tuple[str, ...]] = []
    sidecar_count = 0
    for file in decision.files:
        size = console.size(file.size)
        sha256 = file.staged_sha256[:12]
        rows.append((file.key, size, sha256, file.staged_key))
        sidecar_count += bool(file.metadata_sha256)

    is_done = promotion.is_done(store, decision)
    key_column = "already there" if is_done else "would be written"
    console.table((key_column, "size", "sha256", "from"), rows)
    _show_left_out(decision)

    address = f"{store.url}/{documents.RELEASE}"
    file_count = len(decision.files)
    if is_done:
        console.done(f"promote: already promoted, {file_count} files are in {address}")
        return
    total_size = console.size(sum(file.size for file in decision.files))
    console.done(
        f"promote: {file_count} files ({total_size}) and {sidecar_count} sidecars would be put into "
        f"{address}, pages of {len(decision.artifact_groups)} families written"
    )


def _show_left_out(decision: Decision) -> None:
    if decision.gpu_targets:
        names = {key.rpartition("/")[2] for key in decision.left_out}
        left_out = ", ".join(sorted(names)) or "nothing"
        console.say(f"Device code is kept for {', '.join(decision.gpu_targets)}. Left out: {left_out}.")


def _show_promotion(
    store: Store,
    decision: Decision,
    new_count: int | None,
) -> None:
    if new_count is None:
        by = f"{decision.by} at {decision.completed}"
        console.done(f"promote: {decision.set_name} was already promoted by {by} ({decision.key})")
        return
    _show_left_out(decision)
    console.done(
        f"promote: {len(decision.files)} files of {decision.set_name} are in "
        f"{store.url}/{documents.RELEASE}, {new_count} of them new; decision {decision.key}"
    )
