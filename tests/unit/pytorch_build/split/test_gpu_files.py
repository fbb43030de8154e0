"""Which device wheel the files of a fat wheel go into that serve some GPUs only."""

import pytest

from pytorch_build.split.gpu_files import gpu_of_file

TARGETS = ("gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1200", "gfx1201")
GPUS_OF_FILES = {
    "lib/aotriton.images/amd-gfx942/flash/attn_fwd/x.aks2": "gfx942",
    "lib/aotriton.images/amd-gfx11xx/flash/x.aks2": "gfx11",
    "lib/aotriton.images/amd-gfx110x/flash/x.aks2": "gfx110x",
    "lib/aotriton.images/amd-gfx115x/flash/x.aks2": "gfx115x",
    "lib/aotriton.images/amd-gfx120x/flash/x.aks2": "gfx12-0",
    "lib/rocblas/library/TensileLibrary_Type_HH_gfx90a.co": "gfx90a",
    "lib/rocblas/library/Kernels.so-000-gfx90a-xnack+.hsaco": "gfx90a",
    "lib/hipblaslt/library/gfx1201/TensileManifest.txt": "gfx1201",
    "share/miopen/db/gfx942130.HIP.fdb.txt": "gfx942",
    "share/miopen/db/gfx90878.db.txt": "gfx908",
    "share/miopen/db/gfx1030_36.db.txt": "gfx1030",
}


@pytest.mark.parametrize(("path", "gpu"), GPUS_OF_FILES.items())
def test_knows_the_gpu_that_a_file_serves(path: str, gpu: str) -> None:
    assert gpu_of_file(path, TARGETS) == gpu


@pytest.mark.parametrize("path", GPUS_OF_FILES)
def test_gives_no_wheel_to_a_gpu_that_was_not_built_for(path: str) -> None:
    assert gpu_of_file(path, ("gfx801",)) is None


@pytest.mark.parametrize(
    "path",
    [
        "lib/aotriton.images/amd-gfx950/flash/x.aks2",
        "lib/aotriton.images/amd-gfx125x/flash/x.aks2",
        "lib/aotriton.images/README",
        "lib/rocblas/library/TensileLibrary_fallback.dat",
        "share/miopen/db/miopen.db",
        "lib/libgfx942.so",
        "include/gfx942/x.h",
    ],
)
def test_keeps_files_for_all_gpus_in_the_host_wheel(path: str) -> None:
    assert gpu_of_file(path, TARGETS) is None
