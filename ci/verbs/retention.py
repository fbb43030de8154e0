"""`retention`: delete the runs and staged versions that the policy says may go.

Nothing goes without ``--yes``, nothing that a release index lists ever goes, and a plan that
takes more than expected is refused. The policy is `ci/retention.toml`. ``--list-stores`` names the stores
that `maintenance.yml` keeps in order.
"""

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime

from ci.cleanup.plan import Rules, carry_out, planned, require_modest, retention
from ci.cleanup.stores import list_stores
from ci.publish.buckets import Buckets, buckets
from core import console
from core.cli.options import add_store_names, common_from
from core.errors import MissingInputError, UsageError
from core.modes import declared_options, refuse_options
from core.run.locations import distribution_store
from core.stores.location import open_store


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_store_names(parser)
    add = parser.add_argument_group("what is deleted").add_argument
    add("--yes", action="store_true", help="delete what the plan says (see --dry-run)")
    what = "policy of ci/retention.toml (default: the release type)"
    add("--policy", default="", metavar="NAME", help=what)
    add("--at-most", type=int, metavar="PERCENT", help="the largest part of what is there that may go")
    what = "where releases come to from here: what they and their staging need stays"
    what += " (default: of a bucket of the data, that of its release type; repeatable)"
    add("--distribution-store", action="append", default=[], metavar="STORE", help=what)
    add("--today", type=_day, metavar="DATE", help="plan as on this day, with --dry-run (YYYY-MM-DD)")

    add = parser.add_argument_group("the stores that CI keeps in order").add_argument
    what = "delete nothing; list the stores, their policies, and the roles that mirror and delete there"
    add("--list-stores", action="store_true", help=what)
    what = "whose stores (default: the repository that CI runs for, else the data's)"
    add("--repository", metavar="OWNER/NAME", help=what)

    deletion = ("--store", "--yes", "--policy", "--at-most", "--distribution-store", "--today")
    parser.set_defaults(
        deletion_options=declared_options(parser, *deletion),
        list_options=declared_options(parser, "--repository"),
    )


def _day(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)


def releases_of(data: Buckets, location: str) -> Sequence[str]:
    """Name the distribution stores of a bucket that the data names for runs."""
    bucket = location.removeprefix("s3://") if location.startswith("s3://") else ""
    return [
        distribution_store(data, name)
        for name, one in data.release_types.items()
        if bucket and bucket in {one.bucket, one.external_bucket} and name in data.distributions
    ]


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
    planning = common.dry_run or arguments.today
    if arguments.yes and planning:
        raise UsageError("--yes deletes, and --dry-run and --today only plan.", hint="Leave one of them out.")
    data = retention()
    store = open_store(common.store, root=common.root)
    named = arguments.distribution_store or releases_of(buckets(), common.store)
    name = arguments.policy or common.release_type
    rules = Rules(
        policy=data.policy(name),
        run_ids=data.run_ids,
        now=arguments.today or _now(),
        distribution_stores=tuple(open_store(one, root=common.root) for one in named),
    )
    plan = planned(store, rules)
    if not plan.goes and not plan.stays:
        raise MissingInputError(
            f"{store.url} holds no runs and no staged versions.", hint="Name another place with --store."
        )
    for verb, units in (("goes", plan.goes), ("stays", plan.stays)):
        dated = [(one, datetime.fromtimestamp(one.modified, tz=UTC).date()) for one in units]
        rows = [(it.name, f"{len(it.objects)}", console.size(it.size), f"{day}", it.why) for it, day in dated]
        console.table((verb, "files", "size", "written", "why"), rows)
    size = console.size(plan.size)
    what = f"{len(plan.goes)} of {len(plan.goes) + len(plan.stays)} runs and versions"
    if not plan.goes:
        console.done(f"retention: policy {name!r} deletes nothing from {store.url}")
    elif planning:
        console.done(f"retention: {what} ({size}) would be deleted from {store.url} by policy {name!r}")
    elif not arguments.yes:
        raise UsageError(
            f"{what} ({size}) would be deleted from {store.url} forever; nothing was deleted.",
            hint="Read the plan above, then give --yes (or --dry-run, to plan only).",
        )
    else:
        require_modest(plan, percent=arguments.at_most or data.at_most_percent)
        count = carry_out(store, plan)
        console.done(f"retention: {what} ({count} objects, {size}) deleted from {store.url}")
