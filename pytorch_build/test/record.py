"""What the record of a test says of itself: the fields that promotions and pages rest on, read strictly.

A promotion and the run's page read these records: ``inputs.files`` are the wheels that were tested, name to
digest, and the results are about these bytes alone; ``inputs.arguments`` replaced tests or rules, and make
the record count for nothing; ``details.tests`` are the totals, and how many tests exist without any choice
among them; ``details.report`` is the report, whose digest is checked again.

`pytorch_build.test.reports` writes these fields, and ``rocm-sdk test`` writes ``details.checks`` in the place
of the totals. Records of older and later versions may hold more.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Self

from packaging.utils import canonicalize_name
from pydantic import Field, model_validator

from core.data import AnyModel, Model, validated
from core.errors import DataError
from core.families import CPU
from core.run import records
from core.run.records import Record
from pytorch_build.components import distributions
from rocm_packaging.packages.layouts import is_rocm

# What the stages of tests are called in records, and the mark of a shard's: test_torch-2-of-6.
STAGE_PREFIX = "test_"
_SHARD_MARK = "-"

# Said of a record with tests that were skipped, or that failed before they passed.
UNEXPLAINED = "skipped or tried again by no rule and for no known reason"

# Machines' clocks differ, but by less than a day.
_CLOCK_TOLERANCE = timedelta(days=1)

Count = Annotated[
    int,
    Field(
        strict=True,
        ge=0,
    ),
]


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
    """What a test left among the details of its record."""

    __test__ = False

    tests: Totals | None = None
    checks: Checks | None = None
    report: ReportReference | None = None
    left_out: str = ""
    outcomes: dict[str, Count] | None = None
    failing: tuple[str, ...] = ()


class TestInputs(Model, extra="ignore"):
    """What a test was of, among the inputs of its record.

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
    """Return what a test was of; an error names the field, and the record by its key or its name."""
    return _read(TestInputs, record.inputs, where or record.name, "inputs")


def read_details(
    record: Record,
    *,
    where: str | None = None,
) -> TestDetails:
    """Return what a test left; an error names the field, and the record by its key or its name."""
    return _read(TestDetails, record.details, where or record.name, "details")


def _read(
    model: type[AnyModel],
    values: Mapping[str, Any],
    where: str,
    table_name: str,
) -> AnyModel:
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


# Whether a record counts. Each reason is a sentence's end, and "" where there is none.


def why_impossible(
    record: Record,
    *,
    run_id: str,
    artifact_group: str,
    targets: Collection[str],
    now: datetime,
) -> str:
    """Return which field of a test's record cannot be true in this group of a run."""
    if record.run_id != run_id:
        return f"its 'run_id' is {record.run_id!r}, another run's"
    impossible_start = _why_impossible_start(record, now)
    if impossible_start:
        return impossible_start
    if artifact_group == CPU or "checks" in record.details:
        # `rocm-sdk test` names the targets of its packages, and no GPU.
        return ""

    gpu_targets = read_inputs(record).gpu_targets
    if not gpu_targets:
        return "its 'inputs.gpu' names no GPU: it ran on a machine without a GPU"
    other_targets = sorted(gpu_targets - set(targets))
    if other_targets:
        return f"its 'inputs.gpu' names {', '.join(other_targets)}, which is not of {artifact_group}"
    return ""


def _why_impossible_start(
    record: Record,
    now: datetime,
) -> str:
    try:
        started = datetime.fromisoformat(record.started)
    except ValueError:
        return f"its 'started' is {record.started!r}, which is no time"
    if started.tzinfo is None:
        started = started.replace(tzinfo=UTC)
    if started > now + _CLOCK_TOLERANCE:
        return f"its 'started' is {record.started}, which has not come yet"
    return ""


def why_incomplete(details: TestDetails) -> str:
    """Return why the results of a test are not those of all tests that exist."""
    totals = details.tests
    if totals is None or totals.existing is None:
        return "its record does not say which tests exist"
    if totals.tests != totals.existing:
        return f"{totals.tests} of {totals.existing} tests ran"
    if details.left_out:
        return details.left_out
    if totals.unexplained:
        return f"{totals.unexplained} of {totals.tests} tests were {UNEXPLAINED}"
    return ""


def why_out_of_date(
    record: Record,
    group_records: Iterable[Record],
) -> str:
    """Return which bytes of its run a test is not about, by all records of its artifact group."""
    inputs = read_inputs(record)
    if not inputs.installed:
        return "it tested what an environment held already"

    digests_of_run: dict[str, str] = {}
    required_names: set[str] = set()
    # A build's word counts more than that of an upload.
    for other_record in sorted(group_records, key=_is_of_build):
        if other_record.status != "ok":
            continue
        for file in other_record.files:
            digests_of_run[file.name] = file.sha256
        is_beside = (
            record.cell.torch_ref is not None
            and other_record.cell.torch_ref == record.cell.torch_ref
            and other_record.cell.python == record.cell.python
        )
        if is_beside and _is_of_build(other_record):
            # A build may have left more than its wheels.
            wheels = [file for file in other_record.files if file.distribution in distributions()]
            required_names.update(file.name for file in wheels)

    tested_files = inputs.tested_files
    different_names = required_names - tested_files.keys()
    for name, digest in tested_files.items():
        if digests_of_run.get(name, digest) != digest:
            different_names.add(name)
    rocm_of_run = set(filter(_is_rocm_file, digests_of_run))
    if rocm_of_run:
        tested_rocm = set(filter(_is_rocm_file, tested_files))
        different_names |= tested_rocm - rocm_of_run

    if not different_names:
        return ""
    listing = ", ".join(sorted(different_names))
    return f"out of date: it ran on other bytes than the run has of {listing}"


def _is_of_build(record: Record) -> bool:
    return record.stage.startswith("build_")


def _is_rocm_file(filename: str) -> bool:
    distribution = filename.partition("-")[0]
    return is_rocm(canonicalize_name(distribution))


def why_missing(
    record: Record,
    group_records: Sequence[Record],
) -> str:
    """Return why a test counts as missing, by its record and all of its artifact group."""
    out_of_date = why_out_of_date(record, group_records)
    if out_of_date:
        return out_of_date
    details = read_details(record)
    is_of_shard = _SHARD_MARK in record.stage
    if record.status != "ok" or is_of_shard or details.tests is None:
        return ""
    return why_incomplete(details)


def why_report_differs(
    details: TestDetails,
    digest_of: Callable[[str], str | None],
) -> str:
    """Return what became of the report that a record names, by the digest of each report's name."""
    if details.report is None:
        return "its record names no report"
    digest = digest_of(details.report.name)
    if digest is None:
        return f"its report {details.report.name} is gone"
    if digest != details.report.sha256:
        return f"its report {details.report.name} was replaced"
    return ""
