"""`fetch-artifacts`: a run's artifacts of one GPU family -> an artifact directory."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ci.github import Run, RunQuery, find_run, from_environment
from ci.plan import artifacts, data
from ci.plan.artifacts import Fetched, RunArtifacts
from ci.plan.data import RocmData
from core import console, files
from core.cell import GroupCell
from core.cli.options import (
    GROUP_OPTIONS,
    RUN_OPTIONS,
    Common,
    add_group,
    add_platform,
    common_from,
    environment,
    named_store,
)
from core.errors import ArtifactError, MissingInputError, UsageError
from core.families import CPU, Family, default_family, detect, family
from core.run import LOCAL_RUN, PLAIN, group_name, stage

COMMON_OPTIONS = (*GROUP_OPTIONS, *RUN_OPTIONS, "force", "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="artifact directory (default: where build_rocm looks)",
    )
    parser.add_argument(
        "--artifact-run-id",
        default="",
        metavar="ID",
        help="the artifact run, where --run-id is the run that is built (default: --run-id)",
    )
    parser.add_argument(
        "--artifact-repository",
        "--repository",
        default="",
        metavar="OWNER/NAME",
        help="its repository (default: the one that the data names for the release type)",
    )
    parser.add_argument(
        "--artifact-store",
        "--from",
        default="",
        type=named_store,
        metavar="STORE",
        help="store that has it (default: --store, else the one that the data names)",
    )
    parser.add_argument(
        "--artifact-digest",
        default="",
        metavar="SHA256",
        help="digest of all that is fetched, which the plan pins",
    )
    _add_query_options(parser)
    add_group(parser)
    add_platform(parser)
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="artifacts fetched at once")


def _add_query_options(parser: argparse.ArgumentParser) -> None:
    """Declare what chooses a run by what it built."""
    parser.add_argument("--branch", default="", help="branch for --latest (default: the data's, main)")
    parser.add_argument(
        "--workflow",
        default="",
        metavar="FILE",
        help="workflow whose runs count (default: the one that builds the variant, says the data)",
    )
    query = parser.add_mutually_exclusive_group()
    query.add_argument("--commit", default="", metavar="SHA", help="the newest run that built this commit")
    query.add_argument("--latest", action="store_true", help="the newest run of a branch")
    parser.add_argument(
        "--require-successful",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="only runs that succeeded count for --commit and --latest (default: yes)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Fetch the artifacts that do not exist already."""
    common = common_from(arguments)
    gpu_family = family(common.gpu_family or default_family(detect()))
    if gpu_family.name == CPU:
        raise UsageError("Family cpu has no ROCm artifacts.", hint="Give a GPU family with --gpu-family.")
    common, family_artifacts = _find_run(common, gpu_family, arguments)
    group = arguments.artifact_group or group_name(gpu_family.name, common.build_variant)
    folder = arguments.output_dir or common.outputs.artifacts_folder(common.cache, group)

    store = family_artifacts.store
    fetch_plan = artifacts.plan_fetch(store, family_artifacts.artifacts, gpu_family, jobs=arguments.jobs)
    pinned_digest = arguments.artifact_digest
    if pinned_digest and files.digest_of(fetch_plan.digests) != pinned_digest:
        raise ArtifactError(
            f"The artifacts in {family_artifacts.where} are not those that the plan pinned.",
            hint="Plan the run again, or compare them with manifests/plan.json of its outputs.",
        )
    if common.dry_run:
        rows = [
            (artifact.name.filename, console.size(artifact.size)) for artifact in family_artifacts.artifacts
        ]
        console.table(("artifact", "size"), rows)
    fetched: list[Fetched] = []

    def fetch() -> stage.StageResult:
        fetched.extend(
            artifacts.fetch(
                store,
                fetch_plan,
                folder.resolve(),
                jobs=arguments.jobs,
                force=arguments.force,
            )
        )
        details = {"folder": str(folder), "artifacts": [_describe(artifact) for artifact in fetched]}
        return stage.StageResult(files=(), details=details)

    # What the record promises is on this machine's disk, where it may have changed since.
    is_outdated = not artifacts.is_current(fetch_plan, folder)
    stage.perform(
        stage.Stage(
            name="fetch_artifacts",
            common=replace(common, force=common.force or is_outdated),
            artifact_group=group,
            cell=GroupCell(gpu_family=gpu_family.name),
        ),
        {
            "from": family_artifacts.where,
            "folder": str(folder),
            "artifacts": fetch_plan.digests,
            "problems": dict(fetch_plan.problems),
        },
        fetch,
    )
    if not common.dry_run:
        _show(fetched, folder)


