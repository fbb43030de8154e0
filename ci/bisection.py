"""Which run broke a command: what is tested next between a good run and a bad one, and what differs.

Pure, and one document, so that an interrupted search goes on. Exit codes mean what they do to `git bisect`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from ci.report import commit_url
from core import files
from core.data import Document, Model, compact
from core.errors import CheckError, MissingInputError, UsageError, nearest
from core.process import status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from core.run.plan import RocmOrigin
    from core.run.records import Record
    from pytorch_build.lock.source_lock import SourceLock

SKIP, STOP = 125, 128
_DAY = re.compile(r"(20\d\d)-?(\d\d)-?(\d\d)")
_SHOWN = 12  # of a commit's 40 digits
_LONG = 60
# what a build's inputs are to people; other lines say the commits and versions
_RULES = {
    "code": "build rules",
    "lock": "build requirements",
    "packaging": "artifacts and packaging rules",
    "rocm": "ROCm's packages",
}
_SAID = {"source", "version", "dependencies"}


class Point(Model):
    """A run, or a version of an index; `names` are its versions, and its lock's digest."""

    name: str
    started: str = ""
    names: tuple[str, ...] = ()
    lacks: str = ""  # why there is nothing to install; "" where that is not known


class Commit(Model):
    """A repository's commit."""

    origin: str = ""
    commit: str


class Facts(Model):
    """What a point was made from, and what was installed of it."""

    commits: dict[str, Commit] = Field(default_factory=dict)
    packages: dict[str, str] = Field(default_factory=dict)
    rules: dict[str, str] = Field(default_factory=dict)


class Verdict(Model):
    """How a command ended at a point."""

    result: Literal["good", "bad", "skip"]
    why: str
    failed: int = 0
    times: int = 0
    log: str = ""
    facts: Facts = Facts()


class Change(NamedTuple):
    """What differs between two points; of a repository with what lists its commits: a command, a page."""

    what: str
    good: str
    bad: str
    more: tuple[str, ...] = ()


