from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from core.errors import RocmError
from pytorch_build.check.policy import matches
from pytorch_build.standalone import needs
from pytorch_build.standalone.libraries import BinaryNeeds, Rocm, RocmFile
from pytorch_build.standalone.needs import (
    BundleTable,
    LibraryRow,
    MachineLibraries,
    RocmBundle,
    RocmBundleBuilder,
)

LINUX = MachineLibraries(on_every_machine=("libc.so.6",), on_most_machines=("libnuma.so.*",))
WINDOWS = MachineLibraries(on_every_machine=("kernel32.dll",), has_search_paths=False)
PACKAGES = ("core/", "math/")

# The files of a ROCm by path; those that are not compiled are None.
Files = Mapping[str, BinaryNeeds | None]


def library(*needed: str, search: Sequence[str] = ("$ORIGIN",), soname: str = "") -> BinaryNeeds:
    """Return a library that needs others and looks for them in folders."""
    return BinaryNeeds(name=soname, needed=needed, search=tuple(search))


def rocm_file(path: str) -> RocmFile:
    """Return a file of ROCm, in a package or in a tree."""
    package = next((package for package in PACKAGES if path.startswith(package)), "")
    return RocmFile(path_in_bundle=path, root=package, wheel_or_file=Path("rocm", path))


def bundle_builder(
    files: Files,
    *,
    rows: Sequence[LibraryRow] = (),
    machine: MachineLibraries = LINUX,
    targets: Sequence[str] = (),
) -> RocmBundleBuilder:
    """Return what bundles the files of a ROCm."""
    return RocmBundleBuilder(
        rocm=Rocm(files={path: rocm_file(path) for path in files}, version="7.1", origin="the ROCm"),
        table=BundleTable(label="standalone", linux_libraries=(), library=tuple(rows)),
        machine=machine,
        targets=targets,
        read=lambda file: files[file.path_in_bundle],
    )


def build(builder: RocmBundleBuilder, *names: str) -> RocmBundle:
    """Return what torch takes where it needs libraries of these names."""
    roots: list[RocmFile] = []
    for name in names:
        root = builder.find_needed(name, "torch")
        if root is not None:
            roots.append(root)
    return builder.build(roots)


# Libraries


def test_follows_needs_through_packages_along_search_paths() -> None:
    files = {
        "core/lib/libhip.so.7": library("libhsa.so.1", "libc.so.6"),
        "core/lib/libhsa.so.1": library("libelf.so.1", search=("$ORIGIN", "${ORIGIN}/deps/")),
        "core/lib/deps/libelf.so.1": library(),
        "core/lib/libunused.so.1": library(),
        "math/lib/libblas.so.3": library("libhip.so.7", search=("$ORIGIN/../../core/lib",)),
    }

    bundle = build(bundle_builder(files), "libblas.so.3")

    assert list(bundle.libraries) == [
        "core/lib/deps/libelf.so.1",
        "core/lib/libhip.so.7",
        "core/lib/libhsa.so.1",
        "math/lib/libblas.so.3",
    ]
    assert bundle.data == {}
    assert bundle.search_paths == {}


def test_gives_a_search_path_to_a_library_that_does_not_look_where_its_need_lies() -> None:
    files = {
        "lib/libhip.so.7": library("libelf.so.1", search=("/opt/rocm/lib", "$ORIGIN/x")),
        "lib/deps/libelf.so.1": library(search=()),
        "lib/libabsolute.so.1": library(search=("/build/lib", "$ORIGIN")),
    }

    bundle = build(bundle_builder(files), "libhip.so.7", "libabsolute.so.1")

    assert bundle.search_paths == {
        "lib/libhip.so.7": ("$ORIGIN/x", "$ORIGIN/deps"),
        "lib/libabsolute.so.1": ("$ORIGIN",),
    }


def test_takes_libraries_that_are_opened_by_name_under_their_sonames() -> None:
    files = {
        "lib/libhip.so.7": library(search=()),
        "lib/libcomgr.so.3": library("libllvm.so.20", soname="libcomgr.so.3"),
        "lib/libcomgr.so.3.1": library("libllvm.so.20", soname="libcomgr.so.3"),
        "lib/libllvm.so.20": library("libhip.so.7"),  # a circle ends
    }
    rows = [LibraryRow(names=("libhip.so*",), opens=("**/libcomgr.so.*", "lib/libabsent.so.*"))]

    bundle = build(bundle_builder(files, rows=rows), "libhip.so.7")

    assert list(bundle.libraries) == ["lib/libcomgr.so.3", "lib/libhip.so.7", "lib/libllvm.so.20"]
    assert bundle.search_paths == {"lib/libhip.so.7": ("$ORIGIN",)}


