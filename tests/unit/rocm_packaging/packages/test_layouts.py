import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import canonicalize_name

from core.errors import RocmError
from core.families import CPU, families, gpu_targets
from rocm_packaging.packages import layouts
from rocm_packaging.packages.layouts import packages

FAMILIES = sorted(name for name in families() if name != CPU)
TARGETS = sorted(set().union(*map(gpu_targets, FAMILIES)))
PACKAGES_OF_BOTH_LAYOUTS = (
    "rocm",
    "rocm-sdk-core",
    "rocm-sdk-devel",
    "rocm-sdk-device-gfx942",
    "rocm-profiler",
)

some_families = st.lists(st.sampled_from(FAMILIES), min_size=1, max_size=3, unique=True)
some_targets = st.lists(st.sampled_from(TARGETS), max_size=4, unique=True)


# Layouts


@pytest.mark.parametrize(
    ("libraries", "layout"),
    [
        pytest.param([], None, id="no libraries"),
        pytest.param(["rocm-sdk-libraries"], "split", id="split"),
        pytest.param(["rocm-sdk-libraries-gfx94x-dcgpu"], "unsplit", id="unsplit"),
    ],
)
def test_knows_a_layout_by_its_libraries(libraries: list[str], layout: str | None) -> None:
    assert layouts.layout_of((*PACKAGES_OF_BOTH_LAYOUTS, *libraries), where="The page") == layout


def libraries_of(chosen_families: list[str]) -> list[str]:
    """Return the packages of libraries of an unsplit ROCm."""
    return [layouts.libraries_package("unsplit", family) for family in chosen_families]


@given(some_families)
def test_knows_the_unsplit_layout_by_the_libraries_of_any_family(
    chosen_families: list[str],
) -> None:
    libraries = libraries_of(chosen_families)

    assert layouts.layout_of(libraries, where="The page") == "unsplit"


@given(some_families)
def test_refuses_a_page_with_both_layouts(chosen_families: list[str]) -> None:
    libraries = libraries_of(chosen_families)

    with pytest.raises(RocmError, match="https://a/") as raised:
        layouts.layout_of([*libraries, "rocm-sdk-libraries"], where="https://a/")

    for name in libraries:
        assert name in raised.value.message


# Which package serves which GPU


@pytest.mark.parametrize("prefix", ["rocm-sdk", "amd-torch", "amd-torchvision"])
@given(target=st.sampled_from(TARGETS), chosen_targets=some_targets)
def test_serves_a_device_package_to_its_target_alone(
    prefix: str, target: str, chosen_targets: list[str]
) -> None:
    package = f"{prefix}-device-{target}"

    assert layouts.device_target(package) == target
    assert layouts.serves(package, [], chosen_targets) == (target in chosen_targets)
    assert layouts.covers(target, chosen_targets) == (target in chosen_targets)


@pytest.mark.parametrize("target", TARGETS)
def test_counts_a_device_package_among_rocms(target: str) -> None:
    assert layouts.is_rocm(layouts.device_package(target))


GROUPED_TARGETS = (
    *("gfx906", "gfx90a", "gfx942", "gfx950", "gfx1030"),
    *("gfx1100", "gfx1103", "gfx1151", "gfx1201", "gfx1250"),
)


