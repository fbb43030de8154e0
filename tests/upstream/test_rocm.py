"""Real ROCm, packaged, installed by pip and uv, compiled with, linked against, and removed again."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from core import process
from core.cli.options import ROOT
from core.env import installer
from pytorch_build.check.device_code import file_facts
from rocm_packaging import selftest
from tests.kit.environments import Venv
from tests.kit.servers import served

VERSION = "5.2.3"
# what Debian packages of it is no whole set, and lies elsewhere in part
WITHOUT = "blas,fft,miopen,rand,amd-llvm,base,core-amdsmi,core-hip,rocprofiler-systems"
FAMILY = "gfx90a-dcgpu"
EVERYTHING = f"rocm[libraries,devel]=={VERSION}"
PACKAGES = ("rocm", "rocm-sdk-core", "rocm-sdk-devel", "rocm-sdk-libraries-gfx90a-dcgpu")
# what a developer's machine may say of another ROCm
CLEAN = dict.fromkeys(
    ("ROCM_SDK_TARGET_FAMILY", "LD_LIBRARY_PATH", "PYTHONPATH", "ROCM_PATH", "HIP_PATH", "HIP_CLANG_PATH")
)
# where a compiler for NVIDIA is on the PATH, hipcc's scripts would choose that platform
AMD = {"HIP_PLATFORM": "amd"}


@dataclass(frozen=True, kw_only=True)
class Environment(Venv):
    address: str
    backend: str = "uv"

    def install(self, *requirements: str) -> None:
        flat = self.address.endswith(".html")
        source = ["--no-index", "--find-links"] if flat else ["--index-url"]
        self._pip("install", *source, self.address, "--no-build-isolation", *requirements)

    def uninstall(self, *names: str) -> None:
        self._pip("uninstall", *(["-y"] if self.backend == "pip" else []), *names)

    def _pip(self, verb: str, *words: str) -> None:
        if self.backend == "uv":
            argv: list[str | Path] = [
                installer.uv_program(),
                "pip",
                verb,
                "--no-config",
                "--python",
                self.python,
            ]
        else:
            argv = [sys.executable, "-m", "pip", "--isolated", "--python", self.python, verb]
            argv += ["--no-cache-dir"] if verb == "install" else []
        env = process.inherited(**{**CLEAN, "ROCM_SDK_TARGET_FAMILY": FAMILY})
        process.capture([*argv, *words], env=env)

    def run(self, program: str | Path, *words: str | Path, cwd: Path | None = None) -> str:
        env = process.inherited(**CLEAN, **AMD, PYTHONDONTWRITEBYTECODE="1")
        argv = [self.root / "bin" / program if isinstance(program, str) else program, *words]
        return process.capture(argv, cwd=cwd, env=env).stdout.strip()

    def left(self) -> list[Path]:
        names = [path for path in self.site.rglob("*") if "rocm" in path.name.lower()]
        scripts = [path for path in (self.root / "bin").iterdir() if path.name.startswith(("roc", "hip"))]
        return sorted([*names, *scripts])


@pytest.fixture(scope="module")
def store(rocm_artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's outputs, made by the commands of the documentation on a machine without a GPU."""
    folder = tmp_path_factory.mktemp("rocm")
    words: list[str | Path] = [
        "--artifact-dir",
        rocm_artifacts,
        "--version",
        VERSION,
        "--output-dir",
        folder / "packages",
        f"--without={WITHOUT}",
    ]
    packaging = [sys.executable, "-m", "rocm_packaging", "build"]
    process.capture([*packaging, *words, "--store", folder / "out"], cwd=ROOT)
    process.capture([sys.executable, "-m", "ci", "index", "--store", folder / "out"], cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def index(store: Path) -> Iterator[str]:
    """Address of the group's folder in the store, over HTTP."""
    (group,) = store.glob(f"out/local-*/python/{FAMILY}")
    with served(group) as url:
        yield url


def environment(root: Path, address: str, backend: str = "uv") -> Environment:
    uv = installer.uv_program()
    process.capture([uv, "venv", "--no-config", "--quiet", "--python", sys.executable, root])
    made = Environment(root=root, address=address, backend=backend)
    process.capture([uv, "pip", "install", "--quiet", "--python", made.python, "setuptools>=70.2"])
    return made


@pytest.fixture(scope="module")
def installed(index: str, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = environment(tmp_path_factory.mktemp("installed") / "venv", f"{index}/index.html")
    made.install(EVERYTHING)
    return made


@pytest.mark.parametrize("backend", ["uv", "pip"])
@pytest.mark.parametrize("page", ["index.html", "simple/"])
def test_either_installer_takes_it_from_either_page(
    index: str, tmp_path: Path, backend: str, page: str
) -> None:
    made = environment(tmp_path / "venv", f"{index}/{page}", backend)
    made.install(EVERYTHING)
    assert made.run("rocm-sdk", "version") == VERSION
    assert made.run("rocm-sdk", "targets") == "gfx90a"
    root = Path(made.run("rocm-sdk", "path", "--root"))
    assert root.is_relative_to(made.site)
    assert Path(made.run("rocm-sdk", "path", "--bin")) == root / "bin"
    assert Path(made.run("rocm-sdk", "path", "--cmake")) == root / "lib" / "cmake"
    made.run("rocm-sdk", "init", "--quiet")
    made.uninstall(*PACKAGES)
    assert made.rocm_files() == []


def test_the_stage_passes_on_it(store: Path, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    words: list[str | Path] = [
        "--find-links",
        store / "packages",
        "--version",
        VERSION,
        "--gpu-family",
        FAMILY,
    ]
    nox = [sys.executable, "-m", "nox", "-s", "test_rocm", "--", *words, "--store", tmp_path / "out"]
    process.capture([*nox, "--junit", junit], cwd=ROOT)
    report = selftest.read(junit.read_bytes())
    assert report.failing == ()
    passed = {
        case.test.removeprefix("rocm_sdk.").replace("::", ": ")
        for case in report.cases
        if case.outcome == "passed"
    }
    assert passed >= {
        "core: lib/libamdhip64.so.5 loads",
        "core: lib/llvm/lib/libLLVM-15.so.1 loads",
        "core: hipcc runs",
        "libraries: lib/librocrand.so.1 loads",
        "devel: lib/librocrand.so.1 loads",
        "devel: the files of core are in it",
        "devel: the files of libraries are in it",
    }
    reasons = {case.text for case in report.cases if case.outcome == "skipped"}
    assert reasons <= {
        "the compiler links it into programs that it instruments",
        "this distribution was packaged without them",
    }


KERNEL = Path(__file__).with_name("texts").joinpath("add.hip").read_text()
MAPS = Path(__file__).with_name("texts").joinpath("maps.cpp").read_text()


def test_hipcc_compiles_a_kernel_for_the_family(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "kernel.hip").write_text(KERNEL)
    words = ("--offload-arch=gfx90a", "kernel.hip", "-o")
    installed.run("hipcc", "-c", *words, "kernel.o", cwd=tmp_path)
    assert b".hip_fatbin" in (tmp_path / "kernel.o").read_bytes()
    hipcc = Path(installed.run("rocm-sdk", "path", "--bin")) / "hipcc"
    installed.run(hipcc, *words, "kernel", cwd=tmp_path)
    found = file_facts(tmp_path / "kernel")
    assert found is not None
    assert found.targets == {"gfx90a"}
    name, devices = installed.run(tmp_path / "kernel").split()
    assert (name == "hipSuccess") == (int(devices) > 0)
    assert name in {"hipSuccess", "hipErrorNoDevice"}


def test_a_program_finds_the_wheels_libraries_by_itself(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "maps.cpp").write_text(MAPS)
    lib = Path(installed.run("rocm-sdk", "path", "--root")) / "lib"
    link = [f"-L{lib}", f"-Wl,-rpath,{lib}", "-lrocrand", "-lamdhip64"]
    process.capture(["c++", "maps.cpp", "-o", "maps", *link], cwd=tmp_path)
    loaded = {Path(line) for line in installed.run(tmp_path / "maps").splitlines()}
    ours = {path.name for path in loaded if path.is_relative_to(installed.site)}
    assert ours >= {"librocrand.so.1", "libamdhip64.so.5", "libhsa-runtime64.so.1"}
    held = {path.name for path in lib.rglob("*.so*")}
    assert not [path for path in loaded if path.name in held and not path.is_relative_to(installed.site)]
