"""`drift`: where our data differs from a checkout of TheRock, by file and key."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import Field

from ci.drift import packages, pytorch
from ci.drift.tree import Facts, Subject, Tree, tree
from core import console
from core.data import Model, load_toml, use_user_file
from core.errors import CheckError, DataError
from core.run import job_files

ACCEPTED = Path(__file__).parents[1] / "drift.toml"
SUBJECTS = (*packages.SUBJECTS, *pytorch.SUBJECTS)
_COLUMNS = ("subject", "key", "only upstream", "only here")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A key whose values differ."""

    subject: str
    key: str
    upstream: str
    here: str
    only_upstream: tuple[str, ...]
    only_here: tuple[str, ...]

    @property
    def row(self) -> tuple[str, ...]:
        """The difference as a row of the table."""
        return self.subject, self.key, " ".join(self.only_upstream), " ".join(self.only_here)


class Accepted(Model):
    """Intended differences; not what differs beyond the listed values."""

    subject: str
    key: str
    upstream: tuple[str, ...] = ()
    here: tuple[str, ...] = ()
    reason: str = Field(min_length=10)

    def covers(self, one: Difference) -> bool:
        """Return whether a difference is intended."""
        return (
            self.subject == one.subject
            and fnmatchcase(one.key, self.key)
            and _among(one.only_upstream, self.upstream)
            and _among(one.only_here, self.here)
        )


class AcceptedFile(Model):
    """`drift.toml`."""

    accepted: tuple[Accepted, ...] = ()


def _among(values: Iterable[str], patterns: Sequence[str]) -> bool:
    return all(any(fnmatchcase(value, pattern) for pattern in patterns) for value in values)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add = parser.add_argument
    what = "a checkout of ROCm/TheRock: its work tree, or a git directory"
    add("--therock", type=Path, required=True, metavar="DIR", help=what)
    add("--commit", default="", metavar="REV", help="what to read of a git directory (default: HEAD)")
    add("--json", action="store_true", help="print differences as JSON, also those with a reason")


def run(arguments: argparse.Namespace) -> None:
    """Print what differs."""
    use_user_file(None)  # it is the project's data that is compared
    checkout = tree(arguments.therock, arguments.commit)
    every = [one for subject in SUBJECTS for one in differences(subject, checkout)]
    new, meant, idle = sorted_out(every, load_toml(ACCEPTED, AcceptedFile).accepted)
    if arguments.json:
        console.result(json.dumps([{**asdict(one), "reason": meant.get(one, "")} for one in every], indent=2))
    else:
        console.table(_COLUMNS, [one.row for one in new], title="differs from TheRock")
    for one in new:
        console.detail(f"{one.subject}, {one.key}: {one.upstream} of TheRock, {one.here} here")
    problems = [
        f"drift.toml gives a reason for {row.subject}, {row.key}, which does not differ" for row in idle
    ]
    if new:
        problems.insert(0, f"{len(new)} differences from TheRock have no reason")
        rows = [tuple(map(job_files.text, one.row)) for one in new]
        console.summary(f"### Differs from TheRock\n\n{job_files.table(_COLUMNS, rows)}")
    if problems:
        raise CheckError(
            f"{'; '.join(problems)}.",
            hint="Change the data, or give the reason in ci/drift.toml; remove what is left over there.",
        )
    console.done(f"drift: {len(SUBJECTS)} subjects agree with TheRock, but for {len(meant)} reasons")


def differences(subject: Subject, checkout: Tree) -> Sequence[Difference]:
    """Compare a subject, key by key."""
    theirs, ours = subject.facts(checkout)
    for facts, where in ((theirs, f"{subject.upstream} of TheRock"), (ours, subject.here)):
        if not any(_values(facts, key) for key in facts):
            raise DataError(f"{where} has no {subject.name}.", hint="Correct how ci/drift reads it.")
    return [
        Difference(
            subject=subject.name,
            key=key,
            upstream=subject.upstream,
            here=subject.here,
            only_upstream=tuple(sorted(there - here)),
            only_here=tuple(sorted(here - there)),
        )
        for key in dict.fromkeys((*theirs, *ours))
        if (there := _values(theirs, key)) != (here := _values(ours, key))
    ]


def _values(facts: Facts, key: str) -> set[str]:
    value = facts.get(key, ())
    return {*([value] if isinstance(value, str) else value)} - {""}


def sorted_out(
    every: Sequence[Difference], accepted: Sequence[Accepted]
) -> tuple[Sequence[Difference], Mapping[Difference, str], Sequence[Accepted]]:
    """Split differences into new ones and intended ones with their reasons, and find idle reasons."""
    meant = {one: row.reason for one in every for row in reversed(accepted) if row.covers(one)}
    idle = [row for row in accepted if not any(row.covers(one) for one in every)]
    return [one for one in every if one not in meant], meant, idle
