from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ci.install.dependencies import Mirror, mirror
from core.data import load_toml
from core.errors import DataError
from core.wheel.distributions import is_ours
from pytorch_build.refs.torch_refs import DISTRIBUTIONS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "name",
    [
        *(
            "rocm",
            "rocm-sdk-core",
            "ROCm_SDK.devel",
            "rocm-sdk-libraries-gfx94x-dcgpu",
            "rocm-profiler",
            "rocm-bootstrap",
        ),
        *("torch", "Torch", "torchvision", "torchaudio", "triton", "pytorch_triton_rocm", "apex"),
        *DISTRIBUTIONS.values(),
    ],
)
def test_names_of_ours_are_known_in_any_spelling(name: str) -> None:
    assert is_ours(name)


@pytest.mark.parametrize("name", ["numpy", "torchmetrics", "tritonclient", "rocrand", "torch-geometric"])
def test_others_names_are_not_ours(name: str) -> None:
    assert not is_ours(name)


def test_the_data_names_every_supported_python_and_platform_and_nothing_of_ours() -> None:
    data = mirror()
    assert set(data.pythons) == {"3.10", "3.11", "3.12", "3.13", "3.14"}
    assert set(data.platforms) == {"linux", "windows"}
    known = {line for lines in data.requirements.values() for line in lines}
    assert {line for line in known if is_ours(line.partition(">")[0])} == set()
    assert data.index_key == "python-deps/simple/index.html"


def test_a_requirement_that_is_none_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "mirror.toml"
    path.write_text('prefix = "p"\npythons = []\n[platforms]\n[requirements]\ntorch = ["filelock", "=1"]\n')
    with pytest.raises(DataError, match=r"requirements\.torch\[1\]: '=1' is not a requirement"):
        load_toml(path, Mirror)
