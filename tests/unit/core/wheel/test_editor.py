import csv
import gzip
import hashlib
import io
import stat
import string
import tarfile
import tempfile
import tracemalloc
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.archive import Member
from core.errors import MissingInputError, WheelError
from core.wheel import editor
from core.wheel.editor import TEXT_LIMIT, Additions, edit_sdist, edit_wheel
from core.wheel.record import verify_record
from core.wheel.writer import write_sdist
from tests.kit.wheels import add_record, read_members, record_row, write_members

OLD, NEW = "demo-1.0rc1", "demo-1.0"
NAME = f"{OLD}-py3-none-any.whl"
BINARY = hashlib.shake_256(b"binary").digest(200_000)
CONTENT = {
    "demo/__init__.py": b"__version__ = '1.0rc1'\n",
    "demo/data.bin": b"\0" + BINARY,
    "demo/tool.sh": b"#!/bin/sh\necho 1.0rc1\n",
    "demo/empty.py": b"",
    f"{OLD}.data/purelib/more.bin": b"\0more" * 99,
    f"{OLD}.data/scripts/run": b"#!python\n",
    f"{OLD}.dist-info/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0rc1\n\nText.\n",
    f"{OLD}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{OLD}.dist-info/entry_points.txt": b"[console_scripts]\nrun = demo:main\n",
    f"{OLD}.dist-info/licenses/NOTICE.bin": b"\0binary",
}


def write(
    folder: Path, content: Mapping[str, bytes] = CONTENT, *, record: str | None = None, **options: Any
) -> Path:
    """Write a wheel, with its right RECORD or with the text that is given."""
    recorded = (
        add_record(content) if record is None else {**content, f"{OLD}.dist-info/RECORD": record.encode()}
    )
    return write_members(folder / NAME, recorded, **options)


def finalize(_member: str, content: bytes) -> bytes:
    return content.replace(b"1.0rc1", b"1.0")


def finalized(source: Path, **options: Any) -> Path:
    """Write a wheel again as version 1.0, and return it verified."""
    new = edit_wheel(source, source.parent / "new", version="1.0", edit=finalize, **options).path
    assert verify_record(new) == ()
    return new


def same(_member: str, content: bytes) -> bytes:
    return content


