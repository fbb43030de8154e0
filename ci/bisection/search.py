"""Which revision is tested next, between one at which a command succeeds and one at which it fails.

A revision is a run, or a version of an index. A search is one document, so that an interrupted one goes on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from ci.bisection.differences import FactChange, RevisionFacts, list_changes
from core import process
from core.data import Document, Model
from core.errors import CheckError, MissingInputError, UsageError, nearest

_DAY = re.compile(r"(20\d\d)-?(\d\d)-?(\d\d)")
_MOST_SUGGESTIONS = 8
_LAST_LINES = 8


class Revision(Model):
    """A run, or a version of an index.

    Attributes:
        name: The run's id, or the version.
        started: When the run began, or the day that the version names.
        names: What else it may be called: its versions, and its lock's digest.
        lacks: Why there is nothing to install; "" where that is not known.
        kind: The release type of a run of PyTorch.
    """

    name: str
    started: str = ""
    names: tuple[str, ...] = ()
    lacks: str = ""
    kind: str = ""


class Judgement(Model):
    """How a command ended at a revision.

    Attributes:
        failed: How often it failed, of the `times` that it ran.
        facts: What the revision was built from, and what was installed of it.
        lost: Whether what was to be installed is no longer there.
    """

    result: Literal["good", "bad", "skip"]
    why: str
    failed: int = 0
    times: int = 0
    log: str = ""
    facts: RevisionFacts = RevisionFacts()
    lost: bool = False

    @property
    def is_flaky(self) -> bool:
        """Whether the command did not always end alike."""
        return 0 < self.failed < self.times


class Bisection(Document):
    """A search, and what is known so far."""

    question: dict[str, Any]
    again: str = ""  # the command that goes on
    build: bool = False
    points: tuple[Revision, ...]
    verdicts: dict[str, Judgement] = Field(default_factory=dict)

    @property
    def ends(self) -> tuple[int, int]:
        """Where the last good revision and the first bad one are, as far as that is known."""
        last_good = 0
        for position, revision in enumerate(self.points[:-1]):
            judgement = self.verdicts.get(revision.name)
            if judgement is None:
                continue
            if judgement.result == "bad":
                return last_good, position
            if judgement.result == "good":
                last_good = position
        return last_good, len(self.points) - 1

    @property
    def last_good(self) -> Revision:
        """The last revision that is known as good."""
        position, _ = self.ends
        return self.points[position]

    @property
    def first_bad(self) -> Revision:
        """The first revision that is known as bad."""
        _, position = self.ends
        return self.points[position]

    @property
    def revisions_between(self) -> Sequence[Revision]:
        """The revisions that are known neither as good nor as bad."""
        good, bad = self.ends
        return self.points[good + 1 : bad]

    @property
    def _groups_to_test(self) -> Sequence[Sequence[Revision]]:
        """What is still to be tested, in turn: each end, what has wheels, what can be built."""
        with_wheels: list[Revision] = []
        to_build: list[Revision] = []
        for revision in self.revisions_between:
            if revision.name in self.verdicts:
                continue
            if not revision.lacks:
                with_wheels.append(revision)
            elif self.build:
                to_build.append(revision)

        ends = (self.points[0], self.points[-1])
        untested_ends = [[end] for end in ends if end.name not in self.verdicts]
        return list(filter(None, (*untested_ends, with_wheels, to_build)))

    @property
    def next_revision(self) -> Revision | None:
        """The one in the middle of those that are left, as each test halves them; None at the end."""
        for group in self._groups_to_test:
            return group[len(group) // 2]
        return None

    @property
    def most_tests(self) -> int:
        """How many more tests are needed at most, besides those that are skipped."""
        return sum(len(group).bit_length() for group in self._groups_to_test)

    @property
    def tests_done(self) -> int:
        """How many revisions were tested."""
        return sum(judgement.times > 0 for judgement in self.verdicts.values())

    def with_judgement(self, revision: Revision, judgement: Judgement) -> Self:
        """Return the search with one more judgement.

        Raises:
            CheckError: The good end is not good, or the bad end is not bad.
        """
        if judgement.lost and self.build and not revision.lacks:
            # What is lost can be built.
            return self._with_lacking(revision, judgement.why)
        self._require_end(revision, judgement)
        verdicts = {**self.verdicts, revision.name: judgement}
        return self.model_copy(update={"verdicts": verdicts})

    def _with_lacking(self, revision: Revision, reason: str) -> Self:
        points = list(self.points)
        position = points.index(revision)
        points[position] = revision.model_copy(update={"lacks": reason})
        return self.model_copy(update={"points": tuple(points)})

    def _require_end(self, revision: Revision, judgement: Judgement) -> None:
        """Refuse a judgement of an end that is not what it should be."""
        results_of_ends: dict[str, str] = {
            self.points[0].name: "good",
            self.points[-1].name: "bad",
        }
        expected = results_of_ends.get(revision.name, judgement.result)
        if judgement.result == expected:
            return
        problem = "is not"
        remedy = "correct the command"
        if judgement.lost or revision.lacks:
            problem = "cannot be tested"
            remedy = "build what it lacks (--build)"
        raise CheckError(
            f"{revision.name} should be {expected}, and {problem}: {judgement.why}.{last_output(judgement)}",
            hint=f"Name another --{expected}, or {remedy}; --no-verify trusts the ends.",
        )

    @property
    def flakiness(self) -> str:
        """How far to trust a command that did not always end alike; "" where it did."""
        failure_counts: list[str] = []
        luck = 0.0
        for name, judgement in self.verdicts.items():
            if not judgement.is_flaky:
                continue
            count = f"{judgement.failed} of {judgement.times} times"
            failure_counts.append(f"{count} at {name}")
            chance_to_pass = 1 - judgement.failed / judgement.times
            luck = max(luck, chance_to_pass**judgement.times)
        if not failure_counts:
            return ""
        failures = ", ".join(failure_counts)
        return (
            f"The command is flaky: it failed {failures}. At that rate a bad one passes for good in "
            f"{luck:.0%} of cases, so do not trust the result: raise --repeat."
        )

    @property
    def untested_reasons(self) -> Mapping[str, str]:
        """Why revisions between the ends could not be tested, by name."""
        reasons: dict[str, str] = {}
        for revision in self.revisions_between:
            reasons[revision.name] = revision.lacks
            judgement = self.verdicts.get(revision.name)
            if judgement is not None:
                reasons[revision.name] = judgement.why
        return reasons

    @property
    def changes(self) -> Sequence[FactChange]:
        """What differs between the last good revision and the first bad one."""
        good = self.verdicts[self.last_good.name]
        bad = self.verdicts[self.first_bad.name]
        return list_changes(good.facts, bad.facts)

    @property
    def result(self) -> Mapping[str, Any]:
        """What the search came to, as JSON has it."""
        return {
            "first_bad": self.first_bad.name,
            "started": self.first_bad.started,
            "last_good": self.last_good.name,
            "skipped": self.untested_reasons,
            "flaky": self.flakiness,
            "changes": [change._asdict() for change in self.changes],
            "log": self.verdicts[self.first_bad.name].log,
        }


def last_output(judgement: Judgement) -> str:
    """Return the end of the command's output as lines to add to a message; "" where there is none."""
    if not judgement.log:
        return ""
    lines = process.tail(Path(judgement.log), lines=_LAST_LINES)
    if not lines:
        return ""
    return f"\nIts output ({judgement.log}) ends with:\n{lines}"


