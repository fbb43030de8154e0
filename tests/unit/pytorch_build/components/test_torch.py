import sys
import types
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import MissingInputError, RocmError, UsageError
from pytorch_build.build.toolchain import ToolchainParts
from pytorch_build.components.torch import (
    REQUIRED_LIBRARIES,
    preloaded_libraries,
    rocm_init_text,
    uses_flash_attention,
)
from pytorch_build.platforms import PLATFORMS, Platform
from tests.kit.build_plans import TREE_FACTS, WINDOWS_LIBRARIES, plan_project, rocm_sdk
from tests.kit.platforms import LINUX, WINDOWS
from tests.kit.windows_listings import read_listing

SCIKIT_BUILD = replace(TREE_FACTS, build_backend="scikit_build_core.build")
WITHOUT_LIBUV = replace(WINDOWS_LIBRARIES, libuv=None)
LINUX_PRELOADS = frozenset(LINUX.preloads)


# Windows


@pytest.mark.parametrize(
    ("requirement", "skips_check"),
    [("ninja", False), ("ninja>=1.10", False), ("ninja==1.11.1.3", True)],
)
def test_takes_the_locks_ninja_on_windows(requirement: str, *, skips_check: bool) -> None:
    facts = replace(TREE_FACTS, build_requires=("cmake>=3.27", requirement))

    plan = plan_project("torch", "windows", facts=facts)

    assert plan.as_locked == ("ninja",)
    assert ("--skip-dependency-check" in plan.commands[0].argv) is skips_check


def test_takes_the_trees_ninja_on_linux() -> None:
    facts = replace(TREE_FACTS, build_requires=("cmake>=3.27", "ninja==1.11.1.3"))

    plan = plan_project("torch", facts=facts)

    assert "--skip-dependency-check" not in plan.commands[0].argv


def test_requires_an_openmp_runtime_for_a_gpu_build_on_windows() -> None:
    with pytest.raises(MissingInputError, match=r"libomp140\.x86_64\.dll"):
        plan_project("torch", "windows", toolchain_parts=replace(WINDOWS_LIBRARIES, openmp=None))


@pytest.mark.parametrize("setter", ["base_env", "ref_env"])
def test_needs_no_openmp_runtime_without_openmp(setter: str) -> None:
    off = {"USE_OPENMP": "0"}

    plan = plan_project(
        "torch",
        "windows",
        toolchain_parts=replace(WINDOWS_LIBRARIES, openmp=None),
        base_env=off if setter == "base_env" else None,
        ref_env=off if setter == "ref_env" else None,
    )

    assert not any(overlay.path.endswith("libomp140.x86_64.dll") for overlay in plan.overlays)


def test_ships_libuv_alone_where_there_is_no_openmp_runtime() -> None:
    libraries = ToolchainParts(libuv=WINDOWS_LIBRARIES.libuv)

    plan = plan_project("torch", "windows", has_gpu=False, toolchain_parts=libraries)

    assert [overlay.path for overlay in plan.overlays] == ["torch/lib/uv.dll"]


def test_requires_libuv_for_distributed_on_windows() -> None:
    with pytest.raises(MissingInputError, match="libuv") as caught:
        plan_project("torch", "windows", toolchain_parts=WITHOUT_LIBUV)

    assert "libuv_ROOT" in caught.value.hint


@pytest.mark.parametrize("setter", ["base_env", "ref_env"])
def test_needs_no_libuv_without_distributed(setter: str) -> None:
    off = {"USE_DISTRIBUTED": "0"}

    plan = plan_project(
        "torch",
        "windows",
        toolchain_parts=WITHOUT_LIBUV,
        base_env=off if setter == "base_env" else None,
        ref_env=off if setter == "ref_env" else None,
    )

    assert "libuv_ROOT" not in plan.env


# Libraries that torch loads first


def test_notes_nothing_of_an_sdk_with_all_libraries() -> None:
    assert plan_project("torch").notes == ()


def test_notes_a_library_that_the_sdk_lacks_and_does_not_load_it() -> None:
    plan = plan_project("torch", sdk=rocm_sdk(libraries=LINUX_PRELOADS - {"hipfile"}))

    (note,) = plan.notes
    assert "hipfile" in note
    assert "hipfile" not in (plan.overlays[0].content or "")


@pytest.mark.parametrize("library", REQUIRED_LIBRARIES)
def test_rejects_an_sdk_without_a_library_that_torch_needs(library: str) -> None:
    with pytest.raises(RocmError, match=library):
        plan_project("torch", sdk=rocm_sdk(libraries=LINUX_PRELOADS - {library}))


@given(
    platform=st.sampled_from([LINUX, WINDOWS]),
    optional=st.sets(st.sampled_from(sorted(LINUX_PRELOADS))),
)
def test_loads_only_libraries_of_the_sdk(platform: Platform, optional: set[str]) -> None:
    libraries = optional | set(REQUIRED_LIBRARIES)

    names = preloaded_libraries(platform, libraries)

    assert names == tuple(name for name in platform.preloads if name in libraries)


