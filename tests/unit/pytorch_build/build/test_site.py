from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from core import process
from core.errors import DataError, MissingInputError
from pytorch_build.build import site
from pytorch_build.build.plans.common import BuildFacts, RocmFacts, TreeFacts
from pytorch_build.build.toolchain import Places
from pytorch_build.platforms import platform_named
from tests.unit.pytorch_build.build.listings import listing

LINUX = platform_named("linux")
WINDOWS = platform_named("windows")
OPENMP = "libomp140.x86_64.dll"


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_an_empty_tree_has_nothing(tmp_path: Path) -> None:
    found = site.tree_facts(tmp_path)
    assert found == TreeFacts(files=frozenset(), reads_build_version=False)


def test_a_tree_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="no source tree"):
        site.tree_facts(tmp_path / "absent")


def test_a_tree_like_torchs(tmp_path: Path) -> None:
    build_system = '[build-system]\nrequires = ["numpy", "cmake>=3.27"]\nbuild-backend = "a.b"\n'
    write(tmp_path / "pyproject.toml", build_system)
    write(tmp_path / "requirements.txt")
    write(tmp_path / "setup.py", 'version = os.getenv("PYTORCH_BUILD_VERSION")')
    assert site.tree_facts(tmp_path) == TreeFacts(
        files=frozenset({"pyproject.toml", "requirements.txt", "setup.py"}),
        build_backend="a.b",
        build_requires=("numpy", "cmake>=3.27"),
    )


def test_a_tree_like_older_tritons(tmp_path: Path) -> None:
    write(tmp_path / "python" / "setup.py", "def get_git_commit_hash(): ...")
    write(tmp_path / "python" / "requirements.txt")
    write(tmp_path / "cmake" / "llvm-hash.txt", "0123abcd\n")
    write(tmp_path / "build_env.json", '{"TRITON_WHEEL_VERSION_SUFFIX": ""}')
    found = site.tree_facts(tmp_path)
    assert found.files == {"python/setup.py", "python/requirements.txt"}
    assert found.build_env == {"TRITON_WHEEL_VERSION_SUFFIX": ""}
    assert found.llvm_hash == "0123abcd"
    assert found.git_suffix == "", "it is no git repository"
    assert not found.reads_build_version


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", "[build-system"),
        ("pyproject.toml", '[build-system]\nrequires = "numpy"'),
        ("pyproject.toml", "[build-system]\nrequires = [1]"),
        ("build_env.json", "{"),
        ("build_env.json", "[]"),
        ("build_env.json", '{"X": 1}'),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path / name, text)
    with pytest.raises(DataError, match=name):
        site.tree_facts(tmp_path)


