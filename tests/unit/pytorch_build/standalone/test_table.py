from __future__ import annotations

import pytest

from pytorch_build.standalone.needs import load_table, path_pattern, rows_of, wanted_for


@pytest.mark.parametrize(
    ("path", "targets", "wanted"),
    [
        ("lib/rocblas/library/TensileLibrary_Type_HH_gfx942.dat", ("gfx942",), True),
        ("lib/rocblas/library/TensileLibrary_Type_HH_gfx90a.dat", ("gfx942",), False),
        ("lib/rocblas/library/Kernels.so-000-gfx90a-xnack-.hsaco", ("gfx90a",), True),
        ("lib/hipblaslt/library/gfx942/Kernels.so-000.hsaco", ("gfx942",), True),
        ("lib/hipblaslt/library/gfx950/Kernels.so-000.hsaco", ("gfx942",), False),
        ("lib/rocblas/library/TensileManifest.txt", ("gfx942",), True),
        # MIOpen's: a processor and its number of compute units
        ("share/miopen/db/gfx942130.HIP.fdb.txt", ("gfx942",), True),
        ("share/miopen/db/gfx90a6e.db.txt", ("gfx90a",), True),
        ("share/miopen/db/gfx90878.db", ("gfx90a",), False),
        ("share/miopen/db/gfx90878.db", ("gfx908",), True),
        ("share/miopen/db/gfx103036.kdb", ("gfx1030",), True),
        ("share/miopen/db/gfx103036.kdb", ("gfx1036",), False),
        ("lib/x/gfx11-generic.co", ("gfx1100",), True),
        ("lib/x/gfx9-4-generic.co", ("gfx1100",), False),
        (".kpack/blas_lib_gfx942.kpack", ("gfx1100",), False),
        (".kpack/blas_lib.kpm", ("gfx1100",), True),
        ("lib/rocblas/library/TensileLibrary_gfx90a.dat", (), True),
        ("lib/x/gfx801.co", ("gfx942",), False),
    ],
)
def test_data_goes_in_for_chosen_targets_alone(path: str, targets: tuple[str, ...], *, wanted: bool) -> None:
    assert wanted_for(path, targets) is wanted


def test_rows_hold_for_libraries_by_any_letter_case() -> None:
    table = load_table()
    opened = [glob for row in rows_of(table, "AMDHIP64_7.dll") for glob in row.opens]
    assert "bin/amd_comgr*.dll" in opened
    assert not [row for row in rows_of(table, "libc10.so") if row.opens]
    assert [glob for row in rows_of(table, "libMIOpen.so.1") for glob in row.data if "miopen" in glob]


@pytest.mark.parametrize(
    ("glob", "path", "fits"),
    [
        ("lib/rocblas/library/**", "lib/rocblas/library/a/b.co", True),
        ("**/libamd_comgr.so.*", "libamd_comgr.so.3", True),
        ("**/libamd_comgr.so.*", "lib/llvm/libamd_comgr.so.3", True),
        ("lib/lib*.so", "lib/x/liba.so", False),
        (".kpack/*", "xkpack/a", False),
    ],
)
def test_path_patterns(glob: str, path: str, *, fits: bool) -> None:
    assert bool(path_pattern(glob).fullmatch(path)) is fits
