import pytest

from core.file_names import windows_fault


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("NUL", "device"),
        ("com1.txt", "device"),
        ("a<b", "'<'"),
        ("a>b", "'>'"),
        ("c:d", "':'"),
        ("tab\t", "character"),
        ("end.", "dot"),
        ("end ", "space"),
    ],
)
def test_says_why_windows_cannot_hold_a_name(name: str, fault: str) -> None:
    assert fault in str(windows_fault(name))


@pytest.mark.parametrize("name", ["a b&%2B=ä.whl", "console", "nul-1", ".half", "com10"])
def test_lets_windows_hold_every_other_name(name: str) -> None:
    assert windows_fault(name) is None
