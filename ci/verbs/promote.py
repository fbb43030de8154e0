"""`promote`: a set of staged wheels into the release index, by tests, as a whole or not at all.

A set is a torch version over its families: all its wheels, and the ROCm packages that they need.
"""

import argparse
import getpass
from collections import Counter
from collections.abc import Mapping

from ci.plan.data import runners
from ci.promote import documents, promotion, refusals
from ci.promote.candidates import promised, renamed, rewritten
from ci.promote.documents import Decision, Override
from ci.promote.facts import Facts, SetRequest, gather, staged_versions
from ci.promote.policy import Rules, Verdict, by_cell, decide, gates
from ci.promote.version_change import RocmChange, final_of, kept_facts, new_version
from ci.publish.buckets import buckets
from ci.verbs.cells import cells_by_session, load_matrix
from ci.verbs.stage import add_distribution_store, distribution_store_of, listed
from core import console
from core.cell import GroupCell
from core.cli.options import DEFAULT_STORE, Common, common_from, environment
from core.cli.sessions import command_again
from core.errors import CheckError, FatalError, ServiceError, StoreError, UsageError
from core.files import made
from core.run import group_name, records
from core.run.locations import distribution_store
from core.stores import Store
from core.stores.location import open_store
from pytorch_build.lock.versions import python_tag
from pytorch_build.refs.torch_refs import load_refs

