import pytest

from pytorch_build.test.junit.document import Document
from pytorch_build.test.junit.reader import read_junit
from pytorch_build.test.junit.writer import write_junit
from pytorch_build.test.report import Report, ReportOrigin, document_to_write, report_of_document
from pytorch_build.test.shards import Shard
from tests.kit.torch_results import case_of

TORCH = ReportOrigin(
    stage="test_torch", torch_ref="release/2.10", python="cp312", gpu_family="gfx110X-all", run_id="17"
)


@pytest.mark.parametrize(
    ("origin", "name"),
    [
        (TORCH, "torch-release-2.10-cp312"),
        (ReportOrigin(stage="test_torch", python="cp312", config="default"), "torch-cp312"),
        (ReportOrigin(stage="test_torch", torch_ref="nightly", config="inductor"), "torch-nightly-inductor"),
    ],
)
def test_a_report_is_named_by_what_was_tested(origin: ReportOrigin, name: str) -> None:
    assert origin.name == name


def test_an_origin_reads_as_its_parts() -> None:
    assert str(TORCH) == "test_torch release/2.10 gfx110X-all cp312"


def test_a_written_report_says_what_it_is_about() -> None:
    report = Report(origin=TORCH, document=Document(cases=(case_of(),)), shard=Shard(index=2, count=6))
    content = write_junit(document_to_write(report))

    report_read = report_of_document(read_junit(content), ReportOrigin())

    assert report_read.origin == TORCH
    assert report_read.shard == Shard(index=2, count=6)


def test_a_shard_that_cannot_be_is_a_problem() -> None:
    document = Document(cases=(case_of(),), properties={"shard": "7/6"})

    (problem,) = report_of_document(document, TORCH).document.problems

    assert "7/6" in problem


def test_a_report_of_rocm_is_known_by_its_record() -> None:
    """It names no stage, and a whole version of Python."""
    document = Document(cases=(case_of(),), properties={"python": "3.12.1"})

    origin = report_of_document(document, ReportOrigin(stage="test_rocm", python="cp312")).origin

    assert origin.stage == "test_rocm"
    assert origin.python == "cp312"
