"""Results of all shards of a stage on one cell: merged without loss, and compared with what was to run.

A test run passes when its tests ran and none failed. A report that is cut off or missing, a shard that is
missing or there twice, no test at all, or none that passed is a problem. What no report accounts for is a
gap: one comparison finds it, of the files that were to run and the tests that exist with the results of all
shards together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from core.cell import GroupCell, python_of_tag
from core.errors import UsageError
from core.run.records import record_name
from pytorch_build.check import name_first_few
from pytorch_build.test.junit import NO_TEST, Case, Document, Suite, counts
from pytorch_build.test.record import UNEXPLAINED
from pytorch_build.test.shards import Shard, parse_shard

DEFAULT_CONFIG = "default"


def name_unless_default(config: str) -> str:
    """Return a configuration's name as stages and reports have it: "" for the default one."""
    return "" if config == DEFAULT_CONFIG else config


# The property of a test file: how many tests it has before anything chooses among them.
EXISTING = "existing_tests"
# Properties of a report: the test files that all shards together were to run, separated by spaces, and the
# percentage of tests that may skip itself by no rule.
FILES = "files"
MAY_SKIP = "may_skip"
# The detail of a record, and the property of a report of earlier versions: what else there was to run.
LEFT_OUT = "left_out"


@dataclass(
    frozen=True,
    kw_only=True,
    order=True,
)
class ReportOrigin:
    """What was tested, by which stage, where; "" for what a report does not contain."""

    stage: str = ""
    torch_ref: str = ""
    python: str = ""
    gpu_family: str = ""
    group: str = ""
    config: str = ""
    run_id: str = ""
    folder: str = ""

    def __str__(self) -> str:
        parts = (
            self.stage,
            self.torch_ref,
            self.gpu_family,
            self.python,
            name_unless_default(self.config),
            self.folder,
        )
        return " ".join(part for part in parts if part) or "tests"

    @classmethod
    def of(
        cls,
        stage: str,
        cell: GroupCell,
        *,
        config: str,
        run_id: str,
    ) -> ReportOrigin:
        """Return that of a stage on a cell."""
        return cls(
            stage=stage,
            config=config,
            run_id=run_id,
            torch_ref=cell.torch_ref or "",
            python=cell.python_tag or "",
            gpu_family=cell.gpu_family or "",
            group=cell.artifact_group or "",
        )

    @property
    def cell(self) -> GroupCell:
        """What its stage ran on."""
        return GroupCell(
            torch_ref=self.torch_ref or None,
            python=python_of_tag(self.python) if self.python else None,
            gpu_family=self.gpu_family or None,
            artifact_group=self.group or None,
        )

    @property
    def name(self) -> str:
        """The name of its reports: ``torch-release-2.10-cp312-distributed``."""
        name = record_name(self.stage.removeprefix("test_"), self.cell)
        config = name_unless_default(self.config)
        return f"{name}-{config}" if config else name