def packed(path: Path, name: str) -> bytes:
    with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
        info = archive.getinfo(name)
        stream.seek(info.header_offset + 26)
        lengths = stream.read(4)
        stream.seek(int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little"), 1)
        return stream.read(info.compress_size)


def test_the_version_changes_and_nothing_else(tmp_path: Path) -> None:
    source = write(tmp_path)
    before = source.read_bytes()
    done = edit_wheel(source, tmp_path / "new", version="1.0", edit=finalize)
    assert done.path == tmp_path / "new" / f"{NEW}-py3-none-any.whl"
    assert done.sha256 == hashlib.sha256(done.path.read_bytes()).hexdigest()
    assert done.size == done.path.stat().st_size
    assert verify_record(done.path) == ()
    found = read_members(done.path)
    record = found.pop(f"{NEW}.dist-info/RECORD")
    wanted = {
        name.replace(OLD, NEW): data.replace(b"1.0rc1", b"1.0") if b"\0" not in data else data
        for name, data in CONTENT.items()
    }
    assert found == wanted
    assert done.members == tuple(wanted)
    expected = [*wanted, f"{NEW}.dist-info/RECORD"]
    assert [line[0] for line in csv.reader(io.StringIO(record.decode()))] == expected
    assert source.read_bytes() == before
    with zipfile.ZipFile(done.path) as archive:
        modes = {info.filename: stat.S_IMODE(info.external_attr >> 16) for info in archive.infolist()}
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.namelist()[-1] == f"{NEW}.dist-info/RECORD"
    assert {name for name, mode in modes.items() if mode == 0o755} == {
        "demo/tool.sh",
        f"{NEW}.data/scripts/run",
    }
    assert set(modes.values()) == {0o755, 0o644}


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_members_are_copied_as_they_are_compressed(tmp_path: Path, method: int) -> None:
    source = write(tmp_path, compression=method)
    new = finalized(source)
    with zipfile.ZipFile(new) as archive:
        assert archive.getinfo("demo/data.bin").compress_type == method
    for name in ("demo/data.bin", f"{OLD}.data/purelib/more.bin", f"{OLD}.dist-info/WHEEL"):
        assert packed(new, name.replace(OLD, NEW)) == packed(source, name)


def test_equal_wheels_give_equal_bytes(tmp_path: Path) -> None:
    one = write(tmp_path / "one", modified=(2026, 1, 1, 0, 0, 0))
    two = write(tmp_path / "two", modified=(2025, 7, 7, 7, 7, 8))
    assert one.read_bytes() != two.read_bytes()
    first = edit_wheel(one, tmp_path / "a", version="1.0", edit=finalize)
    second = edit_wheel(two, tmp_path / "b", version="1.0", edit=finalize)
    assert first.sha256 == second.sha256
    later = edit_wheel(two, tmp_path / "c", version="1.0", edit=finalize, epoch=1_700_000_000)
    assert later.sha256 != first.sha256


def test_signatures_of_the_old_record_are_left_out(tmp_path: Path) -> None:
    signed = {**CONTENT, f"{OLD}.dist-info/RECORD.jws": b"{}", f"{OLD}.dist-info/RECORD.p7s": b"\0"}
    new = finalized(write(tmp_path, signed))
    assert not any("RECORD." in name for name in read_members(new))


def test_digests_and_sizes_are_taken_over(tmp_path: Path) -> None:
    rows = "".join(
        record_row(name, data, "sha512").rsplit(",", 1)[0] + ",\n" for name, data in CONTENT.items()
    )
    new = finalized(write(tmp_path, record=f"{rows}{OLD}.dist-info/RECORD,,\n"))
    rows = read_members(new)[f"{NEW}.dist-info/RECORD"].decode()
    assert record_row("demo/data.bin", CONTENT["demo/data.bin"], "sha512") in rows
    assert record_row("demo/__init__.py", b"__version__ = '1.0'\n") in rows


def test_who_lies_in_record_lies_in_the_new_one_too(tmp_path: Path) -> None:
    rows = "".join(
        record_row(name, b"other" if name == "demo/data.bin" else data) for name, data in CONTENT.items()
    ).replace(",5\n", f",{len(CONTENT['demo/data.bin'])}\n")
    source = write(tmp_path, record=f"{rows}{OLD}.dist-info/RECORD,,\n")
    new = edit_wheel(source, tmp_path / "new", version="1.0", edit=finalize).path
    assert [one.message for one in verify_record(new)] == [
        "demo/data.bin does not have the sha256 that RECORD says."
    ]


def test_only_texts_are_read(tmp_path: Path) -> None:
    more = {
        **CONTENT,
        "demo/large.txt": b"x" * (TEXT_LIMIT + 1),
        "demo/limit.txt": b"x" * TEXT_LIMIT,
        "demo/late.bin": b"x" * 5000 + b"\0",
    }
    seen = {}

    def edit(member: str, content: bytes) -> bytes:
        seen[member] = content
        return content

    edit_wheel(write(tmp_path, more), tmp_path / "new", version="1.0", edit=edit)
    unread = {"demo/large.txt", "demo/data.bin", "demo/empty.py", f"{OLD}.data/purelib/more.bin"}
    assert seen == {name: data for name, data in more.items() if name not in unread}


def test_memory_does_not_follow_the_size(tmp_path: Path) -> None:
    source = write(tmp_path, {**CONTENT, "demo/large.bin": bytes(48 << 20)}, compression=zipfile.ZIP_STORED)
    tracemalloc.start()
    try:
        edit_wheel(source, tmp_path / "new", version="1.0", edit=finalize)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_a_small_text_that_unpacks_to_more_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path)
    raw = source.read_bytes()
    before = len(CONTENT["demo/__init__.py"]).to_bytes(4, "little")
    at = raw.rindex(b"demo/__init__.py", 0, raw.rindex(b"demo/data.bin")) - 46 + 24
    assert raw[at : at + 4] == before
    source.write_bytes(raw[:at] + (5).to_bytes(4, "little") + raw[at + 4 :])
    with pytest.raises(WheelError, match="more data than the 5 bytes"):
        edit_wheel(source, tmp_path / "new", version="1.0", edit=same)


def refuse(member: str, content: bytes) -> bytes:
    raise WheelError(f"{member} has {len(content)} bytes.")


@pytest.mark.parametrize(
    ("more", "version", "edit", "said"),
    [
        ({"../escape.py": b"x = 1\n"}, "1.0", same, "leaves its folder"),
        ({}, "1.0", refuse, r"demo/__init__\.py has 23 bytes"),
        ({}, "1.0rc1", same, "already"),
        ({}, "1.0.0-rc.1", same, "already"),
        ({}, "new", same, "not a version"),
    ],
)
def test_nothing_is_left_of_what_is_refused(
    tmp_path: Path, more: dict[str, bytes], version: str, edit: Any, said: str
) -> None:
    with pytest.raises(WheelError, match=said):
        edit_wheel(write(tmp_path, {**CONTENT, **more}), tmp_path / "new", version=version, edit=edit)
    assert not (tmp_path / "new").exists()


