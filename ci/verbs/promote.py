"""`promote`: a set of staged wheels into the release index, by tests, as a whole or not at all.

A set is a torch version over its families: all its wheels, and the ROCm packages that they need.
"""

from __future__ import annotations

import getpass
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ci.plan import data
from ci.promote import documents, promotion
from ci.promote.candidates import final_of, new_set_name, promised, renamed, rewritten
from ci.promote.documents import Cell, Override
from ci.promote.facts import SetRequest, gather, staged_versions
from ci.promote.keeping import Kept, kept_facts
from ci.promote.policy import Rules, by_cell, decide, gates
from ci.promote.promotion import Circumstances, decision_of, promoted_files
from ci.publish.buckets import buckets, distribution_store
from ci.verbs.cells import TESTS, expand, load_matrix
from ci.verbs.stage import add_distribution_store, distribution_store_of, listed
from core import console, files
from core.cli.options import DEFAULT_STORE, common_from, environment
from core.errors import CheckError, UsageError
from core.run import records
from core.run.outputs import group_name
from core.stores import open_store
from pytorch_build.lock.versions import python_tag
from pytorch_build.refs.torch_refs import load_refs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from ci.promote.candidates import RocmChange
    from ci.promote.documents import Decision
    from ci.promote.facts import Facts
    from ci.promote.policy import Verdict
    from ci.promote.promotion import Done
    from core.cli.options import Common
    from core.stores import Store


# the stage of a matrix that has every one of its cells
_EVERY_CELL = TESTS[0]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_distribution_store(parser)
    chosen = parser.add_argument_group("the set")
    chosen.add_argument(
        "--torch-version",
        default="",
        metavar="V",
        help="torch's whole version (default: the only one that is staged)",
    )
    chosen.add_argument(
        "--rocm-version", default="", metavar="V", help="ROCm's own packages alone, of this version"
    )
    chosen.add_argument(
        "--pythons", default="", metavar="A,B", help="Pythons each family must have (default: any has)"
    )
    chosen.add_argument(
        "--matrix",
        default="",
        metavar="NAME",
        help="a matrix whose cells must all be there: release, ci, FILE",
    )
    decided = parser.add_argument_group("the decision")
    decided.add_argument("--override-by", default="", metavar="NAME", help="who decides against the tests")
    decided.add_argument("--override-reason", default="", metavar="TEXT", help="why")
    decided.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"data of your own over CI's: runners, gates (default: {data.CONFIG}'s)",
    )
    decided.add_argument("--by", default="", metavar="NAME", help="who promotes (default: this job's actor)")
    final = parser.add_argument_group("a release of a release candidate")
    final.add_argument("--from-version", default="", metavar="V", help="ROCm's version of it, like 7.10.0rc2")
    final.add_argument(
        "--version", default="", metavar="V", help="ROCm's version of the release, like 7.10.0"
    )
    final.add_argument(
        "--from-release-type", default="prerelease", help="whose bucket has it staged (default: prerelease)"
    )
    final.add_argument(
        "--gpu-targets",
        default="",
        metavar="A,B",
        help="gfx targets that the release has device code for, of the candidate's (default: all)",
    )
    final.add_argument("--from-store", default="", metavar="STORE", help="the store that has it staged")
    parser.epilog = "--gpu-family takes a list (a;b): families that the set must have, and no other."


def run(arguments: argparse.Namespace) -> None:
    """Gather, decide, show, and carry out."""
    common = common_from(arguments)
    change = _change(arguments, common)
    kept = _kept(arguments, change)
    override = _override(arguments)
    # as they are: nothing is written before the decision, and nothing at all in a dry run
    bucket = distribution_store_of(arguments, replace(common, dry_run=False))
    source = _candidates(arguments, common) if change else bucket
    request = _request(arguments, common, source, change)
    facts = gather(source, request, partial(_open_run, common), jobs=arguments.jobs)
    facts, left_out = kept_facts(facts, kept) if kept else (facts, ())
    known = data.load(data.own_file(arguments.config, common.root, environment()))
    rules = Rules(runners=known.runners, gates=gates(known.promotion), release_type=common.release_type)
    verdict = decide(facts, rules, override)
    show(facts, verdict)
    require(facts, verdict)
    show_unfinished(bucket, facts)
    staged = promoted_files(facts)
    told = Circumstances(
        set_name=new_set_name(request.distribution, request.version, change),
        release_type=common.release_type,
        by=arguments.by or _actor(environment()),
        decided=records.now(),
        from_version=change.old if change else "",
        to_version=change.new if change else "",
        gpu_targets=kept.targets if kept else (),
        left_out=left_out,
    )
    decision = decision_of(facts, verdict, renamed(staged, change) if change else staged, told)
    promotion.require_same_targets(bucket, decision)
    if common.dry_run:
        show_plan(bucket, decision)
        return
    origin: promotion.Origin = promotion.Staged(store=source)
    if change is not None and not promotion.is_done(bucket, decision):
        scratch = files.made(common.cache / "promotion" / decision.identity)
        final = rewritten(source, staged, change, scratch, promised(facts, change), kept)
        decision, origin = decision.model_copy(update={"files": final.files}), final.origin
    done = promotion.carry_out(bucket, decision, origin, now=records.now, jobs=arguments.jobs)
    show_done(bucket, done)


