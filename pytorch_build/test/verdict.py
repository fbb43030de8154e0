"""The verdict on results: a pass, or why they are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from core import console
from core.causes import Cause, first
from core.errors import CheckError
from pytorch_build.test.cell_results import CellResults, merge_shards
from pytorch_build.test.junit.document import Case, failure_line
from pytorch_build.test.record import TestDetails, details_of_report
from pytorch_build.test.record_validity import why_incomplete

if TYPE_CHECKING:
    from pytorch_build.test.report import Report

_MOST_REASONS = 10


def why_failed(results: Sequence[CellResults]) -> str:
    """Return why results are not a pass: a sentence, then some reasons, a line each; "" for a pass."""
    if not results:
        return "Tests: there is no result."
    problems: list[str] = []
    failures: list[str] = []
    total = 0
    for cell_results in results:
        document = cell_results.document
        problems += [f"{cell_results.origin}: {problem}" for problem in document.problems]
        failures += [failure_line(case) for case in document.failing]
        total += len(document.cases)
    reasons = [*problems, *failures]
    if not reasons:
        return ""

    shown_reasons = reasons[:_MOST_REASONS]
    hidden_count = len(reasons) - _MOST_REASONS
    if hidden_count > 0:
        shown_reasons.append(f"and {hidden_count} more")
    verdict = "the results cannot be trusted"
    if failures:
        verdict = f"{len(failures)} of {total} failed"
    return "\n  ".join([f"Tests: {verdict}.", *shown_reasons])


def require_passed(report: Report, *, hint: str = "") -> None:
    """Refuse one shard's report that failed, or that cannot be trusted, whatever other shards did.

    What ran and passed is no failure; that it was a part of the tests is said.
    """
    document = report.document
    if report.shard is not None and not document.suites and not document.cases:
        console.say(f"{report.origin}, shard {report.shard}: other shards have all tests.")
        return

    details = details_of_report(report)
    cell_results = merge_shards(report.origin, [replace(report, shard=None)])
    reason = why_failed([cell_results])
    if reason:
        failure = CheckError(reason, hint=hint)
        failure.details = details
        if document.failing:
            failure.cause = _cause_of(document.failing[0])
        raise failure

    if report.shard is None:
        incomplete = why_incomplete(TestDetails.model_validate(details))
        if incomplete:
            console.warn(f"{report.origin}: {incomplete}. It counts as missing: no release rests on it.")


def _cause_of(case: Case) -> Cause:
    """Return what a failed test says of its cause, with the test's own line."""
    cause = first(case.text.splitlines())
    if cause is None:
        cause = Cause(tool="pytest", file=case.file, message="")
    message = f"{case.test}: {case.line}"
    return cause.model_copy(update={"message": message})
