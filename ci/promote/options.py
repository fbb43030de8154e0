"""Options that staging and promotion share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.publish.buckets import buckets, distribution_store
from core.stores.location import open_store

if TYPE_CHECKING:
    import argparse

    from core.cli.options import Common
    from core.stores import Store

# copies wait for the server, and keep neither this machine's network nor its processors busy
JOBS = 32


def add_distribution_store(parser: argparse.ArgumentParser) -> None:
    """Declare where wheels are handed out from, and which platform's they are."""
    parser.add_argument(
        "--distribution-store",
        default="",
        metavar="STORE",
        help="where wheels are handed out from: a folder or s3://bucket (default: the release type's bucket)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=JOBS,
        metavar="N",
        help="objects at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--platform",
        choices=("linux", "windows"),
        default="",
        help="the wheels' platform (default of stage: this machine's; of promote: every one)",
    )


def distribution_store_of(arguments: argparse.Namespace, common: Common) -> Store:
    """Open the store that wheels are handed out from."""
    named = arguments.distribution_store or distribution_store(buckets(), common.release_type)
    return open_store(named, root=common.root, dry_run=common.dry_run)


def listed(words: str) -> tuple[str, ...]:
    """Split a list that commas or semicolons separate."""
    return tuple(word.strip() for word in words.replace(";", ",").split(",") if word.strip())
