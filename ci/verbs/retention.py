"""`retention`: delete the runs and staged versions that the policy says may go.

Nothing goes without ``--yes``, nothing that a release index lists ever goes, and a plan that
takes more than expected is refused. The policy is `ci/retention.toml`. ``--list-stores`` names the stores
that `maintenance.yml` keeps in order.
"""

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime

from ci.cleanup.deletion import carry_out
from ci.cleanup.plan import DeletionPlan, RetentionRules, plan_deletion, require_modest, retention
from ci.cleanup.stores import list_stores
from ci.publish.buckets import Buckets, buckets
from core import console
from core.cli.options import add_store_names, common_from, named_store
from core.errors import MissingInputError, UsageError
from core.modes import declared_options, refuse_options
from core.run.locations import distribution_store
from core.stores.location import open_store

COMMON_OPTIONS = ("store", "release-type", "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_store_names(parser)
    add = parser.add_argument_group("what is deleted").add_argument
    add(
        "--yes",
        action="store_true",
        help="delete what the plan says (see --dry-run)",
    )
    add(
        "--policy",
        default="",
        metavar="NAME",
        help="policy of ci/retention.toml (default: the release type)",
    )
    add(
        "--at-most",
        type=int,
        metavar="PERCENT",
        help="the largest part of what is there that may go",
    )
    add(
        "--distribution-store",
        action="append",
        default=[],
        type=named_store,
        metavar="STORE",
        help="where releases come to from here: what they and their staging need stays"
        " (default: of a bucket of the data, that of its release type; repeatable)",
    )
    add(
        "--today",
        type=_day,
        metavar="DATE",
        help="plan as on this day, with --dry-run (YYYY-MM-DD)",
    )

    add = parser.add_argument_group("the stores that CI keeps in order").add_argument
    add(
        "--list-stores",
        action="store_true",
        help="delete nothing; list the stores, their policies, and the roles that mirror and delete there",
    )
    add(
        "--repository",
        metavar="OWNER/NAME",
        help="whose stores (default: the repository that CI runs for, else the data's)",
    )

    deletion = ("--store", "--yes", "--policy", "--at-most", "--distribution-store", "--today")
    parser.set_defaults(
        deletion_options=declared_options(parser, *deletion),
        list_options=declared_options(parser, "--repository"),
    )


def _day(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)


def _now() -> datetime:
    return datetime.now(UTC)


def run(arguments: argparse.Namespace) -> None:
    """Plan, show the plan, and with ``--yes`` carry it out. Or list the stores that CI keeps in order."""
    common = common_from(arguments)
    if arguments.list_stores:
        refuse_options(arguments, arguments.deletion_options, mode="with --list-stores")
        list_stores(common.release_type, arguments.repository)
        return

    refuse_options(arguments, arguments.list_options, mode="without --list-stores")
    is_only_planning = common.dry_run or arguments.today
    if arguments.yes and is_only_planning:
        raise UsageError("--yes deletes, and --dry-run and --today only plan.", hint="Leave one of them out.")

    store = open_store(common.store, root=common.root)
    policy_name = arguments.policy or common.release_type
    addresses = arguments.distribution_store or distribution_stores_of(buckets(), common.store)
    rules = RetentionRules(
        policy=retention().policy(policy_name),
        run_ids=retention().run_ids,
        now=arguments.today or _now(),
        distribution_stores=tuple(open_store(address, root=common.root) for address in addresses),
    )
    plan = plan_deletion(store, rules)
    unit_count = len(plan.going) + len(plan.staying)
    if unit_count == 0:
        raise MissingInputError(
            f"{store.url} holds no runs and no staged versions.", hint="Name another place with --store."
        )
    _show_plan(plan)

    size = console.size(plan.size)
    going = f"{len(plan.going)} of {unit_count} runs and versions"
    if not plan.going:
        console.done(f"retention: policy {policy_name!r} deletes nothing from {store.url}")
    elif is_only_planning:
        console.done(
            f"retention: {going} ({size}) would be deleted from {store.url} by policy {policy_name!r}"
        )
    elif not arguments.yes:
        raise UsageError(
            f"{going} ({size}) would be deleted from {store.url} forever; nothing was deleted.",
            hint="Read the plan above, then give --yes (or --dry-run, to plan only).",
        )
    else:
        require_modest(plan, percent=arguments.at_most or retention().at_most_percent)
        object_count = carry_out(store, plan)
        console.done(f"retention: {going} ({object_count} objects, {size}) deleted from {store.url}")


def distribution_stores_of(
    bucket_data: Buckets,
    address: str,
) -> Sequence[str]:
    """Name the distribution stores of a bucket that the data names for runs."""
    if not address.startswith("s3://"):
        return []

    bucket = address.removeprefix("s3://")
    addresses: list[str] = []
    for name, release_type in bucket_data.release_types.items():
        has_runs = bucket in {release_type.bucket, release_type.external_bucket}
        if has_runs and name in bucket_data.distributions:
            addresses.append(distribution_store(bucket_data, name))
    return addresses


def _show_plan(plan: DeletionPlan) -> None:
    """Print what goes and what stays, and why."""
    for fate, deletion_units in (("goes", plan.going), ("stays", plan.staying)):
        rows: list[tuple[str, ...]] = []
        for unit in deletion_units:
            day = datetime.fromtimestamp(unit.modified, tz=UTC).date()
            rows.append((unit.name, str(len(unit.objects)), console.size(unit.size), str(day), unit.reason))
        console.table((fate, "files", "size", "written", "why"), rows)