def _change(arguments: argparse.Namespace, common: Common) -> RocmChange | None:
    """Say which release candidate becomes which release, if one does."""
    old, new = arguments.from_version, arguments.version
    if not (old or new):
        return None
    if not (old and new):
        raise UsageError(
            "A release candidate becomes a release with --from-version and --version.",
            hint="Like --from-version 7.10.0rc2 --version 7.10.0.",
        )
    change = final_of(old)
    if change.new != new:
        raise UsageError(f"ROCm {old} becomes {change.new}, not {new}.")
    if common.release_type != "release":
        raise UsageError(
            f"A release candidate does not become a {common.release_type}.",
            hint="Give --release-type release.",
        )
    return change


def _kept(arguments: argparse.Namespace, change: RocmChange | None) -> Kept | None:
    """Say which gfx targets are kept, if not all are."""
    if not arguments.gpu_targets:
        return None
    if change is None:
        raise UsageError(
            "--gpu-targets changes wheels, and a name stands for the same bytes for ever.",
            hint="Give it where a candidate becomes a release (--from-version, --version), or build for "
            "fewer targets.",
        )
    return Kept(targets=tuple(dict.fromkeys(listed(arguments.gpu_targets))))


def _override(arguments: argparse.Namespace) -> Override | None:
    by, reason = arguments.override_by.strip(), arguments.override_reason.strip()
    if bool(by) != bool(reason):
        raise UsageError(
            "A decision against the tests has a name and a reason.",
            hint="Give both: --override-by NAME --override-reason TEXT.",
        )
    return Override(by=by, reason=reason) if by else None


def _candidates(arguments: argparse.Namespace, common: Common) -> Store:
    """Open the store that has the release candidate staged."""
    named = arguments.from_store or distribution_store(buckets(), arguments.from_release_type)
    return open_store(named, root=common.root)


def _open_run(common: Common, address: str) -> Store:
    """Open a run's store: where it was staged from, unless another one is named."""
    named = common.store if common.store != DEFAULT_STORE else address
    return open_store(named, root=common.root)


def _request(
    arguments: argparse.Namespace, common: Common, source: Store, change: RocmChange | None
) -> SetRequest:
    """Say which set is meant."""
    if arguments.torch_version and arguments.rocm_version:
        raise UsageError("--torch-version and --rocm-version name two sets.", hint="Promote one at a time.")
    distribution = "rocm" if arguments.rocm_version else "torch"
    version = arguments.torch_version or arguments.rocm_version
    return SetRequest(
        distribution=distribution,
        version=version or _only_version(source, change),
        families=tuple(group_name(one, common.build_variant) for one in listed(common.gpu_family)),
        platforms=(arguments.platform,) if arguments.platform else (),
        pythons=tuple(python_tag(one).abi for one in listed(arguments.pythons)),
        cells=_cells(arguments, common) if arguments.matrix else (),
    )


def _only_version(source: Store, change: RocmChange | None) -> str:
    staged = staged_versions(source, "torch")
    known = {one for one in staged if change is None or one.endswith(change.old_local)}
    if len(known) != 1:
        of = f" of ROCm {change.old}" if change else ""
        raise UsageError(
            f"{len(known) or 'No'} torch versions{of} are staged in {source.url}.",
            hint="Give one with --torch-version: " + ", ".join(sorted(known))
            if known
            else "Stage one first.",
        )
    return min(known)


