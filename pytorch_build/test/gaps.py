"""What no report accounts for: files that did not run, tests without a result, skips without a reason.

One comparison finds it, of the files that were to run and the tests that exist with the results of all shards
together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pytorch_build.check import name_first_few
from pytorch_build.test.junit.document import Case, Document, failure_line
from pytorch_build.test.report import EXISTING_TESTS, LEFT_OUT, MAY_SKIP, REQUIRED_FILES

# Said of tests that were skipped, or that failed before they passed.
UNEXPLAINED = "skipped or tried again by no rule and for no known reason"


def find_gaps(documents: Sequence[Document], merged: Document) -> Sequence[str]:
    """Return in sentences what the shards' documents, and the one merged from them, do not account for."""
    gaps = [*find_file_gaps(documents), *_find_test_gaps(documents)]
    unexplained = unexplained_cases(merged)
    if unexplained:
        example = failure_line(unexplained[0])
        gaps.append(f"{len(unexplained)} tests were {UNEXPLAINED}, such as {example}")
    return gaps


def find_file_gaps(documents: Sequence[Document]) -> Sequence[str]:
    """Return in a sentence which files were to run and are in no report."""
    file_lists = {document.properties.get(REQUIRED_FILES) for document in documents}
    if file_lists == {None}:
        # Reports of earlier versions say it themselves.
        gaps = {document.properties.get(LEFT_OUT, "") for document in documents}
        return sorted(gaps - {""})
    if len(file_lists) > 1:
        return ["the reports differ in which test files were to run: some are of another run"]

    (file_list,) = file_lists
    required_files = set((file_list or "").split())
    if not required_files:
        return ["the tree has no test file of the configuration"]
    reported_files: set[str] = set()
    for document in documents:
        # Each architecture has a suite of its own: test/test_nn.py@gfx942.
        reported_files.update(name.partition("@")[0] for name in document.suites)
    missing_files = sorted(required_files - reported_files)
    if not missing_files:
        return []
    share = f"{len(missing_files)} of {len(required_files)}"
    return [f"{share} test files did not run: {name_first_few(missing_files)}"]


def _find_test_gaps(documents: Sequence[Document]) -> Sequence[str]:
    """Return in sentences which test files have more or fewer tests than are reported."""
    existing_counts: dict[str, set[str]] = defaultdict(set)
    reported_tests: dict[str, set[str]] = defaultdict(set)
    for document in documents:
        for file, suite in document.suites.items():
            if EXISTING_TESTS in suite.properties:
                existing_counts[file].add(suite.properties[EXISTING_TESTS])
        for case in document.cases:
            # A file by itself is not a test: it is there when the whole of it failed.
            if case.test != case.file:
                reported_tests[case.file].add(case.test)

    gaps: list[str] = []
    for file, counts_of_file in sorted(existing_counts.items()):
        reported = len(reported_tests[file])
        if counts_of_file != {str(reported)}:
            existing = " or ".join(sorted(counts_of_file))
            gaps.append(f"{file} has {existing} tests, and {reported} are reported")
    return gaps


def unexplained_cases(document: Document) -> Sequence[Case]:
    """Return the tests of a report of ours that were skipped, or tried again, for no reason that is known."""
    may_skip = document.properties.get(MAY_SKIP, "")
    if not may_skip.isdecimal():
        return ()

    skipped: list[Case] = []
    flaky: list[Case] = []
    for case in document.cases:
        if case.rule:
            continue
        if case.outcome in {"skipped", "xfailed"}:
            skipped.append(case)
        elif case.outcome == "flaky":
            flaky.append(case)

    skipped_percentage = 100 * len(skipped) / max(1, len(document.cases))
    if skipped_percentage <= int(may_skip):
        return flaky
    return [*skipped, *flaky]