WORD = st.text(string.ascii_lowercase + "é+ ,\"'", min_size=1, max_size=9).filter(
    lambda word: word.strip() == word
)


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.lists(WORD, min_size=1, max_size=3).map("/".join),
        st.binary(max_size=300) | st.text(max_size=300).map(str.encode),
        max_size=6,
    )
)
def test_there_and_back_gives_the_same_wheel(files: dict[str, bytes]) -> None:
    content = {f"demo/x{name}": data for name, data in files.items()} | CONTENT
    prefixes = {f"{name}/" for name in content}
    content = {n: d for n, d in content.items() if not any(n.startswith(p) for p in prefixes)}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        text = io.StringIO()
        for name, data in content.items():
            csv.writer(text, lineterminator="\n").writerow(
                (name, *record_row("x", data).strip().split(",")[1:])
            )
        source = write(place, content, record=f"{text.getvalue()}{OLD}.dist-info/RECORD,,\n")
        there = edit_wheel(source, place / "there", version="2.0", edit=same)
        back = edit_wheel(there.path, place / "back", version="1.0rc1", edit=same)
        assert verify_record(there.path) == ()
        assert read_members(back.path) == read_members(source)
        again = edit_wheel(back.path, place / "again", version="2.0", edit=same)
        assert again.sha256 == there.sha256


def donor(folder: Path) -> Path:
    data = {"_lib/a.so": BINARY, "_lib/tool": b"#!/bin/sh\n", "_lib/unused": b"x"}
    info = "donor-2.0.dist-info"
    data[f"{info}/METADATA"] = b"Metadata-Version: 2.1\nName: donor\nVersion: 2.0\n"
    data[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    return write_members(folder / "donor-2.0-py3-none-any.whl", add_record(data), level=1)


def test_members_join_from_other_wheels_as_they_are_compressed_there(tmp_path: Path) -> None:
    source, other = write(tmp_path / "old"), donor(tmp_path)
    more = Additions(
        members=(Member(name="demo/new.txt", source=b"new"), Member(name="demo/data.bin", source=b"taken")),
        borrowed={other: {"_lib/a.so": "demo/lib/a.so", "_lib/tool": "demo/lib/tool"}},
    )
    made = edit_wheel(source, tmp_path / "new", version="1.0", edit=finalize, additions=more)
    assert verify_record(made.path) == ()
    with zipfile.ZipFile(made.path) as new, zipfile.ZipFile(other) as lent:
        assert new.read("demo/lib/a.so") == BINARY
        old_info, new_info = lent.getinfo("_lib/a.so"), new.getinfo("demo/lib/a.so")
        assert new_info.compress_size == old_info.compress_size
        assert new.getinfo("demo/lib/tool").external_attr >> 16 == stat.S_IFREG | 0o755
        assert new.read("demo/data.bin") == b"taken"
        assert new.read("demo/new.txt") == b"new"
        names = new.namelist()
        assert all(".dist-info/" in name for name in names[-5:])
        assert not any(".dist-info/" in name for name in names[:-5])
        assert names[-1] == f"{NEW}.dist-info/RECORD"
    assert set(made.members) == set(names) - {f"{NEW}.dist-info/RECORD"}


@pytest.mark.parametrize(
    ("borrowed", "said"),
    [
        ({"_lib/absent.so": "demo/absent.so"}, r"donor-2\.0.* holds no _lib/absent\.so"),
        ({"_lib/a.so": "demo/data.bin"}, r"demo/data\.bin twice"),
    ],
)
def test_what_cannot_be_added_leaves_no_trace(tmp_path: Path, borrowed: dict[str, str], said: str) -> None:
    more = Additions(borrowed={donor(tmp_path): borrowed})
    with pytest.raises(WheelError, match=said):
        edit_wheel(write(tmp_path / "old"), tmp_path / "new", version="1.0", edit=same, additions=more)
    assert not (tmp_path / "new").exists()


def test_a_platform_changes_the_name_and_the_tags_of_wheel(tmp_path: Path) -> None:
    platform = "manylinux_2_28_x86_64.manylinux_2_31_x86_64"
    more = Additions(platform=platform)
    made = edit_wheel(write(tmp_path / "old"), tmp_path / "new", version="1.0rc1", edit=same, additions=more)
    assert made.path.name == f"{OLD}-py3-none-{platform}.whl"
    assert verify_record(made.path) == ()
    with zipfile.ZipFile(made.path) as archive:
        text = archive.read(f"{OLD}.dist-info/WHEEL").decode()
    tags = [line for line in text.splitlines() if line.startswith("Tag:")]
    assert tags == ["Tag: py3-none-manylinux_2_28_x86_64", "Tag: py3-none-manylinux_2_31_x86_64"]


SDIST = "demo-1.0rc1.tar.gz"
INFO = "Metadata-Version: 2.2\nName: demo\nVersion: 1.0rc1\n"
SOURCES = {"src/demo.py": b"__version__ = '1.0rc1'\n", "run.sh": b"#!/bin/sh\n", "data.bin": b"\0\1"}


def written(folder: Path, version: str = "1.0rc1", info: str = INFO) -> Path:
    members = [Member(name=n, source=d, executable=n.endswith(".sh")) for n, d in SOURCES.items()]
    return write_sdist(folder, "demo", version, members, metadata=info).path


def tar(folder: Path, *entries: tarfile.TarInfo | tuple[str, bytes]) -> Path:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for entry in [("demo-1.0rc1/PKG-INFO", INFO.encode()), *entries]:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
                continue
            info = tarfile.TarInfo(entry[0])
            info.size = len(entry[1])
            archive.addfile(info, io.BytesIO(entry[1]))
    path = folder / SDIST
    path.write_bytes(gzip.compress(raw.getvalue()))
    return path


def test_an_sdist_changes_its_version_and_nothing_else(tmp_path: Path) -> None:
    done = edit_sdist(written(tmp_path), tmp_path / "new", version="1.0", edit=finalize)
    assert done.path == tmp_path / "new" / "demo-1.0.tar.gz"
    with tarfile.open(done.path) as archive:
        found = {one.name: (archive.extractfile(one), one.mode) for one in archive}
        contents = {name: (stream.read(), mode) for name, (stream, mode) in found.items() if stream}
    assert contents == {
        "demo-1.0/PKG-INFO": (INFO.replace("1.0rc1", "1.0").encode(), 0o644),
        "demo-1.0/src/demo.py": (b"__version__ = '1.0'\n", 0o644),
        "demo-1.0/run.sh": (b"#!/bin/sh\n", 0o755),
        "demo-1.0/data.bin": (b"\0\1", 0o644),
    }


def test_folders_of_the_tar_are_left_out(tmp_path: Path) -> None:
    folder = tarfile.TarInfo("demo-1.0rc1/src")
    folder.type = tarfile.DIRTYPE
    source = tar(tmp_path, folder, ("demo-1.0rc1/src/a.py", b"a"))
    done = edit_sdist(source, tmp_path / "new", version="1.0", edit=finalize)
    with tarfile.open(done.path) as archive:
        assert archive.getnames() == ["demo-1.0/PKG-INFO", "demo-1.0/src/a.py"]


def link() -> tarfile.TarInfo:
    info = tarfile.TarInfo("demo-1.0rc1/link")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (("demo-1.0rc1/../../escape", b""), "leaves its folder"),
        (("/etc/escape", b""), "absolute path"),
        (("other/file", b""), "outside demo-1.0rc1"),
        (("demo-1.0rc1/PKG-INFO", b""), "twice"),
        (link(), "neither a file nor a folder"),
    ],
)
def test_hostile_sdists_are_refused(
    tmp_path: Path, entry: tarfile.TarInfo | tuple[str, bytes], said: str
) -> None:
    with pytest.raises(WheelError, match=said):
        edit_sdist(tar(tmp_path, entry), tmp_path / "new", version="1.0", edit=finalize)
    assert not (tmp_path / "new").exists()


