"""The results of a stage on one cell: those of all its shards, merged without loss.

A test run passes when its tests ran and none failed. A report that is cut off or missing, a shard that is
missing or there twice, no test at all, or none that passed is a problem. So is what no report accounts for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytorch_build.check import name_first_few
from pytorch_build.test.gaps import find_gaps
from pytorch_build.test.junit.document import Case, Document, Suite, count_outcomes, merge_attempts_by_test
from pytorch_build.test.report import LEFT_OUT, MAY_SKIP, REQUIRED_FILES, Report, ReportOrigin
from pytorch_build.test.shards import Shard

# What all shards of a stage say alike.
_PROPERTIES_OF_ALL_SHARDS = (REQUIRED_FILES, LEFT_OUT, MAY_SKIP)


@dataclass(frozen=True, kw_only=True)
class CellResults:
    """All results of a stage on one cell.

    Attributes:
        origin: What was tested.
        document: The results of all shards. Its problems say why they cannot be trusted, and what has none.
        seconds: How long it took.
        shard_count: How many shards there were to be.
    """

    origin: ReportOrigin
    document: Document
    seconds: float = 0.0
    shard_count: int = 1

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of results of each outcome."""
        return count_outcomes(self.document.cases)

    @property
    def passed(self) -> bool:
        """Whether the tests ran, all of them, and none failed."""
        return not self.document.problems and not self.document.failing

    def with_problems(self, problems: Iterable[str]) -> CellResults:
        """Return the results with further reasons not to trust them."""
        all_problems = (*self.document.problems, *problems)
        return replace(self, document=replace(self.document, problems=all_problems))


def merge_reports(reports: Iterable[Report]) -> tuple[CellResults, ...]:
    """Return the results of each origin, sorted; what its reports do not account for is a problem."""
    reports_of: dict[ReportOrigin, list[Report]] = defaultdict(list)
    for report in reports:
        reports_of[report.origin].append(report)

    all_results: list[CellResults] = []
    for origin in sorted(reports_of):
        cell_results = merge_shards(origin, reports_of[origin])
        documents = [report.document for report in reports_of[origin]]
        gaps = find_gaps(documents, cell_results.document)
        all_results.append(cell_results.with_problems(gaps))
    return tuple(all_results)


def add_missing_results(
    results: Sequence[CellResults],
    expected_names: Iterable[str],
) -> tuple[CellResults, ...]:
    """Return results, and for each expected name that is missing among them a result that is a problem."""
    all_results = list(results)
    known_names = {cell_results.origin.name for cell_results in results}
    for name in expected_names:
        if name not in known_names:
            missing_result = CellResults(
                origin=ReportOrigin(folder=name),
                document=Document(problems=("there is no report",)),
                shard_count=0,
            )
            all_results.append(missing_result)
    return tuple(all_results)


# The shards of an origin


def merge_shards(origin: ReportOrigin, reports: Sequence[Report]) -> CellResults:
    """Return the results of the shards of one origin, whatever else there is to test."""
    reports_of_shard: dict[Shard | None, list[Report]] = defaultdict(list)
    for report in sorted(reports, key=_time_and_name):
        reports_of_shard[report.shard].append(report)

    cases: list[Case] = []
    for shard in sorted(reports_of_shard, key=_shard_order):
        cases += _cases_of_shard(shard, reports_of_shard[shard])

    problems = [
        *_document_problems(reports),
        *_shard_problems(reports_of_shard),
        *_problems_of_repeated_tests(cases),
    ]
    if not problems:
        problems += _problems_of_outcomes(cases)

    properties: dict[str, str] = {}
    suites: dict[str, Suite] = {}
    seconds = 0.0
    shard_count = 1
    for report in reports:
        for name in _PROPERTIES_OF_ALL_SHARDS:
            if name in report.document.properties:
                properties[name] = report.document.properties[name]
        suites.update(report.document.suites)
        for suite in report.document.suites.values():
            seconds += suite.seconds
        if report.shard is not None:
            shard_count = max(shard_count, report.shard.count)

    document = Document(
        cases=tuple(cases),
        suites=suites,
        properties=properties,
        problems=tuple(dict.fromkeys(problems)),
    )
    return CellResults(
        origin=origin,
        document=document,
        seconds=seconds,
        shard_count=shard_count,
    )


def _time_and_name(report: Report) -> tuple[str, str]:
    """Return what tells the order in which reports were written."""
    return report.document.timestamp, report.filename


def _cases_of_shard(shard: Shard | None, reports: Iterable[Report]) -> Sequence[Case]:
    """Return a shard's result of each test; of several reports the later ones are further attempts."""
    attempts: list[Case] = []
    for report in reports:
        attempts += report.document.cases
    cases = merge_attempts_by_test(attempts)
    if shard is None:
        return cases
    return [replace(case, shard=str(shard)) for case in cases]


def _shard_order(shard: Shard | None) -> tuple[int, int]:
    """Return what shards are sorted by; a report without a shard comes first."""
    if shard is None:
        return 0, 0
    return shard.count, shard.index


def _document_problems(reports: Sequence[Report]) -> list[str]:
    """Return the problems of single reports, each with the shard or the file that it is of."""
    problems: list[str] = []
    for report in reports:
        prefix = ""
        if report.shard is not None:
            prefix = f"shard {report.shard}: "
        elif report.filename:
            prefix = f"{report.filename}: "
        problems += [f"{prefix}{problem}" for problem in report.document.problems]
    return problems


def _problems_of_repeated_tests(cases: Sequence[Case]) -> list[str]:
    """Find tests that ran in more than one shard."""
    shard_of: dict[str, str] = {}
    repeated_tests: list[str] = []
    shards = ""
    for case in cases:
        if case.test in shard_of:
            repeated_tests.append(case.test)
            earlier_shard = shard_of[case.test]
            shards = shards or f"{earlier_shard}, {case.shard}"
        shard_of[case.test] = case.shard
    if not repeated_tests:
        return []
    return [f"{name_first_few(repeated_tests)} ran in more than one shard ({shards})"]


def _problems_of_outcomes(cases: Sequence[Case]) -> list[str]:
    """Find results that are no pass although no test failed."""
    if not cases:
        return ["no test ran"]
    outcomes = count_outcomes(cases)
    if outcomes["skipped"] + outcomes["xfailed"] == len(cases):
        return [f"all {len(cases)} tests were skipped"]
    return []


def _shard_problems(reports_of_shard: Mapping[Shard | None, Sequence[Report]]) -> list[str]:
    """Find shards that are missing, there twice, or of another number of shards."""
    shards = sorted(set(reports_of_shard) - {None}, key=_shard_order)
    if not shards:
        return []

    problems: list[str] = []
    if None in reports_of_shard:
        filenames = name_first_few(report.filename for report in reports_of_shard[None])
        problems.append(f"{filenames} names no shard, and others do")
    shard_counts = sorted({shard.count for shard in shards if shard})
    if len(shard_counts) > 1:
        counts_in_words = " and of ".join(map(str, shard_counts))
        problems.append(f"there are shards of {counts_in_words}: some are of another run")

    for shard_count in shard_counts:
        missing_shards: list[str] = []
        for index in range(1, shard_count + 1):
            planned_shard = Shard(index=index, count=shard_count)
            if planned_shard not in reports_of_shard:
                missing_shards.append(str(planned_shard))
        if missing_shards:
            problems.append(f"no report of shard {name_first_few(missing_shards)}")
    for shard in shards:
        report_count = len(reports_of_shard[shard])
        if report_count > 1:
            problems.append(f"shard {shard} reported {report_count} times")
    return problems
