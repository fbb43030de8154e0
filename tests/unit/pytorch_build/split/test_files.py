from __future__ import annotations

import pytest

from core.families import parents
from pytorch_build.split.parts import gpu_of

ALL = ("gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1200", "gfx1201")


@pytest.mark.parametrize(
    ("path", "gpu"),
    [
        ("lib/aotriton.images/amd-gfx942/flash/attn_fwd/x.aks2", "gfx942"),
        ("lib/aotriton.images/amd-gfx11xx/flash/x.aks2", "gfx11"),
        ("lib/aotriton.images/amd-gfx110x/flash/x.aks2", "gfx110x"),
        ("lib/aotriton.images/amd-gfx115x/flash/x.aks2", "gfx115x"),
        ("lib/aotriton.images/amd-gfx120x/flash/x.aks2", "gfx12-0"),
        ("lib/aotriton.images/amd-gfx950/flash/x.aks2", None),
        ("lib/aotriton.images/amd-gfx125x/flash/x.aks2", None),
        ("lib/aotriton.images/README", None),
        ("lib/rocblas/library/TensileLibrary_Type_HH_gfx90a.co", "gfx90a"),
        ("lib/rocblas/library/Kernels.so-000-gfx90a-xnack+.hsaco", "gfx90a"),
        ("lib/rocblas/library/TensileLibrary_fallback.dat", None),
        ("lib/hipblaslt/library/gfx1201/TensileManifest.txt", "gfx1201"),
        ("share/miopen/db/gfx942130.HIP.fdb.txt", "gfx942"),
        ("share/miopen/db/gfx90878.db.txt", "gfx908"),
        ("share/miopen/db/gfx1030_36.db.txt", "gfx1030"),
        ("share/miopen/db/miopen.db", None),
        ("lib/libgfx942.so", None),
        ("include/gfx942/x.h", None),
    ],
)
def test_files_by_the_gpu_that_they_serve(path: str, gpu: str | None) -> None:
    assert gpu_of(path, ALL) == gpu


def test_a_group_without_a_target_has_no_wheel() -> None:
    assert gpu_of("lib/aotriton.images/amd-gfx11xx/x.aks2", ("gfx942",)) is None


def test_groups_follow_from_a_targets_version() -> None:
    assert parents("gfx1151") == ("gfx115x", "gfx11")
    assert parents("gfx1201") == ("gfx12-0", "gfx12")
    assert parents("gfx90a") == ("gfx9-0", "gfx9")
    assert parents("gfx942") == ("gfx9-4", "gfx9")
    assert parents("gfx1030") == ("gfx10-3", "gfx10")
    assert parents("gfx11") == ()
