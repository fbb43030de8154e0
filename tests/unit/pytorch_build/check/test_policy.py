from pathlib import Path

import pytest

from core import files
from core.data import load_toml
from core.errors import DataError
from pytorch_build.check.policy import Policy, load_policy


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param('exempt_lables = ["x"]', "exempt_labels", id="unknown key"),
        pytest.param('[[forbidden]]\npattern = "("\nmessage = "x"', "pattern", id="pattern"),
        pytest.param(
            '[[forbidden]]\npattern = "x"\nmessage = "x"\nseverity = "bad"', "severity", id="severity"
        ),
        pytest.param(
            '[providers.a]\ndistributions = []\nlibraries = []\nincludes = ["b"]',
            "includes 'b'",
            id="provider",
        ),
    ],
)
def test_names_file_and_key_of_a_mistake(tmp_path: Path, text: str, key: str) -> None:
    policy_file = tmp_path / "policy.toml"
    policy_file.write_text(text)

    with pytest.raises(DataError) as raised:
        load_toml(policy_file, Policy)

    assert str(policy_file) in raised.value.message
    assert key in raised.value.message


def test_lays_a_users_policy_over_the_projects(tmp_path: Path) -> None:
    project_policy = load_policy()
    policy_file = tmp_path / "mine.toml"
    policy_file.write_text(
        'machine_libraries = ["libmine.so.*"]\nsizes.torch.minimum = 7\nproviders.rocm.libraries = ["x"]'
    )

    policy = load_policy(policy_file)

    # Lists add to the project's, other values replace one.
    project_size = project_policy.sizes["torch"]
    assert policy.machine_libraries == ("libmine.so.*", *project_policy.machine_libraries)
    assert policy.sizes["torch"] == project_size.model_copy(update={"minimum": 7})
    assert policy.providers["rocm"].libraries == ("x", *project_policy.providers["rocm"].libraries)
    assert policy.forbidden == project_policy.forbidden


def test_names_a_users_policy_and_its_digest(tmp_path: Path) -> None:
    policy_file = tmp_path / "mine.toml"
    policy_file.write_text("sizes.torch.minimum = 7")

    policy = load_policy(policy_file)

    assert str(policy_file) in policy.source
    assert files.sha256(policy_file) in policy.source


def test_refuses_a_users_policy_with_a_mistake(tmp_path: Path) -> None:
    policy_file = tmp_path / "mine.toml"
    policy_file.write_text("[[forbidden]]\npatern = 'x'")

    with pytest.raises(DataError) as raised:
        load_policy(policy_file)

    assert str(policy_file) in raised.value.message
    assert "forbidden[0].patern" in raised.value.message
    assert "'pattern'" in raised.value.message
