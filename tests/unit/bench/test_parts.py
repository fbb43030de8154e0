import pytest

from core.errors import UsageError
from tests.bench.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "mentioned"),
    [
        (["start", "wheel"], "'wheel'"),
        (["start", "rocm"], "--rocm"),
        (["start", "--runs", "0"], "--runs"),
    ],
    ids=["no such part", "no ROCm", "no runs"],
)
def test_measures_nothing_before_the_command_line_makes_sense(
    arguments: list[str], mentioned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == UsageError.exit_code

    errors = capsys.readouterr().err
    assert mentioned in errors
    assert "start:" not in errors
