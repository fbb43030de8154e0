"""Results of all shards of a stage on one cell: merged without loss, and compared with what was planned.

A test run passes when its tests ran and none failed. Everything else is a problem, and a problem is a
failure: a report that is cut off or missing, a shard that is missing or there twice, shards that were planned
differently, a test that ran in two of them or in none, no test at all, or none that passed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from core.cell import GroupCell, python_of_tag
from core.errors import UsageError
from core.junit import NO_TEST, Case, Document, Suite, counts
from core.run.records import record_name
from pytorch_build.check import some
from pytorch_build.test.record import UNEXPLAINED
from pytorch_build.test.shards import Shard, parse_shard

DEFAULT_CONFIG = "default"
# The property of a test file: how many tests it has before anything chooses among them.
EXISTING = "existing_tests"
# Properties of a report: what else there was to run, and the percentage that may skip itself by no rule.
LEFT_OUT = "left_out"
MAY_SKIP = "may_skip"


@dataclass(frozen=True, kw_only=True, order=True)
class Origin:
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
        config = self.config.removeprefix(DEFAULT_CONFIG)
        parts = (self.stage, self.torch_ref, self.gpu_family, self.python, config, self.folder)
        return " ".join(part for part in parts if part) or "tests"

    @classmethod
    def of(cls, stage: str, cell: GroupCell, *, config: str, run_id: str) -> Origin:
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
        config = self.config.removeprefix(DEFAULT_CONFIG)
        return f"{name}-{config}" if config else name


# The properties of a report that say what it is about.
_ORIGIN_PROPERTIES = tuple(field.name for field in fields(Origin) if field.name != "folder")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one shard, or a stage without shards, reported."""

    origin: Origin
    document: Document
    shard: Shard | None = None
    plan: str = ""
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class Tested:
    """All results of a stage on one cell, each with its shard."""

    origin: Origin
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
    def counts(self) -> dict[str, int]:
        """Results by outcome."""
        return counts(case for case, _shard in self.cases)

    @property
    def passed(self) -> bool:
        """Whether the tests ran, all of them, and none failed."""
        return not self.problems and not self.failing


def last_attempt(attempts: Sequence[Case]) -> Case:
    """Return one result for all attempts at a test, in their order: flaky if it failed and then passed."""
    last = attempts[-1]
    failures = [case for case in attempts if case.failing]
    if failures and last.outcome == "passed":
        last = replace(last, outcome="flaky", line=failures[0].line, text=failures[0].text)
    elif failures and not last.failing:
        # Skipped after a failure: it was never seen to pass.
        last = failures[0]
    return replace(
        last,
        attempts=sum(case.attempts for case in attempts),
        seconds=sum(case.seconds for case in attempts),
    )


def last_attempts(cases: Iterable[Case]) -> Sequence[Case]:
    """Return one result for each test, in their order; of several of one test the first comes first."""
    attempts_of: dict[str, list[Case]] = {}
    for case in cases:
        attempts_of.setdefault(case.test, []).append(case)
    return [last_attempt(attempts) for attempts in attempts_of.values()]


def failure_line(case: Case) -> str:
    """Return a failure in one line: the test, its outcome, and why."""
    line = f"{case.test} {case.outcome}"
    return f"{line}: {case.line}" if case.line else line


def report_of(document: Document, known_origin: Origin, *, where: str = "") -> Report:
    """Return a report by its own properties; `known_origin` is what is known beside them."""
    properties = document.properties
    problems = document.problems

    origin = known_origin
    # A report that names no stage is ROCm's, whose `python` is a whole version.
    if properties.get("stage"):
        named = {name: properties[name] for name in _ORIGIN_PROPERTIES if properties.get(name)}
        origin = replace(origin, **named)
    if origin.stage:
        origin = replace(origin, folder="")
    origin = replace(origin, config=origin.config.removeprefix(DEFAULT_CONFIG))

    shard = None
    shard_text = properties.get("shard", "")
    if shard_text:
        try:
            shard = parse_shard(shard_text)
        except UsageError:
            problems = (*problems, f"it names {shard_text[:40]!r} as its shard")
    if shard and MAY_SKIP in properties:
        # A shard for which nothing is left, as others took it all.
        problems = tuple(problem for problem in problems if problem != NO_TEST)
    return Report(
        origin=origin,
        document=replace(document, problems=problems),
        shard=shard,
        plan=properties.get("plan", ""),
        where=where,
    )


def document_of(report: Report) -> Document:
    """Return a report's document with what it is about among its properties: `report_of` backwards."""
    properties = dict(report.document.properties)
    for name in _ORIGIN_PROPERTIES:
        value = getattr(report.origin, name)
        if value:
            properties[name] = value
    if report.shard is not None:
        properties["shard"] = str(report.shard)
    if report.plan:
        properties["plan"] = report.plan
    return replace(report.document, properties=properties)


def merge_reports(reports: Iterable[Report]) -> tuple[Tested, ...]:
    """Return the results of reports, by what they are about, sorted."""
    reports_of: dict[Origin, list[Report]] = defaultdict(list)
    for report in reports:
        reports_of[report.origin].append(report)
    return tuple(_merge_shards(origin, reports_of[origin]) for origin in sorted(reports_of))


