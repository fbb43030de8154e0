"""Really builds the sample's projects with upstream's commands, for processors and for the sample's ROCm."""

from __future__ import annotations

import io
import json
import shutil
import sys
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from packaging.utils import parse_wheel_filename

from core import process
from core.errors import ProcessError
from pytorch_build.sample import ensure_repositories
from rocm_packaging.sample import ROCM_VERSION, ensure_artifacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ORDER = ("triton", "torch", "audio", "vision", "apex")
_BASE = {"triton": "3.6.0", "torch": "2.10.0a0", "audio": "2.10.0a0", "vision": "0.25.0a0", "apex": "1.10.0"}
_BUILD = ("-m", "build", "--wheel", "--no-isolation")
_APEX = (*_BUILD, "-C--build-option=--cpp_ext", "-C--build-option=--cuda_ext")
_SETUP = ("setup.py", "bdist_wheel")
_COMMANDS = {"triton": _SETUP, "torch": _BUILD, "audio": _SETUP, "vision": _SETUP, "apex": _APEX}
_TARGETS = ("gfx942", "gfx1100")
_PRELOADED = (
    "lib/libamdhip64.so",
    "lib/libroctx64.so",
    "lib/rocm_sysdeps/lib/librocm_sysdeps_liblzma.so",
    "lib/host-math/lib/librocm-openblas.so",
)


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """An environment, and the source trees that get built and installed into it."""

    folder: Path
    python: Path
    suffix: str
    env: Mapping[str, str]
    origins: Mapping[str, Path]

    def tree(self, project: str) -> Path:
        return self.folder / "src" / project

    def wheel(self, project: str) -> Path:
        (wheel,) = (self.tree(project) / "dist").glob("*.whl")
        return wheel

    def evaluate(self, code: str, expression: str) -> Any:
        script = f"{code}\nimport json\nprint(json.dumps({expression}))"
        ended = process.capture([self.python, "-W", "error", "-c", script], cwd=self.folder, env=self.env)
        return json.loads(ended.stdout)

    def git(self, project: str, *arguments: str) -> str:
        return process.capture(["git", "-C", self.tree(project), *arguments]).stdout.strip()

    def build(self, project: str, **variables: str) -> None:
        env = {**self.env, **variables}
        process.capture([self.python, *_COMMANDS[project]], cwd=self.tree(project), env=env)
        self.install("--no-deps", "--reinstall", str(self.wheel(project)))

    def install(self, *requirements: str) -> None:
        uv = Path(sys.executable).with_name("uv")
        process.capture([uv, "pip", "install", "--python", self.python, *requirements], cwd=self.folder)


def _workshop(folder: Path, *, suffix: str, env: Mapping[str, str | None]) -> Workshop:
    origins = ensure_repositories(folder / "repos")
    process.capture(
        [Path(sys.executable).with_name("uv"), "venv", "--python", sys.executable, folder / "venv"]
    )
    python = folder / "venv" / "bin" / "python"
    path = f"{python.parent}:{process.inherited()['PATH']}"
    shop = Workshop(
        folder=folder,
        python=python,
        suffix=suffix,
        env=process.inherited(PATH=path, PYTHONPATH=None, **env),
        origins=origins,
    )
    for project in _ORDER:
        process.capture(["git", "clone", "--quiet", origins[project], shop.tree(project)])
        local = ("-c", "protocol.file.allow=always")
        shop.git(project, *local, "submodule", "--quiet", "update", "--init", "--recursive")
    shop.git("triton", "checkout", "--quiet", "-B", "release/locked")  # else the commit is in its version
    requirements = shop.tree("torch") / "requirements.txt"
    shop.install("--requirement", str(requirements), "build", "setuptools>=80")
    return shop


