"""Answers about skip rules: which apply, what becomes of one test, which rules are stale. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from core.errors import UsageError
from pytorch_build.test.ids import Pattern, TestId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytorch_build.test.conditions import Decision
    from pytorch_build.test.plugin import Session
    from pytorch_build.test.skip_rules import Rule


def entries(rule: Rule) -> tuple[str, ...]:
    """Give a rule's exact ids and patterns, in their order."""
    return (*rule.table.tests, *rule.table.patterns)


def listing(decisions: Sequence[Decision], *, everything: bool) -> Sequence[str]:
    """Write out the rules that apply, or all, each with its tests and why it does not apply."""
    lines = []
    for one in decisions:
        if one.applies or everything:
            table = one.rule.table
            notes = [note for note in (table.issue, _expiry(one)) if note]
            lines.append(
                f"{one.rule.name}: {table.action}: {table.reason}" + "".join(f" ({n})" for n in notes)
            )
            lines += [f"    does not apply: {why}" for why in one.unmet]
            lines += [f"    {entry}" for entry in entries(one.rule)]
    return lines


def _expiry(one: Decision) -> str:
    if one.rule.table.expires is None:
        return ""
    return f"{'expired' if one.expired else 'until'} {one.rule.table.expires}"


def as_json(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """Give every rule as JSON: what its file says, its name, and whether it applies."""
    return [
        {
            "name": one.rule.name,
            "file": str(one.rule.file),
            "applies": one.applies,
            "unmet": list(one.unmet),
            "expired": one.expired,
            **one.rule.table.model_dump(mode="json", exclude_defaults=True),
        }
        for one in decisions
    ]


def explained(test: str, decisions: Sequence[Decision]) -> Sequence[str]:
    """Say what becomes of a test: the rules that take it, those that would elsewhere, and near misses."""
    parts = TestId.parse(test)
    if not parts.names:
        raise UsageError(
            f"{test!r} is no test id.", hint="Give one such as test/test_nn.py::TestNN::test_conv."
        )
    taken = [one for one in decisions if one.rule.takes(test)]
    applying = [one for one in taken if one.applies]
    lines = [f"{test}: {_fate(applying)}"]
    for one in taken:
        table = one.rule.table
        lines.append(f"  {one.rule.name} takes it: {table.action}: {table.reason}" + _note(_expiry(one)))
        lines += [f"    but it does not apply: {why}" for why in one.unmet]
    for one in decisions:
        if one not in taken:
            lines += [f"  {one.rule.name} nearly takes it: {said}" for said in _near(one.rule, parts)]
    return lines


def _fate(applying: Sequence[Decision]) -> str:
    for action, words in (("skip", "skipped"), ("xfail", "expected to fail"), ("retry", "retried")):
        for one in applying:
            if one.rule.table.action == action:
                return f"{words}, by {one.rule.name}"
    return "runs, no rule applies to it"


def _note(text: str) -> str:
    return f" ({text})" if text else ""


def _near(rule: Rule, test: TestId) -> Iterable[str]:
    for entry in entries(rule):
        why = Pattern.parse(entry).near_miss(test)
        if why:
            yield f"{entry}: {why}"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Which tests there are, from collections or runs."""

    tests: frozenset[str]
    files: frozenset[str]
    complete: bool = False

    @cached_property
    def by_function(self) -> dict[str, list[TestId]]:
        """The tests by their function's name."""
        found: dict[str, list[TestId]] = {}
        for test in sorted(self.tests):
            parts = TestId.parse(test)
            found.setdefault(parts.names[-1] if parts.names else "", []).append(parts)
        return found


def evidence(sessions: Iterable[Session], *, complete: bool = False) -> Evidence:
    """Gather what journals saw; a file that no session collected whole is no evidence of absence."""
    tests: set[str] = set()
    whole: set[str] = set()
    known: set[str] = set()
    for session in sessions:
        seen = {*session.collected, *(test for taken in session.rules.values() for test in taken)}
        absent = {one.file for one in session.uncollected}
        paths = {TestId.parse(test).path for test in seen}
        tests |= seen
        known |= paths | absent
        if not session.deselected:
            whole |= paths - absent
    return Evidence(
        tests=frozenset(tests), files=frozenset(whole), complete=complete and bool(whole) and known == whole
    )


def silent(rules: Iterable[Rule], files: Collection[str], matched: Collection[str]) -> Sequence[Rule]:
    """Find rules that took nothing in a run, although it had files that they name."""
    return [
        rule
        for rule in rules
        if rule.name not in matched and any(in_file(entry, file) for entry in entries(rule) for file in files)
    ]


@dataclass(frozen=True, kw_only=True)
class Stale:
    """A rule with entries that match nothing."""

    rule: Rule
    entries: tuple[str, ...]
    hints: dict[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether no entry of the rule matches anything."""
        return len(self.entries) == len(entries(self.rule))


@dataclass(frozen=True, kw_only=True)
class Review:
    """What was found about rules."""

    expired: tuple[Rule, ...]
    stale: tuple[Stale, ...]
    judged: int
    unjudged: int


def review(decisions: Sequence[Decision], seen: Evidence) -> Review:
    """Find what is stale."""
    stale, judged, unjudged = [], 0, 0
    for one in decisions:
        if not one.applies:
            continue
        exact = set(one.rule.table.tests)
        unmatched = []
        for entry in entries(one.rule):
            matches = entry in seen.tests if entry in exact else _matches_any(entry, seen.tests)
            if not matches and not _judges(entry, seen):
                unjudged += 1
                continue
            judged += 1
            if not matches:
                unmatched.append(entry)
        if unmatched:
            hints = {entry: said for entry in unmatched if (said := _hint(entry, seen))}
            stale.append(Stale(rule=one.rule, entries=tuple(unmatched), hints=hints))
    return Review(
        expired=tuple(one.rule for one in decisions if one.expired),
        stale=tuple(stale),
        judged=judged,
        unjudged=unjudged,
    )


def _matches_any(entry: str, tests: Iterable[str]) -> bool:
    expression = re.compile(Pattern.parse(entry).regex)
    return any(expression.fullmatch(test) for test in tests)


def _judges(entry: str, seen: Evidence) -> bool:
    """Whether the entry would have matched something, if there were anything to match."""
    return seen.complete or any(in_file(entry, file) for file in seen.files)


def in_file(entry: str, file: str) -> bool:
    """Whether an id or pattern names this file; one without a file names none."""
    pattern = Pattern.parse(entry)
    return bool(pattern.path) and Pattern("", pattern.path, ("*",), None).matches(f"{file}::any")


def _hint(entry: str, seen: Evidence) -> str:
    pattern = Pattern.parse(entry)
    name = pattern.names[-1]
    near = seen.by_function.get(name, ()) if "*" not in name else ()
    for test in near:
        said = pattern.near_miss(test)
        if said:
            return f"{'::'.join((test.path, *test.names))} is there, but {said}"
    return ""
