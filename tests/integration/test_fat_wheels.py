"""Stand-alone wheels of real libraries: installed by name from an index, imported, used, taken out again."""

import os
import sys
from pathlib import Path

import pytest

from core import process
from core.env.installer import uv_program
from pytorch_build.standalone.fat import Request, make
from pytorch_build.standalone.portable import analyse, repair
from tests.kit.servers import served
from tests.unit.pytorch_build.check.conftest import write_wheel

pytestmark = pytest.mark.processes
WHEEL = "torch-2.10.0+rocm7.1-py3-none-linux_x86_64.whl"
CORE, MATH = "_rocm_sdk_core", "_rocm_sdk_libraries_gfx94X_dcgpu"
INIT = """\
import ctypes, os
from torch import _rocm_init
_rocm_init.initialize()
from torch.version import __version__
lib = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "lib", "libtorch_hip.so"))
"""
ROCM_INIT = """\
def initialize():
    import rocm_sdk
    rocm_sdk.initialize_process(preload_shortnames=["amdhip64"], check_version="7.1")
"""
USE = """
import ctypes, glob, importlib.metadata, importlib.util, os, torch
assert importlib.util.find_spec("rocm_sdk") is None
assert torch.__version__ == importlib.metadata.version("torch"), torch.__version__
root = os.path.join(os.path.dirname(torch.__file__), "lib", "rocm")
bundled = glob.glob(os.path.join(root, "**", "*.so*"), recursive=True)
for one in bundled:
    ctypes.CDLL(one)
print(torch.lib.answer(), len(bundled))
"""


def library(folder: Path, name: str, source: str, *links: Path, rpath: str = "$ORIGIN") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "source.c").write_text(source)
    target = folder / name
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{name}", "-Wl,--no-as-needed"]
    flags += [f"-Wl,-rpath,{rpath}"] if rpath else []
    process.capture(["cc", *flags, "source.c", *links, "-o", target], cwd=folder)
    return target


@pytest.fixture(name="libraries", scope="module")
def libraries_fixture(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("libraries")
    hsa = library(place / "lib", "libhsa-runtime64.so.1", "int hsa(void) { return 40; }")
    code = "int hsa(void); int hip(void) { return hsa() + 1; }"
    hip = library(place / "lib", "libamdhip64.so.7", code, hsa, rpath="")
    code = "int hip(void); int blas(void) { return hip() + 1; }"
    blas = library(place / "lib", "libhipblas.so.3", code, hip, rpath=f"$ORIGIN:$ORIGIN/../../{CORE}/lib")
    code = "int blas(void); int answer(void) { return blas(); }"
    torch = library(place / "torch", "libtorch_hip.so", code, blas)
    return {"hsa": hsa, "hip": hip, "blas": blas, "torch": torch}


def torch_wheel(folder: Path, libraries: dict[str, Path]) -> Path:
    files = {
        "torch/__init__.py": INIT.encode(),
        "torch/_rocm_init.py": ROCM_INIT.encode(),
        "torch/version.py": b"__version__ = '2.10.0+rocm7.1'\n",
        "torch/lib/libtorch_hip.so": libraries["torch"].read_bytes(),
    }
    return write_wheel(folder, WHEEL, files, requires=("rocm[libraries]==7.1",))


def rocm_wheels(folder: Path, libraries: dict[str, Path]) -> Path:
    hip, hsa, blas = (libraries[name].read_bytes() for name in ("hip", "hsa", "blas"))
    core = {f"{CORE}/lib/libamdhip64.so.7": hip, f"{CORE}/lib/libhsa-runtime64.so.1": hsa}
    write_wheel(folder, "rocm_sdk_core-7.1-py3-none-linux_x86_64.whl", core)
    name = "rocm_sdk_libraries_gfx94x_dcgpu-7.1-py3-none-linux_x86_64.whl"
    write_wheel(folder, name, {f"{MATH}/lib/libhipblas.so.3": blas})
    return folder


@pytest.mark.parametrize("installer", ["pip", "uv"])
@pytest.mark.parametrize("form", ["wheels", "tree"])
def test_a_stand_alone_wheel_is_installed_by_name_used_and_taken_out(
    tmp_path: Path, libraries: dict[str, Path], form: str, installer: str
) -> None:
    rocm = libraries["hip"].parent.parent if form == "tree" else rocm_wheels(tmp_path / "rocm", libraries)
    request = Request(wheel=torch_wheel(tmp_path, libraries), rocm=rocm, output=tmp_path / "made")
    result = make(request)
    # hip looks nowhere for hsa, which lies beside it
    assert any(path.endswith("libamdhip64.so.7") for path in result.bundle.search)
    portable = repair(result.file.path, analyse(result.file.path), tmp_path / "served" / "torch", graft=False)
    assert portable.file is not None
    page = tmp_path / "served" / "torch" / "index.html"
    page.write_text(f'<a href="{portable.file.path.name}">{portable.file.path.name}</a>')
    venv = tmp_path / "venv"
    process.capture([sys.executable, "-m", "virtualenv", "--quiet", venv])
    python = venv / "bin" / "python"
    before = sorted(path for path in (venv / "lib").rglob("*") if path.is_file())
    tool = [uv_program(), "pip"] if installer == "uv" else [python, "-m", "pip"]
    where = ["--python", python] if installer == "uv" else ["--disable-pip-version-check"]
    # nothing of the machine's own configuration, which may name other indexes with another torch
    env = {name: value for name, value in process.inherited().items() if not name.startswith(("PIP_", "UV_"))}
    env |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}
    with served(tmp_path / "served") as url:
        process.capture([*tool, "install", *where, "--index-url", url, "torch"], env=env)
    assert process.capture([python, "-c", USE], cwd=tmp_path).stdout.split() == ["42", "3"]
    yes = [] if installer == "uv" else ["--yes"]
    process.capture([*tool, "uninstall", *where, *yes, "torch"])
    left = sorted(path for path in (venv / "lib").rglob("*") if path.is_file())
    assert [path for path in left if "__pycache__" not in path.parts and path not in before] == []
    assert not list((venv / "lib").rglob("torch*"))
