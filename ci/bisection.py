"""Which run broke a command: what is tested next between a good run and a bad one, and what differs.

One document, so that an interrupted search goes on. Exit codes mean what they do to `git bisect`.
"""

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field

from ci.report.names import commit_url
from core import console, files
from core.data import Document, Model, compact
from core.errors import CheckError, MissingInputError, UsageError, nearest
from core.process import status, tail
from core.run.plan import RocmOrigin
from core.run.records import Record
from pytorch_build.lock.source_lock import SourceLock

SKIP, STOP = 125, 128
_DAY = re.compile(r"(20\d\d)-?(\d\d)-?(\d\d)")
_GIT_VERSION = re.compile(r"(?m)^git_version\b.*['\"]([0-9a-f]{40})['\"]")
_SHOWN = 12  # of a commit's 40 digits
_LONG = 60
# what a build's inputs are to people; "" where other lines say it
_RULES = {"code": "build rules", "lock": "build requirements", "packaging": "artifacts and packaging rules"}
_RULES |= dict.fromkeys(("source", "version", "dependencies"), "")


class Point(Model):
    """A run, or a version of an index; `names` are its versions, and its lock's digest."""

    name: str
    started: str = ""
    names: tuple[str, ...] = ()
    lacks: str = ""  # why there is nothing to install; "" where that is not known
    kind: str = ""  # the release type of a run of PyTorch


class Facts(Model):
    """What a point was made from, by origin and commit and by rules, and what was installed of it."""

    commits: dict[str, tuple[str, str]] = Field(default_factory=dict)
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
    lost: bool = False  # what was to be installed is no longer there


class Change(NamedTuple):
    """What differs between two points; of a repository with what lists its commits: a command, a page."""

    what: str
    good: str
    bad: str
    more: tuple[str, ...] = ()


