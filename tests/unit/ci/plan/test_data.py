"""The data that people edit, and a user's own over it."""

from pathlib import Path

import pytest

from ci.plan import data
from ci.plan.data import runners
from core.data import read_toml
from core.errors import DataError
from docs.command_tables import all_sessions
from pytorch_build.test import upstream_tests
from tests.kit.front_doors import run_ci
from tests.unit.ci.plan.planning import known

REFUSED = read_toml(Path(__file__).with_name("refused.toml"))["refused"]


def test_the_data_names_what_is_there() -> None:
    assert known().triggers.long_lived_branches == ("main", "release/**")
    assert known().families.expect_failure == ()
    assert {test.session for test in known().triggers.tests.values()} <= {one.name for one in all_sessions()}
    for name, platforms in known().runners.families.items():
        assert platforms.keys() <= known().families.families[name].keys()
    assert runners() == known().runners
    assert runners().machines.keys() == {"linux", "windows"}
    assert {label for _, label in runners()._labels()} <= {*runners().github, *runners().self_hosted}


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row["said"])
def test_configure_names_file_and_key_of_what_cannot_be_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: dict[str, str]
) -> None:
    file = tmp_path / "ci.toml"
    file.write_text(row["file"])
    assert run_ci("configure", "--event", "push", "--config-file", str(file)) == DataError.exit_code
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}")
    assert row["said"] in said


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ({"stage": "test_pytorch", "session": "test_smoke", "shards": 2}, "are for 'test_torch'"),
        ({"stage": "test_pytorch", "session": "test_smoke", "platforms": ["linux"]}, "are for"),
        ({"stage": "test_torch", "session": "test_torch"}, "'config' belongs to tests of the stage"),
        ({"stage": "test_rocm", "session": "test_rocm", "config": "default"}, "'config' belongs to tests of"),
        ({"stage": "test_torch", "session": "test_torch", "config": "default", "shards": 0}, "greater than"),
        ({"stage": "test_torch", "session": "test_torch", "config": "default", "minutes": 999}, "less than"),
    ],
)
def test_a_test_that_cannot_be_meant_is_refused(test: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        data.Test.model_validate(test)


def test_upstreams_tests_name_configurations_that_are_there() -> None:
    upstream = [one for one in data.load().triggers.tests.values() if one.stage == "test_torch"]
    there = upstream_tests.load().configurations
    assert {one.config for one in upstream} == set(there)
    # what needs several GPUs is what the configuration gives several
    assert {one.config for one in upstream if one.several_gpus} == {
        name for name, one in there.items() if one.gpus == "all"
    }
