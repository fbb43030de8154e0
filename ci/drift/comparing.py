"""What differs between upstream's facts and ours, and which differences have a reason. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pydantic import Field

from core.data import Model
from core.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ci.drift.tree import Tree

Facts = Mapping[str, "tuple[str, ...]"]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Something that upstream says, and our data says, too."""

    name: str
    upstream: str
    here: str
    facts: Callable[[Tree], tuple[Facts, Facts]]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A key whose values differ."""

    subject: str
    key: str
    upstream: str
    here: str
    only_upstream: tuple[str, ...]
    only_here: tuple[str, ...]


class Accepted(Model):
    """Differences that are meant; what differs beyond the listed values is none of them."""

    subject: str
    key: str
    upstream: tuple[str, ...] = ()
    here: tuple[str, ...] = ()
    reason: str = Field(min_length=10)

    def covers(self, one: Difference) -> bool:
        """Say whether a difference is meant."""
        return (
            self.subject == one.subject
            and fnmatchcase(one.key, self.key)
            and _among(one.only_upstream, self.upstream)
            and _among(one.only_here, self.here)
        )


class AcceptedFile(Model):
    """What `drift.toml` says."""

    accepted: tuple[Accepted, ...] = ()


def _among(values: Iterable[str], patterns: Sequence[str]) -> bool:
    return all(any(fnmatchcase(value, pattern) for pattern in patterns) for value in values)


def differences(subject: Subject, checkout: Tree) -> Sequence[Difference]:
    """Compare a subject, key by key."""
    theirs, ours = subject.facts(checkout)
    for facts, where in ((theirs, f"{subject.upstream} of TheRock"), (ours, subject.here)):
        if not any(facts.values()):
            raise DataError(f"{where} says nothing of {subject.name}.", hint="Correct how ci/drift reads it.")
    every = [
        Difference(
            subject=subject.name,
            key=key,
            upstream=subject.upstream,
            here=subject.here,
            only_upstream=tuple(sorted(set(theirs.get(key, ())) - set(ours.get(key, ())))),
            only_here=tuple(sorted(set(ours.get(key, ())) - set(theirs.get(key, ())))),
        )
        for key in dict.fromkeys((*theirs, *ours))
    ]
    return [one for one in every if one.only_upstream or one.only_here]


def sorted_out(
    every: Sequence[Difference], accepted: Sequence[Accepted]
) -> tuple[Sequence[Difference], Mapping[Difference, str], Sequence[Accepted]]:
    """Part differences from those that are meant."""
    meant = {one: row.reason for one in every for row in reversed(accepted) if row.covers(one)}
    idle = [row for row in accepted if not any(row.covers(one) for one in every)]
    return [one for one in every if one not in meant], meant, idle