_OPTIONS = {
    "the set": (
        ("--torch-version", "V", "torch's whole version (default: the only one that is staged)"),
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_distribution_store(parser)
    for title, options in _OPTIONS.items():
        group = parser.add_argument_group(title)
        for name, metavar, text in options:
            group.add_argument(name, default="", metavar=metavar, help=text)
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
    change = _change(arguments, common)
    override = _override(arguments)
    # as they are: nothing is written before the decision, and nothing at all in a dry run
    bucket = distribution_store_of(arguments, common, dry_run=False)
    source = bucket
    if change:
        kind = arguments.from_release_type or "prerelease"
        place = arguments.from_store or distribution_store(buckets(), kind)
        source = open_store(place, root=common.root)
    request = _request(arguments, common, source, change)
    # a run lies where it was staged from, unless another store is named
    named = common.store if common.store != DEFAULT_STORE else ""
    facts = gather(source, request, lambda at: open_store(named or at, root=common.root), jobs=arguments.jobs)
    facts, left_out = kept_facts(facts, change) if change and change.targets else (facts, ())
    rules = Rules(runners=runners(), gates=gates(), release_type=common.release_type)
    verdict = decide(facts, rules, override)
    _show(facts, verdict)
    by = arguments.by or _actor(environment())
    # a candidate is staged in another type's bucket, which a release does not write to
    if not verdict.promote and change is None and not common.dry_run:
        _record_refusal(bucket, facts, verdict, by)
    _require(facts, verdict)
    staged = promotion.promoted_files(facts)
    files = renamed(staged, change) if change else staged
    new = change and new_version(request.distribution, request.version, change)
    decision = Decision(
        set_name=f"{request.distribution}-{new or request.version}",
        identity=promotion.identity_of(files),
        release_type=common.release_type,
        from_version=change.old if change else "",
        to_version=change.new if change else "",
        gpu_targets=change.targets if change else (),
        left_out=left_out,
        decided=records.now(),
        by=by,
        staging=facts.staging,
        rulings=verdict.rulings,
        override=verdict.override,
        files=files,
    )
    for one in promotion.unfinished(bucket):
        again = "; this promotion continues it" if one.set_name == decision.set_name else ""
        since = f"is being promoted by {one.by} since {one.decided}, or was interrupted"
        console.warn(f"{one.set_name} {since}{again}.")
    promotion.require_same_targets(bucket, decision)
    if common.dry_run:
        _show_plan(bucket, decision)
        return
    origin = promotion.staged_in(source)
    if change is not None and not promotion.is_done(bucket, decision):
        scratch = made(common.cache / "promotion" / decision.identity)
        files, origin = rewritten(source, staged, change, scratch, promised(facts, change))
        decision = decision.model_copy(update={"files": files})
    promoted, new_files = promotion.carry_out(bucket, decision, origin, now=records.now, jobs=arguments.jobs)
    refusals.update_pages(bucket, promoted.artifact_groups)
    _show_done(bucket, promoted, new_files)


def _record_refusal(bucket: Store, facts: Facts, verdict: Verdict, by: str) -> None:
    """Write a refusal down; whoever promotes learns its reasons, even where that fails."""
    try:
        refusals.record_refusal(bucket, facts, verdict.reasons, by=by, refused=records.now())
    except FatalError as problem:
        console.warn(f"The pages of staging do not say that it is refused: {problem}")


def _change(arguments: argparse.Namespace, common: Common) -> RocmChange | None:
    """Return which release candidate becomes which release, if one does, and which targets it keeps."""
    old, new = arguments.from_version, arguments.version
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
    if arguments.gpu_targets and not listed(arguments.gpu_targets):
        raise UsageError("--gpu-targets is empty.")
    change = final_of(old, listed(arguments.gpu_targets))
    if change.new != new:
        raise UsageError(f"ROCm {old} becomes {change.new}, not {new}.")
    if common.release_type != "release":
        raise UsageError(
            f"A release candidate does not become a {common.release_type}.",
            hint="Give --release-type release.",
        )
    return change


def _override(arguments: argparse.Namespace) -> Override | None:
    by, reason = arguments.override_by.strip(), arguments.override_reason.strip()
    if bool(by) != bool(reason):
        raise UsageError(
            "An override of the tests needs a name and a reason.",
            hint="Give both: --override-by NAME --override-reason TEXT.",
        )
    return Override(by=by, reason=reason) if by else None


def _request(
    arguments: argparse.Namespace, common: Common, source: Store, change: RocmChange | None
) -> SetRequest:
    if arguments.torch_version and arguments.rocm_version:
        raise UsageError("--torch-version and --rocm-version name two sets.", hint="Promote one at a time.")
    version = arguments.torch_version or arguments.rocm_version
    return SetRequest(
        distribution="rocm" if arguments.rocm_version else "torch",
        version=version or _only_version(source, change),
        artifact_groups=tuple(
            group_name(gpu_family, common.build_variant) for gpu_family in listed(common.gpu_family)
        ),
        platforms=(arguments.platform,) if arguments.platform else (),
        python_tags=tuple(python_tag(python) for python in listed(arguments.pythons)),
        cells=_cells(arguments, common) if arguments.matrix else (),
    )


def _only_version(source: Store, change: RocmChange | None) -> str:
    staged = staged_versions(source)
    known = {one for one in staged if change is None or one.endswith(change.old_local)}
    if len(known) != 1:
        of = f" of ROCm {change.old}" if change else ""
        hint = f"Give one with --torch-version: {', '.join(sorted(known))}" if known else "Stage one first."
        if not known and (alone := staged_versions(source, "rocm")):
            hint = f"ROCm's own packages are: --rocm-version {' or '.join(sorted(alone))}."
        raise UsageError(f"{len(known) or 'No'} torch versions{of} are staged in {source.url}.", hint=hint)
    return min(known)


def _cells(arguments: argparse.Namespace, common: Common) -> tuple[GroupCell, ...]:
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
        run = "/".join(variables.get(name, "") for name in ("GITHUB_REPOSITORY", "GITHUB_RUN_ID"))
        return f"{actor} ({run})"
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"


def _show(facts: Facts, verdict: Verdict) -> None:
    """Print the decision on each cell."""
    rulings = {(ruling.family, ruling.platform, ruling.python): ruling for ruling in verdict.rulings}
    blocked = by_cell(verdict.reasons)
    counts = Counter(wheel.cell for wheel in facts.wheels)
    rows: list[tuple[str, ...]] = []
    for cell in sorted(counts.keys() | blocked.keys()):
        ruling = rulings.get((cell.artifact_group or "", cell.platform or "", cell.python_tag))
        rule = "refused"
        steps: set[str] = set()
        if ruling is not None:
            steps = {evidence.stage for evidence in ruling.evidence}
            if cell not in blocked:
                rule = ruling.rule
        place = (cell.artifact_group or "", cell.platform or "", cell.python_tag or "any")
        rows.append((*place, str(counts[cell]), rule, ", ".join(sorted(steps))))
    console.table(("family", "platform", "Python", "files", "rule", "tests"), rows, title=facts.set_name)


def _require(facts: Facts, verdict: Verdict) -> None:
    """Refuse a set that must not be released."""
    if verdict.promote:
        return
    lines = []
    for cell, reasons in by_cell(verdict.reasons).items():
        lines.append(f"  {str(cell) or 'the set'}:")
        lines += [f"    {one.message}" for one in reasons]
    hint = "Correct it, stage again where wheels changed, test, and promote again."
    if all(one.overridable for one in verdict.reasons):
        hint = (
            "Test again, or override the tests: "
            f"{command_again('--override-by', 'NAME', '--override-reason', 'TEXT')}"
        )
    raise CheckError(
        f"{facts.set_name} is not promoted, for {console.counted(len(verdict.reasons), 'reason')}:\n"
        + "\n".join(lines),
        hint=hint,
    )


def _show_plan(bucket: Store, decision: Decision) -> None:
    files = decision.files
    rows = [(one.key, console.size(one.size), one.staged_sha256[:12], one.staged_key) for one in files]
    done = promotion.is_done(bucket, decision)
    console.table(("written before" if done else "would be written", "size", "sha256", "from"), rows)
    _show_left_out(decision)
    where = f"{bucket.url}/{documents.RELEASE}"
    if done:
        console.done(f"promote: already promoted, {len(files)} files are in {where}")
        return
    size, sidecars = sum(one.size for one in files), sum(bool(one.metadata_sha256) for one in files)
    console.done(
        f"promote: {len(files)} files ({console.size(size)}) and {sidecars} "
        f"sidecars would be put into {where}, pages of {len(decision.artifact_groups)} families written"
    )


def _show_left_out(decision: Decision) -> None:
    if decision.gpu_targets:
        names = ", ".join(sorted({key.rpartition("/")[2] for key in decision.left_out})) or "nothing"
        console.say(f"Device code is kept for {', '.join(decision.gpu_targets)}. Left out: {names}.")


def _show_done(bucket: Store, decision: Decision, new: int | None) -> None:
    if new is None:
        by = f"{decision.by} at {decision.completed}"
        console.done(f"promote: {decision.set_name} was already promoted by {by} ({decision.key})")
        return
    _show_left_out(decision)
    console.done(
        f"promote: {len(decision.files)} files of {decision.set_name} are in "
        f"{bucket.url}/{documents.RELEASE}, {new} of them new; decision {decision.key}"
    )
