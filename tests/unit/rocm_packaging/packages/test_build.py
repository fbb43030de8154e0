from __future__ import annotations

import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from core.errors import ArtifactError, FatalError, MissingInputError, UsageError
from rocm_packaging.packages.build import build, inputs_digest
from rocm_packaging.verbs import build as verb
from tests.unit.rocm_packaging.artifact_sets import in_sdist, names_in, request, write, write_base

if TYPE_CHECKING:
    from pathlib import Path

OVERLAY = "share/therock"


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """The smallest complete set, without one ELF file: nothing needs a process."""
    root = tmp_path / "artifacts"
    write_base(root, "gfx942", "gfx1100", split=False)
    write(root, "core-hip_lib_generic", **{"lib/libamdhip64.so.7": "hip"})
    write(root, "core-hip_dev_generic", **{"include/hip/hip.h": "h", "lib/cmake/hip/hip.cmake": "c"})
    write(root, "core-hip_run_generic", **{"bin/hipcc": "#!/bin/sh\n"})
    write(root, "amd-llvm_lib_generic", **{"lib/llvm/lib/x.bc": "bc"})
    write(root, "prim_dev_generic", **{"include/rocprim/x.hpp": "p"})
    write(root, "hiptensor_lib_generic", **{"lib/libhiptensor.so": "t"})
    for family in ("gfx94X-dcgpu", "gfx110X-all"):
        write(root, f"blas_lib_{family}", **{"lib/libhipblas.so.3": family})
        write(root, f"blas_dev_{family}", **{"include/hipblas.h": "same"})
        write(root, f"blas_test_{family}", **{"bin/hipblas-test": family})
    return root


def test_the_packages(artifacts: Path) -> None:
    built = build(request(artifacts, families=("gfx94X-dcgpu", "gfx110X-all")))
    files = {file.path.name: file.path for file in built.files}
    version = "7.99.0.dev0+sample"
    tag = f"{version}-py3-none-linux_x86_64.whl"
    assert list(files) == [
        f"rocm-{version}.tar.gz",
        f"rocm_sdk_core-{tag}",
        f"rocm_sdk_libraries_gfx94x_dcgpu-{tag}",
        f"rocm_sdk_libraries_gfx110x_all-{tag}",
        f"rocm_sdk_devel-{tag}",
    ]
    assert (built.version, built.families, built.unused) == (
        version,
        ("gfx94X-dcgpu", "gfx110X-all"),
        ("blas_test_gfx110X-all", "blas_test_gfx94X-dcgpu", "hiptensor_lib_generic"),
    )
    assert sorted(path.name for path in (artifacts.parent / "out").iterdir()) == sorted(files)
    core = names_in(files[f"rocm_sdk_core-{tag}"])
    assert {
        "_rocm_sdk_core/__init__.py",
        "_rocm_sdk_core/bin/hipcc",
        "_rocm_sdk_core/include/hip/hip.h",
        "_rocm_sdk_core/share/therock/dist_info.json",
        "rocm_sdk_core/_cli.py",
    } <= core
    assert not any("cmake" in name for name in core)
    libraries = names_in(files[f"rocm_sdk_libraries_gfx110x_all-{tag}"])
    assert "_rocm_sdk_libraries_gfx110X_all/lib/libhipblas.so.3" in libraries
    assert "rocm_sdk_libraries_gfx110X_all/__init__.py" in libraries
    with zipfile.ZipFile(files[f"rocm_sdk_devel-{tag}"]) as wheel:
        assert [name for name in wheel.namelist() if name.startswith("_rocm_sdk_devel/")] == [
            "_rocm_sdk_devel/__init__.py",
            "_rocm_sdk_devel/include/hipblas.h",
            "_rocm_sdk_devel/include/rocprim/x.hpp",
            "_rocm_sdk_devel/lib/cmake/hip/hip.cmake",
        ]
        with tarfile.open(fileobj=wheel.open("rocm_sdk_devel/_devel.tar")) as archive:
            assert {member.name: member.linkname for member in archive} == {
                "_rocm_sdk_devel/llvm": "lib/llvm"
            }


def test_the_sdist_says_that_its_requirements_are_made_later(artifacts: Path) -> None:
    built = build(request(artifacts))
    with tarfile.open(built.files[0].path) as archive:
        names = archive.getnames()
    assert b"Dynamic: Requires-Dist\nDynamic: Provides-Extra\n" in in_sdist(built.files[0].path, "PKG-INFO")
    assert "rocm-7.99.0.dev0+sample/src/rocm_sdk/_dist_info.py" in names
    assert not any("__pycache__" in name for name in names)