def _describe(fetched: Fetched) -> dict[str, Any]:
    """Return what the record says of an artifact."""
    artifact = fetched.artifact
    return {
        "name": artifact.name.filename,
        "size": artifact.size,
        "sha256": artifact.sha256,
        "seconds": round(fetched.seconds, 3),
        "fresh": fetched.fresh,
    }


def _show(fetched: Sequence[Fetched], folder: Path) -> None:
    """Print what was fetched, and where it lies."""
    rows: list[tuple[str, ...]] = []
    for fetched_artifact in fetched:
        artifact = fetched_artifact.artifact
        seconds = f"{fetched_artifact.seconds:.1f}" if fetched_artifact.fresh else "kept"
        digest = artifact.sha256 or ""
        rows.append((artifact.name.filename, console.size(artifact.size), seconds, digest[:12]))
    console.table(("artifact", "size", "seconds", "sha256"), rows)
    console.say(f"artifacts  {folder}")


# --- Which run -------------------------------------------------------------------------------


def _find_run(
    common: Common,
    gpu_family: Family,
    arguments: argparse.Namespace,
) -> tuple[Common, RunArtifacts]:
    """Return the options with the run whose outputs are written, and the family's artifacts."""
    rocm_data = data.rocm()
    if arguments.commit or arguments.latest:
        return _find_newest_run(common, gpu_family, arguments, rocm_data)
    run_id = arguments.artifact_run_id or common.run_id
    return common, _find_family_artifacts(common, gpu_family, arguments, rocm_data, run_id, fork=False)


def _find_family_artifacts(
    common: Common,
    gpu_family: Family,
    arguments: argparse.Namespace,
    rocm_data: RocmData,
    run_id: str,
    *,
    fork: bool,
) -> RunArtifacts:
    """Return those of a run's artifacts that the family needs."""
    runs = rocm_data.artifact_runs(common.release_type)
    run_artifacts = artifacts.find_run_artifacts(
        replace(common, run_id=run_id),
        arguments.artifact_store or runs.store,
        arguments.artifact_repository or runs.repository,
        fork=fork,
    )
    family_artifacts = artifacts.choose_artifacts(
        run_artifacts.artifacts, gpu_family, where=run_artifacts.where
    )
    return replace(run_artifacts, artifacts=family_artifacts)


def _find_newest_run(
    common: Common,
    gpu_family: Family,
    arguments: argparse.Namespace,
    rocm_data: RocmData,
) -> tuple[Common, RunArtifacts]:
    """Return the newest run of a commit or branch that has the family's artifacts."""
    if common.run_id != LOCAL_RUN or arguments.artifact_run_id:
        option = "--artifact-run-id" if arguments.artifact_run_id else "--run-id"
        raise UsageError(f"{option} names the run already.", hint="Leave --commit and --latest out.")

    runs = rocm_data.artifact_runs(common.release_type)
    repository = arguments.artifact_repository or runs.repository
    workflow = arguments.workflow or runs.workflows.get(common.build_variant or PLAIN, "")
    if not workflow:
        raise UsageError(
            f"No workflow of {repository} is known to build the variant {common.build_variant}.",
            hint="Name it with --workflow, or the run with --artifact-run-id.",
        )
    branch = arguments.branch or runs.branch
    query = RunQuery(
        repository=repository,
        workflow=workflow,
        commit=arguments.commit,
        branch="" if arguments.commit else branch,
        require_successful=arguments.require_successful,
    )

    def find_artifacts(run: Run) -> RunArtifacts | None:
        try:
            return _find_family_artifacts(common, gpu_family, arguments, rocm_data, run.run_id, fork=run.fork)
        except MissingInputError:
            return None

    newest_run, family_artifacts = find_run(from_environment(environment()), query, find_artifacts)
    return replace(common, run_id=newest_run.run_id), family_artifacts
