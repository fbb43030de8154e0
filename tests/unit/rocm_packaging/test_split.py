"""The split layout: neutral libraries, and one device package a gfx target that lies over them."""

from __future__ import annotations

import json
import tarfile
import zipfile
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from core.errors import ArtifactError, UsageError
from rocm_packaging.packages.build import COLUMNS, BuildRequest, build, plan_json, planned_files, table_rows
from rocm_packaging.packages.plan import make_plan
from tests.unit.rocm_packaging.artifact_sets import VERSION, write, write_base

if TYPE_CHECKING:
    from pathlib import Path

TARGETS = ("gfx942", "gfx1100", "gfx1101")


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    root = tmp_path / "artifacts"
    write_base(root, *TARGETS, split=True)
    write(root, "core-hip_lib_generic", **{"lib/libamdhip64.so.7": "hip"})
    write(root, "amd-llvm_lib_generic", **{"lib/llvm/lib/x.bc": "bc"})
    write(root, "blas_lib_generic", **{"lib/libhipblas.so.3": "host", ".kpack/blas_lib.kpm": "{}"})
    write(root, "blas_dev_generic", **{"include/hipblas.h": "h"})
    write(root, "rpp_lib_generic", **{"lib/librpp.so.2": "rpp"})
    for target in TARGETS:
        write(
            root,
            f"blas_lib_{target}",
            **{f".kpack/blas_lib_{target}.kpack": target, f"lib/rocblas/library/db_{target}.dat": target},
        )
    write(root, "blas_lib_gfx942:xnack+", **{".kpack/blas_lib_gfx942_xnack.kpack": "x"})
    return root


def request(artifacts: Path, **changes: Any) -> BuildRequest:
    return BuildRequest(artifact_dir=artifacts, output_dir=artifacts.parent / "out", **changes)


