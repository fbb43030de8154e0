"""Finds the tests that rules take without trying each pattern on each test. The tool uses it, too."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import Any


class Index:
    """Test ids by what rules say of them."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._tests = tests

    @cached_property
    def _exact(self) -> Mapping[str, list[int]]:
        return grouped((test, place) for place, test in enumerate(self._tests))

    @cached_property
    def _parts(self) -> tuple[list[str], list[list[int]], list[int]]:
        """Every file, class and function without parameters, its tests' places, and how many come before."""
        places = enumerate(self._tests)
        found = grouped(
            (part.partition("[")[0], place) for place, test in places for part in test.split("::")
        )
        parts = sorted(found)
        return parts, [found[part] for part in parts], [0, *accumulate(len(found[part]) for part in parts)]

    def taken(self, rules: Iterable[Any]) -> Mapping[int, list[Any]]:
        """Return the place of a test -> the rules that take it, in their order."""
        return grouped((place, rule) for rule in rules for place in self.places(rule.tests, rule.patterns))

    def places(self, exact: Iterable[str], patterns: Mapping[str, str]) -> set[int]:
        """Find tests by their ids, or by patterns -> regular expressions for whole ids."""
        found = {place for test in exact for place in self._exact.get(test, ())}
        for pattern, regex in patterns.items():
            if near := self._near(pattern):
                matches = re.compile(regex).fullmatch
                found.update(place for place in near if matches(self._tests[place]))
        return found

    def _near(self, pattern: str) -> Collection[int]:
        """Find the tests with a part that begins like the rarest part of a pattern: it takes no others."""
        parts, places, before = self._parts
        spans = []
        for part in pattern.partition("[")[0].split("::"):
            # what is before its first star; a path may hold single colons
            if head := re.split("[*:]", part, maxsplit=1)[0]:
                first = bisect_left(parts, head)
                last = bisect_right(parts, head, lo=first, key=itemgetter(slice(len(head))))
                spans.append((before[last] - before[first], first, last))
        if not spans:
            return range(len(self._tests))
        _, first, last = min(spans)
        return {place for some in places[first:last] for place in some}


def grouped(pairs: Iterable[tuple[Any, Any]]) -> Mapping[Any, list[Any]]:
    """Gather what has the same key, in its order."""
    found = defaultdict[Any, list[Any]](list)
    for key, value in pairs:
        found[key].append(value)
    return found
