import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import canonicalize_name

from core.errors import RocmError
from core.families import CPU, families, gpu_targets
from rocm_packaging.packages import layouts

NAMES = sorted(name for name in families() if name != CPU)
TARGETS = sorted({target for name in NAMES for target in gpu_targets(name)})
WHOLE = ("rocm", "rocm-sdk-core", "rocm-sdk-devel", "rocm-sdk-device-gfx942", "rocm-profiler")

some_families = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)
some_targets = st.lists(st.sampled_from(TARGETS), max_size=4, unique=True)


@pytest.mark.parametrize(
    ("libraries", "layout"),
    [((), None), (("rocm-sdk-libraries",), "split"), (("rocm-sdk-libraries-gfx94x-dcgpu",), "unsplit")],
)
def test_the_libraries_tell_the_layout(libraries: tuple[str, ...], layout: str | None) -> None:
    assert layouts.layout_of((*WHOLE, *libraries), where="The page") == layout


@given(some_families)
def test_a_page_with_both_layouts_is_refused_by_name(found: list[str]) -> None:
    unsplit = [layouts.libraries_package("unsplit", family) for family in found]
    assert layouts.layout_of(unsplit, where="x") == "unsplit"
    with pytest.raises(RocmError, match=r"https://a/ holds ROCm packages of both layouts") as raised:
        layouts.layout_of([*unsplit, "rocm-sdk-libraries"], where="https://a/")
    assert all(name in raised.value.message for name in unsplit)


@given(st.sampled_from(TARGETS), some_targets)
def test_a_device_package_is_for_its_target_alone(target: str, others: list[str]) -> None:
    for prefix in ("rocm-sdk", "amd-torch", "amd-torchvision"):
        assert layouts.device_target(f"{prefix}-device-{target}") == target
        assert layouts.serves(f"{prefix}-device-{target}", [], others) == (target in others)
    assert layouts.is_rocm(layouts.device_package(target))
    assert layouts.covers(target, others) == (target in others)


@pytest.mark.parametrize(
    ("bundle", "covered"),
    [
        ("gfx9", {"gfx906", "gfx90a", "gfx942", "gfx950"}),
        ("gfx9-4", {"gfx942"}),
        ("gfx9_4", {"gfx942"}),
        ("gfx10-3", {"gfx1030"}),
        ("gfx11", {"gfx1100", "gfx1103", "gfx1151"}),
        ("gfx110x", {"gfx1100", "gfx1103"}),
        ("gfx115x", {"gfx1151"}),
        ("gfx12-0", {"gfx1201"}),
        ("gfx12-5", {"gfx1250"}),
    ],
)
def test_a_bundle_is_for_the_targets_of_its_name(bundle: str, covered: set[str]) -> None:
    chosen = ["gfx906", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1103", "gfx1151", "gfx1201"]
    chosen.append("gfx1250")
    assert {target for target in chosen if layouts.covers(bundle, [target])} == covered
    assert layouts.device_target(f"amd-torch-device-{bundle.replace('_', '-')}")


@given(some_families, some_targets)
def test_an_environment_gets_the_libraries_of_its_families(chosen: list[str], targets: list[str]) -> None:
    assert layouts.serves("rocm-sdk-libraries", chosen, targets)
    assert layouts.serves("torch", chosen, targets)
    for name in NAMES:
        wanted = canonicalize_name(name) in {canonicalize_name(one) for one in chosen}
        assert layouts.serves(layouts.libraries_package("unsplit", name), chosen, targets) == wanted


def test_tests_take_this_machines_targets_of_the_family() -> None:
    assert layouts.tested_targets("gfx110X-all", ("gfx1101", "gfx942")) == ("gfx1101",)
    assert layouts.tested_targets("gfx110X-all", ("gfx942",)) == gpu_targets("gfx110X-all")


def test_split_rocm_is_never_told_a_family() -> None:
    assert layouts.sdk_target("split", "gfx110X-all", ("gfx1100", "gfx1101")) == "gfx1100"
    assert layouts.sdk_target("split", "gfx110X-all") == ""
    assert layouts.sdk_target("unsplit", "gfx110X-all") == "gfx110X-all"
    assert layouts.libraries_package("split", "gfx110X-all;gfx942") == "rocm-sdk-libraries"


def test_windows_is_asked_for_dlls_and_programs_of_its_own() -> None:
    contents = layouts.packages().contents
    wanted = {
        one for name in ("amd-llvm", "base", "blas") for one in contents[name].wanted("windows", ("gfx90a",))
    }
    assert {
        ("amd_comgr", "lib", "bin/amd_comgr*.dll"),
        ("rocblas", "lib", "bin/*rocblas*.dll"),
        ("lib/llvm/bin/lld.exe", "run", "lib/llvm/bin/lld.exe"),
    } < wanted
    # neither is built there
    assert not {"rocm_smi64", "hipsparselt"} & {label for label, _, _ in wanted}
    kernels = [one for one in contents["blas"].wanted("linux", ["gfx1030"]) if "-kernels" in one[0]]
    assert kernels == [("rocblas-kernels", "lib", "**/rocblas/**library/**gfx1030**")]


def test_what_is_asked_for_is_of_artifacts_that_are_packaged() -> None:
    data = layouts.packages()
    known = {*data.core.artifacts, *data.profiler.artifacts, *data.devel.artifacts}
    assert data.contents.keys() <= known | {*data.libraries.artifacts}
    for one in data.contents.values():
        assert one.without.keys() <= one.kernels.keys()
        assert {target for each in one.without.values() for target in each} <= {*TARGETS}
