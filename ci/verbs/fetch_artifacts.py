"""`fetch-artifacts`: a run's artifacts of one GPU family -> an artifact directory."""

import argparse
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ci.github import Run
from ci.plan import artifacts, data
from core import console, files
from core.cell import GroupCell
from core.cli.options import Common, add_group, add_platform, common_from, environment
from core.errors import ArtifactError, MissingInputError, UsageError
from core.families import CPU, Family, default_family, detect, family
from core.run import LOCAL_RUN, PLAIN, group_name, stage


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "artifact directory (default: where build_rocm looks)"
    parser.add_argument("--output-dir", type=Path, metavar="DIR", help=what)
    add = partial(parser.add_argument, default="")
    what = "the artifact run, where --run-id is the run that is built (default: --run-id)"
    add("--artifact-run-id", metavar="ID", help=what)
    what = "its repository (default: the one that the data names for the release type)"
    add("--artifact-repository", "--repository", metavar="OWNER/NAME", help=what)
    what = "store that has it (default: --store, else the one that the data names)"
    add("--artifact-store", "--from", metavar="STORE", help=what)
    add("--artifact-digest", metavar="SHA256", help="digest of all that is fetched, which the plan pins")
    add("--branch", help="branch for --latest (default: the data's, main)")
    what = "workflow whose runs count (default: the one that builds the variant, says the data)"
    add("--workflow", metavar="FILE", help=what)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--commit", default="", metavar="SHA", help="the newest run that built this commit")
    which.add_argument("--latest", action="store_true", help="the newest run of a branch")
    what = "only runs that succeeded count for --commit and --latest (default: yes)"
    either = argparse.BooleanOptionalAction
    parser.add_argument("--require-successful", action=either, default=True, help=what)
    add_group(parser)
    add_platform(parser)
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="artifacts fetched at once")


def run(arguments: argparse.Namespace) -> None:
    """Fetch the artifacts that do not exist already."""
    common = common_from(arguments)
    chosen = family(common.gpu_family or default_family(detect()))
    if chosen.name == CPU:
        raise UsageError("Family cpu has no ROCm artifacts.", hint="Give a GPU family with --gpu-family.")
    own = data.rocm()
    common, place = _found(common, chosen, arguments, own)
    group = arguments.artifact_group or group_name(chosen.name, common.build_variant)
    folder = arguments.output_dir or common.outputs.artifacts_folder(common.cache, group)
    listed = artifacts.choose_artifacts(place.artifacts, chosen, where=place.where)
    planned = artifacts.plan_fetch(place.store, listed, chosen, jobs=arguments.jobs)
    if arguments.artifact_digest and files.digest_of(planned.digests) != arguments.artifact_digest:
        raise ArtifactError(
            f"The artifacts in {place.where} are not those that the plan pinned.",
            hint="Plan the run again, or compare them with manifests/plan.json of its outputs.",
        )
    if common.dry_run:
        console.table(("artifact", "size"), [(one.name.filename, console.size(one.size)) for one in listed])
    described: list[dict[str, Any]] = []

    def work() -> stage.StageResult:
        how = {"jobs": arguments.jobs, "force": arguments.force}
        for one in artifacts.fetch(place.store, planned, folder.resolve(), **how):
            known, seconds = one.artifact, round(one.seconds, 3)
            facts = {"name": known.name.filename, "size": known.size, "sha256": known.sha256}
            described.append({**facts, "seconds": seconds, "fresh": one.fresh})
        return stage.StageResult(files=(), details={"folder": str(folder), "artifacts": described})

    stage.perform(
        stage.Stage(
            name="fetch_artifacts",
            # what the record promises is on this machine's disk, where it may have changed since
            common=replace(common, force=common.force or not artifacts.is_current(planned, folder)),
            artifact_group=group,
            cell=GroupCell(gpu_family=chosen.name),
        ),
        {
            "from": place.where,
            "folder": str(folder),
            "artifacts": planned.digests,
            "problems": dict(planned.problems),
        },
        work,
    )
    if not common.dry_run:
        show(described, folder)


def show(described: list[dict[str, Any]], folder: Path) -> None:
    """Print what was fetched, and where it lies."""
    rows = [
        (name, console.size(size), f"{seconds:.1f}" if fresh else "kept", sha256[:12])
        for name, size, sha256, seconds, fresh in map(dict.values, described)
    ]
    console.table(("artifact", "size", "seconds", "sha256"), rows)
    console.say(f"artifacts  {folder}")


def _found(
    common: Common, chosen: Family, arguments: argparse.Namespace, own: data.RocmData
) -> tuple[Common, artifacts.Place]:
    """Return the run, and where its artifacts are."""
    runs = own.artifact_runs(common.release_type)
    repository = arguments.artifact_repository or runs.repository
    store = arguments.artifact_store or runs.store

    def place(run_id: str, *, fork: bool) -> artifacts.Place:
        return artifacts.find_place(replace(common, run_id=run_id), store, repository, fork=fork)

    if not arguments.commit and not arguments.latest:
        return common, place(arguments.artifact_run_id or common.run_id, fork=False)
    if common.run_id != LOCAL_RUN or arguments.artifact_run_id:
        named = "--artifact-run-id" if arguments.artifact_run_id else "--run-id"
        raise UsageError(f"{named} names the run already.", hint="Leave --commit and --latest out.")
    from ci.github import RunQuery, find_run, from_environment

    workflow = arguments.workflow or runs.workflows.get(common.build_variant or PLAIN, "")
    if not workflow:
        raise UsageError(
            f"No workflow of {repository} is known to build the variant {common.build_variant}.",
            hint="Name it with --workflow, or the run with --artifact-run-id.",
        )
    query = RunQuery(
        repository=repository,
        workflow=workflow,
        commit=arguments.commit,
        branch="" if arguments.commit else arguments.branch or runs.branch,
        require_successful=arguments.require_successful,
    )
    places: dict[str, artifacts.Place] = {}

    def holds_artifacts(run: Run) -> bool:
        with suppress(MissingInputError):
            found = place(run.run_id, fork=run.fork)
            artifacts.choose_artifacts(found.artifacts, chosen, where=found.where)
            places[run.run_id] = found
        return run.run_id in places

    found = find_run(from_environment(environment()), query, holds_artifacts)
    return replace(common, run_id=found.run_id), places[found.run_id]
