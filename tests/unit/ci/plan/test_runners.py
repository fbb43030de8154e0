from __future__ import annotations

import pytest

from ci.plan.data import RUNNERS_FILE, Runner, Runners, runners
from core.data import load_toml, validated
from core.errors import DataError


def test_the_data_names_known_families_and_what_each_has_where() -> None:
    data = load_toml(RUNNERS_FILE, Runners)
    assert data == runners()
    assert data.of("gfx94X-dcgpu", "linux").test_runner
    assert not data.of("gfx94X-dcgpu", "linux").bypass_tests_for_releases
    assert data.of("gfx110X-all", "windows").bypass_tests_for_releases
    assert data.of("gfx94X-dcgpu", "windows") == Runner()
    assert data.of("nothing-of-this-name", "linux") == Runner()


def test_a_misspelt_family_is_refused_with_the_nearest() -> None:
    with pytest.raises(DataError, match="Did you mean 'gfx94X-dcgpu'"):
        validated({"families": {"gfx94x-dcgp": {"linux": {}}}}, Runners, where="runners.toml")
    with pytest.raises(DataError, match="unknown key"):
        validated({"families": {"cpu": {"linux": {"runner": "x"}}}}, Runners, where="runners.toml")


def test_a_label_that_nobody_serves_is_known_before_it_queues() -> None:
    data = runners()
    assert data.unserved("ubuntu-24.04", "anybody") == ""
    assert data.unserved("linux-gfx1151-gpu-rocm", "rocm") == ""
    assert "serves repositories of ROCm only" in data.unserved("linux-gfx1151-gpu-rocm", "anybody")
    assert "no machine has" in data.unserved("linux-gfx1152-gpu-rocm", "ROCm")
    out = data.model_copy(update={"out_of_service": {"ubuntu-24.04": "a leak"}})
    assert out.unserved("ubuntu-24.04", "ROCm") == "ubuntu-24.04 is out of service: a leak"


def test_every_platform_has_machines_and_every_label_is_served() -> None:
    data = runners()
    assert data.machines.keys() == {"linux", "windows"}
    assert {label for _, label in data._labels()} <= {*data.github, *data.self_hosted}