def _build_all(shop: Workshop, requirement: str, **variables: str) -> None:
    version = {project: base + shop.suffix for project, base in _BASE.items()}
    torch = {"PYTORCH_VERSION": version["torch"]}
    shop.build("triton", TRITON_WHEEL_VERSION_SUFFIX=shop.suffix)
    shop.build(
        "torch",
        PYTORCH_BUILD_VERSION=version["torch"],
        PYTORCH_BUILD_NUMBER="1",
        PYTORCH_EXTRA_INSTALL_REQUIREMENTS=f"{requirement}|triton=={version['triton']}",
        **variables,
    )
    shop.build("audio", BUILD_VERSION=version["audio"], USE_FFMPEG="1", BUILD_SOX="0", **torch)
    shop.build("vision", BUILD_VERSION=version["vision"], FORCE_CUDA="1", **torch)
    shop.build("apex", BUILD_VERSION=version["apex"])


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    shop = _workshop(tmp_path_factory.mktemp("cpu"), suffix="+cpu.sample", env={})
    _build_all(shop, "", USE_ROCM="OFF", USE_CUDA="OFF")
    return shop


def _rocm_root(folder: Path) -> Path:
    """Lay the sample's artifacts over each other, as an installed ROCm."""
    root = folder / "rocm"
    for artifact in sorted(ensure_artifacts(folder / "artifacts").iterdir()):
        if artifact.name.endswith(("_generic", "_gfx94X-dcgpu")):
            for stage in (artifact / "artifact_manifest.txt").read_text().split():
                if (artifact / stage).is_dir():
                    shutil.copytree(artifact / stage, root, symlinks=True, dirs_exist_ok=True)
    return root