def _merge_shards(origin: Origin, reports: Sequence[Report]) -> Tested:
    by_shard: dict[Shard | None, list[Report]] = defaultdict(list)
    for report in sorted(reports, key=lambda report: (report.document.timestamp, report.where)):
        by_shard[report.shard].append(report)

    cases: list[tuple[Case, str]] = []
    for shard in sorted(by_shard, key=_shard_order):
        # Of several reports of one shard the later ones are further attempts.
        shard_cases: list[Case] = []
        for report in by_shard[shard]:
            shard_cases += report.document.cases
        shard_name = "" if shard is None else str(shard)
        cases += [(case, shard_name) for case in last_attempts(shard_cases)]

    properties: dict[str, str] = {}
    suites: dict[str, Suite] = {}
    seconds = 0.0
    for report in reports:
        for name in (LEFT_OUT, MAY_SKIP):
            if report.document.properties.get(name):
                properties[name] = report.document.properties[name]
        suites.update(report.document.suites)
        seconds += sum(suite.seconds for suite in report.document.suites.values())

    problems = [*_document_problems(reports), *_shard_problems(by_shard), *_problems_of_repeated_tests(cases)]
    problems += _problems_of_numbers(reports)
    if LEFT_OUT in properties:
        problems.append(properties[LEFT_OUT])
    problems += _problems_of_outcomes(
        [case for case, _shard in cases], properties, has_other_problems=bool(problems)
    )
    return Tested(
        origin=origin,
        cases=tuple(cases),
        problems=tuple(dict.fromkeys(problems)),
        seconds=seconds,
        suites=suites,
        properties=properties,
        shards=max((shard.count for shard in by_shard if shard), default=1),
    )


def _shard_order(shard: Shard | None) -> tuple[int, int]:
    return (0, 0) if shard is None else (shard.count, shard.index)


def _document_problems(reports: Sequence[Report]) -> list[str]:
    """Return what is wrong with single reports, by their shards or files."""
    problems: list[str] = []
    for report in reports:
        prefix = ""
        if report.shard is not None:
            prefix = f"shard {report.shard}: "
        elif report.where:
            prefix = f"{report.where}: "
        problems += [f"{prefix}{problem}" for problem in report.document.problems]
    return problems


def _problems_of_repeated_tests(cases: Sequence[tuple[Case, str]]) -> list[str]:
    """Find tests that ran in more than one shard."""
    shards_of: dict[str, list[str]] = defaultdict(list)
    for case, shard_name in cases:
        shards_of[case.test].append(shard_name)
    repeated_tests = sorted(test for test, shard_names in shards_of.items() if len(shard_names) > 1)
    if not repeated_tests:
        return []
    shard_names = ", ".join(shards_of[repeated_tests[0]])
    return [f"{some(repeated_tests)} ran in more than one shard ({shard_names})"]


def _problems_of_outcomes(
    cases: Sequence[Case], properties: Mapping[str, str], *, has_other_problems: bool
) -> list[str]:
    """Find results that are no pass although no test failed."""
    outcomes = counts(cases)
    if not has_other_problems and not cases:
        return ["no test ran"]
    if not has_other_problems and outcomes["skipped"] + outcomes["xfailed"] == len(cases):
        return [f"all {len(cases)} tests were skipped"]
    unexplained = unexplained_cases(cases, properties)
    if unexplained:
        example = unexplained[0]
        return [f"{len(unexplained)} tests were {UNEXPLAINED}, such as {example.test}: {example.line}"]
    return []


def unexplained_cases(cases: Sequence[Case], properties: Mapping[str, str]) -> Sequence[Case]:
    """List tests of a report of ours that were skipped, or tried again, for no reason that is known."""
    may_skip = properties.get(MAY_SKIP, "")
    if not may_skip.isdecimal():
        return ()
    without_rule = [case for case in cases if not case.rule]
    skipped = [case for case in without_rule if case.outcome in {"skipped", "xfailed"}]
    flaky = [case for case in without_rule if case.outcome == "flaky"]
    if len(skipped) * 100 <= int(may_skip) * len(cases):
        return flaky
    return [*skipped, *flaky]


def _shard_problems(by_shard: Mapping[Shard | None, Sequence[Report]]) -> list[str]:
    """Find shards that are missing, there twice, or of another plan."""
    shards = sorted(shard for shard in by_shard if shard is not None)
    if not shards:
        return []

    problems: list[str] = []
    if None in by_shard:
        files = some(report.where for report in by_shard[None])
        problems.append(f"{files} names no shard, and others do")
    shard_counts = sorted({shard.count for shard in shards})
    if len(shard_counts) > 1:
        listed = " and of ".join(map(str, shard_counts))
        problems.append(f"there are shards of {listed}: some are of another run")

    for shard_count in shard_counts:
        planned = {Shard(index=index, count=shard_count) for index in range(1, shard_count + 1)}
        missing = sorted(planned - set(shards))
        if missing:
            problems.append(f"no report of shard {some(map(str, missing))}")
    for shard in shards:
        report_count = len(by_shard[shard])
        if report_count > 1:
            problems.append(f"shard {shard} reported {report_count} times")

    plans: set[str] = set()
    for shard in shards:
        plans.update(report.plan for report in by_shard[shard])
    if len(plans) > 1:
        problems.append("the shards were planned from different durations, so tests may be in none of them")
    return problems


def _problems_of_numbers(reports: Sequence[Report]) -> list[str]:
    """Find test files of which not as many tests are reported as exist."""
    existing_counts: dict[str, set[str]] = defaultdict(set)
    reported_count: dict[str, int] = defaultdict(int)
    for report in reports:
        for file, suite in report.document.suites.items():
            if EXISTING in suite.properties:
                existing_counts[file].add(suite.properties[EXISTING])
        for case in report.document.cases:
            # A file by itself is not a test: it is there when the whole of it failed.
            if case.test != case.file:
                reported_count[case.file] += 1

    problems: list[str] = []
    for file, numbers in sorted(existing_counts.items()):
        if numbers != {str(reported_count[file])}:
            listed = " or ".join(sorted(numbers))
            problems.append(f"{file} has {listed} tests, and {reported_count[file]} are reported")
    return problems
