"""The data that people edit, and a user's own over it."""

from pathlib import Path

import pytest

from ci.plan import data
from core.data import read_toml
from core.errors import DataError
from docs.command_tables import all_sessions
from pytorch_build.test import upstream_tests
from tests.kit.front_doors import run_verb
from tests.kit.planning import ci_data

# Files that a user may not have, and what the error must name.
REFUSED_FILES = read_toml(Path(__file__).with_name("refused.toml"))["refused"]


def test_no_failure_is_expected() -> None:
    assert ci_data().families.expect_failure == ()


def test_every_test_is_a_session() -> None:
    sessions = {session.name for session in all_sessions()}

    assert {test.session for test in ci_data().triggers.tests.values()} <= sessions


def test_machines_are_those_of_known_families_on_their_platforms() -> None:
    families = ci_data().families.families

    for name, platforms in ci_data().runners.families.items():
        assert platforms.keys() <= families[name].keys()


def test_both_platforms_have_machines_that_build() -> None:
    assert data.runners() == ci_data().runners
    assert data.runners().machines.keys() == {"linux", "windows"}


@pytest.mark.parametrize("refused", REFUSED_FILES, ids=lambda refused: refused["names"])
def test_names_the_file_and_what_is_wrong_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: dict[str, str]
) -> None:
    file = tmp_path / "ci.toml"
    file.write_text(refused["file"])

    exit_code = run_verb("ci", "configure", "--event", "push", "--config-file", file)

    assert exit_code == DataError.exit_code
    message = capsys.readouterr().err
    assert message.startswith(f"error: {file}")
    assert refused["names"] in message


@pytest.mark.parametrize(
    ("test", "mention"),
    [
        ({"stage": "test_pytorch", "session": "test_smoke", "shards": 2}, "'test_torch'"),
        ({"stage": "test_pytorch", "session": "test_smoke", "platforms": ["linux"]}, "'test_torch'"),
        ({"stage": "test_torch", "session": "test_torch"}, "'config'"),
        ({"stage": "test_rocm", "session": "test_rocm", "config": "default"}, "'config'"),
        ({"stage": "test_torch", "session": "test_torch", "config": "default", "shards": 0}, "shards"),
        ({"stage": "test_torch", "session": "test_torch", "config": "default", "minutes": 999}, "minutes"),
    ],
)
def test_refuses_a_test_whose_settings_do_not_fit_together(test: dict[str, object], mention: str) -> None:
    with pytest.raises(ValueError, match=mention):
        data.Test.model_validate(test)


def upstreams_tests() -> list[data.Test]:
    return [test for test in ci_data().triggers.tests.values() if test.stage == "test_torch"]


def test_upstreams_tests_name_the_configurations_that_exist() -> None:
    assert {test.config for test in upstreams_tests()} == set(
        upstream_tests.load_configurations().configurations
    )


def test_a_configuration_with_all_gpus_needs_a_machine_with_several() -> None:
    configurations = upstream_tests.load_configurations().configurations

    for test in upstreams_tests():
        assert test.config is not None
        assert test.several_gpus == (configurations[test.config].gpus == "all")