def test_names_every_missing_library_and_who_needs_it() -> None:
    files = {
        "lib/a.so": library("liblost.so.1", "libnuma.so.1"),
        "lib/b.so": library("liblost.so.1", "libgone.so.2"),
    }

    with pytest.raises(RocmError) as raised:
        build(bundle_builder(files), "a.so", "b.so")

    gone, lost = raised.value.message.splitlines()[1:]
    assert "libgone.so.2" in gone
    assert "lib/b.so" in gone
    assert "liblost.so.1" in lost
    assert "lib/a.so, lib/b.so" in lost


def test_names_libraries_that_the_machine_must_have() -> None:
    bundle = build(bundle_builder({"lib/a.so": library("libnuma.so.1")}), "a.so")

    assert bundle.machine_libraries == {"libnuma.so.1": ("lib/a.so",)}


def test_prefers_rocms_own_libraries_to_the_machines() -> None:
    files = {
        "lib/a.so": library("libnuma.so.1"),
        "lib/b.so": library("libc.so.6"),
        "lib/libnuma.so.1": library(),
        "lib/libc.so.6": library(),
    }

    bundle = build(bundle_builder(files), "a.so", "b.so")

    # The search paths lead to them: a loader would take them, too.
    assert list(bundle.libraries) == ["lib/a.so", "lib/b.so", "lib/libc.so.6", "lib/libnuma.so.1"]
    assert bundle.machine_libraries == {}


def test_finds_dlls_in_any_letter_case() -> None:
    files = {
        "bin/amdhip64_7.dll": library("AMD_comgr.dll", "KERNEL32.dll", search=()),
        "bin/amd_comgr.dll": library(search=()),
    }

    bundle = build(bundle_builder(files, machine=WINDOWS), "AMDHIP64_7.DLL")

    assert list(bundle.libraries) == ["bin/amd_comgr.dll", "bin/amdhip64_7.dll"]
    assert bundle.search_paths == {}


# Data and helpers


def test_takes_data_of_a_librarys_own_package_for_the_chosen_targets() -> None:
    files = {
        "math/lib/libblas.so.3": library(),
        "math/lib/blas/k_gfx942.co": None,
        "math/lib/blas/k_gfx1100.co": None,
        "math/lib/blas/all.dat": None,
        "core/lib/blas/other.dat": None,
        "math/lib/fft/x.db": None,
    }
    rows = [
        LibraryRow(names=("libblas.so*",), data=("lib/blas/**",)),
        LibraryRow(names=("libfft.so*",), data=("lib/fft/*",)),
    ]

    bundle = build(bundle_builder(files, rows=rows, targets=("gfx942",)), "libblas.so.3")

    assert list(bundle.libraries) == ["math/lib/libblas.so.3"]
    assert list(bundle.data) == ["math/lib/blas/all.dat", "math/lib/blas/k_gfx942.co"]


def test_takes_a_helper_program_with_its_own_needs() -> None:
    files = {
        "lib/libfft.so.1": library(),
        "bin/fft_helper": library("librtc.so.7"),
        "lib/librtc.so.7": library(),
    }
    rows = [LibraryRow(names=("libfft.so*",), data=("bin/fft_helper",))]

    bundle = build(bundle_builder(files, rows=rows), "libfft.so.1")

    assert list(bundle.libraries) == ["bin/fft_helper", "lib/libfft.so.1", "lib/librtc.so.7"]
    assert bundle.data == {}
    assert bundle.search_paths == {"bin/fft_helper": ("$ORIGIN", "$ORIGIN/../lib")}


@pytest.mark.parametrize(
    ("path", "targets", "is_wanted"),
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
def test_wants_the_data_of_chosen_targets_alone(
    path: str, targets: tuple[str, ...], *, is_wanted: bool
) -> None:
    assert needs.serves_targets(path, targets) is is_wanted


# The project's table


@dataclass
class Needs:
    """What the project's table says of a library: globs of what it opens, and of the data that it reads."""

    opens: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)


def needs_of(name: str) -> Needs:
    """Return what the project's table says of a library."""
    library_needs = Needs()
    for row in needs.load_table().library:
        if matches(name, row.names):
            library_needs.opens += row.opens
            library_needs.data += row.data
    return library_needs


def test_has_rows_for_libraries_in_any_letter_case() -> None:
    assert "bin/amd_comgr*.dll" in needs_of("AMDHIP64_7.dll").opens


def test_opens_nothing_for_torchs_own_libraries() -> None:
    assert needs_of("libc10.so").opens == []


def test_has_the_data_of_miopen() -> None:
    assert "share/miopen/db/**" in needs_of("libMIOpen.so.1").data