@pytest.mark.parametrize(
    ("group", "covered_targets"),
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
def test_covers_the_targets_of_a_group(group: str, covered_targets: set[str]) -> None:
    assert {target for target in GROUPED_TARGETS if layouts.covers(group, [target])} == covered_targets
    assert layouts.device_target(f"amd-torch-device-{group.replace('_', '-')}")


@given(chosen_families=some_families, targets=some_targets)
def test_serves_the_libraries_of_the_chosen_families(chosen_families: list[str], targets: list[str]) -> None:
    chosen_names = {canonicalize_name(family) for family in chosen_families}

    for family in FAMILIES:
        libraries = layouts.libraries_package("unsplit", family)
        is_chosen = canonicalize_name(family) in chosen_names
        assert layouts.serves(libraries, chosen_families, targets) == is_chosen


@given(chosen_families=some_families, targets=some_targets)
def test_serves_packages_for_all_gpus_to_every_environment(
    chosen_families: list[str], targets: list[str]
) -> None:
    assert layouts.serves("rocm-sdk-libraries", chosen_families, targets)
    assert layouts.serves("torch", chosen_families, targets)


@pytest.mark.parametrize(
    ("machine_targets", "tested_targets"),
    [
        pytest.param(("gfx1101", "gfx942"), ("gfx1101",), id="this machine's"),
        pytest.param(("gfx942",), gpu_targets("gfx110X-all"), id="none on this machine"),
    ],
)
def test_tests_the_targets_of_a_family_that_the_machine_has(
    machine_targets: tuple[str, ...], tested_targets: tuple[str, ...]
) -> None:
    assert layouts.tested_targets("gfx110X-all", machine_targets) == tested_targets


@pytest.mark.parametrize(
    ("layout", "targets", "sdk_target"),
    [
        ("split", ("gfx1100", "gfx1101"), "gfx1100"),
        ("split", (), ""),
        ("unsplit", (), "gfx110X-all"),
    ],
)
def test_tells_a_family_to_unsplit_rocm_alone(
    layout: layouts.Layout, targets: tuple[str, ...], sdk_target: str
) -> None:
    assert layouts.sdk_target(layout, "gfx110X-all", targets) == sdk_target


def test_has_one_libraries_package_of_split_rocm() -> None:
    assert layouts.libraries_package("split", "gfx110X-all;gfx942") == "rocm-sdk-libraries"


# The data of what artifacts must hold


def wanted_files(artifact: str, platform: str, target: str) -> list[layouts.WantedFile]:
    """Return what an artifact must hold for a gfx target."""
    return list(packages().contents[artifact].wanted_files(platform, (target,)))


@pytest.mark.parametrize(
    ("artifact", "name", "component", "glob"),
    [
        ("amd-llvm", "lib/llvm/bin/lld.exe", "run", "lib/llvm/bin/lld.exe"),
        ("amd-llvm", "amd_comgr", "lib", "bin/amd_comgr*.dll"),
        ("blas", "rocblas", "lib", "bin/*rocblas*.dll"),
    ],
)
def test_wants_dlls_and_programs_on_windows(artifact: str, name: str, component: str, glob: str) -> None:
    expected = layouts.WantedFile(name=name, component=component, glob=glob)

    assert expected in wanted_files(artifact, "windows", "gfx90a")


@pytest.mark.parametrize(("artifact", "library"), [("base", "rocm_smi64"), ("blas", "hipsparselt")])
def test_does_not_want_libraries_on_windows_that_are_not_built_there(artifact: str, library: str) -> None:
    names = {wanted_file.name for wanted_file in wanted_files(artifact, "windows", "gfx90a")}

    assert library not in names


def test_wants_only_the_kernels_that_a_target_has() -> None:
    globs = {wanted_file.name: wanted_file.glob for wanted_file in wanted_files("blas", "linux", "gfx1030")}

    assert "gfx1030" in globs["rocblas-kernels"]
    assert "hipblaslt-kernels" not in globs


def test_wants_files_of_packaged_artifacts_alone() -> None:
    data = packages()

    packaged_artifacts = {
        *data.core.artifacts,
        *data.profiler.artifacts,
        *data.devel.artifacts,
        *data.libraries.artifacts,
    }

    assert data.contents.keys() <= packaged_artifacts


def test_leaves_out_kernels_that_are_named_for_targets_that_exist() -> None:
    for contents in packages().contents.values():
        left_out_targets: set[str] = set()
        for targets in contents.without.values():
            left_out_targets.update(targets)

        assert contents.without.keys() <= contents.kernels.keys()
        assert left_out_targets <= set(TARGETS)
