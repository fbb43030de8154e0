from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from pytorch_build.sample import TEMPLATES

if TYPE_CHECKING:
    from pathlib import Path

_SOURCES = {".py", ".cpp", ".h", ".cu", ".cmake", ".toml"}


def _hipify() -> Any:
    spec = importlib.util.spec_from_file_location(
        "hipify", TEMPLATES / "torch/torch/utils/hipify/__init__.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hipify = _hipify()


@pytest.mark.parametrize(
    "path",
    sorted(path for path in TEMPLATES.rglob("*") if path.suffix in _SOURCES),
    ids=lambda path: path.name,
)
def test_every_source_says_whose_contract_it_keeps(path: Path) -> None:
    head = path.read_text().splitlines()[:2]
    assert any("Keeps the contract of" in line for line in head), path


def test_no_template_needs_pythons_headers() -> None:
    sources = [path for path in TEMPLATES.rglob("*") if path.suffix in {".cpp", ".h", ".cu"}]
    assert sources
    assert not [path for path in sources if "Python.h" in path.read_text()]


@pytest.mark.parametrize(
    ("cuda", "hip"),
    [
        ("cudaMalloc(&p, n)", "hipMalloc(&p, n)"),
        ("#include <cuda_runtime.h>", "#include <hip/hip_runtime.h>"),
        ("cudaMemcpyHostToDevice", "hipMemcpyHostToDevice"),
        ("f<<<n / 2, 64, 0, nullptr>>>(x)", "hipLaunchKernelGGL(f, dim3(n / 2), dim3( 64), 0, nullptr, x)"),
        ("at_cuda_device_count()", "at_cuda_device_count()"),
        ("barracudaMalloc", "barracudaMalloc"),
        ("int cuda = 1;", "int cuda = 1;"),
    ],
)
def test_hipify_translates_names_of_the_api_only(cuda: str, hip: str) -> None:
    assert hipify.translate(cuda) == hip
