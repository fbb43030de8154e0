from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from core.errors import MissingInputError, WheelError
from core.wheel import (
    MOST_FOLDERS,
    REST,
    folder_sizes,
    parse_name,
    parse_wheel_name,
    read_metadata,
    read_wheel_info,
)
from tests.kit.wheels import write_members

NAMES = st.from_regex(r"[a-z]([a-z0-9]|[_.][a-z0-9]){0,12}", fullmatch=True)
LOCAL_VERSIONS = st.from_regex(r"[a-z0-9]{1,8}(\.[a-z0-9]{1,6}){0,3}", fullmatch=True)
TAGS = st.sampled_from(["cp312-cp312-linux_x86_64", "cp313-cp313t-win_amd64", "py2.py3-none-any"])
BUILD_TAGS = st.sampled_from(["", "1", "2_abc"])

FILE_NAME = "demo-1.0+cpu-py3-none-any.whl"
INFO = "demo-1.0+cpu.dist-info"
METADATA = Path(__file__).with_name("recorded").joinpath("METADATA").read_bytes()
WHEEL = b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-cp312-linux_x86_64\nTag: cp312-abi3-any\n"


@st.composite
def versions(draw: st.DrawFn) -> str:
    """Draw a version with any of its parts (PEP 440)."""
    release = ".".join(
        str(number)
        for number in draw(
            st.lists(
                st.integers(0, 99),
                min_size=1,
                max_size=4,
            )
        )
    )
    pre_release = draw(st.sampled_from(["", "a0", "b2", "rc1"]))
    development = draw(st.sampled_from(["", ".dev0", ".dev20260822"]))
    local = draw(st.none() | LOCAL_VERSIONS)
    return f"{release}{pre_release}{development}" + (f"+{local}" if local else "")


# File names


@given(NAMES, versions(), BUILD_TAGS, TAGS)
def test_reads_wheel_names_as_packaging_does(
    name: str,
    version: str,
    build: str,
    tags: str,
) -> None:
    filename = "-".join(filter(None, [name, version, build, tags])) + ".whl"

    parsed = parse_wheel_name(filename)

    parts = (parsed.distribution, parsed.version, parsed.build_tag, parsed.tags)
    assert parts == parse_wheel_filename(filename)
    assert parsed.distribution == canonicalize_name(name)
    assert parsed.version == Version(version)
    assert parsed.filename == filename


@pytest.mark.parametrize("name", ["torch-2.10.whl", "torch-2..1-py3-none-any.whl", "torch.whl", ""])
def test_rejects_a_name_that_is_no_wheels(name: str) -> None:
    with pytest.raises(WheelError) as raised:
        parse_wheel_name(name)

    assert raised.value.message.startswith(name)


@pytest.mark.parametrize("copy", [" (1)", "(1)", " copy", "~", "."], ids=repr)
def test_rejects_what_a_download_or_an_editor_makes_of_a_name(copy: str) -> None:
    name = f"torch-2.10-cp312-cp312-linux_x86_64{copy}.whl"

    with pytest.raises(WheelError) as raised:
        parse_wheel_name(name)

    assert raised.value.message.startswith(name)


@pytest.mark.parametrize("name", ["torch-2.10.whl.tar.gz", "torch.tar.gz", ".tar.gz"])
def test_rejects_a_name_that_is_no_sdists(name: str) -> None:
    with pytest.raises(WheelError, match="sdist"):
        parse_name(name)


# METADATA and WHEEL


def test_reads_metadata_as_it_is_written(tmp_path: Path) -> None:
    wheel = write_members(tmp_path / FILE_NAME, {f"{INFO}/METADATA": METADATA})

    metadata = read_metadata(wheel)

    assert metadata.name == "Demo"
    assert metadata.version == Version("1.0+cpu")
    assert metadata.requires_dist == ("torch==2.13.0", 'numpy; extra == "np"')
    assert metadata.requires_python == ">=3.11"
    assert metadata.provides_extra == ("np",)
    assert metadata.license == ""
    assert metadata.raw == METADATA


@pytest.mark.parametrize(
    ("fields", "license_name"),
    [
        ("License-Expression: BSD-3-Clause\nLicense-File: LICENSE\n", "BSD-3-Clause"),
        ("License: BSD\nClassifier: License :: OSI Approved :: MIT License\n", "BSD"),
        ("License: MIT License\n        \n        Copyright\n", "MIT License"),
        ("Classifier: License :: OSI Approved :: BSD License\nClassifier: Typing :: Typed\n", "BSD License"),
        ("Classifier: License :: A\nClassifier: License :: B\n", "A, B"),
    ],
    ids=["expression", "field", "text in the field", "classifier", "two classifiers"],
)
def test_reads_the_licence_from_the_newest_field(tmp_path: Path, fields: str, license_name: str) -> None:
    metadata = METADATA.replace(b"Name: Demo\n", f"Name: Demo\n{fields}".encode())
    wheel = write_members(tmp_path / FILE_NAME, {f"{INFO}/METADATA": metadata})

    assert read_metadata(wheel).license == license_name


