"""The fields of a test's record that promotions and pages rest on: written, and read strictly.

``inputs.files`` are the wheels that were tested, name to digest, and the results are about these bytes alone;
``inputs.arguments`` replaced tests or rules, and make the record count for nothing; ``details.tests`` are the
totals, and how many tests exist without any choice among them; ``details.report`` is the report, whose digest
is checked again. ``rocm-sdk test`` writes ``details.checks`` in the place of the totals. Records of older and
later versions may hold more.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from core.data import AnyModel, Model, validated
from core.errors import DataError
from core.run import RunOutputs, records
from core.run.records import Record
from pytorch_build.test.gaps import find_file_gaps, unexplained_cases
from pytorch_build.test.junit.document import Case, count_outcomes, suite_totals
from pytorch_build.test.report import (
    EXISTING_TESTS,
    LEFT_OUT,
    MERGED_SHARDS,
    Report,
    ReportOrigin,
    name_unless_default,
)

# What the stages of tests are called in records, and the mark of a shard's: test_torch-2-of-6.
STAGE_PREFIX = "test_"
SHARD_MARK = "-"
# A record names this many failed tests; the report has all.
_MOST_FAILING = 200


Count = Annotated[int, Field(strict=True, ge=0)]


class Totals(Model, extra="ignore"):
    """The numbers of tests; `existing` counts those that exist without any choice among them."""

    tests: Count
    failures: Count = 0
    errors: Count = 0
    skipped: Count = 0
    existing: Count | None = None
    unexplained: Count = 0

    @property
    def failed(self) -> int:
        """The tests that count against the wheels."""
        return self.failures + self.errors

    @property
    def passed(self) -> int:
        """The tests that ran and did not fail."""
        return self.tests - self.skipped - self.failed

    @model_validator(mode="after")
    def _require_consistent_counts(self) -> Self:
        if self.passed < 0:
            raise ValueError(f"more than all {self.tests} tests failed or were skipped")
        if self.unexplained > self.tests:
            raise ValueError(f"{self.unexplained} of {self.tests} tests are unexplained")
        return self


class Checks(Model, extra="ignore"):
    """The numbers of checks of ``rocm-sdk test``."""

    passed: Count = 0
    failed: Count = 0


class ReportReference(Model, extra="ignore"):
    """The JUnit report that a test left: its key, and the digest of its bytes."""

    key: str = Field(min_length=1)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @property
    def name(self) -> str:
        """The report's file name: a run that was uploaded lies under another prefix than where it ran."""
        return self.key.rpartition("/")[2]


class TestDetails(Model, extra="ignore"):
    """The details of a test's record: what the test left."""

    __test__ = False

    tests: Totals | None = None
    checks: Checks | None = None
    report: ReportReference | None = None
    left_out: str = ""
    outcomes: dict[str, Count] | None = None
    failing: tuple[str, ...] = ()


class TestInputs(Model, extra="ignore"):
    """The inputs of a test's record: what the test was of.

    Attributes:
        files: The wheels that it ran on: name to digest.
        packages: ROCm's packages that `rocm-sdk test` ran on; None where an environment held them.
        installed: Whether the test installed them itself.
        arguments: Options that replaced tests or rules.
        selection: Options that chose among the tests.
        gpu: The GPUs' targets, for each shard where there were several; None where the test names none.
        config: The configuration of upstream's tests.
    """

    __test__ = False

    files: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    packages: dict[str, str] | None = None
    installed: Annotated[bool, Field(strict=True)] = True
    arguments: tuple[str, ...] = ()
    selection: tuple[str, ...] = ()
    gpu: str | tuple[str | tuple[str, ...], ...] | None = None
    config: str = ""

    @property
    def tested_files(self) -> dict[str, str]:
        """The wheels or packages that were tested: name to digest."""
        return self.files or self.packages or {}

    @property
    def gpu_targets(self) -> frozenset[str]:
        """The targets of all GPUs that it ran on."""
        if self.gpu is None:
            return frozenset()
        if isinstance(self.gpu, str):
            return frozenset(filter(None, [self.gpu]))

        targets: set[str] = set()
        for target_or_shard in self.gpu:
            if isinstance(target_or_shard, str):
                targets.add(target_or_shard)
            else:
                targets.update(target_or_shard)
        return frozenset(filter(None, targets))


