"""Answers about skip rules: which apply, what becomes of one test, which rules are stale; and pruning. Pure.

Pruning edits a file line by line, so that comments and order stay. The new text is parsed again and must say
what the old one says, less what was to go: a file of another layout is left to its owner.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.data import parse_toml
from core.errors import DataError, UsageError
from pytorch_build.test.ids import Pattern, TestId
from pytorch_build.test.target.wheel_test_index import Index, grouped

if TYPE_CHECKING:
    from pytorch_build.test.plugin import Session
    from pytorch_build.test.skip_rules import Decision, Rule

_FATES = {"skip": "skipped", "xfail": "expected to fail", "retry": "retried"}
_HEADER = re.compile(r"""^\s*\[\s*rules\s*\.\s*(?:"([^"]+)"|'([^']+)'|([\w-]+))\s*\]\s*(?:\#.*)?$""")
_LIST_ENTRY = re.compile(r"""^\s*(?:"(?P<basic>[^"\\]*)"|'(?P<literal>[^']*)')\s*,\s*(?:\#.*)?$""")


def listing(decisions: Sequence[Decision], *, everything: bool) -> Sequence[str]:
    """Write out the rules that apply, or all, each with its tests and why it does not apply."""
    lines = []
    for one in decisions:
        if one.applies or everything:
            issue = f" ({one.rule.table.issue})" if one.rule.table.issue else ""
            lines.append(f"{one.rule.name}: {_said(one, issue)}")
            lines += [f"    does not apply: {why}" for why in one.unmet]
            lines += [f"    {entry}" for entry in one.rule.entries]
    return lines


def _said(one: Decision, issue: str = "") -> str:
    table = one.rule.table
    expiry = f" ({'expired' if one.expired else 'until'} {table.expires})" if table.expires else ""
    return f"{table.action}: {table.reason}{issue}{expiry}"


def explained(test: str, decisions: Sequence[Decision]) -> Sequence[str]:
    """Explain what becomes of a test: the rules that take it, those that would elsewhere, and near misses."""
    parts = TestId.parse(test)
    if not parts.names:
        raise UsageError(
            f"{test!r} is not a test id.", hint="Give one such as test/test_nn.py::TestNN::test_conv."
        )
    taken = [one for one in decisions if Index([test]).taken([one.rule.planned()])]
    applying = [(one.rule.table.action, one.rule.name) for one in taken if one.applies]
    fates = [
        f"{words}, by {name}" for fate, words in _FATES.items() for action, name in applying if action == fate
    ]
    lines = [f"{test}: {fates[0] if fates else 'runs, no rule applies to it'}"]
    for one in taken:
        lines.append(f"  {one.rule.name} takes it: {_said(one)}")
        lines += [f"    but it does not apply: {why}" for why in one.unmet]
    for rule in (one.rule for one in decisions if one not in taken):
        near = ((entry, Pattern.parse(entry).near_miss(parts)) for entry in rule.entries)
        lines += [f"  {rule.name} nearly takes it: {entry}: {why}" for entry, why in near if why]
    return lines


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Which tests there are, from collections or runs."""

    tests: frozenset[str]
    files: frozenset[str]
    complete: bool = False

    @cached_property
    def by_function(self) -> Mapping[str, list[TestId]]:
        """The tests by their function's name."""
        tests = map(TestId.parse, sorted(self.tests))
        return grouped(("".join(one.names[-1:]), one) for one in tests)

    def judges(self, entry: str) -> bool:
        """Whether an entry would match a test, if there were one to match."""
        return self.complete or any(map(files_of([entry]).fullmatch, self.files))

    def hint(self, entry: str) -> str:
        """Name a test that an entry nearly takes."""
        pattern = Pattern.parse(entry)
        name = pattern.names[-1]
        for test in self.by_function.get(name, ()) if "*" not in name else ():
            if why := pattern.near_miss(test):
                return f"{'::'.join((test.path, *test.names))} is there, but {why}"
        return ""


def evidence(sessions: Iterable[Session], *, complete: bool = False) -> Evidence:
    """Gather what journals saw; a file that no session collected whole is not an evidence of absence."""
    tests: set[str] = set()
    whole: set[str] = set()
    known: set[str] = set()
    for session in sessions:
        seen = {*session.collected, *(test for taken in session.rules.values() for test in taken)}
        absent = {one.file for one in session.uncollected}
        paths = {TestId.parse(test).path for test in seen}
        tests |= seen
        known |= paths | absent
        whole |= set() if session.deselected else paths - absent
    return Evidence(
        tests=frozenset(tests), files=frozenset(whole), complete=complete and bool(whole) and known == whole
    )