def _cells(arguments: argparse.Namespace, common: Common) -> tuple[tuple[str, Cell], ...]:
    """Give the cells of a matrix, on the chosen platform or on all."""
    matrix = load_matrix(arguments.matrix, common.root)
    cells = []
    for platform in (arguments.platform,) if arguments.platform else matrix.gpu_families:
        refs = load_refs(common.refs_file, common.root, platform=platform)
        for one in expand(matrix, refs, platform).sessions[_EVERY_CELL]:
            cell = Cell(
                family=group_name(one.gpu_family, common.build_variant),
                platform=platform,
                python=python_tag(one.python).abi,
            )
            cells.append((one.torch_ref, cell))
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


def show(facts: Facts, verdict: Verdict) -> None:
    """Print the decision on each cell."""
    rules = {
        Cell(family=one.family, platform=one.platform, python=one.python): one for one in verdict.rulings
    }
    blocked = by_cell(verdict.reasons)
    cells = sorted({wheel.cell for wheel in facts.wheels} | blocked.keys())
    rows = []
    for cell in cells:
        ruling = rules.get(cell)
        wheels = sum(wheel.cell == cell for wheel in facts.wheels)
        rule = "refused" if cell in blocked else ruling.rule if ruling else "refused"
        tests = ", ".join(sorted({one.stage for one in ruling.evidence})) if ruling else ""
        rows.append((cell.family, cell.platform, cell.python or "any", str(wheels), rule, tests))
    console.table(("family", "platform", "Python", "files", "rule", "tests"), rows, title=facts.set_name)


def require(facts: Facts, verdict: Verdict) -> None:
    """Refuse a set that may not go out."""
    if verdict.promote:
        return
    lines = []
    for cell, reasons in by_cell(verdict.reasons).items():
        lines.append(f"  {str(cell) or 'the set'}:")
        lines += [f"    {one.message}" for one in reasons]
    count = len(verdict.reasons)
    hint = "Correct it, stage again where wheels changed, test, and promote again."
    if all(one.overridable for one in verdict.reasons):
        hint = "Test again; or decide against the tests: --override-by NAME --override-reason TEXT."
    raise CheckError(
        f"{facts.set_name} is not promoted, for {count} reason{'s' if count > 1 else ''}:\n"
        + "\n".join(lines),
        hint=hint,
    )


def show_unfinished(bucket: Store, facts: Facts) -> None:
    """Say which promotions go on, or were interrupted."""
    for one in promotion.unfinished(bucket):
        again = "; this one goes on with it" if one.set_name == facts.set_name else ""
        console.warn(
            f"{one.set_name} is being promoted by {one.by} since {one.decided}, or was interrupted{again}."
        )


def show_plan(bucket: Store, decision: Decision) -> None:
    """Print what would be done."""
    planned = promotion.plan(decision)
    rows = [
        (one.key, console.size(one.size), one.staged_sha256[:12], one.staged_key) for one in decision.files
    ]
    console.table(("would be written", "size", "sha256", "from"), rows)
    show_left_out(decision)
    where = f"{bucket.url}/{documents.RELEASE}"
    if promotion.is_done(bucket, decision):
        console.done(f"promote: already promoted, {len(planned.wheels)} files are in {where}")
        return
    console.done(
        f"promote: {len(planned.wheels)} files ({console.size(planned.size)}) and {len(planned.sidecars)} "
        f"sidecars would be put into {where}, pages of {len(planned.families)} families written"
    )


def show_left_out(decision: Decision) -> None:
    """Say which device packages a keep-list leaves out."""
    if decision.gpu_targets:
        names = ", ".join(sorted({key.rpartition("/")[2] for key in decision.left_out})) or "nothing"
        console.say(f"Device code is kept for {', '.join(decision.gpu_targets)}. Left out: {names}.")


def show_done(bucket: Store, done: Done) -> None:
    """Print how it ended."""
    decision = done.decision
    key = documents.decision(decision.set_name, decision.identity)
    if done.outcome == "already":
        by = f"{decision.by} at {decision.completed}"
        console.done(f"promote: {decision.set_name} was already promoted by {by} ({key})")
        return
    show_left_out(decision)
    console.done(
        f"promote: {len(decision.files)} files of {decision.set_name} are in "
        f"{bucket.url}/{documents.RELEASE}, {done.copied} of them new; decision {key}"
    )