# --- The ends of a search


def revisions_from(revisions: Sequence[Revision], good: str, bad: str) -> tuple[Revision, ...]:
    """Return the revisions from the good end to the bad one, of all in their order."""
    first = revisions.index(find_revision(revisions, good))
    last = revisions.index(find_revision(revisions, bad))
    if first < last:
        return tuple(revisions[first : last + 1])

    hint = "Name two."
    if first > last:
        hint = "To find what repaired it, swap the two and negate the command: -- sh -c '! …'."
    good_name = revisions[first].name
    bad_name = revisions[last].name
    raise UsageError(
        f"{good_name}, the good one, is not older than {bad_name}, the bad one.",
        hint=hint,
    )


def find_revision(revisions: Sequence[Revision], text: str) -> Revision:
    """Return what a run id, a version, a lock's digest or a day means: of several the last one."""
    day: str | None = None
    if _DAY.fullmatch(text):
        day = day_of(text)
    for revision in reversed(revisions):
        if text == revision.name:
            return revision
    for revision in reversed(revisions):
        if text in revision.names:
            return revision
    for revision in reversed(revisions):
        if day is not None and revision.started.startswith(day):
            return revision

    names = [revision.name for revision in revisions]
    suggestion = nearest(text, names[-_MOST_SUGGESTIONS:])
    if day is not None:
        suggestion = _nearest_days(day, revisions)
    raise MissingInputError(
        f"There is no {text} among the {len(revisions)} that could be searched.",
        hint=f"Name a run id, a version, a day or the file of a source lock. {suggestion}",
    )


def _nearest_days(day: str, revisions: Sequence[Revision]) -> str:
    """Say of which days beside another there is a revision."""
    days = sorted({revision.started[:10] for revision in revisions})
    earlier_days = [other_day for other_day in days if other_day < day]
    later_days = [other_day for other_day in days if other_day > day]
    nearest_days = earlier_days[-1:] + later_days[:1]
    names = " and one of ".join(nearest_days)
    return f"There is one of {names}."


def day_of(version: str) -> str | None:
    """Return the day that a nightly's version names, as ``2026-11-20``; None for none."""
    match = _DAY.search(version)
    if match is None:
        return None
    return "-".join(match.groups())
