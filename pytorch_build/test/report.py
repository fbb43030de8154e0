"""A report: the results of one shard, or of a stage without shards, and what they are about.

What a report is about stands among the properties of its document, so that a report that was moved says it
itself. Reports of other programs do not: for them it is known by a record, or by the folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from core.cell import GroupCell, python_of_tag
from core.errors import UsageError
from core.run.records import record_name
from pytorch_build.test.junit.reader import NO_TEST
from pytorch_build.test.shards import Shard, parse_shard

if TYPE_CHECKING:
    from pytorch_build.test.junit.document import Document

DEFAULT_CONFIG = "default"

# The property of a test file: how many tests it has before anything chooses among them.
EXISTING_TESTS = "existing_tests"
# Properties of a report: the test files that all shards together were to run, separated by spaces, and the
# percentage of tests that may skip itself by no rule.
REQUIRED_FILES = "files"
MAY_SKIP = "may_skip"
# The detail of a record, and the property of a report of earlier versions: what else there was to run.
LEFT_OUT = "left_out"
# The property of a report, and the detail of a record, that was made of those of all shards: their number.
MERGED_SHARDS = "merged_shards"


def name_unless_default(config: str) -> str:
    """Return a configuration's name as stages and reports have it: "" for the default one."""
    return "" if config == DEFAULT_CONFIG else config


@dataclass(frozen=True, kw_only=True, order=True)
class ReportOrigin:
    """What was tested, by which stage, where; "" for what a report does not contain.

    Attributes:
        stage: The stage, without configuration and shard: ``test_torch``.
        python: The tag of the Python, such as ``cp312``.
        group: The artifact group.
        config: The configuration of upstream's tests.
        folder: Where the report lies, of one that names no stage.
    """

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
    def of_stage(
        cls,
        stage: str,
        cell: GroupCell,
        *,
        config: str,
        run_id: str,
    ) -> ReportOrigin:
        """Return the origin of a stage's reports on a cell."""
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

    def stage_name(self, shard: Shard | None = None) -> str:
        """Return the stage of its records: ``test_torch_distributed``, ``test_torch-2-of-6`` of a shard."""
        config = name_unless_default(self.config)
        stage = f"{self.stage}_{config}" if config else self.stage
        return stage + shard_suffix(shard)


def shard_suffix(shard: Shard | None) -> str:
    """Return what a shard adds to the names of its record and report; nothing for one that is the whole."""
    if shard is None or shard.count == 1:
        return ""
    return f"-{shard.index}-of-{shard.count}"


# The properties of a report that say what it is about.
_ORIGIN_PROPERTIES = tuple(field.name for field in fields(ReportOrigin) if field.name != "folder")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one shard, or a stage without shards, reported.

    Attributes:
        origin: What it is about.
        document: The results.
        shard: The shard; None for a stage without shards.
        filename: Where it was read.
    """

    origin: ReportOrigin
    document: Document
    shard: Shard | None = None
    filename: str = ""


def report_of_document(
    document: Document,
    known_origin: ReportOrigin,
    *,
    filename: str = "",
) -> Report:
    """Return the report that a document is by its properties; `known_origin` is what is known beside them."""
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


def document_to_write(report: Report) -> Document:
    """Return a report's document with what `report_of_document` reads among its properties."""
    properties = dict(report.document.properties)
    for name in _ORIGIN_PROPERTIES:
        value = getattr(report.origin, name)
        if value:
            properties[name] = value
    if report.shard is not None:
        properties["shard"] = str(report.shard)
    return replace(report.document, properties=properties)
