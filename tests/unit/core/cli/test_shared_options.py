"""The options of a call of nox are checked and divided before its first session works."""

import json

import pytest

from core.cli import shared_options
from core.cli.shared_options import divide_options
from core.errors import UsageError

BUILD = ["pytorch_build", "build", "torch"]
CHECK = ["pytorch_build", "check-wheels"]
INDEX = ["ci", "index"]


def test_gives_every_session_the_options_that_all_have() -> None:
    options = ["--run-id=7", "--gpu-family", "cpu"]

    assert divide_options({"build_torch": BUILD, "index": INDEX}, options) == {
        "build_torch": options,
        "index": options,
    }


def test_keeps_a_common_option_from_sessions_that_have_no_use_for_it() -> None:
    options = ["--torch-ref", "sample", "--force", "--run-id=7"]

    assert divide_options({"build_torch": BUILD, "check_wheels": CHECK, "index": INDEX}, options) == {
        "build_torch": options,
        "check_wheels": ["--torch-ref", "sample", "--run-id=7"],
        "index": ["--run-id=7"],
    }


def test_refuses_a_common_option_that_no_session_has_a_use_for() -> None:
    with pytest.raises(UsageError, match="--force") as refused:
        divide_options({"check_wheels": CHECK, "index": INDEX}, ["--force", "--torch-ref=sample"])

    assert "--torch-ref" not in refused.value.message


def test_names_the_session_and_the_option_that_it_does_not_have() -> None:
    with pytest.raises(UsageError, match=r"check_wheels .*--no-split") as refused:
        divide_options({"build_torch": BUILD, "check_wheels": CHECK}, ["--no-split"])

    assert "check_wheels" in refused.value.hint


def test_never_keeps_a_dry_run_from_a_session_that_would_do_its_work() -> None:
    front_doors = {"checkout": ["pytorch_build", "checkout"], "build_torch": BUILD}

    with pytest.raises(UsageError, match=r"checkout .*--dry-run"):
        divide_options(front_doors, ["--dry-run"])


def test_refuses_another_value_than_that_of_a_cell() -> None:
    front_doors = {"build_torch": [*BUILD, "--torch-ref=nightly"], "index": INDEX}

    with pytest.raises(UsageError, match=r"nightly.*sample"):
        divide_options(front_doors, ["--torch-ref=sample"])


def test_leaves_to_pytest_what_a_test_session_passes_on() -> None:
    options = ["-k", "matmul"]

    assert divide_options({"test_smoke": ["pytorch_build", "test-smoke"]}, options) == {"test_smoke": options}


@pytest.mark.parametrize(("front_door", "exit_code"), [(BUILD, 0), (CHECK, 2)], ids=["known", "unknown"])
def test_ends_with_the_exit_code_of_a_wrong_call(
    front_door: list[str], exit_code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = {"front_doors": {"session": front_door}, "options": ["--no-split"]}
    monkeypatch.setenv("SHARED_OPTIONS", json.dumps(call))

    assert shared_options.main() == exit_code

    assert capsys.readouterr().out == ('{"session": ["--no-split"]}\n' if exit_code == 0 else "")