@pytest.mark.processes
def test_what_tritons_setup_adds_to_the_version(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return process.capture(["git", *who, *arguments], cwd=tmp_path).stdout.strip()

    write(tmp_path / "setup.py", "def get_git_commit_hash(): ...")
    git("init", "--quiet", "--initial-branch=main")
    git("add", ".")
    git("commit", "--quiet", "--no-gpg-sign", "-m", "start")
    expected = "+git" + git("rev-parse", "HEAD")[:8]
    assert site.tree_facts(tmp_path).git_suffix == expected
    git("checkout", "--quiet", "--detach")
    assert site.tree_facts(tmp_path).git_suffix == expected
    git("checkout", "--quiet", "-B", "release-locked")
    assert site.tree_facts(tmp_path).git_suffix == ""


def test_what_an_sdk_has(tmp_path: Path) -> None:
    nothing = RocmFacts(device_libs=False, host_math=False, sysdeps=False, libraries=frozenset())
    assert site.rocm_facts(tmp_path, []) == nothing
    for folder in ("lib/llvm/amdgcn/bitcode", "lib/host-math", "lib/rocm_sysdeps"):
        (tmp_path / folder).mkdir(parents=True)
    assert site.rocm_facts(tmp_path, ["amdhip64"]) == RocmFacts(
        device_libs=True, host_math=True, sysdeps=True, libraries=frozenset({"amdhip64"})
    )
    with pytest.raises(MissingInputError, match="no ROCm SDK"):
        site.rocm_facts(tmp_path / "absent", [])


TREE = TreeFacts(files=frozenset())


def toolchain(folder: Path, *, openmp: bool = False, uv: bool = False) -> Places:
    """Stand for what `nox -s prepare` has provided."""
    made = Places(libuv=folder / "libuv", openmp=folder / "openmp")
    if openmp:
        write(made.openmp / OPENMP)
        write(made.openmp / "LICENSE")
    if uv:
        write(made.libuv / "bin" / "uv.dll")
        write(made.libuv / "LICENSE")
    return made


def visual_studio(folder: Path) -> Path:
    """Lay out the redistributables of Visual Studio, as its own listing has them."""
    for name in listing("visual-studio-14.44"):
        write(folder / name)
    return folder


def test_linux_ships_no_libraries_of_the_toolchain(tmp_path: Path) -> None:
    env = {"VCToolsRedistDir": str(tmp_path), "libuv_ROOT": str(tmp_path)}
    made = toolchain(tmp_path, openmp=True, uv=True)
    found = site.build_facts(TREE, None, platform=LINUX, base_env=env, provided=made, shared=False)
    assert found == BuildFacts(tree=TREE)


@pytest.mark.parametrize("shared", [True, False])
def test_windows_ships_what_was_provided(tmp_path: Path, *, shared: bool) -> None:
    made = toolchain(tmp_path, openmp=True, uv=True)
    llvm = write(tmp_path / "llvm" / "include" / "llvm.h").parents[1]
    env = {"VCTOOLSREDISTDIR": str(visual_studio(tmp_path / "vs")), "LLVM_SYSPATH": str(llvm)}
    found = site.build_facts(TREE, None, platform=WINDOWS, base_env=env, provided=made, shared=shared)
    assert (found.openmp, found.uv) == (made.openmp / OPENMP, made.libuv / "bin" / "uv.dll")
    assert found.licenses == {"llvm-openmp": made.openmp / "LICENSE", "libuv": made.libuv / "LICENSE"}
    assert found.llvm == llvm


def test_visual_studios_openmp_is_for_oneself_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = visual_studio(tmp_path / "vs")
    env = {"VCToolsRedistDir": str(folder)}
    nothing = toolchain(tmp_path)
    found = site.build_facts(TREE, None, platform=WINDOWS, base_env=env, provided=nothing, shared=False)
    assert found.openmp == folder / "debug_nonredist/x64/Microsoft.VC143.OpenMP.LLVM" / OPENMP
    assert found.licenses == {}
    assert "may not be redistributed" in capsys.readouterr().err
    found = site.build_facts(TREE, None, platform=WINDOWS, base_env=env, provided=nothing, shared=True)
    assert found.openmp is None


def test_windows_variables_that_lead_nowhere(tmp_path: Path) -> None:
    def found(**env: str) -> BuildFacts:
        provided = toolchain(tmp_path)
        return site.build_facts(TREE, None, platform=WINDOWS, base_env=env, provided=provided, shared=False)

    assert found(VCToolsRedistDir=str(tmp_path)) == found() == BuildFacts(tree=TREE)
    with pytest.raises(MissingInputError, match="libuv_ROOT is"):
        found(libuv_ROOT=str(tmp_path))
    with pytest.raises(MissingInputError, match="no LLVM lies there"):
        found(LLVM_SYSPATH=str(tmp_path))
    own = write(tmp_path / "own" / "bin" / "uv.dll")
    assert found(LIBUV_ROOT=str(tmp_path / "own")).uv == own, "a person's own comes first"


def script(path: Path, output: str) -> Path:
    write(path, f"#!/bin/sh\necho '{output}'\n").chmod(0o755)
    return path


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")
def test_what_a_machine_has(tmp_path: Path) -> None:
    env_bin, system = tmp_path / "env" / "bin", tmp_path / "system"
    script(env_bin / "ninja", "1.13.0.git.kitware")
    script(system / "ninja", "1.11.1")
    script(system / "cmake", "cmake version 3.31.6\n\nCMake suite")
    compiler = script(system / "g++", "")
    include = write(tmp_path / "include" / "Python.h").parent
    python = env_bin / "python"
    found = site.machine_facts(
        LINUX,
        python=python,
        include=include,
        tree=tmp_path / "not" / "yet",
        base_env={"PATH": f"{system}:/bin"},
    )
    assert (found.cmake, found.ninja, found.python_headers) == ("3.31.6", "1.13.0", True)
    assert Path(found.compiler).name in {"c++", compiler.name}
    assert 0 < found.disk_gib <= shutil.disk_usage(tmp_path).total / (1 << 30)
    assert found.cores >= 1
    assert found.memory_gib > 0.1
    on_windows = site.machine_facts(
        WINDOWS, python=python, include=tmp_path, tree=tmp_path, base_env={"Path": str(system)}
    )
    assert not on_windows.python_headers


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")
def test_the_compiler_that_a_person_names(tmp_path: Path) -> None:
    mine = script(tmp_path / "my-gcc", "")
    script(tmp_path / "g++", "")

    def compiler(cxx: str) -> str:
        env = {"PATH": str(tmp_path), "CXX": cxx}
        include = Path(sysconfig.get_path("include"))
        python = tmp_path / "bin" / "python"
        return site.machine_facts(LINUX, python=python, include=include, tree=tmp_path, base_env=env).compiler

    assert compiler("my-gcc -m64") == str(mine)
    assert compiler("") == str(tmp_path / "g++")
    assert compiler("absent") == ""


def test_limits_of_a_container_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "_CGROUP", tmp_path)
    free_cores, free_memory = site.cores(), site.memory_bytes()
    assert free_cores == len(os.sched_getaffinity(0))
    write(tmp_path / "cpu.max", "100000 100000\n")
    write(tmp_path / "memory.max", f"{1 << 20}\n")
    assert (site.cores(), site.memory_bytes()) == (1, 1 << 20)
    write(tmp_path / "cpu.max", "max 100000\n")
    write(tmp_path / "memory.max", "max\n")
    assert (site.cores(), site.memory_bytes()) == (free_cores, free_memory)
    write(tmp_path / "cpu.max", "50000 100000\n")
    assert site.cores() == 1