class Search(Document):
    """A search, and what it has found so far."""

    question: dict[str, Any]
    again: str = ""  # the command that goes on
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

    def told(self, point: Point, verdict: Verdict) -> Self:
        """Add a verdict; the good end must be good, and the bad one bad. What is lost can be built."""
        if verdict.lost and self.build and not point.lacks:
            lacking = point.model_copy(update={"lacks": verdict.why})
            return self.model_copy(
                update={"points": tuple(lacking if one == point else one for one in self.points)}
            )
        for end, wanted in ((self.points[0], "good"), (self.points[-1], "bad")):
            if point == end and verdict.result != wanted:
                raise CheckError(
                    f"{point.name} should be {wanted}, and is not: {verdict.why}.{_output(verdict.log)}",
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
        known, (good, bad) = self.verdicts, (self.points[at] for at in self.ends)
        return {
            "first_bad": bad.name,
            "started": bad.started,
            "last_good": good.name,
            "skipped": {
                one.name: known[one.name].why if one.name in known else one.lacks for one in self.between
            },
            "flaky": self.flaky,
            "changes": [one._asdict() for one in self.changes],
            "log": self.verdicts[bad.name].log,
        }

    @property
    def changes(self) -> Sequence[Change]:
        """What differs between the last good point and the first bad one: commits, rules, packages."""
        good, bad = (self.verdicts[self.points[at].name].facts for at in self.ends)
        ranges = ((what, good.commits.get(what, ("", "none")), new) for what, new in bad.commits.items())
        found = [_range(what, *old, *new) for what, old, new in ranges if old != new]
        # builds that both have, and packages, unless of an end that was not tested
        both = {what: (good.rules[what], bad.rules[what]) for what in good.rules if what in bad.rules}
        for what in sorted({*good.packages, *bad.packages}) if good.packages and bad.packages else ():
            both[f"installed {what}"] = good.packages.get(what, "none"), bad.packages.get(what, "none")
        return [*found, *(Change(what, *pair) for what, pair in both.items() if len({*pair}) > 1)]


def _range(what: str, origin: str, old: str, url: str, new: str) -> Change:
    before, after, base = old[:_SHOWN], new[:_SHOWN], url.removesuffix("/").removesuffix(".git")
    if origin != url:
        return Change(what, before, after, (url,))
    here = Path(url).is_absolute()
    git = f"git -C {shlex.quote(url)}" if here else "git"
    page = f"{base}/compare/{before}...{after}" if commit_url(base, new) else url
    return Change(what, before, after, (f"{git} log --oneline {before}..{after}", *[page] * (not here)))


def between(points: Sequence[Point], good: str, bad: str) -> tuple[Point, ...]:
    """Return the points from the good end to the bad one, of all in their order."""
    first, last = (points.index(end_of(points, word)) for word in (good, bad))
    if first >= last:
        repaired = "To find what repaired it, swap the two and negate the command: -- sh -c '! …'."
        raise UsageError(
            f"{points[first].name}, the good one, is not older than {points[last].name}, the bad one.",
            hint=repaired if first > last else "Name two.",
        )
    return tuple(points[first : last + 1])


def end_of(points: Sequence[Point], word: str) -> Point:
    """Find what a run id, a version, a lock's digest or a day means: of several the last one."""
    day = day_in(word) if _DAY.fullmatch(word) else "no day"
    named = [one for one in points if word == one.name] or [one for one in points if word in one.names]
    found = named or [one for one in points if one.started.startswith(day)]
    if not found:
        days = sorted({one.started[:10] for one in points})
        beside = [*[one for one in days if one < day][-1:], *[one for one in days if one > day][:1]]
        known = f"There is one of {' and one of '.join(beside)}."
        if not day[0].isdigit():
            known = nearest(word, [one.name for one in points][-8:])
        raise MissingInputError(
            f"There is no {word} among the {len(points)} that could be searched.",
            hint=f"Name a run id, a version, a day or the file of a source lock. {known}",
        )
    return found[-1]


def day_in(version: str) -> str:
    """Return the day that a nightly's version names, as ``2026-11-20``; "" for none."""
    found = _DAY.search(version)
    return "-".join(found.groups()) if found else ""


def judged(codes: Sequence[int], last: str = "") -> Verdict:
    """Judge the exit codes of one or several calls, of which the `last` is told; one failure is one."""
    failed, times = sum(code != 0 for code in codes), len(codes)
    why = f"the command {last or f'ended with {status(codes[-1])}'}"
    if SKIP in codes:
        return Verdict(result="skip", why=why, times=times)
    why = f"failed {failed} of {times} times" if times > 1 else why
    return Verdict(result="bad" if failed else "good", why=why, failed=failed, times=times)


def commits_in(folder: Path) -> dict[str, tuple[str, str]]:
    """Read the commits that installed packages name: of torch and its siblings, and of ROCm's build."""
    found = {}
    for path in sorted(folder.glob("torch*/version.py")):
        if said := _GIT_VERSION.search(path.read_text(encoding="utf-8")):
            found[path.parent.name.removeprefix("torch") or "torch"] = ("", said[1])
    manifest = folder / "_rocm_sdk_core/share/therock/therock_manifest.json"
    read = json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else {}
    names = ("submodule_name", "submodule_url", "pin_sha")
    rows = [tuple(one.get(name) for name in names) for one in read.get("submodules", ())]
    rows.append(("TheRock", "https://github.com/ROCm/TheRock", read.get("the_rock_commit")))
    return found | {name: (url, commit) for name, url, commit in rows if commit}


def facts_of(lock: SourceLock | None, origins: Iterable[RocmOrigin], made: Iterable[Record]) -> Facts:
    """Gather what a run's lock, the origin of its ROCm and its builds' records say."""
    locked = lock.projects.values() if lock else ()
    rules = {"ROCm": lock.rocm_version} if lock else {}
    rules |= {one.project: one.prebuilt for one in locked if one.prebuilt}
    for one in origins:
        parts = (one.repository, one.run_id, one.index_url)
        rules["origin of ROCm"] = " ".join(part for part in parts if part is not None)
    for record in made:
        for key, value in {**record.inputs, "targets": record.details.get("families", "")}.items():
            # what is long, such as the digests of ROCm's packages, by its own digest
            text = value if isinstance(value, str) else compact(value)
            if name := _RULES.get(key, key.replace("_", " ")):
                rules[f"{record.stage}: {name}"] = (
                    text if len(text) < _LONG else files.digest_of(text)[:_SHOWN]
                )
    commits = {one.project: (one.origin, one.commit) for one in locked if one.commit}
    return Facts(commits=commits, rules=rules)


def tell_plan(search: Search, *, whole: bool) -> None:
    """Print how many points there are, and how many tests are left; of a plan the `whole` list."""
    known = {name: one.result for name, one in search.verdicts.items()}
    rows = [(one.name, one.started[:16], known.get(one.name, one.lacks)) for one in search.points]
    console.table(("run", "from", "known"), rows if whole else ())
    lacking = sum(bool(one.lacks) for one in search.points)
    build = " (--build builds them)" if lacking and search.points[-1].kind and not search.build else ""
    following = f"the next at {search.next.name}" if search.next else "none is left (--reset begins anew)"
    tests = console.counted(search.steps, "test")
    console.say(f"{len(rows)} in all, {lacking} without wheels{build}: {tests} at most, {following}.")


def tell(search: Search) -> None:
    """Print the result."""
    found = search.result
    bad, good, skipped, log = (found[name] for name in ("first_bad", "last_good", "skipped", "log"))
    when = found["started"][:16].replace("T", " ")
    console.done(f"The first bad one is {bad}, of {when}; the last good one is {good}.")
    if skipped:
        build = "" if search.build or not search.points[-1].kind else " (--build builds what has no wheels)"
        console.warn(f"It may also be {' or '.join(skipped)}, which could not be tested{build}:")
    for name, why in skipped.items():
        console.say(f"  {name}: {why}")
    if found["flaky"]:
        console.warn(found["flaky"])
    console.say(f"What differs between {good} and {bad}:" if search.changes else "Nothing known differs.")
    for one in search.changes:
        console.say("\n    ".join((f"  {one.what}: {one.good} -> {one.bad}", *filter(None, one.more))))
    console.say(f"{bad} is bad: {search.verdicts[bad].why}.{_output(log)}")


def _output(log: str) -> str:
    last = tail(Path(log), lines=8) if log else ""
    return f"\nIts output ({log}) ends with:\n{last}" if last else ""
