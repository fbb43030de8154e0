"""The command that a front door prints to do a step again."""

import pytest

from core.cli.sessions import PYTHON_OF_NOX, again, option_of_python
from core.shell import command_line

WORDS = ["build", "torch", "--python=/nox/build_torch/bin/python", "--torch-ref", "sample"]


@pytest.fixture(autouse=True)
def _outside_nox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOX_CURRENT_SESSION", raising=False)
    monkeypatch.delenv("MATRIX", raising=False)


def test_names_the_session_with_the_options_of_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOX_CURRENT_SESSION", "build_torch")

    assert again("pytorch_build", WORDS) == "nox -s build_torch -- --torch-ref sample"


def test_names_the_python_that_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOX_CURRENT_SESSION", "build_torch-3.12")

    assert again("pytorch_build", WORDS) == "nox -s build_torch -P 3.12 -- --torch-ref sample"


def test_names_the_python_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOX_CURRENT_SESSION", "build_torch(gfx94X-dcgpu, release/2.12, Python 3.13)")

    assert again("pytorch_build", WORDS) == "nox -s build_torch -P 3.13 -- --torch-ref sample"


def test_names_the_cell_where_there_is_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATRIX", "ci")
    monkeypatch.setenv("NOX_CURRENT_SESSION", "build_torch(gfx1151, sample, Python 3.13)")
    argv = ["build", "torch", "--torch-ref=sample", "--gpu-family=gfx1151", "--python=/nox/python", "--force"]

    command = again("pytorch_build", argv)

    words = ["nox", "-s", "build_torch(gfx1151, sample, Python 3.13)", "--", "--force"]
    assert command == command_line(words, variables={"MATRIX": "ci"})


def test_leaves_the_dashes_out_where_the_user_gave_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOX_CURRENT_SESSION", "upload")

    assert again("ci", ["upload"]) == "nox -s upload"


def test_names_the_option_that_chooses_a_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOX_CURRENT_SESSION", "check_wheels")

    assert (
        again("pytorch_build", ["check-wheels", "--rocm", "--run-id=17"])
        == "nox -s check_wheels -- --rocm --run-id=17"
    )


def test_names_the_front_door_itself_outside_nox() -> None:
    assert again("ci", ["upload", "--run-id", "1 7"]) == command_line(
        ["python", "-m", "ci", "upload", "--run-id", "1 7"]
    )


def test_calls_another_session_in_the_environment_that_nox_keeps_without_a_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NOX_CURRENT_SESSION", "test_smoke")

    assert option_of_python(PYTHON_OF_NOX) == ""
    assert option_of_python("3.9") == " -P 3.9"


def test_calls_another_session_with_the_python_that_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOX_CURRENT_SESSION", f"test_smoke-{PYTHON_OF_NOX}")

    assert option_of_python(PYTHON_OF_NOX) == f" -P {PYTHON_OF_NOX}"
