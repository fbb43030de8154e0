from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from core.errors import RocmError
from pytorch_build.check import matches
from pytorch_build.standalone import needs
from pytorch_build.standalone.libraries import Binary, Rocm, RocmFile

LINUX = needs.Machine(promised=("libc.so.6",), usual=("libnuma.so.*",))
WINDOWS = needs.Machine(promised=("kernel32.dll",), searches=False)


def lib(*needed: str, search: Sequence[str] = ("$ORIGIN",), name: str = "") -> Binary:
    return Binary(name=name, needed=needed, search=tuple(search))


def follower(
    files: Mapping[str, Binary | None],
    *,
    rows: Sequence[needs.Row] = (),
    machine: needs.Machine = LINUX,
    targets: Sequence[str] = (),
    roots: Sequence[str] = ("core/", "math/"),
) -> needs.Follower:
    found = {}
    for path in files:
        root = next((one for one in roots if path.startswith(one)), "")
        found[path] = RocmFile(path=path, root=root, source=Path("rocm", path))
    table = needs.Table(label="standalone", system=needs.System(linux=()), library=tuple(rows))
    return needs.Follower(
        rocm=Rocm(files=found, version="7.1", origin="the ROCm"),
        table=table,
        machine=machine,
        targets=targets,
        read=lambda one: files[one.path],
    )


def follow(made: needs.Follower, *names: str) -> tuple[list[str], list[str], Mapping[str, tuple[str, ...]]]:
    roots = [made.need(name, "torch") for name in names]
    bundle = made.follow([one for one in roots if one is not None])
    return list(bundle.libraries), list(bundle.data), bundle.search


def test_needs_are_followed_through_packages_by_search_paths_alone() -> None:
    files = {
        "core/lib/libhip.so.7": lib("libhsa.so.1", "libc.so.6"),
        "core/lib/libhsa.so.1": lib("libelf.so.1", search=("$ORIGIN", "${ORIGIN}/deps/")),
        "core/lib/deps/libelf.so.1": lib(),
        "core/lib/libunused.so.1": lib(),
        "math/lib/libblas.so.3": lib("libhip.so.7", search=("$ORIGIN/../../core/lib",)),
    }
    assert follow(follower(files), "libblas.so.3") == (
        [
            "core/lib/deps/libelf.so.1",
            "core/lib/libhip.so.7",
            "core/lib/libhsa.so.1",
            "math/lib/libblas.so.3",
        ],
        [],
        {},
    )


def test_a_library_that_does_not_look_where_its_need_lies_gets_a_search_path() -> None:
    files = {
        "lib/libhip.so.7": lib("libelf.so.1", search=("/opt/rocm/lib", "$ORIGIN/x")),
        "lib/deps/libelf.so.1": lib(search=()),
        "lib/libabsolute.so.1": lib(search=("/build/lib", "$ORIGIN")),
    }
    _, _, search = follow(follower(files, roots=()), "libhip.so.7", "libabsolute.so.1")
    assert search == {"lib/libhip.so.7": ("$ORIGIN/x", "$ORIGIN/deps"), "lib/libabsolute.so.1": ("$ORIGIN",)}


def test_what_is_opened_by_name_comes_under_its_soname_with_what_it_needs() -> None:
    files = {
        "lib/libhip.so.7": lib(search=()),
        "lib/libcomgr.so.3": lib("libllvm.so.20", name="libcomgr.so.3"),
        "lib/libcomgr.so.3.1": lib("libllvm.so.20", name="libcomgr.so.3"),
        "lib/libllvm.so.20": lib("libhip.so.7"),  # a circle ends
    }
    rows = [needs.Row(names=("libhip.so*",), opens=("**/libcomgr.so.*", "lib/libabsent.so.*"))]
    libraries, _, search = follow(follower(files, rows=rows, roots=()), "libhip.so.7")
    assert libraries == ["lib/libcomgr.so.3", "lib/libhip.so.7", "lib/libllvm.so.20"]
    assert search == {"lib/libhip.so.7": ("$ORIGIN",)}


