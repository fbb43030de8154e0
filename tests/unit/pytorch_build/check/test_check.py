import json
from pathlib import Path

import pytest

from core import console, files
from core.data import load_toml
from core.errors import CheckError, DataError
from pytorch_build import check
from pytorch_build.check import Finding, Severity

# Findings


def finding(
    severity: Severity = "error", *, wheel: str = "a.whl", where: str = "", message: str = "m"
) -> Finding:
    """Return a finding of some check."""
    return Finding(severity=severity, check="c", wheel=wheel, where=where, message=message)


def test_orders_findings_by_wheel_and_severity() -> None:
    findings = [finding("note"), finding(wheel="b.whl"), finding("warning"), finding(), finding()]

    ordered = check.ordered(findings)

    assert [(finding.wheel, finding.severity) for finding in ordered] == [
        ("a.whl", "error"),
        ("a.whl", "warning"),
        ("a.whl", "note"),
        ("b.whl", "error"),
    ]


def test_collapses_a_finding_of_many_files_alone() -> None:
    errors_of_few = [finding(where=str(index)) for index in range(3)]
    warnings_of_many = [finding("warning", where=str(index)) for index in range(9)]

    *errors, warning = check.collapsed(errors_of_few + warnings_of_many)

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


# Policies


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param('exempt_lables = ["x"]', "exempt_labels", id="unknown key"),
        pytest.param('[[forbidden]]\npattern = "("\nmessage = "x"', "pattern", id="pattern"),
        pytest.param(
            '[[forbidden]]\npattern = "x"\nmessage = "x"\nseverity = "bad"', "severity", id="severity"
        ),
        pytest.param(
            '[providers.a]\ndistributions = []\nlibraries = []\nincludes = ["b"]',
            "includes 'b'",
            id="provider",
        ),
    ],
)
def test_names_file_and_key_of_a_mistake(tmp_path: Path, text: str, key: str) -> None:
    policy_file = tmp_path / "policy.toml"
    policy_file.write_text(text)

    with pytest.raises(DataError) as raised:
        load_toml(policy_file, check.Policy)

    assert str(policy_file) in raised.value.message
    assert key in raised.value.message


def test_lays_a_users_policy_over_the_projects(tmp_path: Path) -> None:
    project_policy = check.load_policy()
    policy_file = tmp_path / "mine.toml"
    policy_file.write_text(
        'machine_libraries = ["libmine.so.*"]\nsizes.torch.minimum = 7\nproviders.rocm.libraries = ["x"]'
    )

    policy = check.own_policy(policy_file)

    # Lists add to the project's, other values replace one.
    project_size = project_policy.sizes["torch"]
    assert policy.machine_libraries == ("libmine.so.*", *project_policy.machine_libraries)
    assert policy.sizes["torch"] == project_size.model_copy(update={"minimum": 7})
    assert policy.providers["rocm"].libraries == ("x", *project_policy.providers["rocm"].libraries)
    assert policy.forbidden == project_policy.forbidden


def test_names_a_users_policy_and_its_digest(tmp_path: Path) -> None:
    policy_file = tmp_path / "mine.toml"
    policy_file.write_text("sizes.torch.minimum = 7")

    policy = check.own_policy(policy_file)

    assert str(policy_file) in policy.source
    assert files.sha256(policy_file) in policy.source


def test_refuses_a_users_policy_with_a_mistake(tmp_path: Path) -> None:
    policy_file = tmp_path / "mine.toml"
    policy_file.write_text("[[forbidden]]\npatern = 'x'")

    with pytest.raises(DataError) as raised:
        check.own_policy(policy_file)

    assert str(policy_file) in raised.value.message
    assert "forbidden[0].patern" in raised.value.message
    assert "'pattern'" in raised.value.message