# The properties of a report that say what it is about.
_ORIGIN_PROPERTIES = tuple(field.name for field in fields(ReportOrigin) if field.name != "folder")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one shard, or a stage without shards, reported."""

    origin: ReportOrigin
    document: Document
    shard: Shard | None = None
    filename: str = ""


@dataclass(frozen=True, kw_only=True)
class CellResults:
    """All results of a stage on one cell.

    Attributes:
        origin: What was tested.
        cases: The result of each test, with its shard.
        problems: Why the results cannot be trusted, and what exists that has none.
        seconds: How long it took.
        suites: The test files.
        properties: What the reports say beside that.
        shards: How many shards there were to be.
    """

    origin: ReportOrigin
    cases: tuple[tuple[Case, str], ...] = ()
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
    suites: Mapping[str, Suite] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    shards: int = 1

    @property
    def failing(self) -> tuple[tuple[Case, str], ...]:
        """What counts against the wheels."""
        return tuple((case, shard) for case, shard in self.cases if case.failing)

    @property
    def results(self) -> tuple[Case, ...]:
        """The result of each test, wherever it ran."""
        return tuple(case for case, _shard in self.cases)

    @property
    def counts(self) -> dict[str, int]:
        """Results by outcome."""
        return counts(self.results)

    @property
    def passed(self) -> bool:
        """Whether the tests ran, all of them, and none failed."""
        return not self.problems and not self.failing


def merge_attempts(attempts: Sequence[Case]) -> Case:
    """Return one result for all attempts at a test, in their order: flaky if it failed and then passed."""
    result = attempts[-1]
    failure = next((case for case in attempts if case.failing), None)
    if failure is not None and result.outcome == "passed":
        result = replace(
            result,
            outcome="flaky",
            line=failure.line,
            text=failure.text,
        )
    elif failure is not None and not result.failing:
        # Skipped after a failure: it was never seen to pass.
        result = failure

    attempt_count = 0
    seconds = 0.0
    for case in attempts:
        attempt_count += case.attempts
        seconds += case.seconds
    return replace(
        result,
        attempts=attempt_count,
        seconds=seconds,
    )


def merge_attempts_by_test(cases: Iterable[Case]) -> Sequence[Case]:
    """Return one result for each test, in their order; of several of one test the first comes first."""
    attempts_of: dict[str, list[Case]] = {}
    for case in cases:
        attempts_of.setdefault(case.test, []).append(case)
    return [merge_attempts(attempts) for attempts in attempts_of.values()]


def failure_line(case: Case) -> str:
    """Return a failure in one line: the test, its outcome, and why."""
    line = f"{case.test} {case.outcome}"
    return f"{line}: {case.line}" if case.line else line


def report_of(
    document: Document,
    known_origin: ReportOrigin,
    *,
    filename: str = "",
) -> Report:
    """Return a report by its own properties; `known_origin` is what is known beside them."""
    properties = document.properties
    problems = list(document.problems)
    shard = None
    shard_text = properties.get("shard", "")
    if shard_text:
        try:
            shard = parse_shard(shard_text)
        except UsageError:
            problems.append(f"it names {shard_text[:40]!r} as its shard")
    if shard is not None and MAY_SKIP in properties and NO_TEST in problems:
        # A shard for which nothing is left, as others took it all.
        problems.remove(NO_TEST)

    return Report(
        origin=_origin_by_properties(properties, known_origin),
        document=replace(document, problems=tuple(problems)),
        shard=shard,
        filename=filename,
    )


def _origin_by_properties(
    properties: Mapping[str, str],
    known_origin: ReportOrigin,
) -> ReportOrigin:
    origin = known_origin
    # A report that names no stage is ROCm's, whose `python` is a whole version.
    if properties.get("stage"):
        for name in _ORIGIN_PROPERTIES:
            if properties.get(name):
                origin = replace(origin, **{name: properties[name]})
    if origin.stage:
        origin = replace(origin, folder="")
    return replace(origin, config=name_unless_default(origin.config))


def document_of(report: Report) -> Document:
    """Return a report's document with what it is about among its properties: `report_of` backwards."""
    properties = dict(report.document.properties)
    for name in _ORIGIN_PROPERTIES:
        value = getattr(report.origin, name)
        if value:
            properties[name] = value
    if report.shard is not None:
        properties["shard"] = str(report.shard)
    return replace(report.document, properties=properties)


def merge_reports(reports: Iterable[Report]) -> tuple[CellResults, ...]:
    """Return the results of reports, by what they are about, sorted."""
    reports_of: dict[ReportOrigin, list[Report]] = defaultdict(list)
    for report in reports:
        reports_of[report.origin].append(report)

    merged_results: list[CellResults] = []
    for origin in sorted(reports_of):
        cell_results = merge_shards(origin, reports_of[origin])
        documents = [report.document for report in reports_of[origin]]
        # The files that were to run and the tests that exist, compared with the results of all shards.
        gaps = [*gaps_of_files(documents), *_gaps_of_tests(documents)]
        unexplained = unexplained_cases(cell_results.results, cell_results.properties)
        if unexplained:
            example = failure_line(unexplained[0])
            gaps.append(f"{len(unexplained)} tests were {UNEXPLAINED}, such as {example}")
        merged_results.append(replace(cell_results, problems=(*cell_results.problems, *gaps)))
    return tuple(merged_results)


def merge_shards(
    origin: ReportOrigin,
    reports: Sequence[Report],
) -> CellResults:
    """Return the results of the shards of one origin, whatever else there is to test."""
    by_shard: dict[Shard | None, list[Report]] = defaultdict(list)
    for report in sorted(reports, key=lambda report: (report.document.timestamp, report.filename)):
        by_shard[report.shard].append(report)

    cases: list[tuple[Case, str]] = []
    for shard in sorted(by_shard, key=_shard_order):
        # Of several reports of one shard the later ones are further attempts.
        shard_cases: list[Case] = []
        for report in by_shard[shard]:
            shard_cases += report.document.cases
        shard_name = "" if shard is None else str(shard)
        cases += [(case, shard_name) for case in merge_attempts_by_test(shard_cases)]

    properties: dict[str, str] = {}
    suites: dict[str, Suite] = {}
    seconds = 0.0
    shard_count = 1
    for report in reports:
        for name in (FILES, LEFT_OUT, MAY_SKIP):
            if name in report.document.properties:
                properties[name] = report.document.properties[name]
        suites.update(report.document.suites)
        for suite in report.document.suites.values():
            seconds += suite.seconds
        if report.shard is not None:
            shard_count = max(shard_count, report.shard.count)

    problems = [
        *_document_problems(reports),
        *_shard_problems(by_shard),
        *_problems_of_repeated_tests(cases),
    ]
    cell_results = CellResults(
        origin=origin,
        cases=tuple(cases),
        seconds=seconds,
        suites=suites,
        properties=properties,
        shards=shard_count,
    )
    if not problems:
        problems += _problems_of_outcomes(cell_results.results)
    return replace(cell_results, problems=tuple(dict.fromkeys(problems)))


