"""`fetch-artifacts`: a run's artifacts of one GPU family -> an artifact directory."""

from __future__ import annotations

import argparse
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci import fetching
from ci.buckets import buckets
from core import console, stage, stores
from core.errors import MissingInputError, UsageError
from core.families import CPU, default_family, detect, family
from core.options import DEFAULT_STORE, add_group, add_platform, common_from, environment
from core.outputs import LOCAL_RUN, group_name
from core.records import Cell
from core.run_locations import location
from core.stage import Made, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ci.fetching import Fetched, Listed, Plan
    from ci.runs import Run
    from core.families import Family
    from core.options import Common
    from core.stores import Store


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    data = buckets()
    parser.add_argument(
        "--output-dir", type=Path, metavar="DIR", help="artifact directory (default: where build_rocm looks)"
    )
    parser.add_argument(
        "--from",
        dest="source",
        default="",
        metavar="STORE",
        help="store to fetch from (default: --store, else the bucket of the run's repository)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--commit", default="", metavar="SHA", help="the newest run that built this commit")
    which.add_argument("--latest", action="store_true", help="the newest run of a branch")
    parser.add_argument("--branch", default="main", help="branch for --latest (default: main)")
    parser.add_argument(
        "--workflow",
        default=data.workflow,
        metavar="FILE",
        help=f"workflow whose runs count (default: {data.workflow})",
    )
    parser.add_argument(
        "--repository",
        default="",
        metavar="OWNER/NAME",
        help=f"whose runs (default: GITHUB_REPOSITORY, else {data.repository})",
    )
    parser.add_argument(
        "--require-successful",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="only runs that succeeded count for --commit and --latest (default: yes)",
    )
    add_group(parser)
    add_platform(parser)
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="artifacts fetched at once")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run's artifacts were found.

    Attributes:
        store: The store.
        prefix: The run's key prefix in it.
        listed: What lies there.
    """

    store: Store
    prefix: str
    listed: tuple[Listed, ...]

    @property
    def where(self) -> str:
        """The place, for people."""
        return f"{self.store.url}/{self.prefix}"


def run(arguments: argparse.Namespace) -> None:
    """Fetch the artifacts that are not there already."""
    common = common_from(arguments)
    chosen = family(common.gpu_family or default_family(detect()))
    if chosen.name == CPU:
        raise UsageError("Family cpu has no ROCm artifacts.", hint="Give a GPU family with --gpu-family.")
    common, place = _found(common, chosen, arguments)
    group = arguments.artifact_group or group_name(chosen.name)
    folder = arguments.output_dir or common.outputs.artifacts_folder(common.cache, group)
    listed = fetching.choose(place.listed, chosen, where=place.where)
    planned = fetching.plan(place.store, listed, chosen, jobs=arguments.jobs)
    if common.dry_run:
        console.table(("artifact", "size"), [(one.name.filename, console.size(one.size)) for one in listed])
    fetched: list[Fetched] = []

    def work() -> Made:
        fetched.extend(
            fetching.fetch(place.store, planned, folder.resolve(), jobs=arguments.jobs, force=arguments.force)
        )
        return Made(files=(), details={"folder": str(folder), "artifacts": _described(fetched)})

    stage.perform(
        Stage(
            name="fetch_artifacts",
            # what the record promises is on this machine's disk, where it may have changed since
            common=replace(common, force=common.force or not fetching.is_current(planned, folder)),
            artifact_group=group,
            cell=Cell(gpu_family=chosen.name),
        ),
        _inputs(place, planned, folder),
        work,
    )
    if not common.dry_run:
        show(fetched, folder)


def show(fetched: list[Fetched], folder: Path) -> None:
    """Print what was fetched, and where it lies."""
    console.table(
        ("artifact", "size", "seconds", "sha256"),
        [
            (
                one.planned.name.stem,
                console.size(one.planned.size),
                f"{one.seconds:.1f}" if one.fresh else "kept",
                one.planned.sha256[:12],
            )
            for one in fetched
        ],
    )
    console.say(f"artifacts  {folder}")


def _inputs(place: Place, planned: Plan, folder: Path) -> dict[str, object]:
    return {
        "from": place.where,
        "folder": str(folder),
        "artifacts": {one.name.filename: one.sha256 for one in planned.artifacts},
        "problems": dict(planned.problems),
    }


def _described(fetched: list[Fetched]) -> list[dict[str, object]]:
    return [
        {
            "name": one.planned.name.filename,
            "size": one.planned.size,
            "sha256": one.planned.sha256,
            "seconds": round(one.seconds, 3),
            "fresh": one.fresh,
        }
        for one in fetched
    ]


def _found(common: Common, chosen: Family, arguments: argparse.Namespace) -> tuple[Common, Place]:
    """Say which run it is, and where its artifacts lie."""
    env = environment()
    repository = arguments.repository or env.get("GITHUB_REPOSITORY") or buckets().repository
    if not arguments.commit and not arguments.latest:
        return common, find_place(common, arguments.source, repository, fork=False)
    if common.run_id != LOCAL_RUN:
        raise UsageError("--run-id names the run already.", hint="Leave --commit and --latest out.")
    from ci.github import from_environment
    from ci.runs import RunQuery, find_run

    query = RunQuery(
        repository=repository,
        workflow=arguments.workflow,
        commit=arguments.commit,
        branch="" if arguments.commit else arguments.branch,
        require_successful=arguments.require_successful,
    )
    places: dict[str, Place] = {}

    def holds_artifacts(run: Run) -> bool:
        with suppress(MissingInputError):
            place = find_place(
                replace(common, run_id=run.run_id), arguments.source, repository, fork=run.fork
            )
            fetching.choose(place.listed, chosen, where=place.where)
            places[run.run_id] = place
        return run.run_id in places

    found = find_run(from_environment(env), query, holds_artifacts)
    return replace(common, run_id=found.run_id), places[found.run_id]


def find_place(common: Common, source: str, repository: str, *, fork: bool) -> Place:
    """Find the run's artifacts: in the store that is named, else in ours, else in the bucket.

    Args:
        common: Names the run.
        source: The store that ``--from`` names; "" for none.
        repository: ``{owner}/{name}`` of the run.
        fork: Whether the run built a fork's commit.

    Raises:
        MissingInputError: None of them has any.
    """
    outputs = common.outputs
    looked_at = []
    for store, external_repo in _stores(common, source, repository, fork=fork):
        for folder in dict.fromkeys((external_repo, "")):
            prefix = replace(outputs, external_repo=folder).prefix
            place = Place(store=store, prefix=prefix, listed=fetching.list_artifacts(store, prefix))
            if place.listed:
                return place
            looked_at.append(place.where)
    raise MissingInputError(
        f"Run {outputs.run_id} has no artifacts in {' nor in '.join(looked_at)}.",
        hint="Name a run with --run-id (or --commit, --latest), and its store with --from.",
    )


def _stores(common: Common, source: str, repository: str, *, fork: bool) -> Iterator[tuple[Store, str]]:
    """Give the stores to look in, one at a time, each with the folder that the repository has there."""
    if common.run_id == LOCAL_RUN:
        yield stores.open_store(source or common.store, root=common.root), ""
        return
    place = location(buckets(), repository, fork=fork, release_type=common.release_type)
    yield stores.open_store(source or common.store, root=common.root), place.external_repo
    if not source and common.store == DEFAULT_STORE:
        yield stores.open_store(place.store, root=common.root), place.external_repo
