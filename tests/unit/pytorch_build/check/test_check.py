import json
from pathlib import Path

import pytest

from core import console, files
from core.data import load_toml
from core.errors import CheckError, DataError
from pytorch_build import check


def finding(
    severity: str = "error", wheel: str = "a.whl", where: str = "", message: str = "m"
) -> check.Finding:
    return check.Finding(severity=severity, check="c", wheel=wheel, where=where, message=message)  # type: ignore[arg-type]


def test_the_worst_first_within_a_wheel() -> None:
    given = [finding("note"), finding("error", "b.whl"), finding("warning"), finding(), finding()]
    assert [(one.wheel, one.severity) for one in check.ordered(given)] == [
        ("a.whl", "error"),
        ("a.whl", "warning"),
        ("a.whl", "note"),
        ("b.whl", "error"),
    ]


def test_the_same_of_many_files_is_said_once() -> None:
    few = [finding(where=str(index)) for index in range(3)]
    many = [finding("warning", where=str(index)) for index in range(9)]
    found = check.collapsed(few + many)
    assert [one.where for one in found] == ["0", "1", "2", "0"]
    assert found[-1].message == "m (The same for 8 more files.)"


def test_shown_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [finding("note"), finding(where="x")]
    columns, rows = check.findings_table(found)
    assert columns == ("severity", "check", "wheel", "where", "message")
    assert rows == (("error", "c", "a.whl", "x", "m"),)
    monkeypatch.setattr(console.SCREEN, "verbose", True)
    assert check.findings_table(found)[1] == (*rows, ("note", "c", "a.whl", "", "m"))
    assert json.loads(json.dumps(check.findings_json([finding()]))) == [
        {"severity": "error", "check": "c", "wheel": "a.whl", "where": "", "message": "m"}
    ]


def test_only_errors_fail_the_stage() -> None:
    check.require_no_errors([finding("note"), finding("warning")])
    with pytest.raises(CheckError, match=r"found 7 errors:\n  a\.whl: m0") as caught:
        check.require_no_errors(finding(message=f"m{index}") for index in range(7))
    assert "… and 2 more" in caught.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('exempt_lables = ["x"]', "exempt_lables: unknown key. Did you mean 'exempt_labels'"),
        ('[[forbidden]]\npattern = "("\nmessage = "x"', "valid regular expression"),
        ('[[forbidden]]\npattern = "x"\nmessage = "x"\nseverity = "bad"', "severity"),
        ('[providers.a]\ndistributions = []\nlibraries = []\nincludes = ["b"]', "includes 'b'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        load_toml(path, check.Policy)
    assert str(path) in caught.value.message


def test_ones_own_policy_goes_over_the_projects(tmp_path: Path) -> None:
    path, project = tmp_path / "mine.toml", check.load_policy()
    path.write_text(
        'machine_libraries = ["libmine.so.*"]\nsizes.torch.minimum = 7\nproviders.rocm.libraries = ["x"]'
    )
    mine = check.own_policy(path)
    assert mine.machine_libraries == ("libmine.so.*", *project.machine_libraries)
    assert mine.sizes["torch"] == project.sizes["torch"].model_copy(update={"minimum": 7})
    assert mine.providers["rocm"].libraries == ("x", *project.providers["rocm"].libraries)
    assert mine.forbidden == project.forbidden
    assert mine.source == f"{path} (sha256 {files.sha256(path)})"
    path.write_text("[[forbidden]]\npatern = 'x'")
    with pytest.raises(
        DataError, match=r"(?s)mine.toml.*forbidden\[0\].patern: unknown key. Did you mean 'pattern'"
    ):
        check.own_policy(path)