def test_reads_metadata_of_a_wheel_whose_other_members_are_damaged(tmp_path: Path) -> None:
    members = {"demo/big.bin": b"x" * 5000, f"{INFO}/METADATA": METADATA}
    wheel = write_members(tmp_path / FILE_NAME, members)
    content = bytearray(wheel.read_bytes())
    content[45:60] = b"\xff" * 15
    wheel.write_bytes(content)

    assert read_metadata(wheel).name == "Demo"


def test_reads_the_tags_of_a_wheel(tmp_path: Path) -> None:
    info = read_wheel_info(write_members(tmp_path / FILE_NAME, {f"{INFO}/WHEEL": WHEEL}))

    assert info.wheel_version == "1.0"
    assert info.root_is_purelib is False
    assert info.tags == {"cp312-cp312-linux_x86_64", "cp312-abi3-any"}


@pytest.mark.parametrize(
    ("members", "mentioned"),
    [
        ({}, "dist-info"),
        ({"a-1.dist-info/METADATA": METADATA}, "a-1.dist-info"),
        ({"demo-1.0+rocm7.dist-info/METADATA": METADATA}, "demo-1.0+rocm7.dist-info"),
        ({f"{INFO}/X": b"", "demo-2.dist-info/X": b""}, "exactly one"),
        ({f"{INFO}/X": b""}, f"{INFO}/METADATA"),
        ({f"{INFO}/METADATA": b"Version: 1.0\n"}, "Name"),
        ({f"{INFO}/METADATA": b"Name: demo\n"}, "Version"),
        ({f"{INFO}/METADATA": b"Name: demo\nVersion: x\n"}, "Version"),
    ],
    ids=[
        "empty",
        "other name",
        "other version",
        "two folders",
        "no METADATA",
        "no name",
        "no version",
        "bad version",
    ],
)
def test_rejects_metadata_that_cannot_be_trusted(
    tmp_path: Path, members: dict[str, bytes], mentioned: str
) -> None:
    wheel = write_members(tmp_path / FILE_NAME, members)

    with pytest.raises(WheelError) as raised:
        read_metadata(wheel)

    assert wheel.name in raised.value.message
    assert mentioned in raised.value.message


def test_accepts_another_spelling_of_the_dist_info_folder(tmp_path: Path) -> None:
    members = {"De.mo_X-1.dist-info/METADATA": METADATA}

    wheel = write_members(tmp_path / "de_mo_x-1.0-py3-none-any.whl", members)

    assert read_metadata(wheel).name == "Demo"


def test_a_wheel_that_is_not_there_is_a_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="demo"):
        read_metadata(tmp_path / FILE_NAME)


def test_rejects_a_page_in_the_place_of_a_wheel(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"<html>404</html>")

    with pytest.raises(WheelError, match="demo"):
        read_metadata(tmp_path / FILE_NAME)


def test_rejects_a_wheel_file_without_its_fields(tmp_path: Path) -> None:
    wheel = write_members(tmp_path / FILE_NAME, {f"{INFO}/WHEEL": b"Wheel-Version: 1.0\n"})

    with pytest.raises(WheelError, match="Root-Is-Purelib"):
        read_wheel_info(wheel)


# Sizes by folder


def write_sized_members(folder: Path, sizes: dict[str, int]) -> Path:
    """Write a wheel whose members have these sizes."""
    members = {name: bytes(size) for name, size in sizes.items()}
    return write_members(folder / "a-1-py3-none-any.whl", members)


def test_adds_members_up_by_folder_two_deep(tmp_path: Path) -> None:
    sizes = {"torch/lib/a.so": 5000, "torch/lib/x/y/b.so": 7, "torch/a.py": 3, "top.py": 2, "torch/lib/": 0}

    folders = folder_sizes(write_sized_members(tmp_path, sizes))

    counts = {name: (folder.files, folder.size) for name, folder in folders.items()}
    assert counts == {"torch/lib": (2, 5007), "torch": (1, 3), ".": (1, 2)}


def test_lists_the_largest_folder_first_with_its_compressed_size(tmp_path: Path) -> None:
    folders = folder_sizes(write_sized_members(tmp_path, {"a/small": 1, "b/large": 5000}))

    name, largest = next(iter(folders.items()))
    assert name == "b"
    assert 0 < largest.packed_size < largest.size


def test_limits_the_number_and_the_names_of_folders_and_loses_no_byte(tmp_path: Path) -> None:
    sizes = {f"folder{number}/{'n' * 400}/file": number for number in range(MOST_FOLDERS + 10)}

    folders = folder_sizes(write_sized_members(tmp_path, sizes))

    assert len(folders) == MOST_FOLDERS + 1
    assert folders[REST].files == 10
    assert sum(folder.size for folder in folders.values()) == sum(sizes.values())
    assert max(map(len, folders)) <= 200
