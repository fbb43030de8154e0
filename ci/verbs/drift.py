"""`drift`: what our data says otherwise than a checkout of TheRock, by file and key."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ci.drift import builds, packages, places
from ci.drift.tree import AcceptedFile, differences, sorted_out, tree
from core import console
from core.data import load_toml
from core.errors import CheckError
from core.run.job_files import table as markdown_table
from core.run.job_files import text as markdown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ci.drift.tree import Difference

ACCEPTED = Path(__file__).parents[1] / "drift.toml"
SUBJECTS = (*packages.SUBJECTS, *places.SUBJECTS, *builds.SUBJECTS)
_COLUMNS = ("subject", "key", "only upstream", "only here")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "--therock",
        type=Path,
        required=True,
        metavar="DIR",
        help="a checkout of ROCm/TheRock: its work tree, or a git directory",
    )
    parser.add_argument(
        "--commit", default="", metavar="REV", help="what to read of a git directory (default: HEAD)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print differences as JSON, also those with a reason"
    )


def run(arguments: argparse.Namespace) -> None:
    """Print what differs."""
    checkout = tree(arguments.therock, arguments.commit)
    every = [one for subject in SUBJECTS for one in differences(subject, checkout)]
    new, meant, idle = sorted_out(every, load_toml(ACCEPTED, AcceptedFile).accepted)
    if arguments.json:
        console.result(json.dumps([{**asdict(one), "reason": meant.get(one, "")} for one in every], indent=2))
    elif new:
        console.table(_COLUMNS, rows(new), title="differs from TheRock")
    for one in new:
        console.detail(f"{one.subject}, {one.key}: {one.upstream} of TheRock, {one.here} here")
    if new:
        console.summary(f"### Differs from TheRock\n\n{markdown_table(_COLUMNS, _escaped(new))}")
    left_over = [
        f"drift.toml gives a reason for {row.subject}, {row.key}, which does not differ" for row in idle
    ]
    if new or left_over:
        raise CheckError(
            "; ".join([f"{len(new)} differences from TheRock have no reason"] * bool(new) + left_over) + ".",
            hint="Change the data, or give the reason in ci/drift.toml; take out what is left over there.",
        )
    console.done(f"drift: {len(SUBJECTS)} subjects agree with TheRock, but for {len(meant)} reasons")


def rows(every: Sequence[Difference]) -> Sequence[tuple[str, str, str, str]]:
    """Write differences as rows, a value a word."""
    return [(one.subject, one.key, " ".join(one.only_upstream), " ".join(one.only_here)) for one in every]


def _escaped(every: Sequence[Difference]) -> Sequence[tuple[str, ...]]:
    return [tuple(markdown(value) for value in row) for row in rows(every)]