def silent(rules: Iterable[Rule], files: Collection[str], matched: Collection[str]) -> Sequence[Rule]:
    """Find rules that took nothing in a run, although it had files that they name."""
    unmatched = (rule for rule in rules if rule.name not in matched)
    return [rule for rule in unmatched if any(map(files_of(rule.entries).fullmatch, files))]


def files_of(entries: Iterable[str]) -> re.Pattern[str]:
    """Return an expression for the files that ids and patterns name; those without a file name none."""
    patterns = map(Pattern.parse, entries)
    return re.compile("|".join({one.path_regex for one in patterns if one.path}) or "(?!)")


@dataclass(frozen=True, kw_only=True)
class Stale:
    """A rule with entries that match nothing."""

    rule: Rule
    entries: tuple[str, ...]
    hints: dict[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether no entry of the rule matches anything."""
        return len(self.entries) == len(self.rule.entries)


@dataclass(frozen=True, kw_only=True)
class Review:
    """What was found about rules."""

    expired: tuple[Rule, ...]
    stale: tuple[Stale, ...]
    judged: int
    unjudged: int


def review(decisions: Sequence[Decision], seen: Evidence) -> Review:
    """Find what is stale."""
    stale, judged, unjudged, index = [], 0, 0, Index(sorted(seen.tests))
    for rule in (one.rule for one in decisions if one.applies):
        planned = rule.planned()
        matches = {one: one in seen.tests for one in planned.tests}
        matches |= {one: bool(index.places((), {one: regex})) for one, regex in planned.patterns.items()}
        known = [entry for entry, match in matches.items() if match or seen.judges(entry)]
        judged, unjudged = judged + len(known), unjudged + len(matches) - len(known)
        if unmatched := tuple(entry for entry in known if not matches[entry]):
            hints = {entry: hint for entry in unmatched if (hint := seen.hint(entry))}
            stale.append(Stale(rule=rule, entries=unmatched, hints=hints))
    expired = tuple(one.rule for one in decisions if one.expired)
    return Review(expired=expired, stale=tuple(stale), judged=judged, unjudged=unjudged)


def pruned(text: str, rules: Collection[str], tests: Mapping[str, Collection[str]], *, where: Path) -> str:
    """Remove rules and single tests from a file; a rule goes with the comment directly above it."""
    lines = text.splitlines(keepends=True)
    headers = [(at, match) for at, line in enumerate(lines) if (match := _HEADER.match(line))]
    names = ["".join(filter(None, match.groups())) for _, match in headers]
    first = [_with_comment(lines, at) for at, _ in headers]
    kept = lines[: first[0]] if first else lines
    for name, (start, end) in zip(names, pairwise([*first, len(lines)]), strict=True):
        if name in rules:
            kept += _comments_after(lines[start:end])
        else:
            drop = {*tests.get(name, ())}
            entries = ((line, _LIST_ENTRY.match(line)) for line in lines[start:end])
            kept += [line for line, one in entries if not one or not drop & {one["basic"], one["literal"]}]
    result = "".join(kept).rstrip("\n") + "\n" if kept else ""
    wanted = _less(parse_toml(text, where=where), rules, tests)
    if not wanted.get("rules"):
        return ""
    try:
        same = tomllib.loads(result) == wanted
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        gone = ", ".join((*sorted(rules), *(one for listed in tests.values() for one in listed)))
        raise DataError(
            f"{where} cannot be pruned line by line, as it is laid out.",
            hint="Write each rule as a [rules.NAME] table and each test on a line of its own, "
            f"or remove by hand: {gone}.",
        )
    return result


def _with_comment(lines: Sequence[str], number: int) -> int:
    """Return the line where a table begins, with the comment directly above it; one apart is the file's."""
    while number > 0 and lines[number - 1].lstrip().startswith("#"):
        number -= 1
    return number


def _comments_after(block: Sequence[str]) -> Sequence[str]:
    """Return the comments between a table and the next one's own: they are of the file."""
    end = max(at for at, line in enumerate(block) if line.strip() and not line.lstrip().startswith("#"))
    rest = block[end + 1 :]
    return rest[next((at for at, line in enumerate(rest) if line.strip()), len(rest)) :]


def _less(
    data: dict[str, Any], rules: Collection[str], tests: Mapping[str, Collection[str]]
) -> dict[str, Any]:
    left = {name: dict(table) for name, table in data.get("rules", {}).items() if name not in rules}
    for name, table in left.items():
        for key in {"tests", "patterns"} & table.keys():
            table[key] = [one for one in table[key] if one not in tests.get(name, ())]
    return {**data, "rules": left}


def diff(before: str, after: str, name: str) -> str:
    """Show the change as a unified diff."""
    texts = (before.splitlines(keepends=True), after.splitlines(keepends=True))
    return "".join(difflib.unified_diff(*texts, f"a/{name}", f"b/{name}"))