class Search(Document):
    """A search, and what it has found so far."""

    question: dict[str, Any]
    build: bool = False
    points: tuple[Point, ...]
    verdicts: dict[str, Verdict] = Field(default_factory=dict)

    @property
    def ends(self) -> tuple[int, int]:
        """Where the last good point and the first bad one are, as far as that is known."""
        known = [(at, self.verdicts.get(one.name)) for at, one in enumerate(self.points)]
        bad = min((at for at, one in known if one and one.result == "bad"), default=len(self.points) - 1)
        return max((at for at, one in known[:bad] if one and one.result == "good"), default=0), bad

    @property
    def between(self) -> tuple[Point, ...]:
        """The points that are known neither as good nor as bad."""
        good, bad = self.ends
        return self.points[good + 1 : bad]

    @property
    def left(self) -> Sequence[Sequence[Point]]:
        """What is still to be tested, in turn: each end, what has wheels, what can be built."""
        ends = [[one] for one in (self.points[0], self.points[-1]) if one.name not in self.verdicts]
        rest = [one for one in self.between if one.name not in self.verdicts]
        lacking = [one for one in rest if one.lacks and self.build]
        return [one for one in (*ends, [one for one in rest if not one.lacks], lacking) if one]

    @property
    def next(self) -> Point | None:
        """The point to test, the middle one of what is left, as each test halves it; None at the end."""
        first = next(iter(self.left), ())
        return first[len(first) // 2] if first else None

    @property
    def steps(self) -> int:
        """How many more tests are needed at most, besides those that are skipped."""
        return sum(len(one).bit_length() for one in self.left)

    def told(self, point: Point, verdict: Verdict) -> Search:
        """Add a verdict; the good end must be good, and the bad one bad."""
        for end, wanted in ((self.points[0], "good"), (self.points[-1], "bad")):
            if point == end and verdict.result != wanted:
                log = f"\nIts output is in {verdict.log}." if verdict.log else ""
                raise CheckError(
                    f"{point.name} should be {wanted}, and is {verdict.result}: {verdict.why}.{log}",
                    hint=f"Name another --{wanted}, or correct the command; --no-verify trusts the ends.",
                )
        return self.model_copy(update={"verdicts": {**self.verdicts, point.name: verdict}})

    @property
    def flaky(self) -> str:
        """Say how far to trust a command that did not always end alike; "" where it did."""
        found = [(name, one) for name, one in self.verdicts.items() if 0 < one.failed < one.times]
        if not found:
            return ""
        said = ", ".join(f"{one.failed} of {one.times} times at {name}" for name, one in found)
        luck = max((1 - one.failed / one.times) ** one.times for _, one in found)
        return (
            f"The command is flaky: it failed {said}. At that rate a bad one passes for good in "
            f"{luck:.0%} of cases, so do not trust the result: raise --repeat."
        )

    @property
    def result(self) -> dict[str, Any]:
        """What was found, as JSON has it."""
        good, bad = (self.points[at] for at in self.ends)
        return {
            "first_bad": bad.name,
            "started": bad.started,
            "last_good": good.name,
            "skipped": {one.name: one.lacks or self.verdicts[one.name].why for one in self.between},
            "flaky": self.flaky,
            "changes": [one._asdict() for one in self.changes],
            "log": self.verdicts[bad.name].log,
        }

    @property
    def changes(self) -> Sequence[Change]:
        """What differs between the last good point and the first bad one: commits, rules, packages."""
        good, bad = (self.verdicts[self.points[at].name].facts for at in self.ends)
        found = [
            _range(what, good.commits.get(what), new)
            for what, new in bad.commits.items()
            if good.commits.get(what) != new
        ]
        # of an end that was not tested, no package is known
        for kind, old, now in (("", good.rules, bad.rules), ("installed ", good.packages, bad.packages)):
            for what in sorted({**old, **now} if old and now else ()):
                before, after = old.get(what, "none"), now.get(what, "none")
                found += [Change(f"{kind}{what}", before, after)] * (before != after)
        return found


def _range(what: str, old: Commit | None, new: Commit) -> Change:
    after = new.commit[:_SHOWN]
    if old is None or old.origin != new.origin:
        return Change(what, f"{old.commit[:_SHOWN]} of {old.origin}" if old else "none", after, (new.origin,))
    before, base = old.commit[:_SHOWN], new.origin.removesuffix("/").removesuffix(".git")
    hosted = commit_url(base, new.commit)
    page = f"{base}/compare/{before}...{after}" if hosted else new.origin
    return Change(what, before, after, (f"git log --oneline {before}..{after}", page))


def between(points: Sequence[Point], good: str, bad: str) -> tuple[Point, ...]:
    """Return the points from the good end to the bad one, of all in their order."""
    first, last = (points.index(end_of(points, word)) for word in (good, bad))
    if first >= last:
        raise UsageError(
            f"{points[first].name}, the good one, is not older than {points[last].name}, the bad one.",
            hint="To find what repaired it, swap the two and negate the command: -- sh -c '! …'.",
        )
    return tuple(points[first : last + 1])


def end_of(points: Sequence[Point], word: str) -> Point:
    """Find what a run id, a version, a lock's digest or a day means: of several the last one."""
    day = day_in(word) if _DAY.fullmatch(word) else "no day"
    named = [one for one in points if word == one.name] or [one for one in points if word in one.names]
    found = named or [one for one in points if one.started.startswith(day)]
    if not found:
        known = [one.started[:10] if day[0].isdigit() else one.name for one in points]
        raise MissingInputError(
            f"There is no {word} among the {len(points)} that could be searched.",
            hint=f"Name a run id, a version, a day or the file of a source lock. {nearest(word, known)}",
        )
    return found[-1]


def day_in(version: str) -> str:
    """Return the day that a nightly's version names, as ``2026-11-20``; "" for none."""
    found = _DAY.search(version)
    return "-".join(found.groups()) if found else ""


def judged(codes: Sequence[int]) -> Verdict:
    """Judge the exit codes of one or several calls; one failure is one."""
    failed, times = sum(code != 0 for code in codes), len(codes)
    if SKIP in codes:
        return Verdict(result="skip", why=f"the command ended with {status(SKIP)}", times=times)
    why = f"failed {failed} of {times} times" if times > 1 else f"the command ended with {status(codes[0])}"
    return Verdict(result="bad" if failed else "good", why=why, failed=failed, times=times)


def facts_of(lock: SourceLock | None, origins: Iterable[RocmOrigin], made: Iterable[Record]) -> Facts:
    """Gather what a run's lock, the origin of its ROCm and its builds' records say."""
    locked = lock.projects.values() if lock else ()
    rules = {"ROCm": lock.rocm_version} if lock else {}
    rules |= {one.project: one.prebuilt for one in locked if one.prebuilt}
    for one in origins:
        rules["origin of ROCm"] = f"{one.repository} {one.run_id}{one.index_url}".strip()
    for record in made:
        rules |= rules_of(record)
    commits = {one.project: Commit(origin=one.origin, commit=one.commit) for one in locked if one.commit}
    return Facts(commits=commits, rules=rules)


def rules_of(record: Record) -> Mapping[str, str]:
    """Return what a build's record says of how it was built; long values by their digests."""
    targets = record.details.get("families")
    known = {**record.inputs, **({"targets": targets} if targets else {})}
    said = {key: value if isinstance(value, str) else compact(value) for key, value in known.items()}
    return {
        f"{record.stage}: {_RULES.get(key, key.replace('_', ' '))}": text
        if len(text) < _LONG
        else files.digest_of(text)[:_SHOWN]
        for key, text in said.items()
        if key not in _SAID
    }
