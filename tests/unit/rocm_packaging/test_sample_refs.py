"""Torch refs that bring the sample's ROCm along."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.data import use_user_file
from rocm_packaging.sample_refs import brings_sample_rocm

USER_FILE = """
[refs.second]
extends = "sample"

[refs.third]
extends = "second"

[refs.mine]
extends = "nightly"

[refs.circle]
extends = "circle"
"""


@pytest.fixture(autouse=True)
def user_file(tmp_path: Path) -> Iterator[None]:
    path = tmp_path / "pytorch-build.toml"
    path.write_text(USER_FILE)
    use_user_file(path)
    yield
    use_user_file(None)


@pytest.mark.parametrize("name", ["sample", "second", "third"])
def test_refs_that_extend_the_sample_bring_its_rocm(name: str) -> None:
    assert brings_sample_rocm(name)


@pytest.mark.parametrize("name", ["nightly", "mine", "circle", ""])
def test_other_refs_bring_no_rocm(name: str) -> None:
    assert not brings_sample_rocm(name)
