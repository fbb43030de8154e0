import sys
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import MissingInputError, RocmError, UsageError
from pytorch_build.build.plans.torch import REQUIRED, flash_attention, preload_names, rocm_init_text
from pytorch_build.platforms import LINUX, PLATFORMS, WINDOWS, Platform
from tests.unit.pytorch_build.build.plans.conftest import Plan
from tests.unit.pytorch_build.build.windows_listings import listing


@pytest.mark.parametrize(
    ("asked", "unchecked"), [("ninja", False), ("ninja>=1.10", False), ("ninja==1.11.1.3", True)]
)
def test_windows_takes_the_locks_ninja(plan: Plan, asked: str, *, unchecked: bool) -> None:
    tree = {"build_requires": ("cmake>=3.27", asked)}
    made = plan("torch", "windows", tree=tree)
    assert made.as_locked == ("ninja",)
    assert ("--skip-dependency-check" in made.commands[0].argv) is unchecked
    assert "--skip-dependency-check" not in plan("torch", tree=tree).commands[0].argv


def test_windows_without_openmp(plan: Plan) -> None:
    with pytest.raises(MissingInputError, match=r"libomp140\.x86_64\.dll"):
        plan("torch", "windows", provided={"openmp": None})
    bare: dict[str, Any] = {"openmp": None, "licenses": {}}
    (uv,) = plan("torch", "windows", gpu=False, provided=bare).overlays
    assert uv.path == "torch/lib/uv.dll"


def test_windows_without_libuv(plan: Plan) -> None:
    with pytest.raises(MissingInputError, match="distributed needs libuv") as lacking:
        plan("torch", "windows", provided={"uv": None})
    assert "nox -s prepare" in lacking.value.hint
    off = {"USE_DISTRIBUTED": "0"}
    for made in (
        plan("torch", "windows", provided={"uv": None}, base_env=off),
        plan("torch", "windows", provided={"uv": None}, ref_env=off),
    ):
        assert "libuv_ROOT" not in made.env


def test_libraries_that_the_sdk_lacks(plan: Plan) -> None:
    linux = frozenset(LINUX.preloads)
    assert plan("torch").notes == ()
    made = plan("torch", sdk={"libraries": linux - {"hipfile"}})
    assert made.notes == ("This ROCm has no hipfile: torch will not load them first.",)
    assert "hipfile" not in (made.overlays[0].content or "")
    for name in REQUIRED:
        with pytest.raises(RocmError, match=name):
            plan("torch", sdk={"libraries": linux - {name}})


def test_scikit_build_core_is_told_of_ignored_files(plan: Plan) -> None:
    tree = {"build_backend": "scikit_build_core.build"}
    assert plan("torch", tree=tree).commands[0].argv[5:] == (
        "-Cwheel.force-include.torch/_rocm_init.py=torch/_rocm_init.py",
    )
    assert plan("torch", gpu=False, tree=tree).commands[0].argv[5:] == ()
    windows = plan("torch", "windows", tree=tree).commands[0].argv[5:]
    assert windows == tuple(
        f"-Cwheel.force-include.torch/{name}=torch/{name}"
        for name in (
            "_rocm_init.py",
            "lib/libomp140.x86_64.dll",
            "lib/uv.dll",
            "lib/aotriton_v2.dll",
            "lib/liblzma.dll",
        )
    )
    there = listing("torch-2.14-windows")
    assert all(word.rpartition("=")[2] in there for word in windows)
    off = plan("torch", "windows", tree=tree, choices={"flash_attention": False}).commands[0].argv
    assert not [word for word in off if "aotriton" in word]


@pytest.mark.parametrize(
    ("platform", "triton", "targets", "expected"),
    [
        ("linux", "3.6.0", ("gfx942",), True),
        ("linux", "3.6.0", ("gfx90a:xnack+",), True),
        ("linux", "3.6.0", ("gfx1030", "gfx1151"), True),
        ("linux", "3.6.0", ("gfx1030", "gfx908", "gfx906", "gfx1010"), False),
        ("linux", "", ("gfx942",), False),
        ("linux", "3.6.0", (), False),
        ("windows", "", ("gfx950",), True),
    ],
)
def test_flash_attention_by_rule(
    platform: str, triton: str, targets: tuple[str, ...], *, expected: bool
) -> None:
    found = flash_attention(None, platform=PLATFORMS[platform], gpu_targets=targets, triton_version=triton)
    assert found is expected


def test_flash_attention_as_asked(plan: Plan) -> None:
    on, off = {"flash_attention": True}, {"flash_attention": False}
    assert plan("torch", triton_version="3.6.0", choices=off).env["USE_FLASH_ATTENTION"] == "OFF"
    made = plan("torch", triton_version="3.6.0", choices=on, gpu_targets=("gfx1030",))
    assert made.env["USE_MEM_EFF_ATTENTION"] == "ON"
    assert plan("torch", "windows", choices=on).env["USE_FLASH_ATTENTION"] == "ON"
    with pytest.raises(UsageError, match="--enable-pytorch-flash-attention-linux needs triton"):
        plan("torch", choices=on)
    with pytest.raises(UsageError, match="family cpu has none"):
        plan("torch", "windows", gpu=False, choices=on)


ALL = frozenset(LINUX.preloads)


def run_initialize(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the file as torch does, with an SDK that notes how it was called."""
    calls: list[dict[str, Any]] = []
    sdk = types.ModuleType("rocm_sdk")
    vars(sdk)["initialize_process"] = lambda **arguments: calls.append(arguments)
    monkeypatch.setitem(sys.modules, "rocm_sdk", sdk)
    scope: dict[str, Any] = {}
    exec(compile(text, "_rocm_init.py", "exec"), scope)  # noqa: S102 - the file that is tested
    assert calls == [], "importing the file must load nothing"
    scope["initialize"]()
    return calls[0]


@given(st.sampled_from([LINUX, WINDOWS]), st.sets(st.sampled_from(sorted(ALL))))
def test_nothing_that_the_sdk_lacks_is_loaded(platform: Platform, available: set[str]) -> None:
    there = available | set(REQUIRED)
    assert preload_names(platform, there) == tuple(name for name in platform.preloads if name in there)


@pytest.mark.parametrize("version", ["7.10.0a20251120", "7.99.0.dev0+sample", "7'\n\"\\"])
def test_the_file_passes_names_and_version_on(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = rocm_init_text(("amd_comgr", "amdhip64"), rocm_version=version)
    assert run_initialize(text, monkeypatch) == {
        "preload_shortnames": ["amd_comgr", "amdhip64"],
        "check_version": version,
    }
