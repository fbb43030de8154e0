from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from pytorch_build.sample.repositories import TEMPLATES

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


def test_hipify_copies_beside_the_cuda_folder_and_not_above_it(tmp_path: Path) -> None:
    source = tmp_path / "cuda" / "csrc" / "cuda" / "add.cu"
    source.parent.mkdir(parents=True)
    source.write_text("cudaFree(p);\n")
    target = hipify.copy(source)
    assert target == tmp_path / "cuda" / "csrc" / "hip" / "add.hip"
    assert target.read_text() == "hipFree(p);\n"
    assert source.read_text() == "cudaFree(p);\n"


@pytest.fixture
def torch_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    (tmp_path / "tools").mkdir()
    (tmp_path / "version.txt").write_text("2.10.0a0\n")
    script = shutil.copy(TEMPLATES / "torch/tools/generate_torch_version.py", tmp_path / "tools")
    monkeypatch.delenv("PYTORCH_BUILD_VERSION", raising=False)
    version: Callable[..., str] = runpy.run_path(str(script))["get_torch_version"]
    return version


@pytest.mark.parametrize(("number", "version"), [("1", "2.10.0a0+cpu"), ("3", "2.10.0a0+cpu.post3")])
def test_torch_version_of_a_build_is_what_was_asked(
    torch_version: Callable[..., str], monkeypatch: pytest.MonkeyPatch, number: str, version: str
) -> None:
    assert torch_version() == "2.10.0a0"
    assert torch_version("0123456789abcdef") == "2.10.0a0+git0123456"
    monkeypatch.setenv("PYTORCH_BUILD_VERSION", "2.10.0a0+cpu")
    monkeypatch.setenv("PYTORCH_BUILD_NUMBER", number)
    assert torch_version() == version
