"""Wheels that installers refused or that failed at import, as check_wheels sees them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from core.wheel import read_metadata
from pytorch_build.check.policy import CheckOptions
from pytorch_build.check.run import check_wheels
from tests.kit import binaries, wheels
from tests.kit.findings import errors_among, messages

NAME = "torchvision"
VERSION = "0.25.0+rocm7.1.0"
INFO = f"{NAME}-{VERSION}.dist-info"
TAG = "cp312-cp312-linux_x86_64"
EM_AARCH64 = 183
LIBRARY = f"{NAME}/lib/libimage.so"


def write_changed_wheel(folder: Path, *, changes: Mapping[str, bytes | None], tag: str = TAG) -> Path:
    """Write a wheel, some members of which are changed, added, or left out where they are None."""
    members = wheels.wheel_members(name=NAME, version=VERSION, tag=tag)
    for name, content in changes.items():
        if content is None:
            del members[name]
        else:
            members[name] = content
    path = folder / wheels.wheel_filename(name=NAME, version=VERSION, tag=tag)
    return wheels.write_members(path, wheels.add_record(members))


def findings_of(*paths: Path, options: CheckOptions | None = None) -> str:
    """Return what check_wheels finds, a line each."""
    return "\n".join(messages(check_wheels(paths, options=options)))


def errors_of(*paths: Path) -> str:
    """Return the errors that check_wheels finds, a line each."""
    return "\n".join(messages(errors_among(check_wheels(paths))))


# https://github.com/astral-sh/uv/issues/2106
# uv finds no .dist-info folder where its version is not that of the file's name; pip takes any.
def test_refuses_metadata_of_another_version_than_the_file_name(tmp_path: Path) -> None:
    members = wheels.wheel_members(name=NAME, version=f"{VERSION}.git1234abc", tag=TAG)
    path = tmp_path / wheels.wheel_filename(name=NAME, version=VERSION, tag=TAG)
    wheels.write_members(path, wheels.add_record(members))

    assert "git1234abc" in errors_of(path)


# https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1733
# The file was renamed by hand: METADATA and .dist-info agree with each other, and not with the name.
def test_refuses_a_wheel_that_was_renamed(tmp_path: Path) -> None:
    wheel = wheels.write_wheel(tmp_path, name=NAME, version="0.48.0.dev0", tag=TAG)
    renamed = wheel.rename(tmp_path / wheels.wheel_filename(name=NAME, version="1.33.7", tag=TAG))

    assert "0.48.0.dev0" in errors_of(renamed)


# https://github.com/aivrar/vllm-windows-build/issues/5
# A tool that patched the wheel wrote rows of six fields; csv readers took them, uv did not.
def test_refuses_a_record_with_rows_of_six_fields(tmp_path: Path) -> None:
    members = wheels.add_record(wheels.wheel_members(name=NAME, version=VERSION, tag=TAG))
    record = members[f"{INFO}/RECORD"].decode().splitlines()
    record[0] += ",,,"
    members[f"{INFO}/RECORD"] = "\n".join(record).encode()
    path = tmp_path / wheels.wheel_filename(name=NAME, version=VERSION, tag=TAG)

    assert "RECORD" in errors_of(wheels.write_members(path, members))


# https://github.com/robert-koch-institut/mex-common/pull/684 (uv's GHSA-pjjw-68hj-v9mw)
# uv removed what RECORD named outside of the environment when the wheel was uninstalled.
def test_refuses_a_record_that_names_files_elsewhere(tmp_path: Path) -> None:
    members = wheels.add_record(wheels.wheel_members(name=NAME, version=VERSION, tag=TAG))
    members[f"{INFO}/RECORD"] += b"../../../bin/python,,\n"
    path = tmp_path / wheels.wheel_filename(name=NAME, version=VERSION, tag=TAG)

    assert "../../../bin/python" in errors_of(wheels.write_members(path, members))


# https://github.com/astral-sh/uv/issues/13666
# A .dist-info folder whose name is not normalised stays behind when uv installs another version.
def test_warns_of_a_dist_info_folder_with_another_spelling(tmp_path: Path) -> None:
    members = wheels.wheel_members(name="torch-vision", version="0.25.0", tag=TAG)
    respelt = {name.replace("torch_vision-", "torch.vision-"): text for name, text in members.items()}
    path = tmp_path / f"torch_vision-0.25.0-{TAG}.whl"

    wheels.write_members(path, wheels.add_record(respelt))

    assert "torch.vision-0.25.0.dist-info" in findings_of(path)


# https://github.com/astral-sh/uv/issues/2149
# Tags without Python and ABI in WHEEL: pip reads the file's name alone.
@pytest.mark.parametrize("tags", ["Tag: \n", "Tag: -manylinux_2_17_x86_64\n"], ids=["empty", "in part"])
def test_refuses_incomplete_tags(tmp_path: Path, tags: str) -> None:
    text = f"Wheel-Version: 1.0\nGenerator: custom\nRoot-Is-Purelib: false\n{tags}"

    assert "WHEEL" in errors_of(write_changed_wheel(tmp_path, changes={f"{INFO}/WHEEL": text.encode()}))


# https://github.com/astral-sh/uv/issues/8798
# RECORD and the archive name different files.
def test_refuses_a_record_of_other_files(tmp_path: Path) -> None:
    members = wheels.add_record(wheels.wheel_members(name=NAME, version=VERSION, tag=TAG))
    members[f"{NAME}-{VERSION}.data/data/vcomp140.dll"] = b"MZ"
    path = tmp_path / wheels.wheel_filename(name=NAME, version=VERSION, tag=TAG)

    assert "vcomp140.dll" in str(check_wheels([wheels.write_members(path, members)]))


# https://github.com/astral-sh/uv/pull/19987
# Which of two .dist-info folders counted depended on the file system.
def test_refuses_two_dist_info_folders(tmp_path: Path) -> None:
    other_metadata = wheels.metadata_text(name="other", version="1.0").encode()
    path = write_changed_wheel(tmp_path, changes={"other-1.0.dist-info/METADATA": other_metadata})

    assert ".dist-info" in errors_of(path)


# https://github.com/astral-sh/uv/issues/10119, https://github.com/pantsbuild/pants/issues/18936
# Locks take the metadata of one wheel for that of all wheels of a version.
def test_warns_of_wheels_of_one_version_with_other_requirements(tmp_path: Path) -> None:
    linux = wheels.write_wheel(
        tmp_path, name=NAME, version=VERSION, tag=TAG, requires=["numpy", "triton==3.1"]
    )
    other_python = wheels.write_wheel(
        tmp_path, name=NAME, version=VERSION, tag=TAG.replace("312", "313"), requires=["numpy"]
    )

    assert "triton==3.1" in findings_of(linux, other_python)


# https://github.com/astral-sh/uv/issues/12282
# Local versions are compared in lower case: 2.5cxx11abiFalse is 2.5cxx11abifalse.
def test_takes_a_local_version_in_upper_case_for_the_same(tmp_path: Path) -> None:
    path = wheels.write_wheel(tmp_path, name=NAME, version="0.25.0+cxx11abiFalse", tag=TAG)

    assert str(read_metadata(path).version) == "0.25.0+cxx11abifalse"


# https://github.com/pytorch/pytorch/issues/131701
# Caffe2Targets.cmake named /opt/rocm/lib/libamdhip64.so of the build machine.
def test_finds_a_folder_of_the_build_machine_in_cmake_files(tmp_path: Path) -> None:
    text = b'set_target_properties(c10_hip INTERFACE_LINK_LIBRARIES "c10;/opt/rocm/lib/libamdhip64.so")'
    path = write_changed_wheel(tmp_path, changes={f"{NAME}/share/cmake/Caffe2Targets.cmake": text})

    assert "/opt/rocm" in findings_of(path, options=CheckOptions(build_paths=("/opt/rocm",)))


# https://github.com/pypa/auditwheel/issues/716
# strip after patchelf left segments that no loader maps: "ELF load command address/offset not page-aligned".
@pytest.mark.parametrize(("field", "value"), [("offset", 8), ("alignment", 3)])
def test_refuses_a_library_that_no_loader_maps(
    tmp_path: Path, field: Literal["offset", "alignment"], value: int
) -> None:
    library = binaries.elf_file() + bytes(16)
    content = with_segment(library, field=field, value=value)
    path = write_changed_wheel(tmp_path, changes={LIBRARY: content})

    assert "No loader maps it" in errors_of(path)


# https://github.com/pypa/auditwheel/issues/251
# A library for pages of 4 KiB is not loaded on an aarch64 machine that has pages of 64 KiB.
def test_warns_of_a_library_for_small_pages_alone(tmp_path: Path) -> None:
    library = binaries.elf_file(soname="libimage.so", machine=EM_AARCH64)
    tag = TAG.replace("x86_64", "aarch64")
    changes = {LIBRARY: with_segment(library, field="alignment", value=0x1000)}
    path = write_changed_wheel(tmp_path, changes=changes, tag=tag)

    assert "pages of more than 4096 bytes" in findings_of(path)


def with_segment(library: bytes, *, field: Literal["offset", "alignment"], value: int) -> bytes:
    """Return a library with another value in the header of its first segment."""
    # p_offset lies 8 bytes after the header's begin, p_align 48.
    position = binaries.FILE_HEADER_SIZE + {"offset": 8, "alignment": 48}[field]
    return library[:position] + value.to_bytes(8, "little") + library[position + 8 :]


# https://github.com/uxlfoundation/scikit-learn-intelex/pull/3374
# conda's compilers put -Wl,-rpath,PREFIX/lib into LDFLAGS, and so into every library.
def test_refuses_an_rpath_of_a_conda_environment(tmp_path: Path) -> None:
    content = binaries.elf_file(soname="libimage.so", rpath="$ORIGIN:/home/me/miniforge3/envs/rocm/lib")
    path = write_changed_wheel(tmp_path, changes={LIBRARY: content})

    assert "/home/me/miniforge3/envs/rocm/lib" in errors_of(path)
