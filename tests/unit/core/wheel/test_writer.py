import base64
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

METADATA = metadata_text([("Name", "rocm-sdk-core"), ("Version", "7.99.0.dev0+sample")])
SPEC = WheelSpec(
    distribution="rocm-sdk-core",
    version="7.99.0.dev0+sample",
    tag="py3-none-linux_x86_64",
    metadata=METADATA,
    console_scripts={"hipcc": "rocm_sdk_core._cli:hipcc"},
)


def members(folder: Path) -> list[Member]:
    tool = folder / "hipcc"
    tool.write_bytes(b"#!/bin/sh\n" + b"true\n" * 1000)
    return [
        Member(name="b/hipcc", source=tool, executable=True),
        Member(name="a/__init__.py", source=b""),
        Member(name="a/random.bin", source=os.urandom(4096)),
    ]


def test_wheel_holds_what_it_says(tmp_path: Path) -> None:
    content = members(tmp_path)
    written = write_wheel(tmp_path / "out", SPEC, content)
    assert written.path.name == "rocm_sdk_core-7.99.0.dev0+sample-py3-none-linux_x86_64.whl"
    assert written.sha256 == hashlib.sha256(written.path.read_bytes()).hexdigest()
    assert written.size == written.path.stat().st_size
    with zipfile.ZipFile(written.path) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert names[:3] == ["a/__init__.py", "a/random.bin", "b/hipcc"]
        assert names[-1] == "rocm_sdk_core-7.99.0.dev0+sample.dist-info/RECORD"
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
        assert modes["b/hipcc"] == 0o100755
        assert modes["a/__init__.py"] == 0o100644
        methods = {info.filename: info.compress_type for info in archive.infolist()}
        assert methods["b/hipcc"] == zipfile.ZIP_DEFLATED
        assert methods["a/random.bin"] == zipfile.ZIP_STORED
        rows = list(csv.reader(io.StringIO(archive.read(names[-1]).decode())))
        assert [row[0] for row in rows] == names
        for name, digest, size in rows[:-1]:
            data = archive.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, int(size)) == (f"sha256={expected}", len(data))
        assert rows[-1][1:] == ["", ""]
        entry_points = archive.read("rocm_sdk_core-7.99.0.dev0+sample.dist-info/entry_points.txt").decode()
        assert entry_points == "[console_scripts]\nhipcc = rocm_sdk_core._cli:hipcc\n"


def test_same_inputs_same_bytes_whatever_the_order_and_the_cores(tmp_path: Path) -> None:
    content = members(tmp_path)
    with Workers(jobs=1) as workers:
        one = write_wheel(tmp_path / "one", SPEC, content, packing=Packing(workers=workers))
    os.utime(tmp_path / "hipcc", (1, 1))
    with Workers(jobs=7) as workers:
        two = write_wheel(tmp_path / "two", SPEC, reversed(content), packing=Packing(workers=workers))
    assert one.sha256 == two.sha256


@pytest.mark.parametrize(
    ("names", "words"),
    [
        *(([name], "plain relative path") for name in ("../a", "/a", "a\\b", "a//b", "a/./b", "a/")),
        (["a", "a"], "a twice"),
        ([], "no files"),
    ],
)
def test_unsafe_repeated_and_no_names_are_refused(tmp_path: Path, names: list[str], words: str) -> None:
    with pytest.raises(WheelError, match=words):
        write_wheel(tmp_path, SPEC, [Member(name=name, source=b"") for name in names])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_source_leaves_no_wheel(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="absent"):
        write_wheel(tmp_path, SPEC, [Member(name="a", source=tmp_path / "absent")])
    assert list(tmp_path.iterdir()) == []


def test_sdist_is_reproducible_and_rooted(tmp_path: Path) -> None:
    content = [Member(name="setup.py", source=b"import setuptools\n"), Member(name="src/a.py", source=b"")]
    one = write_sdist(tmp_path / "one", "rocm", "10.1.0.dev0+abc", content, metadata=METADATA)
    two = write_sdist(tmp_path / "two", "rocm", "10.1.0.dev0+abc", content[::-1], metadata=METADATA)
    assert one.path.name == "rocm-10.1.0.dev0+abc.tar.gz"
    assert one.sha256 == two.sha256
    with tarfile.open(one.path) as archive:
        assert archive.getnames() == [
            f"rocm-10.1.0.dev0+abc/{name}" for name in ("PKG-INFO", "setup.py", "src/a.py")
        ]
        assert {(info.uid, info.uname, info.mode) for info in archive} == {(0, "", 0o644)}


def test_tar_keeps_links_and_modes() -> None:
    stream = io.BytesIO()
    write_tar(stream, [Member(name="bin/x", source=b"x", executable=True)], links={"bin/y": "x"})
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        assert [(info.name, info.mode, info.linkname) for info in archive] == [
            ("bin/x", 0o755, ""),
            ("bin/y", 0o777, "x"),
        ]


@pytest.mark.parametrize(
    ("distribution", "version", "stem"),
    [
        ("rocm-sdk-libraries-gfx94X-dcgpu", "7.0.0", "rocm_sdk_libraries_gfx94x_dcgpu-7.0.0"),
        ("rocm", "10.1.0a20260811+bkc.20260814", "rocm-10.1.0a20260811+bkc.20260814"),
        ("a..b--c", "1.0-dev2", "a_b_c-1.0.dev2"),
    ],
)
def test_file_stem_follows_the_standards(distribution: str, version: str, stem: str) -> None:
    assert file_stem(distribution, version) == stem


def test_metadata_values_cannot_start_new_fields() -> None:
    with pytest.raises(WheelError, match="Summary"):
        metadata_text([("Summary", "a\nRequires-Dist: evil")])