def test_same_inputs_same_bytes(artifacts: Path) -> None:
    one = build(request(artifacts, output_dir=artifacts.parent / "one", jobs=1))
    two = build(request(artifacts, output_dir=artifacts.parent / "two", jobs=3))
    assert [file.sha256 for file in one.files] == [file.sha256 for file in two.files]


def test_the_version_given_counts(artifacts: Path) -> None:
    assert build(request(artifacts, version="10.1.0rc1")).version == "10.1.0rc1"
    with pytest.raises(UsageError):
        build(request(artifacts, version="latest"))


def test_an_unknown_family_is_refused(artifacts: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'gfx94X-dcgpu'"):
        build(request(artifacts, families=("gfx94X-dgpu",)))


@pytest.mark.parametrize("missing", ["core-hip_lib_generic", "amd-llvm_lib_generic"])
def test_an_incomplete_core_is_refused(artifacts: Path, missing: str) -> None:
    for folder in artifacts.glob(missing.replace("_lib_", "_*_")):
        folder.rename(artifacts / f".{folder.name}")
    with pytest.raises(ArtifactError, match="incomplete"):
        build(request(artifacts))
    assert not (artifacts.parent / "out").exists()


def test_an_incomplete_family_is_refused(artifacts: Path) -> None:
    write(artifacts, "fft_dev_gfx120X-all", **{"include/hipfft.h": "x"})
    with pytest.raises(ArtifactError, match="gfx120X-all are incomplete: they hold no libraries"):
        build(request(artifacts))


def test_families_that_contradict_each_other_are_packaged_one_at_a_time(
    artifacts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(artifacts, "blas_dev_gfx110X-all", **{"include/hipblas.h": "other"})
    with pytest.raises(ArtifactError, match="different files for include/hipblas") as raised:
        build(request(artifacts))
    assert raised.value.hint == "Package one GPU family at a time."
    families = ("gfx110X-all", "gfx94X-dcgpu")
    out = artifacts.parent / "groups"
    whole = request(artifacts, families=families, output_dir=out / "both")
    apart = verb._apart(whole)
    said = " ".join("".join(capsys.readouterr()).split())
    assert "in its own group: gfx110X-all, gfx94X-dcgpu." in said
    assert [(one.families, one.output_dir.name) for one in apart] == [((one,), one) for one in families]
    for family, files in zip(families, [build(one).files for one in apart], strict=True):
        assert f"blas_dev_{family}/x/stage/include/hipblas.h" in said
        libraries = f"rocm_sdk_libraries_{family.lower().replace('-', '_')}"
        made = [file.path.name.split("-7.99")[0] for file in files]
        assert made == ["rocm", "rocm_sdk_core", libraries, "rocm_sdk_devel"]
        info = in_sdist(files[0].path, "src/rocm_sdk/_dist_info.py")
        assert f"DEFAULT_TARGET_FAMILY = '{family}'".encode() in info
    (artifacts / "blas_dev_gfx110X-all/x/stage/include/hipblas.h").write_text("same", encoding="utf-8")
    assert verb._apart(whole) == (whole,)


def test_two_files_of_one_family_are_named_with_their_artifacts(artifacts: Path) -> None:
    write(artifacts, "fft_dev_gfx110X-all", **{"include/hipblas.h": "other"})
    with pytest.raises(ArtifactError) as raised:
        build(request(artifacts, families=("gfx110X-all",)))
    assert "blas_dev_gfx110X-all/x/stage/include/hipblas.h" in raised.value.message
    assert "fft_dev_gfx110X-all/x/stage/include/hipblas.h" in raised.value.message
    assert raised.value.hint.startswith("Fetch both artifacts again")


def test_no_families_are_refused(artifacts: Path) -> None:
    for folder in artifacts.glob("blas_*"):
        folder.rename(artifacts / f".{folder.name}")
    with pytest.raises(FatalError, match="no GPU family"):
        build(request(artifacts))


def test_the_inputs_digest_follows_every_input(artifacts: Path) -> None:
    before = inputs_digest(request(artifacts))
    assert inputs_digest(request(artifacts, output_dir=artifacts, jobs=7)) == before
    digests = {before}
    digests.add(inputs_digest(request(artifacts, version="10.1.0")))
    digests.add(inputs_digest(request(artifacts, families=("gfx110X-all",))))
    digests.add(inputs_digest(request(artifacts, epoch=5)))
    (artifacts / "blas_lib_gfx110X-all/x/stage/lib/libhipblas.so.3").write_text("new", encoding="utf-8")
    digests.add(inputs_digest(request(artifacts)))
    assert len(digests) == 5
    with pytest.raises(MissingInputError):
        inputs_digest(request(artifacts / "absent"))
