import pytest

from pytorch_build.check import Finding, contents
from tests.kit.findings import severities
from tests.kit.views import wheel_view

WINDOWS = "demo-1.0-cp312-cp312-win_amd64.whl"
ANY = "demo-1.0-py3-none-any.whl"
LINUX = "demo-1.0-cp312-cp312-linux_x86_64.whl"


def check(filename: str, *members: str) -> list[Finding]:
    """Return what is found in the names of a wheel's members."""
    view = wheel_view(filename, files=dict.fromkeys(members, 1))
    return [*contents.check(view)]


@pytest.mark.parametrize(
    "member",
    [
        "demo/aux.py",
        "demo/NUL",
        "con/x.py",
        "demo/com1.tar.gz",
        "demo/LPT9",
        "demo/COM².txt",
        "demo/aux .txt",
        "demo/a:b.txt",
        "demo/a?.txt",
        'demo/"a".txt',
        "demo/a|b",
        "demo/a\x07b",
        "demo/a.",
        "demo/b ",
        "demo./x.py",
    ],
)
def test_refuses_a_name_that_windows_cannot_hold(member: str) -> None:
    (finding,) = check(WINDOWS, member)

    assert (finding.severity, finding.where) == ("error", member)


@pytest.mark.parametrize(
    "member",
    [
        "demo/auxiliary.py",
        "demo/console.py",
        "demo/com.py",
        "demo/com10.py",
        "demo/.hidden",
        "demo/a b.c+d.py",
    ],
)
def test_accepts_a_name_that_windows_can_hold(member: str) -> None:
    assert check(WINDOWS, member) == []


@pytest.mark.parametrize(
    ("filename", "expected_severities"), [(WINDOWS, ["error"]), (ANY, ["warning"]), (LINUX, [])]
)
def test_judges_names_for_windows_by_the_platform(filename: str, expected_severities: list[str]) -> None:
    assert severities(check(filename, "demo/aux.py")) == expected_severities


@pytest.mark.parametrize(
    ("filename", "severity"),
    [
        pytest.param(WINDOWS, "error", id="windows"),
        pytest.param("demo-1.0-cp312-cp312-macosx_11_0_arm64.whl", "error", id="macos"),
        pytest.param(ANY, "warning", id="any platform"),
        pytest.param(LINUX, "warning", id="linux"),
        pytest.param("torch-2.10-cp312-cp312-linux_x86_64.whl", "error", id="ours"),
    ],
)
def test_finds_names_that_differ_in_case_alone(filename: str, severity: str) -> None:
    (finding,) = check(filename, "demo/A.py", "demo/a.py")

    assert (finding.severity, finding.where) == (severity, "demo/A.py")
    assert "demo/a.py" in finding.message


def test_finds_folders_that_differ_in_case_alone() -> None:
    (finding,) = check(WINDOWS, "Demo/a.py", "demo/a.py")

    assert "demo/a.py" in finding.message


def test_finds_a_twin_that_gets_there_by_the_data_folder() -> None:
    (finding,) = check(WINDOWS, "demo-1.0.data/purelib/demo/A.py", "demo/a.py")

    assert finding.severity == "error"