def run_initialize(module: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Import ``_rocm_init`` as torch does; return what it asks of an SDK."""
    calls: list[dict[str, Any]] = []
    sdk = types.ModuleType("rocm_sdk")
    vars(sdk)["initialize_process"] = lambda **arguments: calls.append(arguments)
    monkeypatch.setitem(sys.modules, "rocm_sdk", sdk)
    scope: dict[str, Any] = {}

    exec(compile(module, "_rocm_init.py", "exec"), scope)  # noqa: S102 - the file that is tested
    assert calls == [], "importing the file must load nothing"
    scope["initialize"]()

    return calls[0]


@pytest.mark.parametrize(
    "version", ["7.10.0a20251120", "7.99.0.dev0+sample", pytest.param("7'\n\"\\", id="quotes")]
)
def test_passes_names_and_version_to_the_sdk(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = rocm_init_text(("amd_comgr", "amdhip64"), rocm_version=version)

    assert run_initialize(module, monkeypatch) == {
        "preload_shortnames": ["amd_comgr", "amdhip64"],
        "check_version": version,
    }


# scikit-build-core, which leaves out what git ignores


def included_files(arguments: tuple[str, ...]) -> list[str]:
    """Return the files that scikit-build-core is told to include; they keep their names."""
    option = "-Cwheel.force-include."
    files: list[str] = []
    for argument in arguments:
        if argument.startswith(option):
            path, _, target = argument.removeprefix(option).partition("=")
            assert path == target
            files.append(path)
    return files


@pytest.mark.parametrize(
    ("has_gpu", "files"), [(True, ["torch/_rocm_init.py"]), (False, [])], ids=["ROCm", "CPU"]
)
def test_tells_scikit_build_core_of_ignored_files_on_linux(files: list[str], *, has_gpu: bool) -> None:
    plan = plan_project("torch", has_gpu=has_gpu, facts=SCIKIT_BUILD)

    assert included_files(plan.commands[0].argv) == files
    assert len(plan.commands[0].argv) == 5 + len(files)


def test_tells_scikit_build_core_of_ignored_files_on_windows() -> None:
    plan = plan_project("torch", "windows", facts=SCIKIT_BUILD)

    files = included_files(plan.commands[0].argv)
    assert files == [
        "torch/_rocm_init.py",
        "torch/lib/libomp140.x86_64.dll",
        "torch/lib/uv.dll",
        "torch/lib/aotriton_v2.dll",
        "torch/lib/liblzma.dll",
    ]
    assert set(files) <= set(read_listing("torch-2.14-windows"))


def test_includes_no_aotriton_without_flash_attention() -> None:
    plan = plan_project("torch", "windows", facts=SCIKIT_BUILD, flash_attention=False)

    assert not [file for file in included_files(plan.commands[0].argv) if "aotriton" in file]


# Flash attention


@pytest.mark.parametrize(
    ("platform", "triton", "targets", "expected"),
    [
        pytest.param("linux", "3.6.0", ("gfx942",), True, id="target with kernels"),
        pytest.param("linux", "3.6.0", ("gfx90a:xnack+",), True, id="target with a feature"),
        pytest.param("linux", "3.6.0", ("gfx1030", "gfx1151"), True, id="one target with kernels"),
        pytest.param(
            "linux", "3.6.0", ("gfx1030", "gfx908", "gfx906", "gfx1010"), False, id="targets without"
        ),
        pytest.param("linux", None, ("gfx942",), False, id="no triton"),
        pytest.param("linux", "3.6.0", (), False, id="no GPU"),
        pytest.param("windows", None, ("gfx950",), True, id="windows needs no triton"),
    ],
)
def test_chooses_flash_attention_by_platform_triton_and_targets(
    platform: str, triton: str | None, targets: tuple[str, ...], *, expected: bool
) -> None:
    is_on = uses_flash_attention(
        None, platform=PLATFORMS[platform], gpu_targets=targets, triton_version=triton
    )

    assert is_on is expected


def test_turns_flash_attention_off_as_requested() -> None:
    env = plan_project("torch", triton_version="3.6.0", flash_attention=False).env

    assert env["USE_FLASH_ATTENTION"] == "OFF"


def test_turns_flash_attention_on_as_requested_for_targets_without_kernels() -> None:
    env = plan_project("torch", triton_version="3.6.0", flash_attention=True, gpu_targets=("gfx1030",)).env

    assert env["USE_MEM_EFF_ATTENTION"] == "ON"


def test_turns_flash_attention_on_as_requested_on_windows() -> None:
    env = plan_project("torch", "windows", flash_attention=True).env

    assert env["USE_FLASH_ATTENTION"] == "ON"


def test_rejects_flash_attention_without_triton_on_linux() -> None:
    with pytest.raises(UsageError, match="triton") as caught:
        plan_project("torch", flash_attention=True)

    assert "--enable-pytorch-flash-attention-linux" in str(caught.value)


def test_rejects_flash_attention_for_family_cpu() -> None:
    with pytest.raises(UsageError, match="cpu"):
        plan_project("torch", "windows", has_gpu=False, flash_attention=True)
