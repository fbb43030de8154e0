"""What the documentation promises of the variables that upstream's code can see."""

import pytest

from core import process


def test_upstreams_code_sees_the_variables_of_builds_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAGS", "-O1")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    monkeypatch.setenv("MY_OWN_VARIABLE", "1")

    variables = process.handed_on()

    assert variables["CFLAGS"] == "-O1"
    assert variables["HTTPS_PROXY"] == "http://proxy:3128"
    assert "MY_OWN_VARIABLE" not in variables
    assert "secret" not in variables.values()


def test_upstreams_code_sees_what_a_stage_sets_for_it() -> None:
    assert process.handed_on(SMOKE_GPU="gfx942")["SMOKE_GPU"] == "gfx942"
