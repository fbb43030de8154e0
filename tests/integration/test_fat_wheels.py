"""Stand-alone wheels of real libraries: installed by name from an index, imported, used, taken out again."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from core import process
from core.env.installer import uv_program
from pytorch_build.standalone.fat import FatWheel, FatWheelRequest, make_fat_wheel
from pytorch_build.standalone.portable import find_portability, repair_wheel
from tests.kit.environments import Venv, create_environment
from tests.kit.servers import served
from tests.kit.wheels import write_wheel

ROCM_VERSION = "7.1"
TORCH_VERSION = f"2.10.0+rocm{ROCM_VERSION}"
TAG = "py3-none-linux_x86_64"
CORE = "_rocm_sdk_core"
MATH = "_rocm_sdk_libraries_gfx94X_dcgpu"
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
for library in bundled:
    ctypes.CDLL(library)
print(torch.lib.answer(), len(bundled))
"""


# Library -> its code, and what it is linked to: the last one is torch's.
SOURCES = {
    "libhsa-runtime64.so.1": "int hsa(void) { return 40; }",
    "libamdhip64.so.7": "int hsa(void); int hip(void) { return hsa() + 1; }",
    "libhipblas.so.3": "int hip(void); int blas(void) { return hip() + 1; }",
    "libtorch_hip.so": "int blas(void); int answer(void) { return blas(); }",
}
ANSWER = "42"


def compile_library(folder: Path, name: str, *links: Path, rpath: str | None = "$ORIGIN") -> Path:
    """Compile a library that is linked to others; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "source.c").write_text(SOURCES[name])
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{name}", "-Wl,--no-as-needed"]
    if rpath is not None:
        flags.append(f"-Wl,-rpath,{rpath}")
    process.capture(["cc", *flags, "source.c", *links, "-o", folder / name], cwd=folder)
    return folder / name


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return ROCm's libraries, in one folder, and torch's, which needs them."""
    folder = tmp_path_factory.mktemp("libraries")
    lib = folder / "lib"
    hsa = compile_library(lib, "libhsa-runtime64.so.1")
    # It looks nowhere for hsa, which lies beside it.
    hip = compile_library(lib, "libamdhip64.so.7", hsa, rpath=None)
    blas = compile_library(lib, "libhipblas.so.3", hip, rpath=f"$ORIGIN:$ORIGIN/../../{CORE}/lib")
    torch = compile_library(folder / "torch", "libtorch_hip.so", blas)
    return {"hsa": hsa, "hip": hip, "blas": blas, "torch": torch}


def write_torch_wheel(folder: Path, libraries: Mapping[str, Path]) -> Path:
    """Write a torch that requires ROCm's packages."""
    files: dict[str, bytes | str] = {
        "torch/__init__.py": INIT,
        "torch/_rocm_init.py": ROCM_INIT,
        "torch/version.py": f"__version__ = '{TORCH_VERSION}'\n",
        "torch/lib/libtorch_hip.so": libraries["torch"].read_bytes(),
    }
    requires = [f"rocm[libraries]=={ROCM_VERSION}"]
    return write_wheel(folder, version=TORCH_VERSION, tag=TAG, files=files, requires=requires, is_pure=False)


def write_rocm_wheels(folder: Path, libraries: Mapping[str, Path]) -> Path:
    """Write ROCm's packages; return their folder."""
    core = {f"{CORE}/lib/{libraries[name].name}": libraries[name].read_bytes() for name in ("hip", "hsa")}
    math = {f"{MATH}/lib/{libraries['blas'].name}": libraries["blas"].read_bytes()}
    for name, files in (("rocm-sdk-core", core), ("rocm-sdk-libraries-gfx94x-dcgpu", math)):
        write_wheel(folder, name=name, version=ROCM_VERSION, tag=TAG, files=files, is_pure=False)
    return folder


@pytest.fixture(params=["wheels", "tree"])
def stand_alone(request: pytest.FixtureRequest, tmp_path: Path, libraries: Mapping[str, Path]) -> FatWheel:
    """Return a torch that ROCm's libraries were put into, from wheels or from an installed tree."""
    rocm = libraries["hip"].parent.parent
    if request.param == "wheels":
        rocm = write_rocm_wheels(tmp_path / "rocm", libraries)
    wheel = write_torch_wheel(tmp_path, libraries)
    return make_fat_wheel(FatWheelRequest(wheel=wheel, rocm=rocm, output=tmp_path / "made"))


def test_leads_a_library_to_what_lies_beside_it(stand_alone: FatWheel) -> None:
    assert [path for path in stand_alone.bundle.search_paths if path.endswith("libamdhip64.so.7")]


def run_installer(name: str, environment: Venv, verb: str, *words: str) -> None:
    """Run pip or uv over an environment."""
    if name == "uv":
        command: list[str | Path] = [uv_program(), "pip", verb, "--python", environment.python]
    else:
        command = [environment.python, "-m", "pip", verb]
    process.capture([*command, *words], env=process.inherited())


def library_files(environment: Venv) -> set[Path]:
    """Return an environment's files, without byte code."""
    paths = (environment.root / "lib").rglob("*")
    return {path for path in paths if path.is_file() and "__pycache__" not in path.parts}


@pytest.mark.parametrize(
    ("stand_alone", "installer"), [("wheels", "pip"), ("tree", "uv")], indirect=["stand_alone"]
)
def test_a_stand_alone_wheel_is_installed_by_name_used_and_taken_out(
    tmp_path: Path, stand_alone: FatWheel, installer: str
) -> None:
    wheel = stand_alone.file.path
    portable = repair_wheel(wheel, find_portability(wheel), tmp_path / "served" / "torch", graft=False)
    assert portable.file is not None
    page = tmp_path / "served" / "torch" / "index.html"
    page.write_text(f'<a href="{portable.file.path.name}">{portable.file.path.name}</a>')
    environment = create_environment(tmp_path / "venv", "pip")
    files_before = library_files(environment)

    with served(tmp_path / "served") as url:
        run_installer(installer, environment, "install", "--index-url", url, "torch")

    assert process.capture([environment.python, "-c", USE], cwd=tmp_path).stdout.split() == [ANSWER, "3"]
    confirmed = ["--yes"] if installer == "pip" else []
    run_installer(installer, environment, "uninstall", *confirmed, "torch")
    assert library_files(environment) == files_before
    assert not list((environment.root / "lib").rglob("torch*"))
