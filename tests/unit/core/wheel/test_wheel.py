import re
from collections.abc import Mapping
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
LOCALS = st.from_regex(r"[a-z0-9]{1,8}(\.[a-z0-9]{1,6}){0,3}", fullmatch=True)
TAGS = st.sampled_from(["cp312-cp312-linux_x86_64", "cp313-cp313t-win_amd64", "py2.py3-none-any"])


@st.composite
def versions(draw: st.DrawFn) -> str:
    release = ".".join(str(part) for part in draw(st.lists(st.integers(0, 99), min_size=1, max_size=4)))
    pre = draw(st.sampled_from(["", "a0", "b2", "rc1"]))
    dev = draw(st.sampled_from(["", ".dev0", ".dev20260822"]))
    local = draw(st.none() | LOCALS)
    return f"{release}{pre}{dev}" + (f"+{local}" if local else "")


@given(NAMES, versions(), st.sampled_from(["", "1", "2_abc"]), TAGS)
def test_a_wheel_name_says_what_packaging_says(name: str, version: str, build: str, tags: str) -> None:
    filename = "-".join([name, version, *([build] if build else []), tags]) + ".whl"

    parsed = parse_wheel_name(filename)

    assert (parsed.distribution, parsed.version, parsed.build_tag, parsed.tags) == parse_wheel_filename(
        filename
    )
    assert parsed.distribution == canonicalize_name(name)
    assert parsed.version == Version(version)
    assert parsed.filename == filename


@pytest.mark.parametrize("name", ["torch-2.10.whl", "torch-2..1-py3-none-any.whl", "torch.whl", ""])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(WheelError, match=f"^{re.escape(name)} is not a wheel's file name"):
        parse_wheel_name(name)
    with pytest.raises(WheelError, match="not an sdist's file name"):
        parse_name(f"{name}.tar.gz")


METADATA = Path(__file__).with_name("recorded").joinpath("METADATA").read_bytes()
WHEEL = b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-cp312-linux_x86_64\nTag: cp312-abi3-any\n"


def write_wheel(folder: Path, members: dict[str, bytes], name: str = "demo-1.0+cpu-py3-none-any.whl") -> Path:
    return write_members(folder / name, members)


def test_metadata_is_read_as_written(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, {"demo-1.0+cpu.dist-info/METADATA": METADATA})

    metadata = read_metadata(path)

    assert metadata.name == "Demo"
    assert metadata.version == Version("1.0+cpu")
    assert metadata.requires_dist == ("torch==2.13.0", 'numpy; extra == "np"')
    assert metadata.requires_python == ">=3.11"
    assert metadata.provides_extra == ("np",)
    assert metadata.license == ""
    assert metadata.raw == METADATA


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("License-Expression: BSD-3-Clause\nLicense-File: LICENSE\n", "BSD-3-Clause"),
        ("License: BSD\nClassifier: License :: OSI Approved :: MIT License\n", "BSD"),
        ("License: MIT License\n        \n        Copyright\n", "MIT License"),
        ("Classifier: License :: OSI Approved :: BSD License\nClassifier: Typing :: Typed\n", "BSD License"),
        ("Classifier: License :: A\nClassifier: License :: B\n", "A, B"),
    ],
)
def test_the_licence_is_what_the_newest_field_says(tmp_path: Path, fields: str, said: str) -> None:
    metadata = METADATA.replace(b"Name: Demo\n", f"Name: Demo\n{fields}".encode())
    path = write_wheel(tmp_path, {"demo-1.0+cpu.dist-info/METADATA": metadata})
    assert read_metadata(path).license == said


def test_metadata_of_a_wheel_whose_other_members_are_damaged_is_still_read(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, {"demo/big.bin": b"x" * 5000, "demo-1.0+cpu.dist-info/METADATA": METADATA})
    data = bytearray(path.read_bytes())
    data[45:60] = b"\xff" * 15
    path.write_bytes(data)

    assert read_metadata(path).name == "Demo"


def test_the_wheel_file_is_read(tmp_path: Path) -> None:
    info = read_wheel_info(write_wheel(tmp_path, {"demo-1.0+cpu.dist-info/WHEEL": WHEEL}))

    assert info.wheel_version == "1.0"
    assert info.root_is_purelib is False
    assert info.tags == {"cp312-cp312-linux_x86_64", "cp312-abi3-any"}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({}, "it holds none"),
        ({"a-1.dist-info/METADATA": METADATA}, "does not carry the file's name"),
        ({"demo-1.0+rocm7.dist-info/METADATA": METADATA}, "does not carry the file's name"),
        ({"demo-1.0+cpu.dist-info/X": b"", "demo-2.dist-info/X": b""}, "exactly one"),
        ({"demo-1.0+cpu.dist-info/X": b""}, "holds no demo-1.0.cpu.dist-info/METADATA"),
        ({"demo-1.0+cpu.dist-info/METADATA": b"Version: 1.0\n"}, "has no Name"),
        ({"demo-1.0+cpu.dist-info/METADATA": b"Name: demo\n"}, "has no valid Version"),
        ({"demo-1.0+cpu.dist-info/METADATA": b"Name: demo\nVersion: x\n"}, "has no valid Version"),
    ],
)
def test_metadata_that_cannot_be_trusted(tmp_path: Path, members: dict[str, bytes], message: str) -> None:
    path = write_wheel(tmp_path, members)
    with pytest.raises(WheelError, match=message) as caught:
        read_metadata(path)
    assert path.name in caught.value.message


def test_the_dist_info_folder_may_be_spelled_otherwise(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, {"De.mo_X-1.dist-info/METADATA": METADATA}, "de_mo_x-1.0-py3-none-any.whl")
    assert read_metadata(path).name == "Demo"


def test_files_that_are_no_wheel(tmp_path: Path) -> None:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    with pytest.raises(MissingInputError):
        read_metadata(path)
    path.write_bytes(b"<html>404</html>")
    with pytest.raises(WheelError, match=r"demo-1\.0.* is not a readable zip file"):
        read_metadata(path)


def test_a_wheel_file_that_says_too_little(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, {"demo-1.0+cpu.dist-info/WHEEL": b"Wheel-Version: 1.0\n"})
    with pytest.raises(WheelError, match="Root-Is-Purelib"):
        read_wheel_info(path)


def wheel(folder: Path, members: Mapping[str, int]) -> Path:
    return write_wheel(folder, {name: bytes(size) for name, size in members.items()}, "a-1-py3-none-any.whl")


def test_members_are_added_up_by_folder_two_deep(tmp_path: Path) -> None:
    found = folder_sizes(
        wheel(
            tmp_path,
            {"torch/lib/a.so": 5000, "torch/lib/x/y/b.so": 7, "torch/a.py": 3, "top.py": 2, "torch/lib/": 0},
        )
    )
    expected = {"torch/lib": [2, 5007], "torch": [1, 3], ".": [1, 2]}
    assert {name: numbers[:2] for name, numbers in found.items()} == expected
    # compressed, and the largest first
    assert 0 < found["torch/lib"][2] < 5007
    assert next(iter(found)) == "torch/lib"


def test_a_record_is_bounded_and_nothing_is_lost(tmp_path: Path) -> None:
    members = {f"folder{at}/{'n' * 400}/file": at for at in range(MOST_FOLDERS + 10)}
    found = folder_sizes(wheel(tmp_path, members))
    assert len(found) == MOST_FOLDERS + 1
    assert found[REST][0] == 10
    assert sum(numbers[1] for numbers in found.values()) == sum(members.values())
    assert max(map(len, found)) <= 200
