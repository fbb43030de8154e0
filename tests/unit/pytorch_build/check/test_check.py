import json

import pytest

from core import console
from core.errors import CheckError
from pytorch_build import check
from pytorch_build.check import Finding, Severity


def finding(
    severity: Severity = "error", *, wheel: str = "a.whl", where: str = "", message: str = "m"
) -> Finding:
    """Return a finding of some check."""
    return Finding(severity=severity, check="c", wheel=wheel, where=where, message=message)


def test_orders_findings_by_wheel_and_severity() -> None:
    findings = [finding("note"), finding(wheel="b.whl"), finding("warning"), finding(), finding()]

    sorted_findings = check.sort_findings(findings)

    assert [(finding.wheel, finding.severity) for finding in sorted_findings] == [
        ("a.whl", "error"),
        ("a.whl", "warning"),
        ("a.whl", "note"),
        ("b.whl", "error"),
    ]


def test_collapses_a_finding_of_many_files_alone() -> None:
    errors_of_few = [finding(where=str(index)) for index in range(3)]
    warnings_of_many = [finding("warning", where=str(index)) for index in range(9)]

    *errors, warning = check.collapse_findings(errors_of_few + warnings_of_many)

    assert errors == errors_of_few
    assert warning.severity == "warning"
    assert "8 more files" in warning.message


@pytest.mark.parametrize(("verbose", "severities"), [(False, ["error"]), (True, ["error", "note"])])
def test_shows_notes_where_everything_is_shown(
    monkeypatch: pytest.MonkeyPatch, severities: list[str], *, verbose: bool
) -> None:
    monkeypatch.setattr(console.SCREEN, "verbose", verbose)

    columns, rows = check.findings_table([finding("note"), finding(where="x")])

    assert columns == ("severity", "check", "wheel", "where", "message")
    assert rows[0] == ("error", "c", "a.whl", "x", "m")
    assert [row[0] for row in rows] == severities


def test_records_findings_as_json() -> None:
    recorded_findings = json.loads(json.dumps(check.findings_json([finding()])))

    assert recorded_findings == [
        {"severity": "error", "check": "c", "wheel": "a.whl", "where": "", "message": "m"}
    ]


def test_accepts_notes_and_warnings() -> None:
    check.require_no_errors([finding("note"), finding("warning")])


def test_fails_for_errors_and_names_the_first() -> None:
    errors = [finding(message=f"problem {index}") for index in range(7)]

    with pytest.raises(CheckError) as raised:
        check.require_no_errors(errors)

    message = raised.value.message
    assert "7 errors" in message
    assert "a.whl: problem 0" in message
    assert "problem 6" not in message
    assert "2 more" in message