def _shard_order(shard: Shard | None) -> tuple[int, int]:
    return (0, 0) if shard is None else (shard.count, shard.index)


def _document_problems(reports: Sequence[Report]) -> list[str]:
    """Return what is wrong with single reports, by their shards or files."""
    problems: list[str] = []
    for report in reports:
        prefix = ""
        if report.shard is not None:
            prefix = f"shard {report.shard}: "
        elif report.filename:
            prefix = f"{report.filename}: "
        problems += [f"{prefix}{problem}" for problem in report.document.problems]
    return problems


def _problems_of_repeated_tests(cases: Sequence[tuple[Case, str]]) -> list[str]:
    """Find tests that ran in more than one shard."""
    shard_of: dict[str, str] = {}
    repeated_tests: list[str] = []
    shards = ""
    for case, shard in cases:
        if case.test in shard_of:
            repeated_tests.append(case.test)
            shards = shards or f"{shard_of[case.test]}, {shard}"
        shard_of[case.test] = shard
    if not repeated_tests:
        return []
    return [f"{name_first_few(repeated_tests)} ran in more than one shard ({shards})"]


def _problems_of_outcomes(cases: Sequence[Case]) -> list[str]:
    """Find results that are no pass although no test failed."""
    if not cases:
        return ["no test ran"]
    outcomes = counts(cases)
    if outcomes["skipped"] + outcomes["xfailed"] == len(cases):
        return [f"all {len(cases)} tests were skipped"]
    return []


def _shard_problems(by_shard: Mapping[Shard | None, Sequence[Report]]) -> list[str]:
    """Find shards that are missing, there twice, or of another number of shards."""
    shards = sorted(set(by_shard) - {None}, key=_shard_order)
    if not shards:
        return []

    problems: list[str] = []
    if None in by_shard:
        filenames = name_first_few(report.filename for report in by_shard[None])
        problems.append(f"{filenames} names no shard, and others do")
    shard_counts = sorted({shard.count for shard in shards if shard})
    if len(shard_counts) > 1:
        counts_in_words = " and of ".join(map(str, shard_counts))
        problems.append(f"there are shards of {counts_in_words}: some are of another run")

    for shard_count in shard_counts:
        missing_shards: list[str] = []
        for index in range(1, shard_count + 1):
            planned_shard = Shard(
                index=index,
                count=shard_count,
            )
            if planned_shard not in by_shard:
                missing_shards.append(str(planned_shard))
        if missing_shards:
            problems.append(f"no report of shard {name_first_few(missing_shards)}")
    for shard in shards:
        report_count = len(by_shard[shard])
        if report_count > 1:
            problems.append(f"shard {shard} reported {report_count} times")
    return problems


# What has no result


def gaps_of_files(documents: Sequence[Document]) -> Sequence[str]:
    """Find files that were to run and that no report has."""
    file_lists = {document.properties.get(FILES) for document in documents}
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
    counted = f"{len(missing_files)} of {len(required_files)} test files did not run"
    return [f"{counted}: {name_first_few(missing_files)}"]


def _gaps_of_tests(documents: Sequence[Document]) -> list[str]:
    """Find test files of which other tests are reported than exist."""
    existing_counts: dict[str, set[str]] = defaultdict(set)
    reported_tests: dict[str, set[str]] = defaultdict(set)
    for document in documents:
        for file, suite in document.suites.items():
            if EXISTING in suite.properties:
                existing_counts[file].add(suite.properties[EXISTING])
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


def unexplained_cases(
    cases: Sequence[Case],
    properties: Mapping[str, str],
) -> Sequence[Case]:
    """List tests of a report of ours that were skipped, or tried again, for no reason that is known."""
    may_skip = properties.get(MAY_SKIP, "")
    if not may_skip.isdecimal():
        return ()
    skipped: list[Case] = []
    flaky: list[Case] = []
    for case in cases:
        if case.rule:
            continue
        if case.outcome in {"skipped", "xfailed"}:
            skipped.append(case)
        elif case.outcome == "flaky":
            flaky.append(case)
    if len(skipped) * 100 <= int(may_skip) * len(cases):
        return flaky
    return [*skipped, *flaky]
