"""Answers about skip rules: which apply, what becomes of one test, which rules are stale. Pure."""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from core.data import parse_toml
from core.errors import DataError, UsageError
from pytorch_build.test.ids import Pattern, TestId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from pytorch_build.test.plugin import Session
    from pytorch_build.test.skip_rules import Decision, Rule


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


_HEADER = re.compile(r"""^\s*\[\s*rules\s*\.\s*(?:"([^"]+)"|'([^']+)'|([\w-]+))\s*\]\s*(?:\#.*)?$""")
_LIST_ENTRY = re.compile(r"""^\s*(?:"(?P<basic>[^"\\]*)"|'(?P<literal>[^']*)')\s*,\s*(?:\#.*)?$""")


def pruned(text: str, rules: Collection[str], tests: Mapping[str, Collection[str]], *, where: Path) -> str:
    """Take rules and single tests out of a file.

    A rule goes with the comment directly above it.
    """
    lines = text.splitlines(keepends=True)
    starts = [(number, _name(line)) for number, line in enumerate(lines) if _HEADER.match(line)]
    first = [_with_comment(lines, number) for number, _ in starts]
    kept = lines[: first[0]] if starts else lines
    for index, (_, name) in enumerate(starts):
        block = lines[first[index] : first[index + 1] if index + 1 < len(starts) else len(lines)]
        if name in rules:
            kept += _comments_after(block)
        else:
            kept += [line for line in block if not _names(line, tests.get(name, ()))]
    result = "".join(kept).rstrip("\n") + "\n" if kept else ""
    wanted = _less(parse_toml(text, where=where), rules, tests)
    if not wanted.get("rules"):
        return ""
    if _parsed(result) != wanted:
        gone = ", ".join((*sorted(rules), *(one for listed in tests.values() for one in listed)))
        raise DataError(
            f"{where} is laid out so that it cannot be pruned line by line.",
            hint="Write each rule as a [rules.NAME] table and each test on a line of its own, "
            f"or remove by hand: {gone}.",
        )
    return result


def _name(line: str) -> str:
    match = _HEADER.match(line)
    return next((group for group in match.groups() if group), "") if match else ""


def _with_comment(lines: list[str], number: int) -> int:
    """Give the line where a table begins, with the comment directly above it.

    A comment at the top of a file is the file's, when the blank line after it says so.
    """
    while number > 0 and lines[number - 1].lstrip().startswith("#"):
        number -= 1
    return number


def _comments_after(block: list[str]) -> list[str]:
    """Give the comments between a table and the next one's own: they are of the file."""
    end = max(
        number for number, line in enumerate(block) if line.strip() and not line.lstrip().startswith("#")
    )
    rest = block[end + 1 :]
    first = next((number for number, line in enumerate(rest) if line.strip()), len(rest))
    return rest[first:]


def _names(line: str, tests: Collection[str]) -> bool:
    match = _LIST_ENTRY.match(line)
    return bool(match) and (match["basic"] or match["literal"]) in tests if match else False


def _less(
    data: dict[str, Any], rules: Collection[str], tests: Mapping[str, Collection[str]]
) -> dict[str, Any]:
    """Take the same out of the parsed file."""
    left = {}
    for name, table in data.get("rules", {}).items():
        if name in rules:
            continue
        gone = tests.get(name, ())
        lists = {
            key: [one for one in table[key] if one not in gone]
            for key in ("tests", "patterns")
            if key in table
        }
        left[name] = {**table, **lists}
    return {**data, "rules": left}


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def diff(before: str, after: str, name: str) -> str:
    """Show the change as a unified diff."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(lines)