def test_data_comes_from_the_librarys_own_package_for_the_chosen_targets() -> None:
    files = {
        "math/lib/libblas.so.3": lib(),
        "math/lib/blas/k_gfx942.co": None,
        "math/lib/blas/k_gfx1100.co": None,
        "math/lib/blas/all.dat": None,
        "core/lib/blas/other.dat": None,
        "math/lib/fft/x.db": None,
    }
    rows = [
        needs.Row(names=("libblas.so*",), data=("lib/blas/**",)),
        needs.Row(names=("libfft.so*",), data=("lib/fft/*",)),
    ]
    libraries, data, _ = follow(follower(files, rows=rows, targets=("gfx942",)), "libblas.so.3")
    assert libraries == ["math/lib/libblas.so.3"]
    assert data == ["math/lib/blas/all.dat", "math/lib/blas/k_gfx942.co"]


def test_a_helper_program_brings_its_own_needs() -> None:
    files = {"lib/libfft.so.1": lib(), "bin/fft_helper": lib("librtc.so.7"), "lib/librtc.so.7": lib()}
    rows = [needs.Row(names=("libfft.so*",), data=("bin/fft_helper",))]
    libraries, data, search = follow(follower(files, rows=rows, roots=()), "libfft.so.1")
    assert libraries == ["bin/fft_helper", "lib/libfft.so.1", "lib/librtc.so.7"]
    assert data == []
    assert search == {"bin/fft_helper": ("$ORIGIN", "$ORIGIN/../lib")}


def test_every_missing_library_is_named_with_who_needs_it() -> None:
    files = {"lib/a.so": lib("liblost.so.1", "libnuma.so.1"), "lib/b.so": lib("liblost.so.1", "libgone.so.2")}
    made = follower(files, roots=())
    with pytest.raises(RocmError) as raised:
        follow(made, "a.so", "b.so")
    assert "libgone.so.2, which lib/b.so needs" in raised.value.message
    assert "liblost.so.1, which lib/a.so, lib/b.so needs" in raised.value.message
    assert "libnuma" not in raised.value.message


def test_libraries_of_the_machine_are_told_and_rocms_own_come_first() -> None:
    files = {"lib/a.so": lib("libnuma.so.1"), "lib/b.so": lib("libc.so.6")}
    bundle = follower(files, roots=()).follow([RocmFile(path="lib/a.so", root="", source=Path("a"))])
    assert bundle.machine == {"libnuma.so.1": ("lib/a.so",)}
    own = {**files, "lib/libnuma.so.1": lib(), "lib/libc.so.6": lib()}
    bundle = follower(own, roots=()).follow(
        [RocmFile(path=path, root="", source=Path("a")) for path in ("lib/a.so", "lib/b.so")]
    )
    assert bundle.machine == {}
    # its own search path leads there; a loader would take it, too
    assert list(bundle.libraries) == ["lib/a.so", "lib/b.so", "lib/libc.so.6", "lib/libnuma.so.1"]


def test_dlls_are_found_in_any_letter_case_and_have_no_search_path() -> None:
    files = {
        "bin/amdhip64_7.dll": lib("AMD_comgr.dll", "KERNEL32.dll", search=()),
        "bin/amd_comgr.dll": lib(search=()),
    }
    found = follow(follower(files, machine=WINDOWS, roots=()), "AMDHIP64_7.DLL")
    assert found == (["bin/amd_comgr.dll", "bin/amdhip64_7.dll"], [], {})


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
    assert needs.wanted_for(path, targets) is wanted


def test_rows_hold_for_libraries_by_any_letter_case() -> None:
    def rows_of(name: str) -> list[needs.Row]:
        return [row for row in needs.load_table().library if matches(name, row.names)]

    opened = [glob for row in rows_of("AMDHIP64_7.dll") for glob in row.opens]
    assert "bin/amd_comgr*.dll" in opened
    assert not [row for row in rows_of("libc10.so") if row.opens]
    assert [glob for row in rows_of("libMIOpen.so.1") for glob in row.data if "miopen" in glob]
