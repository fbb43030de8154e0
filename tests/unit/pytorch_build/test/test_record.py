"""Which fields of a test's record are read, and what cannot be."""

import json
import math
from typing import Any

import pytest

from core.errors import DataError
from core.run import records
from core.run.records import Record
from pytorch_build.test.record import parse_record, read_details, read_inputs
from tests.kit.torch_records import TOTALS, record_of_test

KEY = "17-linux/manifests/gfx94X-dcgpu/test_torch-nightly-cp312.json"


def parse(record: Record) -> Record:
    """Read a record as it stands in a store."""
    return parse_record(records.serialize(record), where=KEY)


def test_reads_the_fields_that_results_rest_on() -> None:
    record = parse(record_of_test())

    details = read_details(record)
    assert details.tests is not None
    assert details.tests.failed == 2
    assert details.tests.passed == 2
    assert details.report is not None
    assert details.report.name == "torch-nightly-cp312.xml"
    assert read_inputs(record).tested_files == {"torch-2.whl": "a" * 64}


@pytest.mark.parametrize(
    ("gpu", "targets"),
    [
        pytest.param("gfx942", {"gfx942"}, id="one GPU"),
        pytest.param(["gfx942", "gfx950"], {"gfx942", "gfx950"}, id="several GPUs"),
        pytest.param([["gfx942"], ["gfx950"]], {"gfx942", "gfx950"}, id="several shards"),
        pytest.param("", set(), id="no GPU"),
        pytest.param([], set(), id="no shard with a GPU"),
    ],
)
def test_knows_the_gpus_of_a_test(gpu: object, targets: set[str]) -> None:
    assert read_inputs(record_of_test(inputs={"gpu": gpu})).gpu_targets == targets


@pytest.mark.parametrize("value", [None, "5", -1, 1.5, True, [5], math.inf, math.nan])
@pytest.mark.parametrize("field", ["tests", "failures", "errors", "skipped", "unexplained"])
def test_rejects_a_total_that_is_no_number_of_tests(field: str, value: object) -> None:
    record = record_of_test(details={"tests": {**TOTALS, field: value}})

    with pytest.raises(DataError) as raised:
        read_details(record, where=KEY)

    assert KEY in raised.value.message
    assert f"details.tests.{field}" in raised.value.message
    assert "again" in raised.value.hint


@pytest.mark.parametrize("text", ["null", '"5"', "Infinity", "NaN", "-1", "1e999"])
def test_names_the_file_and_the_field_of_a_damaged_record(text: str) -> None:
    document = records.serialize(record_of_test()).decode().replace('"failures": 1', f'"failures": {text}')

    with pytest.raises(DataError) as raised:
        parse_record(document, where=KEY)

    assert KEY in raised.value.message
    assert "details.tests.failures" in raised.value.message


@pytest.mark.parametrize("text", ["null", '"long"', "Infinity", "NaN", "-1"])
def test_rejects_a_test_that_took_no_time_that_can_be(text: str) -> None:
    document = json.loads(records.serialize(record_of_test()))
    document["seconds"] = json.loads(text)

    with pytest.raises(DataError, match="seconds"):
        parse_record(json.dumps(document), where=KEY)


@pytest.mark.parametrize(
    ("part", "values", "field"),
    [
        ("details", {"checks": {"passed": "all"}}, "details.checks.passed"),
        ("details", {"report": {"key": 3, "sha256": "a" * 64}}, "details.report.key"),
        ("details", {"report": {"key": "x.xml", "sha256": "none"}}, "details.report.sha256"),
        ("details", {"outcomes": {"passed": -1}}, "details.outcomes.passed"),
        ("details", {"failing": [1]}, "details.failing"),
        ("details", {"left_out": None}, "details.left_out"),
        ("inputs", {"files": {"torch-2.whl": None}}, "inputs.files"),
        ("inputs", {"files": []}, "inputs.files"),
        ("inputs", {"installed": "yes"}, "inputs.installed"),
        ("inputs", {"arguments": None}, "inputs.arguments"),
        ("inputs", {"gpu": 5}, "inputs.gpu"),
    ],
)
def test_rejects_a_field_of_another_type(part: str, values: dict[str, Any], field: str) -> None:
    record = record_of_test(**{part: values})  # type: ignore[arg-type]

    with pytest.raises(DataError) as raised:
        parse(record)

    assert field in raised.value.message


def test_rejects_more_failures_than_tests() -> None:
    record = record_of_test(details={"tests": {**TOTALS, "failures": 6}})

    with pytest.raises(DataError, match="more than all"):
        parse(record)


def test_accepts_fields_of_other_versions() -> None:
    record = record_of_test(inputs={"new": None}, details={"new": None, "tests": {**TOTALS, "new": None}})

    assert parse(record) == record


def test_reads_records_of_other_stages_as_they_are() -> None:
    record = record_of_test(stage="build_torch", details={"tests": "none"})

    assert parse(record) == record