@pytest.fixture(scope="module")
def rocm(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    folder = tmp_path_factory.mktemp("gpu")
    root = _rocm_root(folder)
    sysdeps, math = root / "lib/rocm_sysdeps", root / "lib/host-math"
    env = {
        "ROCM_HOME": str(root),
        "CMAKE_PREFIX_PATH": str(root / "lib/cmake"),
        "PYTORCH_ROCM_ARCH": ";".join(_TARGETS),
        "CXXFLAGS": f"-I{sysdeps}/include -I{root}/include/roctracer",
        "LDFLAGS": f"-L{sysdeps}/lib",
        "BLAS": "OpenBLAS",
        "OpenBLAS_HOME": str(math),
        "OpenBLAS_LIB_NAME": "rocm-openblas",
    }
    shop = _workshop(folder, suffix="+devrocm7.99.0.dev0.sample", env=env)
    process.capture([shop.python, "tools/amd_build/build_amd.py"], cwd=shop.tree("torch"))
    libraries = [str(root / name) for name in _PRELOADED]
    (shop.tree("torch") / "torch/_rocm_init.py").write_text(
        "import ctypes\n\n\ndef initialize():\n"
        f"    for library in {libraries!r}:\n        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)\n"
    )
    requirement = f"rocm[libraries]=={ROCM_VERSION}"
    _build_all(shop, requirement, USE_ROCM="ON", USE_CUDA="OFF", USE_FLASH_ATTENTION="ON")
    return shop


@pytest.fixture(params=["cpu", "rocm"])
def shop(request: pytest.FixtureRequest) -> Workshop:
    made: Workshop = request.getfixturevalue(request.param)
    return made


def _libraries(wheel: Path) -> Iterator[tuple[str, ELFFile]]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                yield name, ELFFile(io.BytesIO(archive.read(name)))


def _dynamic(elf: ELFFile, tag: str) -> list[str]:
    section = elf.get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    return [getattr(entry, tag.removeprefix("DT_").lower()) for entry in section.iter_tags(tag)]


def _metadata(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


@pytest.mark.parametrize("project", _ORDER)
def test_wheels_have_upstreams_names_and_tags(shop: Workshop, project: str) -> None:
    name, version, build, tags = parse_wheel_filename(shop.wheel(project).name)
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    expected = {"audio": "torchaudio", "vision": "torchvision"}.get(project, project)
    assert (name, str(version), build) == (expected, _BASE[project] + shop.suffix, ())
    assert {str(tag) for tag in tags} == {f"{python}-{python}-linux_x86_64"}
    assert _metadata(shop.wheel(project))["Version"] == _BASE[project] + shop.suffix


def test_torch_requires_what_the_build_was_told(shop: Workshop) -> None:
    required = _metadata(shop.wheel("torch")).get_all("Requires-Dist")
    rocm = [] if "cpu" in shop.suffix else [f"rocm[libraries]=={ROCM_VERSION}"]
    assert required == ["typing-extensions>=4.10.0", *rocm, f"triton==3.6.0{shop.suffix}"]


@pytest.mark.parametrize("project", ["audio", "vision"])
def test_audio_and_vision_are_tied_to_their_torch(shop: Workshop, project: str) -> None:
    assert _metadata(shop.wheel(project)).get_all("Requires-Dist") == [f"torch==2.10.0a0{shop.suffix}"]


@pytest.mark.parametrize("project", _ORDER)
def test_libraries_name_folders_that_they_were_linked_in_as_upstreams_do(
    shop: Workshop, project: str
) -> None:
    libraries = dict(_libraries(shop.wheel(project)))
    assert libraries
    for name, elf in libraries.items():
        paths = [*_dynamic(elf, "DT_RUNPATH"), *_dynamic(elf, "DT_RPATH")]
        entries = [entry for path in paths for entry in path.split(":")]
        absolute = {entry for entry in entries if not entry.startswith("$ORIGIN")}
        assert all("/rocm/lib" in entry for entry in absolute), (name, entries)
        assert bool(absolute) is (name == "torch/lib/libtorch_hip.so" or "host-math" in str(entries))
        assert not [needed for needed in _dynamic(elf, "DT_NEEDED") if "/" in needed or "python" in needed]


@pytest.mark.parametrize("project", _ORDER)
def test_a_build_leaves_the_tree_as_git_knows_it(cpu: Workshop, project: str) -> None:
    assert cpu.git(project, "status", "--porcelain", "--ignore-submodules=none") == ""


def test_torch_computes_and_knows_its_commit(shop: Workshop) -> None:
    assert shop.evaluate(
        "import torch\na = torch.tensor([[1, 2], [3, 4]])",
        "[(a @ a).tolist(), torch.matmul(a, torch.ones(2, 1)).tolist(), (a + a).sum().item(), a.shape,"
        " torch.zeros(1).tolist(), torch.arange(3).tolist(), torch.__version__, torch.version.git_version,"
        " torch.version.cuda, torch.cuda.is_available()]",
    ) == [
        [[7, 10], [15, 22]],
        [[3], [7]],
        20,
        [2, 2],
        [0],
        [0, 1, 2],
        f"2.10.0a0{shop.suffix}",
        shop.git("torch", "rev-parse", "HEAD"),
        None,
        False,
    ]


def test_extensions_compute(shop: Workshop) -> None:
    assert shop.evaluate(
        "import torch, torchaudio, torchvision, triton, apex\n"
        "boxes = torch.tensor([[0, 0, 2, 2], [0, 0, 2, 1], [4, 4, 5, 5]])",
        "[torchaudio.functional.resample(torch.arange(3), 1, 2).tolist(),"
        " torchaudio.functional.amplitude_to_DB(torch.tensor([1, 10]), 20, 1e-9, 0).tolist(),"
        " torchvision.ops.box_iou(boxes, boxes).tolist(),"
        " torchvision.ops.nms(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.4).tolist(),"
        " triton.cdiv(10, 4), triton.next_power_of_2(9),"
        " apex.fused_scale_bias_relu(torch.tensor([-1, 1]), 2, 1).tolist(),"
        " [m.__version__ for m in (torchaudio, torchvision, triton, apex)]]",
    ) == [
        [0, 0.5, 1, 1.5, 2, 2],
        [0, 20],
        [[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]],
        [1, 2],
        3,
        16,
        [0, 3],
        [_BASE[name] + shop.suffix for name in ("audio", "vision", "triton", "apex")],
    ]


def test_errors_of_the_libraries_reach_python(cpu: Workshop) -> None:
    code = (
        "import torch, torchvision\nsaid = []\n"
        "for call in (lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3)),\n"
        "             lambda: torchvision.ops.box_iou(torch.ones(2), torch.ones(2))):\n"
        "    try:\n        call()\n    except RuntimeError as problem:\n        said.append(str(problem))"
    )
    assert cpu.evaluate(code, "said") == [
        "mm: shapes are not (m, k) and (k, n)",
        "box_iou: boxes have the shape (n, 4)",
    ]


def test_the_cpu_build_holds_nothing_of_rocm(cpu: Workshop) -> None:
    assert {name for name, _ in _libraries(cpu.wheel("torch"))} == {
        "torch/_stub.so",
        "torch/lib/libc10.so",
        "torch/lib/libtorch.so",
    }
    shown = cpu.evaluate(
        "import torch", "[torch.version.hip, torch.cuda.get_arch_list(), torch.__config__.show()]"
    )
    assert shown[:2] == [None, []]
    assert "BLAS_INFO=miniblas" in shown[2]
    assert "USE_ROCM=OFF" in shown[2]


def test_the_rocm_build_holds_code_for_every_target(rocm: Workshop) -> None:
    libraries = dict(_libraries(rocm.wheel("torch")))
    hip = libraries["torch/lib/libtorch_hip.so"]
    assert {"libamdhip64.so.7", "librocm_sysdeps_liblzma.so.5"} <= set(_dynamic(hip, "DT_NEEDED"))
    assert "librocm-openblas.so.0" in _dynamic(libraries["torch/lib/libtorch.so"], "DT_NEEDED")
    for project in ("torch", "vision", "apex"):
        bundles = [
            section.data()
            for _, elf in _libraries(rocm.wheel(project))
            if (section := elf.get_section_by_name(".hip_fatbin"))
        ]
        assert bundles
        assert all(f"amdhsa--{target}".encode() in data for data in bundles for target in _TARGETS)
    shown = rocm.evaluate(
        "import torch", "[torch.version.hip, torch.cuda.get_arch_list(), torch.__config__.show()]"
    )
    assert shown[:2] == ["7.99.0", list(_TARGETS)]
    assert all(word in shown[2] for word in ("BLAS_INFO=OpenBLAS", "USE_ROCM=ON", "USE_FLASH_ATTENTION=ON"))


def test_kernels_launch(rocm: Workshop) -> None:
    code = (
        "import ctypes, torch\nvalues = (ctypes.c_float * 3)(1, 2, 3)\nsums = (ctypes.c_float * 3)()\n"
        "torch.cuda.is_available()\n"
        "status = torch._C.hip.at_cuda_add(values, values, sums, ctypes.c_int64(3))"
    )
    assert rocm.evaluate(code, "[status, list(sums)]") == [0, [2, 4, 6]]


def test_upstreams_test_files_pass(shop: Workshop) -> None:
    shop.install("--requirement", str(shop.tree("torch") / ".ci/docker/requirements-ci.txt"))
    pytest_command = (shop.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", ".")
    ended = process.capture(pytest_command, cwd=shop.tree("torch") / "test", env=shop.env)
    assert " passed" in ended.stdout


def test_hipify_changes_a_tree_once(cpu: Workshop, tmp_path: Path) -> None:
    tree = tmp_path / "torch"
    shutil.copytree(cpu.origins["torch"].parent, tmp_path / "origins")
    process.capture(["git", "clone", "--quiet", tmp_path / "origins/torch", tree])
    local = ("git", "-c", "protocol.file.allow=always")
    process.capture([*local, "submodule", "--quiet", "update", "--init", "--recursive"], cwd=tree)

    def hipified() -> tuple[str, dict[str, bytes]]:
        process.capture([cpu.python, tree / "tools/amd_build/build_amd.py"], cwd=tree)
        files = {
            str(path): path.read_bytes()
            for path in tree.rglob("*")
            if path.is_file() and ".git" not in path.parts
        }
        status = process.capture(["git", "-C", tree, "status", "--porcelain"]).stdout
        inside = process.capture(["git", "-C", tree / "third_party/miniblas", "status", "--porcelain"]).stdout
        return status + inside, files

    first = hipified()
    assert first[0] == " M third_party/miniblas\n?? aten/src/ATen/hip/\n M cuda/device_buffer.h\n"
    assert hipified() == first
    rewritten = (tree / "aten/src/ATen/hip/elementwise.hip").read_text()
    assert "hipLaunchKernelGGL(add_kernel" in rewritten
    assert "hipMemcpy(" in rewritten
    assert "hipMalloc" in (tree / "third_party/miniblas/cuda/device_buffer.h").read_text()


def test_a_rocm_build_of_a_tree_without_hipify_says_so(rocm: Workshop, tmp_path: Path) -> None:
    tree = tmp_path / "torch"
    shutil.copytree(rocm.tree("torch"), tree, ignore=shutil.ignore_patterns("build", "dist", "hip"))
    env = {**rocm.env, "USE_ROCM": "ON"}
    ended = process.capture([rocm.python, *_BUILD], cwd=tree, env=env, check=False)
    assert ended.returncode != 0
    assert "The sources are not hipified: run python tools/amd_build/build_amd.py." in ended.stderr


def test_a_tree_without_submodules_says_so(cpu: Workshop, tmp_path: Path) -> None:
    process.capture(["git", "clone", "--quiet", cpu.origins["torch"], tmp_path / "torch"])
    with pytest.raises(ProcessError, match="git submodule update --init --recursive"):
        process.capture([cpu.python, *_BUILD], cwd=tmp_path / "torch", env=cpu.env)


@pytest.mark.parametrize(
    ("branch", "suffix", "local"),
    [
        ("", "", "+git{commit}"),
        ("", "+cpu", "+git{commit}.cpu"),
        ("release/3.6", "", ""),
        ("release/3.6", "+cpu", "+cpu"),
    ],
)
def test_triton_names_its_commit_except_on_a_release_branch(
    cpu: Workshop, tmp_path: Path, branch: str, suffix: str, local: str
) -> None:
    tree = tmp_path / "triton"
    process.capture(["git", "clone", "--quiet", cpu.origins["triton"], tree])
    process.capture(["git", "-C", tree, "checkout", "--quiet", *(["-B", branch] if branch else ["--detach"])])
    env = {**cpu.env, "TRITON_WHEEL_VERSION_SUFFIX": suffix}
    said = process.capture([cpu.python, "setup.py", "--quiet", "--version"], cwd=tree, env=env).stdout
    assert said.strip() == "3.6.0" + local.format(commit=cpu.git("triton", "rev-parse", "--short=8", "HEAD"))


def test_compiler_launchers_are_used(cpu: Workshop, tmp_path: Path) -> None:
    tree = tmp_path / "torch"
    shutil.copytree(cpu.tree("torch"), tree, ignore=shutil.ignore_patterns("build", "dist"))
    log, launcher = tmp_path / "compiled", tmp_path / "launcher"
    launcher.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec "$@"\n')
    launcher.chmod(0o755)
    env = {**cpu.env, "CMAKE_CXX_COMPILER_LAUNCHER": str(launcher), "MAX_JOBS": "1"}
    process.capture([cpu.python, *_BUILD], cwd=tree, env=env)
    compiled = log.read_text().splitlines()
    for source in ("tensor.cpp", "ops.cpp", "gemm.cpp", "axpy.cpp"):
        assert [line for line in compiled if source in line]
