import csv
import hashlib
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from core.archive import Member
from core.archive.packed import Packing, Workers
from core.errors import MissingInputError, WheelError
from core.wheel.writer import WheelSpec, file_stem, metadata_text, write_sdist, write_tar, write_wheel
from tests.kit.wheels import read_members, record_row, sha256

METADATA = metadata_text([("Name", "rocm-sdk-core"), ("Version", "7.99.0.dev0+sample")])
SPEC = WheelSpec(
    distribution="rocm-sdk-core",
    version="7.99.0.dev0+sample",
    tag="py3-none-linux_x86_64",
    metadata=METADATA,
    console_scripts={"hipcc": "rocm_sdk_core._cli:hipcc"},
)
INFO = "rocm_sdk_core-7.99.0.dev0+sample.dist-info"
NOISE = hashlib.shake_256(b"noise").digest(4096)


def three_members(folder: Path) -> list[Member]:
    """Return a program on the disk, an empty file and one that cannot be compressed, not in their order."""
    tool = folder / "hipcc"
    tool.write_bytes(b"#!/bin/sh\n" + b"true\n" * 1000)
    return [
        Member(
            name="b/hipcc",
            source=tool,
            executable=True,
        ),
        Member(name="a/__init__.py", source=b""),
        Member(name="a/random.bin", source=NOISE),
    ]


# Wheels


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel of three members."""
    folder = tmp_path_factory.mktemp("wheel")
    return write_wheel(folder / "out", SPEC, three_members(folder)).path


def test_returns_the_name_size_and_digest_of_a_wheel(tmp_path: Path) -> None:
    written = write_wheel(tmp_path / "out", SPEC, three_members(tmp_path))

    assert written.path.name == "rocm_sdk_core-7.99.0.dev0+sample-py3-none-linux_x86_64.whl"
    assert written.sha256 == sha256(written.path)
    assert written.size == written.path.stat().st_size


def test_sorts_members_before_dist_info_and_record_last(wheel: Path) -> None:
    names = list(read_members(wheel))

    assert names[:3] == ["a/__init__.py", "a/random.bin", "b/hipcc"]
    assert all(name.startswith(f"{INFO}/") for name in names[3:])
    assert names[-1] == f"{INFO}/RECORD"


def test_programs_are_executable(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.getinfo("b/hipcc").external_attr >> 16 == 0o100755
        assert archive.getinfo("a/__init__.py").external_attr >> 16 == 0o100644


def test_stores_what_compression_does_not_make_smaller(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        assert archive.getinfo("b/hipcc").compress_type == zipfile.ZIP_DEFLATED
        assert archive.getinfo("a/random.bin").compress_type == zipfile.ZIP_STORED


def test_record_has_the_digest_and_size_of_each_member(wheel: Path) -> None:
    members = read_members(wheel)
    record = members.pop(f"{INFO}/RECORD").decode()

    rows = [record_row(name, content) for name, content in members.items()]
    assert record == "".join(rows) + f"{INFO}/RECORD,,\n"
    assert len(list(csv.reader(io.StringIO(record)))) == len(members) + 1


def test_console_scripts_are_entry_points(wheel: Path) -> None:
    entry_points = read_members(wheel)[f"{INFO}/entry_points.txt"]

    assert entry_points == b"[console_scripts]\nhipcc = rocm_sdk_core._cli:hipcc\n"


def test_the_same_inputs_give_the_same_bytes_whatever_their_order_and_the_cores(tmp_path: Path) -> None:
    members = three_members(tmp_path)
    with Workers(jobs=1) as workers:
        first = write_wheel(tmp_path / "first", SPEC, members, packing=Packing(workers=workers))
    os.utime(tmp_path / "hipcc", (1, 1))

    with Workers(jobs=3) as workers:
        second = write_wheel(tmp_path / "second", SPEC, reversed(members), packing=Packing(workers=workers))

    assert first.sha256 == second.sha256


@pytest.mark.parametrize("name", ["../a", "/a", "a\\b", "a//b", "a/./b", "a/"])
def test_rejects_names_that_are_no_plain_relative_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(WheelError) as raised:
        write_wheel(tmp_path, SPEC, [Member(name=name, source=b"")])

    assert repr(name) in raised.value.message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("names", "mentioned"), [(["a", "a"], "a twice"), ([], "no files")])
def test_rejects_repeated_names_and_no_names(tmp_path: Path, names: list[str], mentioned: str) -> None:
    with pytest.raises(WheelError, match=mentioned):
        write_wheel(
            tmp_path,
            SPEC,
            [
                Member(
                    name=name,
                    source=b"",
                )
                for name in names
            ],
        )

    assert list(tmp_path.iterdir()) == []


def test_a_missing_source_leaves_no_wheel(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="absent"):
        write_wheel(tmp_path, SPEC, [Member(name="a", source=tmp_path / "absent")])

    assert list(tmp_path.iterdir()) == []


# Sdists and tars


def test_an_sdist_has_all_files_below_one_folder(tmp_path: Path) -> None:
    members = [
        Member(
            name="setup.py",
            source=b"import setuptools\n",
        ),
        Member(
            name="src/a.py",
            source=b"",
        ),
    ]

    sdist = write_sdist(tmp_path, "rocm", "10.1.0.dev0+abc", members, metadata=METADATA).path

    assert sdist.name == "rocm-10.1.0.dev0+abc.tar.gz"
    with tarfile.open(sdist) as archive:
        assert archive.getnames() == [
            "rocm-10.1.0.dev0+abc/PKG-INFO",
            "rocm-10.1.0.dev0+abc/setup.py",
            "rocm-10.1.0.dev0+abc/src/a.py",
        ]
        assert {(info.uid, info.uname, info.mode) for info in archive} == {(0, "", 0o644)}


def test_an_sdist_has_the_same_bytes_whatever_the_order_of_its_members(tmp_path: Path) -> None:
    members = [
        Member(
            name="setup.py",
            source=b"import setuptools\n",
        ),
        Member(
            name="src/a.py",
            source=b"",
        ),
    ]

    first = write_sdist(tmp_path / "first", "rocm", "7.1", members, metadata=METADATA)
    second = write_sdist(tmp_path / "second", "rocm", "7.1", members[::-1], metadata=METADATA)

    assert first.sha256 == second.sha256


def test_a_tar_keeps_links_and_modes() -> None:
    stream = io.BytesIO()

    write_tar(
        stream,
        [
            Member(
                name="bin/x",
                source=b"x",
                executable=True,
            )
        ],
        links={"bin/y": "x"},
    )

    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        entries = [(info.name, info.mode, info.linkname) for info in archive]
    assert entries == [("bin/x", 0o755, ""), ("bin/y", 0o777, "x")]


# Names and metadata


@pytest.mark.parametrize(
    ("distribution", "version", "stem"),
    [
        ("rocm-sdk-libraries-gfx94X-dcgpu", "7.0.0", "rocm_sdk_libraries_gfx94x_dcgpu-7.0.0"),
        ("rocm", "10.1.0a20260811+bkc.20260814", "rocm-10.1.0a20260811+bkc.20260814"),
        ("a..b--c", "1.0-dev2", "a_b_c-1.0.dev2"),
    ],
)
def test_spells_file_names_as_the_standards_do(distribution: str, version: str, stem: str) -> None:
    assert file_stem(distribution, version) == stem


def test_a_value_of_metadata_cannot_start_a_new_field() -> None:
    with pytest.raises(WheelError, match="Summary"):
        metadata_text([("Summary", "a\nRequires-Dist: evil")])
