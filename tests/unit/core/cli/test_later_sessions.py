"""Options that nox gives to every session of a call are checked before the first one works."""

import json

import pytest

from core.cli import later_sessions
from core.errors import UsageError

BUILD = ["pytorch_build", "build", "torch", "--no-split"]
CHECK = ["pytorch_build", "check-wheels", "--no-split"]


def test_takes_options_that_every_session_has() -> None:
    later_sessions.require_known_options({"build_torch": BUILD, "index": ["ci", "index", "--run-id=7"]})


def test_names_the_session_and_the_option_that_it_does_not_have() -> None:
    with pytest.raises(UsageError, match=r"check_wheels .*--no-split") as refused:
        later_sessions.require_known_options({"build_torch": BUILD, "check_wheels": CHECK})

    assert "check_wheels" in refused.value.hint


def test_leaves_to_pytest_what_a_test_session_passes_on() -> None:
    later_sessions.require_known_options({"test_smoke": ["pytorch_build", "test-smoke", "-k", "matmul"]})


@pytest.mark.parametrize(("front_door", "exit_code"), [(BUILD, 0), (CHECK, 2)], ids=["known", "unknown"])
def test_ends_with_the_exit_code_of_a_wrong_call(
    front_door: list[str], exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATER_SESSIONS", json.dumps({"session": front_door}))

    assert later_sessions.main() == exit_code