def test_one_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(editor, "LIMIT", 4096)
    source = tar(tmp_path, ("demo-1.0rc1/zeros", bytes(8000)))
    with pytest.raises(WheelError, match="unpacks to more than 4096 bytes"):
        edit_sdist(source, tmp_path / "new", version="1.0", edit=finalize)


@pytest.mark.parametrize(
    "damage",
    [b"", b"no gzip", gzip.compress(b"no tar"), gzip.compress(bytes(9999))[:30]],
    ids=("empty", "no gzip", "no tar", "cut off"),
)
def test_damaged_ones_are_refused(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / SDIST).write_bytes(damage)
    with pytest.raises(WheelError, match=r"not a readable sdist|holds no PKG-INFO"):
        edit_sdist(tmp_path / SDIST, tmp_path / "new", version="1.0", edit=finalize)


def test_metadata_that_is_no_utf8(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="PKG-INFO is not UTF-8"):
        edit_sdist(written(tmp_path), tmp_path / "new", version="1.0", edit=lambda _, data: data + b"\xff")


def test_what_is_not_there_is_a_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError):
        edit_wheel(tmp_path / NAME, tmp_path / "new", version="1.0", edit=same)
    with pytest.raises(MissingInputError):
        edit_sdist(tmp_path / SDIST, tmp_path / "new", version="1.0", edit=finalize)