def names_in(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def metadata_of(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        return archive.read(name).decode()


def dist_info_of(sdist: Path) -> ModuleType:
    module = ModuleType("dist_info")
    with tarfile.open(sdist) as archive:
        member = archive.extractfile(f"rocm-{VERSION}/src/rocm_sdk/_dist_info.py")
        assert member is not None
        exec(compile(member.read(), "_dist_info.py", "exec"), module.__dict__)  # noqa: S102 - our own file
    return module


def test_the_packages(artifacts: Path) -> None:
    built = build(request(artifacts))
    files = {file.path.name.partition(f"-{VERSION}")[0]: file.path for file in built.files}
    assert list(files) == [
        "rocm",
        "rocm_sdk_core",
        "rocm_sdk_libraries",
        *(f"rocm_sdk_device_{target}" for target in TARGETS),
        "rocm_sdk_devel",
    ]
    assert built.families == TARGETS
    libraries = names_in(files["rocm_sdk_libraries"])
    assert libraries == {
        "_rocm_sdk_libraries/__init__.py",
        "_rocm_sdk_libraries/.kpack/blas_lib.kpm",
        "_rocm_sdk_libraries/lib/libhipblas.so.3",
        "_rocm_sdk_libraries/lib/librpp.so.2",
        "rocm_sdk_libraries/__init__.py",
        "rocm_sdk_libraries/_dist_info.py",
    }
    assert f"Requires-Dist: rocm-sdk-core=={VERSION}" in metadata_of(files["rocm_sdk_libraries"])
    for target in TARGETS:
        assert f"Requires-Dist: rocm-sdk-libraries=={VERSION}" in metadata_of(
            files[f"rocm_sdk_device_{target}"]
        )
    with (
        zipfile.ZipFile(files["rocm_sdk_devel"]) as wheel,
        tarfile.open(fileobj=wheel.open("rocm_sdk_devel/_devel.tar")) as archive,
    ):
        names = [*wheel.namelist(), *archive.getnames()]
    assert "_rocm_sdk_devel/include/hipblas.h" in names
    assert not any("gfx942" in name for name in names)


def test_device_packages_own_nothing_of_the_libraries(artifacts: Path) -> None:
    built = build(request(artifacts, families=("gfx942",)))
    paths = {file.path.name.partition(f"-{VERSION}")[0]: file.path for file in built.files}
    device = names_in(paths["rocm_sdk_device_gfx942"])
    assert device == {
        "_rocm_sdk_libraries/.devel_links/gfx942.json",
        "_rocm_sdk_libraries/.kpack/blas_lib_gfx942.kpack",
        "_rocm_sdk_libraries/.kpack/blas_lib_gfx942_xnack.kpack",
        "_rocm_sdk_libraries/lib/rocblas/library/db_gfx942.dat",
    }
    assert not device & names_in(paths["rocm_sdk_libraries"])
    with zipfile.ZipFile(paths["rocm_sdk_device_gfx942"]) as archive:
        said = json.loads(archive.read("_rocm_sdk_libraries/.devel_links/gfx942.json"))
    assert said["version"] == VERSION
    assert {
        "relpath": "lib/rocblas/library/db_gfx942.dat",
        "target": "../../../../_rocm_sdk_libraries/lib/rocblas/library/db_gfx942.dat",
    } in said["links"]


def test_files_of_two_packages_in_one_place_are_refused_by_both_names(artifacts: Path) -> None:
    write(artifacts, "fft_lib_gfx942", **{"lib/plan.db": "a"})
    write(artifacts, "fft_lib_gfx1100", **{"lib/plan.db": "a"})
    with pytest.raises(
        ArtifactError, match=r"fft_lib_gfx942.*fft_lib_gfx1100|fft_lib_gfx1100.*fft_lib_gfx942"
    ):
        build(request(artifacts))
    assert not (artifacts.parent / "out").exists()


def test_variants_of_one_target_may_not_contradict_each_other(artifacts: Path) -> None:
    write(artifacts, "blas_lib_gfx942:xnack+", **{".kpack/blas_lib_gfx942.kpack": "other"})
    with pytest.raises(ArtifactError, match=r"blas_lib_gfx942:xnack\+"):
        build(request(artifacts))


def test_a_target_that_was_built_and_has_no_artifacts_is_missed(artifacts: Path) -> None:
    (artifacts / "blas_lib_gfx1101").rename(artifacts / ".away")
    with pytest.raises(ArtifactError, match="incomplete: no libraries of gfx1101"):
        build(request(artifacts))
    assert build(request(artifacts, families=("gfx1100",))).families == ("gfx1100",)


def test_families_stand_for_their_targets(artifacts: Path) -> None:
    assert make_plan(request(artifacts, families=("gfx110X-all",))).built == ("gfx1100", "gfx1101")
    with pytest.raises(UsageError, match="gfx90a-dcgpu"):
        make_plan(request(artifacts, families=("gfx90a-dcgpu",)))


def test_extras(artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(request(artifacts, linux_families=("gfx942",), windows_families=("gfx1100", "gfx1150")))
    info = dist_info_of(built.files[0].path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("ROCM_SDK_TARGET_FAMILY", "gfx110X-all")
    extras = info.get_extras()
    assert extras["libraries"] == [f"rocm-sdk-libraries=={VERSION}"]
    assert extras["devel"] == [f"rocm-sdk-devel=={VERSION}"]
    assert "profiler" not in extras
    device = {target: f"rocm-sdk-device-{target}=={VERSION}" for target in (*TARGETS, "gfx1150")}
    assert extras["device"] == [device["gfx1100"], device["gfx1101"]]
    assert extras["device-gfx942"] == [device["gfx942"] + ' ; sys_platform == "linux"']
    assert extras["device-gfx1100"] == [device["gfx1100"]]
    assert extras["device-gfx1150"] == [device["gfx1150"] + ' ; sys_platform == "win32"']
    assert len(extras["device-all"]) == 4
    assert info.DEFAULT_TARGET_FAMILY == "gfx942"


def test_each_target_has_its_extra_also_the_only_one(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("ROCM_SDK_TARGET_FAMILY", raising=False)
    built = build(request(artifacts, families=("gfx942",)))
    extras = dist_info_of(built.files[0].path).get_extras()
    for name in ("device", "device-gfx942", "device-all"):
        assert extras[name] == [f"rocm-sdk-device-gfx942=={VERSION}"]


def test_no_gpu_and_no_choice_is_said_aloud(artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("ROCM_SDK_TARGET_FAMILY", raising=False)
    info = dist_info_of(build(request(artifacts)).files[0].path)
    with pytest.warns(UserWarning, match="No GPU"):
        assert info.get_extras()["device"] == [f"rocm-sdk-device-gfx942=={VERSION}"]


def test_same_inputs_same_bytes(artifacts: Path) -> None:
    one = build(request(artifacts, jobs=1))
    two = build(BuildRequest(artifact_dir=artifacts, output_dir=artifacts.parent / "two", jobs=3))
    assert [file.sha256 for file in one.files] == [file.sha256 for file in two.files]


def test_suffix_and_platform_tag(artifacts: Path) -> None:
    built = build(request(artifacts, suffix="_n1", platform_tag="manylinux_2_28_x86_64"))
    assert all(
        file.path.name.endswith("-manylinux_2_28_x86_64.whl")
        for file in built.files
        if file.path.suffix == ".whl"
    )
    folders = {name.partition("/")[0] for file in built.files[1:] for name in names_in(file.path)}
    assert folders == {
        "_rocm_sdk_core_n1",
        "rocm_sdk_core",
        "_rocm_sdk_libraries_n1",
        "rocm_sdk_libraries",
        "_rocm_sdk_devel_n1",
        "rocm_sdk_devel",
    }
    assert (
        dist_info_of(built.files[0].path).ALL_PACKAGES["devel"].get_py_package_name() == "_rocm_sdk_devel_n1"
    )
    for wrong in ({"suffix": "-1"}, {"platform_tag": "linux x86"}):
        with pytest.raises(UsageError):
            build(request(artifacts, **wrong))


def test_the_profiler_is_made_where_there_is_one(artifacts: Path) -> None:
    write(
        artifacts,
        "rocprofiler-systems_run_generic",
        **{"bin/rocprof-sys-run": "#!/bin/sh\n", "share/rocprofiler-systems/x": "x", "etc/other": "o"},
    )
    plan = make_plan(request(artifacts))
    built = build(request(artifacts))
    path = next(file.path for file in built.files if file.path.name.startswith("rocm_profiler-"))
    assert {"_rocm_profiler/bin/rocprof-sys-run", "rocm_profiler/_cli.py"} <= names_in(path)
    assert "_rocm_profiler/etc/other" not in names_in(path)
    with zipfile.ZipFile(path) as archive:
        entry = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "rocprof-sys-run = rocm_profiler._cli:rocprof_sys_run" in archive.read(entry).decode()
        compile(archive.read("rocm_profiler/_cli.py"), "_cli.py", "exec")
    left = [one.path for one in planned_files(plan) if one.how == "left out"]
    assert left == ["etc/other"]
    assert dist_info_of(built.files[0].path).ALL_PACKAGES["profiler"].extra == "profiler"


def test_the_plan_can_be_read(artifacts: Path) -> None:
    plan = make_plan(request(artifacts))
    files = planned_files(plan)
    said = json.loads(plan_json(plan, files))
    assert (said["split"], said["families"], said["version"]) == (True, list(TARGETS), VERSION)
    by_path = {(one["package"], one["path"]): one for one in said["files"]}
    device = by_path["rocm-sdk-device-gfx942", ".kpack/blas_lib_gfx942.kpack"]
    assert (device["how"], device["devel"]) == ("as it is", "hard link")
    assert by_path["rocm-sdk-devel", "include/hipblas.h"]["devel"] == "own"
    assert all(len(row) == len(COLUMNS) for row in table_rows(files))
