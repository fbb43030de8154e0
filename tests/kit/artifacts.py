"""ROCm's artifacts as folders of text files, and the packages that are built from them without a process."""

import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from rocm_packaging.packages.build import BuildRequest
from rocm_packaging.packages.layouts import packages

VERSION = "7.99.0.dev0+sample"
SPLIT_TARGETS = ("gfx942", "gfx1100", "gfx1101")
STAGE = "x/stage"
MANIFEST = "artifact_manifest.txt"
OVERLAY = "base/aux-overlay/stage"
BASE_FACTS = f"{OVERLAY}/share/therock/therock_manifest.json"

# what torch loads first
PRELOADED = (
    "amd_comgr",
    "amdhip64",
    "hiprtc",
    "hipblas",
    "hipfft",
    "hiprand",
    "hipsparse",
    "hipsparselt",
    "hipsolver",
    "hipblaslt",
    "miopen",
    "hipdnn",
    "rocm-openblas",
    "amd_smi",
    "rocm_sysdeps_liblzma",
    "rocm_smi64",
    "rocprofiler-sdk",
    "rocprofiler-sdk-roctx",
    "roctracer64",
    "roctx64",
    "rccl",
    "hipfile",
)


def write_artifact(root: Path, name: str, files: Mapping[str, str], *, stage: str = STAGE) -> Path:
    """Write files into a stage of an artifact, which is made if it is not there; return its folder.

    Files are paths in ROCm's tree, with what they hold.
    """
    folder = root / name
    manifest = folder / MANIFEST
    stages = manifest.read_text(encoding="utf-8").split() if manifest.exists() else []
    if stage not in stages:
        stages.append(stage)
        (folder / stage).mkdir(parents=True, exist_ok=True)
        manifest.write_text("\n".join(stages), encoding="utf-8")

    for path, text in files.items():
        target = folder / stage / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder


def write_base_artifact(
    root: Path,
    *,
    targets: Sequence[str] = (),
    is_split: bool,
    version: str = VERSION,
    commit: str | None = None,
) -> Path:
    """Write the artifact that says which ROCm the others are, and for which targets; return its folder."""
    facts: dict[str, object] = {"flags": {"KPACK_SPLIT_ARTIFACTS": is_split}, "rocm_version": version}
    if commit is not None:
        facts["the_rock_commit"] = commit
    files = {
        "share/therock/therock_manifest.json": json.dumps(facts),
        "share/therock/dist_info.json": json.dumps({"dist_amdgpu_targets": ";".join(targets)}),
    }
    return write_artifact(root, "base_lib_generic", files, stage=OVERLAY)


def write_unsplit_set(root: Path) -> Path:
    """Write the smallest unsplit set that packages are built from: two GPU families; return its folder."""
    write_base_artifact(root, targets=("gfx942", "gfx1100"), is_split=False)
    write_artifact(root, "core-hip_lib_generic", {"lib/libamdhip64.so.7": "hip"})
    write_artifact(root, "core-hip_dev_generic", {"include/hip/hip.h": "h", "lib/cmake/hip/hip.cmake": "c"})
    write_artifact(root, "core-hip_run_generic", {"bin/hipcc": "#!/bin/sh\n"})
    write_artifact(root, "amd-llvm_lib_generic", {"lib/llvm/lib/x.bc": "bc"})
    write_artifact(root, "prim_dev_generic", {"include/rocprim/x.hpp": "p"})
    write_artifact(root, "hiptensor_lib_generic", {"lib/libhiptensor.so": "t"})
    for family in ("gfx94X-dcgpu", "gfx110X-all"):
        write_artifact(root, f"blas_lib_{family}", {"lib/libhipblas.so.3": family})
        write_artifact(root, f"blas_dev_{family}", {"include/hipblas.h": "same"})
        write_artifact(root, f"blas_test_{family}", {"bin/hipblas-test": family})
    return root


def write_split_set(root: Path) -> Path:
    """Write a small split set, libraries for all GPUs and device code of three targets; return its folder."""
    write_base_artifact(root, targets=SPLIT_TARGETS, is_split=True)
    write_artifact(root, "core-hip_lib_generic", {"lib/libamdhip64.so.7": "hip"})
    write_artifact(root, "amd-llvm_lib_generic", {"lib/llvm/lib/x.bc": "bc"})
    write_artifact(root, "blas_lib_generic", {"lib/libhipblas.so.3": "host", ".kpack/blas_lib.kpm": "{}"})
    write_artifact(root, "blas_dev_generic", {"include/hipblas.h": "h"})
    write_artifact(root, "rpp_lib_generic", {"lib/librpp.so.2": "rpp"})
    for target in SPLIT_TARGETS:
        device_files = {
            f".kpack/blas_lib_{target}.kpack": target,
            f"lib/rocblas/library/db_{target}.dat": target,
        }
        write_artifact(root, f"blas_lib_{target}", device_files)
    write_artifact(root, "blas_lib_gfx942:xnack+", {".kpack/blas_lib_gfx942_xnack.kpack": "x"})
    return root


def write_complete_set(
    root: Path, families: Mapping[str, Sequence[str]], *, is_split: bool, platform: str = "linux"
) -> Path:
    """Write a set that holds all that the data requires of it; return its folder.

    `families` are GPU families with their targets.
    """
    all_targets = [target for targets in families.values() for target in targets]
    write_base_artifact(root, targets=all_targets, is_split=is_split)
    for name, contents in packages().contents.items():
        is_for_all_gpus = is_split or name not in packages().libraries.artifacts
        owners = {"generic": all_targets} if is_for_all_gpus else families
        for owner, targets in owners.items():
            for wanted_file in contents.wanted_files(platform, targets):
                glob = wanted_file.glob
                artifact_target = owner
                if is_split and wanted_file.name.endswith("-kernels"):
                    artifact_target = next((target for target in targets if target in glob), owner)
                artifact = f"{name}_{wanted_file.component}_{artifact_target}"
                write_artifact(root, artifact, {path_matching(glob): glob})
    return root


def path_matching(glob: str) -> str:
    """Return a path that a glob of the data matches."""
    return glob.replace("**/", "").replace("*", "")


def build_request(artifacts: Path) -> BuildRequest:
    """Return the request to package all that a set holds, into a folder beside it, whatever it lacks."""
    return BuildRequest(artifact_dir=artifacts, output_dir=artifacts.parent / "out", without=("*",))


def package_members(wheel: Path) -> set[str]:
    """Return the members of a wheel that are not its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def read_sdist_member(sdist: Path, name: str) -> bytes:
    """Return a member of an sdist, by its path in the project."""
    with tarfile.open(sdist) as archive:
        member = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/{name}")
        assert member is not None
        return member.read()


def run_dist_info(source: bytes) -> ModuleType:
    """Return the module that a package's generated ``_dist_info.py`` is."""
    module = ModuleType("dist_info")
    exec(compile(source, "_dist_info.py", "exec"), module.__dict__)  # noqa: S102 - our own file
    return module
