import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import ArtifactError, UsageError
from core.run import Platform
from rocm_packaging.packages.build import BuildRequest
from rocm_packaging.packages.listing import planned_files
from rocm_packaging.packages.plan import make_plan
from tests.kit.artifacts import (
    MANIFEST,
    SPLIT_TARGETS,
    STAGE,
    build_request,
    path_matching,
    write_artifact,
    write_complete_set,
    write_split_set,
    write_unsplit_set,
)

FAMILIES = {"gfx94X-dcgpu": ("gfx942",), "gfx90a-dcgpu": ("gfx90a",)}


def strict_request(artifacts: Path) -> BuildRequest:
    """Return the request to package a set that may lack nothing."""
    return replace(build_request(artifacts), without=())


@pytest.fixture
def unsplit_set(tmp_path: Path) -> Path:
    """Return a small unsplit set of two families."""
    return write_unsplit_set(tmp_path / "artifacts")


@pytest.fixture
def split_set(tmp_path: Path) -> Path:
    """Return a small split set of three targets."""
    return write_split_set(tmp_path / "artifacts")


@pytest.fixture(scope="module")
def complete_original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a split set that lacks nothing, which no test changes."""
    root = tmp_path_factory.mktemp("complete") / "artifacts"
    return write_complete_set(root, FAMILIES, is_split=True)


@pytest.fixture
def complete_set(complete_original: Path, tmp_path: Path) -> Path:
    """Return a copy of a split set that lacks nothing; files may be deleted and not written to."""
    return shutil.copytree(complete_original, tmp_path / "artifacts", copy_function=os.link)


# Complete sets


@pytest.mark.parametrize("platform", ["linux", "windows"])
@pytest.mark.parametrize("is_split", [False, True], ids=["unsplit", "split"])
def test_accepts_a_complete_set(tmp_path: Path, platform: Platform, *, is_split: bool) -> None:
    artifacts = write_complete_set(tmp_path, FAMILIES, is_split=is_split, platform=platform)

    plan = make_plan(replace(strict_request(artifacts), platform=platform))

    assert plan.lacking == ()
    promised_files = plan.dist_info.promised_files
    linker = f"lib/llvm/bin/lld{'.exe' if platform == 'windows' else ''}"
    assert {"lib/llvm/bitcode/oclc_isa_version_90a.bc", linker} <= set(promised_files["core"])
    assert "include/hipfft/hipfft.h" in promised_files["devel"]


@pytest.mark.parametrize(("platform", "links"), [("linux", ["llvm"]), ("windows", [])])
def test_links_folders_on_linux_alone(split_set: Path, platform: Platform, links: list[str]) -> None:
    plan = make_plan(replace(build_request(split_set), platform=platform))

    assert list(plan.devel.links) == links


def missing_things(artifacts: Path) -> list[str]:
    """Return what the error of a plan says that a set lacks."""
    with pytest.raises(ArtifactError) as raised:
        make_plan(strict_request(artifacts))
    return [line.strip() for line in raised.value.message.splitlines()[1:]]


@pytest.mark.parametrize(
    ("artifact", "glob", "name"),
    [
        ("amd-llvm_run_generic", "lib/llvm/bin/clang", "amd-llvm"),
        ("amd-llvm_run_generic", "lib/llvm/bin/lld", "bin"),
        (
            "amd-llvm_lib_generic",
            "lib/llvm/**/bitcode/oclc_isa_version_90a.bc",
            "bitcode",
        ),
        ("core-hip_dev_generic", "include/hip/hip_runtime.h", "core-hip"),
        ("core-hip_lib_generic", "lib/libamdhip64.so*", "amdhip64"),
        ("fft_dev_generic", "lib/cmake/hipfft/hipfft-config.cmake", "hipfft"),
        ("blas_lib_generic", "lib/librocblas.so*", "rocblas"),
        ("blas_lib_gfx90a", "**/rocblas/**library/**gfx90a**", "rocblas-kernels"),
        ("blas_lib_gfx942", "**/hipblaslt/library/**gfx942**", "hipblaslt-*"),
        (
            "rocprofiler-systems_lib_generic",
            "lib/librocprof-sys.so*",
            "rocprof-sys",
        ),
    ],
)
def test_requires_each_thing_unless_the_request_says_without(
    complete_set: Path, artifact: str, glob: str, name: str
) -> None:
    (complete_set / artifact / STAGE / path_matching(glob)).unlink()

    assert missing_things(complete_set) == [f"{glob} of {artifact}"]
    plan = make_plan(replace(build_request(complete_set), without=(name,)))
    assert plan.lacking == (f"{glob} of {artifact}",)


# An artifact, and a glob of what it must hold.
REQUIRED_FILES = (
    ("amd-llvm_run_generic", "lib/llvm/bin/clang"),
    ("blas_lib_gfx90a", "**/rocblas/**library/**gfx90a**"),
)


@pytest.mark.parametrize(("artifact", "glob"), REQUIRED_FILES)
def test_counts_an_empty_file_as_missing(complete_set: Path, artifact: str, glob: str) -> None:
    path = complete_set / artifact / STAGE / path_matching(glob)
    path.unlink()
    path.touch()

    assert missing_things(complete_set) == [f"{glob} of {artifact}"]


@pytest.mark.usefixtures("needs_links")
@pytest.mark.parametrize(("artifact", "glob"), REQUIRED_FILES)
def test_counts_a_dangling_link_as_missing(complete_set: Path, artifact: str, glob: str) -> None:
    path = complete_set / artifact / STAGE / path_matching(glob)
    path.unlink()
    path.symlink_to("nothing")

    assert missing_things(complete_set) == [f"{glob} of {artifact}"]


def test_takes_nothing_from_artifacts_with_empty_manifests(tmp_path: Path) -> None:
    artifacts = write_complete_set(tmp_path, FAMILIES, is_split=False)
    for folder in artifacts.glob("amd-llvm_*"):
        (folder / MANIFEST).write_text("", encoding="utf-8")

    missing = missing_things(artifacts)

    assert {line.split(" of ")[1] for line in missing} == {
        "amd-llvm_lib_generic",
        "amd-llvm_run_generic",
    }
    assert len(missing) == len(set(missing)) == 11


def test_offers_to_package_without_what_is_missing(complete_set: Path) -> None:
    shutil.rmtree(complete_set / "fft_lib_generic")

    with pytest.raises(ArtifactError) as raised:
        make_plan(strict_request(complete_set))

    assert "--without" in raised.value.hint


def test_names_an_artifact_that_is_missing_as_a_whole(complete_set: Path) -> None:
    shutil.rmtree(complete_set / "rand_dev_generic")

    with pytest.raises(ArtifactError) as raised:
        make_plan(replace(build_request(complete_set), without=("rocrand",)))

    assert "include/hiprand/hiprand.h of rand_dev_*" in raised.value.message


def test_refuses_an_unneeded_without(complete_set: Path) -> None:
    shutil.rmtree(complete_set / "rand_dev_generic")

    with pytest.raises(UsageError, match="rnad"):
        make_plan(replace(build_request(complete_set), without=("rand", "rnad")))


# Families and targets


@pytest.mark.parametrize(
    ("pattern", "subject"),
    [
        ("core-hip_*", "core-hip"),
        ("amd-llvm_*", "amd-llvm"),
        ("blas_*", "GPU family"),
    ],
)
def test_refuses_a_set_without_what_every_package_needs(
    unsplit_set: Path, pattern: str, subject: str
) -> None:
    for folder in unsplit_set.glob(pattern):
        shutil.rmtree(folder)

    with pytest.raises(ArtifactError, match=subject):
        make_plan(
            replace(
                build_request(unsplit_set),
                without=("rand", "miopen", "fft", "blas"),
            )
        )


def test_refuses_a_family_with_part_of_its_artifacts(unsplit_set: Path) -> None:
    write_artifact(unsplit_set, "fft_dev_gfx120X-all", {"include/hipfft.h": "x"})

    with pytest.raises(ArtifactError, match="gfx120X-all"):
        make_plan(build_request(unsplit_set))


def test_takes_artifacts_of_a_familys_targets(unsplit_set: Path) -> None:
    # Fetching leaves such a set: the library of one target, and nothing else of the family.
    (unsplit_set / "blas_lib_gfx94X-dcgpu").rename(unsplit_set / "blas_lib_gfx942")
    for folder in unsplit_set.glob("blas_*_gfx94X-dcgpu"):
        shutil.rmtree(folder)

    plan = make_plan(replace(build_request(unsplit_set), families=("gfx94X-dcgpu",)))

    assert plan.unused_artifacts == ("hiptensor_lib_generic",)
    libraries = [file.path for file in planned_files(plan) if file.package.endswith("dcgpu")]
    assert libraries == ["lib/libhipblas.so.3"]


def test_refuses_a_family_without_artifacts(unsplit_set: Path) -> None:
    with pytest.raises(UsageError, match="gfx950-dcgpu"):
        make_plan(replace(build_request(unsplit_set), families=("gfx950-dcgpu",)))


def test_refuses_artifacts_of_a_family_in_a_split_set(split_set: Path) -> None:
    write_artifact(split_set, "fft_lib_gfx94X-dcgpu", {"lib/libhipfft.so.0": "x"})

    with pytest.raises(ArtifactError, match="fft_lib_gfx94X-dcgpu"):
        make_plan(build_request(split_set))


def test_requires_artifacts_of_each_target_that_was_built(split_set: Path) -> None:
    shutil.rmtree(split_set / "blas_lib_gfx1101")

    with pytest.raises(ArtifactError, match="gfx1101"):
        make_plan(build_request(split_set))
    assert make_plan(replace(build_request(split_set), families=("gfx1100",))).built_families == ("gfx1100",)


def test_takes_a_family_of_a_split_set_for_its_targets(split_set: Path) -> None:
    plan = make_plan(replace(build_request(split_set), families=("gfx110X-all",)))

    assert plan.built_families == ("gfx1100", "gfx1101")


def test_refuses_a_family_whose_targets_were_not_built(split_set: Path) -> None:
    with pytest.raises(UsageError, match="gfx90a-dcgpu"):
        make_plan(replace(build_request(split_set), families=("gfx90a-dcgpu",)))


# Files that contradict each other


@pytest.mark.parametrize(
    ("artifacts", "path"),
    [
        pytest.param(("fft_lib_gfx942", "fft_lib_gfx1100"), "lib/plan.db", id="two targets"),
        pytest.param(
            ("blas_lib_gfx942", "blas_lib_gfx942:xnack+"),
            ".kpack/blas_lib_gfx942.kpack",
            id="two modes of a target",
        ),
    ],
)
def test_refuses_files_of_two_packages_in_one_place(
    split_set: Path, artifacts: tuple[str, str], path: str
) -> None:
    for name in artifacts:
        write_artifact(split_set, name, {path: f"of {name}"})

    with pytest.raises(ArtifactError) as raised:
        make_plan(build_request(split_set))

    for name in artifacts:
        assert name in raised.value.message


@pytest.mark.parametrize(
    ("of_file", "of_folder"),
    [
        pytest.param("blas_lib_generic", "fft_lib_gfx942", id="libraries and device"),
        pytest.param("fft_lib_gfx942", "fft_lib_gfx1100", id="two devices"),
        pytest.param("rand_lib_generic", "hipify_run_generic", id="libraries and core"),
    ],
)
def test_refuses_a_file_that_is_a_folder_elsewhere(split_set: Path, of_file: str, of_folder: str) -> None:
    write_artifact(split_set, of_file, {"lib/plans": "a file"})
    write_artifact(split_set, of_folder, {"lib/plans/x": "in a folder"})

    with pytest.raises(ArtifactError) as raised:
        make_plan(build_request(split_set))

    for subject in ("lib/plans", of_file, of_folder):
        assert subject in raised.value.message


def test_refuses_two_spellings_of_a_name_for_windows_alone(split_set: Path) -> None:
    write_artifact(split_set, "rand_lib_gfx942", {"lib/ROCBLAS/x": "x"})

    assert make_plan(build_request(split_set)).built_families == SPLIT_TARGETS
    with pytest.raises(ArtifactError, match="ROCBLAS"):
        make_plan(replace(build_request(split_set), platform="windows"))
