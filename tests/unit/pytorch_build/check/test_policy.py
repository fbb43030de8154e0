from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.errors import DataError, MissingInputError
from pytorch_build.check.policy import load_policy

if TYPE_CHECKING:
    from pathlib import Path


def test_the_data_beside_the_module_is_sound() -> None:
    policy = load_policy()
    assert policy.exempt_labels == ("sample",)
    assert set(policy.sizes) == {"torch", "torchaudio", "torchvision", "triton", "apex"}
    assert all(limit.minimum > 0 for limit in policy.sizes.values())
    assert load_policy() is policy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('exempt_lables = ["x"]', "exempt_lables: unknown key. Did you mean 'exempt_labels'"),
        ('[[forbidden]]\npattern = "("\nmessage = "x"', "is not a regular expression"),
        ('[[forbidden]]\npattern = "x"\nmessage = "x"\nseverity = "bad"', "severity"),
        ('[providers.a]\ndistributions = []\nlibraries = []\nincludes = ["b"]', "includes 'b'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        load_policy(path)
    assert str(path) in caught.value.message


def test_a_policy_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError):
        load_policy(tmp_path / "none.toml")