def parse_record(
    content: str | bytes,
    *,
    where: str,
) -> Record:
    """Read a record; of a test, the fields that its results rest on are checked, too."""
    record = records.parse(content, where=where)
    if record.stage.startswith(STAGE_PREFIX):
        read_inputs(record, where=where)
        read_details(record, where=where)
    return record


def read_inputs(
    record: Record,
    *,
    where: str | None = None,
) -> TestInputs:
    """Return the inputs of a test's record; errors name the field, and the record by key or name."""
    return _read_table(TestInputs, record.inputs, where or record.name, "inputs")


def read_details(
    record: Record,
    *,
    where: str | None = None,
) -> TestDetails:
    """Return the details of a test's record; errors name the field, and the record by key or name."""
    return _read_table(TestDetails, record.details, where or record.name, "details")


def _read_table(
    model: type[AnyModel],
    values: Mapping[str, Any],
    where: str,
    table_name: str,
) -> AnyModel:
    """Return a table of a record as a model."""
    try:
        return validated(
            values,
            model,
            where=where,
            table_name=table_name,
        )
    except DataError as problem:
        raise DataError(
            problem.message,
            hint="No test writes this: run it again with --force, and see who changed the record.",
        ) from problem


# Writing


def details_of_report(report: Report) -> Mapping[str, Any]:
    """Return the details of a record on a report's results: totals and outcomes.

    The record of a shard cannot say how many tests exist.
    """
    document = report.document
    totals = suite_totals(document.cases)
    existing = _count_existing(report)
    if existing is not None:
        totals["existing"] = existing
        totals["unexplained"] = len(unexplained_cases(document))

    details: dict[str, Any] = {"tests": totals, **outcome_details(document.cases)}
    gaps = find_file_gaps([document])
    if gaps and report.shard is None:
        details[LEFT_OUT] = "; ".join(gaps)
    return details


def _count_existing(report: Report) -> int | None:
    """Return how many tests there are without any choice among them; None where that is unknown."""
    suites = report.document.suites.values()
    if report.shard is not None or not suites:
        return None
    existing = 0
    for suite in suites:
        if EXISTING_TESTS not in suite.properties:
            return None
        existing += int(suite.properties[EXISTING_TESTS])
    for case in report.document.cases:
        # A file that failed as a whole is one more result.
        if case.test == case.file:
            existing += 1
    return existing


def outcome_details(cases: Collection[Case]) -> dict[str, Any]:
    """Return the details of a record on outcomes: how many tests ended in which way, and which failed."""
    counts = count_outcomes(cases)
    outcomes = {outcome: count for outcome, count in counts.items() if count}
    details: dict[str, Any] = {"outcomes": outcomes}
    failing = sorted(case.test for case in cases if case.failing)
    if failing:
        details["failing"] = failing[:_MOST_FAILING]
    return details


# Which tests records are of


def records_of_tests(group_records: Iterable[Record]) -> Sequence[Record]:
    """Return the records of tests; what was made of shards adds nothing to them."""
    test_records: list[Record] = []
    for record in group_records:
        is_merged = MERGED_SHARDS in record.details
        if record.stage.startswith(STAGE_PREFIX) and not is_merged:
            test_records.append(record)
    return test_records


def origin_of_record(
    record: Record,
    artifact_group: str,
    outputs: RunOutputs,
) -> ReportOrigin:
    """Return the origin of the reports of a test, by its record."""
    config = name_unless_default(read_inputs(record).config)
    stage = record.stage.partition(SHARD_MARK)[0]
    if config:
        stage = stage.removesuffix(f"_{config}")
    origin = ReportOrigin.of_stage(stage, record.cell, config=config, run_id=outputs.run_id)
    return replace(origin, gpu_family=origin.gpu_family or artifact_group)
