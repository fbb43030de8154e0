from __future__ import annotations

import base64
import csv
import hashlib
import io
import stat
import string
import tempfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.archive import Member, zip_writer
from core.errors import MissingInputError, WheelError
from core.wheel.editor import TEXT_LIMIT, Additions, edit_wheel
from core.wheel.record import verify_record

if TYPE_CHECKING:
    from collections.abc import Mapping

OLD, NEW = "demo-1.0rc1", "demo-1.0"
NAME = f"{OLD}-py3-none-any.whl"
BINARY = hashlib.shake_256(b"binary").digest(200_000)
CONTENT = {
    "demo/__init__.py": b"__version__ = '1.0rc1'\n",
    "demo/data.bin": b"\0" + BINARY,
    "demo/tool.sh": b"#!/bin/sh\nexit 0\n",
    "demo/empty.py": b"",
    f"{OLD}.data/purelib/more.bin": b"\0more" * 99,
    f"{OLD}.data/scripts/run": b"#!python\n",
    f"{OLD}.dist-info/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0rc1\n\nText.\n",
    f"{OLD}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{OLD}.dist-info/entry_points.txt": b"[console_scripts]\nrun = demo:main\n",
    f"{OLD}.dist-info/licenses/NOTICE.bin": b"\0binary",
}


def row(name: str, data: bytes, algorithm: str = "sha256") -> str:
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()
    return f"{name},{algorithm}={digest},{len(data)}\n"


def write(
    folder: Path,
    content: Mapping[str, bytes] = CONTENT,
    *,
    record: str = "",
    compression: int = zipfile.ZIP_DEFLATED,
    when: tuple[int, int, int, int, int, int] = (2026, 3, 4, 5, 6, 8),
    force_zip64: bool = False,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    made = (
        record or "".join(row(name, data) for name, data in content.items()) + f"{OLD}.dist-info/RECORD,,\n"
    )
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in [*content.items(), (f"{OLD}.dist-info/RECORD", made.encode())]:
            info = zipfile.ZipInfo(name, when)
            info.compress_type = compression
            info.external_attr = (stat.S_IFREG | (0o775 if name.endswith((".sh", "/run")) else 0o664)) << 16
            with archive.open(info, "w", force_zip64=force_zip64) as stream:
                stream.write(data)
    return path


def finalize(member: str, content: bytes) -> bytes:
    assert member.startswith(("demo/", OLD))
    return content.replace(b"1.0rc1", b"1.0")


def same(_member: str, content: bytes) -> bytes:
    return content


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


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
    assert done.file.path == tmp_path / "new" / f"{NEW}-py3-none-any.whl"
    assert done.file.sha256 == hashlib.sha256(done.file.path.read_bytes()).hexdigest()
    assert done.file.size == done.file.path.stat().st_size
    assert done.changed == (f"{NEW}.dist-info/METADATA", "demo/__init__.py")
    assert verify_record(done.file.path) == ()
    found = contents(done.file.path)
    record = found.pop(f"{NEW}.dist-info/RECORD")
    wanted = {
        name.replace(OLD, NEW): data.replace(b"1.0rc1", b"1.0") if b"\0" not in data else data
        for name, data in CONTENT.items()
    }
    assert found == wanted
    assert done.members == tuple(wanted)
    assert [line[0] for line in csv.reader(io.StringIO(record.decode()))] == [
        *wanted,
        f"{NEW}.dist-info/RECORD",
    ]
    assert source.read_bytes() == before


def test_members_are_copied_as_they_are_compressed(tmp_path: Path) -> None:
    source = write(tmp_path)
    new = edit_wheel(source, tmp_path / "new", version="1.0", edit=finalize).file.path
    for name in ("demo/data.bin", f"{OLD}.data/purelib/more.bin", f"{OLD}.dist-info/WHEEL"):
        assert packed(new, name.replace(OLD, NEW)) == packed(source, name)


def test_modes_times_and_the_last_member(tmp_path: Path) -> None:
    new = edit_wheel(write(tmp_path), tmp_path / "new", version="1.0", edit=finalize).file.path
    with zipfile.ZipFile(new) as archive:
        modes = {info.filename: stat.S_IMODE(info.external_attr >> 16) for info in archive.infolist()}
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.namelist()[-1] == f"{NEW}.dist-info/RECORD"
    runnable = {name for name, mode in modes.items() if mode & 0o111}
    assert runnable == {"demo/tool.sh", f"{NEW}.data/scripts/run"}
    assert set(modes.values()) == {0o755, 0o644}


def test_an_edited_file_stays_executable(tmp_path: Path) -> None:
    done = edit_wheel(write(tmp_path), tmp_path / "new", version="1.0", edit=lambda _, data: data + b"\n")
    assert "demo/tool.sh" in done.changed
    with zipfile.ZipFile(done.file.path) as archive:
        assert stat.S_IMODE(archive.getinfo("demo/tool.sh").external_attr >> 16) == 0o755


def test_equal_wheels_give_equal_bytes(tmp_path: Path) -> None:
    one = write(tmp_path / "one", when=(2026, 1, 1, 0, 0, 0))
    two = write(tmp_path / "two", when=(2025, 7, 7, 7, 7, 8))
    assert one.read_bytes() != two.read_bytes()
    first = edit_wheel(one, tmp_path / "a", version="1.0", edit=finalize)
    second = edit_wheel(two, tmp_path / "b", version="1.0", edit=finalize)
    assert first.file.sha256 == second.file.sha256
    later = edit_wheel(two, tmp_path / "c", version="1.0", edit=finalize, epoch=1_700_000_000)
    assert later.file.sha256 != first.file.sha256


def test_stored_members_stay_stored(tmp_path: Path) -> None:
    source = write(tmp_path, compression=zipfile.ZIP_STORED)
    new = edit_wheel(source, tmp_path / "new", version="1.0", edit=finalize).file.path
    assert verify_record(new) == ()
    with zipfile.ZipFile(new) as archive:
        assert archive.getinfo("demo/data.bin").compress_type == zipfile.ZIP_STORED


def test_archives_beyond_the_first_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path, force_zip64=True)
    monkeypatch.setattr(zip_writer, "_U16", 5)  # as if five members were 65,535
    new = edit_wheel(source, tmp_path / "new", version="1.0", edit=finalize).file.path
    assert b"PK\6\6" in new.read_bytes()[-200:]
    assert verify_record(new) == ()
    assert contents(new)["demo/data.bin"] == CONTENT["demo/data.bin"]


def test_signatures_of_the_old_record_are_left_out(tmp_path: Path) -> None:
    signed = {**CONTENT, f"{OLD}.dist-info/RECORD.jws": b"{}", f"{OLD}.dist-info/RECORD.p7s": b"\0"}
    new = edit_wheel(write(tmp_path, signed), tmp_path / "new", version="1.0", edit=finalize).file.path
    assert verify_record(new) == ()
    assert not any("RECORD." in name for name in contents(new))


def test_digests_and_sizes_are_taken_over(tmp_path: Path) -> None:
    rows = "".join(row(name, data, "sha512").rsplit(",", 1)[0] + ",\n" for name, data in CONTENT.items())
    source = write(tmp_path, record=f"{rows}{OLD}.dist-info/RECORD,,\n")
    new = edit_wheel(source, tmp_path / "new", version="1.0", edit=finalize).file.path
    assert verify_record(new) == ()
    rows = contents(new)[f"{NEW}.dist-info/RECORD"].decode()
    assert row("demo/data.bin", CONTENT["demo/data.bin"], "sha512") in rows
    assert row("demo/__init__.py", b"__version__ = '1.0'\n") in rows


def test_who_lies_in_record_lies_in_the_new_one_too(tmp_path: Path) -> None:
    rows = "".join(
        row(name, b"other" if name == "demo/data.bin" else data) for name, data in CONTENT.items()
    ).replace(",5\n", f",{len(CONTENT['demo/data.bin'])}\n")
    source = write(tmp_path, record=f"{rows}{OLD}.dist-info/RECORD,,\n")
    new = edit_wheel(source, tmp_path / "new", version="1.0", edit=finalize).file.path
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


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ("../escape.py", "leaves its folder"),
        ("/absolute.py", "absolute path"),
        ("demo\\windows.py", "backslash"),
        ("demo//double.py", "shortest form"),
    ],
)
def test_hostile_paths_are_refused(tmp_path: Path, member: str, said: str) -> None:
    source = write(tmp_path, {**CONTENT, member: b"x = 1\n"})
    with pytest.raises(WheelError, match=said):
        edit_wheel(source, tmp_path / "new", version="1.0", edit=same)
    assert not (tmp_path / "new").exists()


def test_links_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path)
    with zipfile.ZipFile(source, "a") as archive:
        info = zipfile.ZipInfo("demo/link.so")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(WheelError, match="symbolic link"):
        edit_wheel(source, tmp_path / "new", version="1.0", edit=same)


def test_members_that_share_bytes_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path)
    with zipfile.ZipFile(source, "a") as archive:
        twin = archive.getinfo("demo/data.bin")
        copy = zipfile.ZipInfo("demo/data.bin")
        for name in ("header_offset", "compress_size", "file_size", "CRC", "compress_type"):
            setattr(copy, name, getattr(twin, name))
        archive.filelist.append(copy)
        archive._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(WheelError, match=r"is in the archive 2 times|shares bytes"):
        edit_wheel(source, tmp_path / "new", version="1.0", edit=same)


@pytest.mark.parametrize("lacking", ["demo/data.bin", f"{OLD}.dist-info/WHEEL"])
def test_a_record_that_does_not_list_everything_is_refused(tmp_path: Path, lacking: str) -> None:
    rows = "".join(row(name, data) for name, data in CONTENT.items() if name != lacking)
    source = write(tmp_path, record=f"{rows}{OLD}.dist-info/RECORD,,\n")
    with pytest.raises(WheelError, match="not listed in RECORD"):
        edit_wheel(source, tmp_path / "new", version="1.0", edit=same)


def test_a_small_text_that_unpacks_to_more_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path)
    raw = source.read_bytes()
    before = len(CONTENT["demo/__init__.py"]).to_bytes(4, "little")
    at = raw.rindex(b"demo/__init__.py", 0, raw.rindex(b"demo/data.bin")) - 46 + 24
    assert raw[at : at + 4] == before
    source.write_bytes(raw[:at] + (5).to_bytes(4, "little") + raw[at + 4 :])
    with pytest.raises(WheelError, match="more data than the 5 bytes"):
        edit_wheel(source, tmp_path / "new", version="1.0", edit=same)


def test_nothing_is_left_where_an_edit_or_the_disk_fails(tmp_path: Path) -> None:
    def refuse(member: str, content: bytes) -> bytes:
        raise WheelError(f"{member} has {len(content)} bytes.")

    with pytest.raises(WheelError, match=r"demo/__init__\.py has 23 bytes"):
        edit_wheel(write(tmp_path), tmp_path / "new", version="1.0", edit=refuse)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("version", "said"), [("1.0rc1", "already"), ("1.0.0-rc.1", "already"), ("new", "not a version")]
)
def test_versions_that_are_none_or_not_new(tmp_path: Path, version: str, said: str) -> None:
    with pytest.raises(WheelError, match=said):
        edit_wheel(write(tmp_path), tmp_path / "new", version=version, edit=same)


def test_a_wheel_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError):
        edit_wheel(tmp_path / NAME, tmp_path / "new", version="1.0", edit=same)


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
            csv.writer(text, lineterminator="\n").writerow((name, *row("x", data).strip().split(",")[1:]))
        source = write(place, content, record=f"{text.getvalue()}{OLD}.dist-info/RECORD,,\n")
        there = edit_wheel(source, place / "there", version="2.0", edit=same)
        back = edit_wheel(there.file.path, place / "back", version="1.0rc1", edit=same)
        assert verify_record(there.file.path) == ()
        assert contents(back.file.path) == contents(source)
        again = edit_wheel(back.file.path, place / "again", version="2.0", edit=same)
        assert again.file.sha256 == there.file.sha256


def donor(folder: Path) -> Path:
    data = {"_lib/a.so": BINARY, "_lib/tool": b"#!/bin/sh\n", "_lib/unused": b"x"}
    info = "donor-2.0.dist-info"
    data[f"{info}/METADATA"] = b"Metadata-Version: 2.1\nName: donor\nVersion: 2.0\n"
    data[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(row(name, one) for name, one in data.items()) + f"{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "donor-2.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, one in {**data, f"{info}/RECORD": record.encode()}.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | (0o755 if name.endswith("tool") else 0o644)) << 16
            archive.writestr(entry, one)
    return path


def test_members_join_from_other_wheels_as_they_are_compressed_there(tmp_path: Path) -> None:
    source, other = write(tmp_path / "old"), donor(tmp_path)
    more = Additions(
        members=(Member(name="demo/new.txt", source=b"new"), Member(name="demo/data.bin", source=b"taken")),
        borrowed={other: {"_lib/a.so": "demo/lib/a.so", "_lib/tool": "demo/lib/tool"}},
    )
    made = edit_wheel(source, tmp_path / "new", version="1.0", edit=finalize, additions=more)
    assert verify_record(made.file.path) == ()
    with zipfile.ZipFile(made.file.path) as new, zipfile.ZipFile(other) as lent:
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
    assert "demo/data.bin" in made.changed


def test_additions_give_the_same_bytes_every_time(tmp_path: Path) -> None:
    more = Additions(borrowed={donor(tmp_path): {"_lib/tool": "demo/b", "_lib/a.so": "demo/a"}})
    first, second = (
        edit_wheel(write(tmp_path / "old"), tmp_path / name, version="1.0", edit=same, additions=more)
        for name in "ab"
    )
    assert first.file.path.read_bytes() == second.file.path.read_bytes()


def test_a_member_that_the_other_wheel_lacks_leaves_nothing_behind(tmp_path: Path) -> None:
    more = Additions(borrowed={donor(tmp_path): {"_lib/absent.so": "demo/absent.so"}})
    with pytest.raises(WheelError, match=r"donor-2\.0.* holds no _lib/absent\.so"):
        edit_wheel(write(tmp_path / "old"), tmp_path / "new", version="1.0", edit=same, additions=more)
    assert not (tmp_path / "new").exists()


def test_an_addition_under_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    more = Additions(borrowed={donor(tmp_path): {"_lib/a.so": "demo/data.bin"}})
    with pytest.raises(WheelError, match=r"demo/data\.bin twice"):
        edit_wheel(write(tmp_path / "old"), tmp_path / "new", version="1.0", edit=same, additions=more)


def test_a_platform_changes_the_name_and_the_tags_of_wheel(tmp_path: Path) -> None:
    platform = "manylinux_2_28_x86_64.manylinux_2_31_x86_64"
    made = edit_wheel(
        write(tmp_path / "old"),
        tmp_path / "new",
        version="1.0rc1",
        edit=same,
        additions=Additions(platform=platform),
    )
    assert made.file.path.name == f"{OLD}-py3-none-{platform}.whl"
    assert verify_record(made.file.path) == ()
    with zipfile.ZipFile(made.file.path) as archive:
        text = archive.read(f"{OLD}.dist-info/WHEEL").decode()
    tags = [line for line in text.splitlines() if line.startswith("Tag:")]
    assert tags == ["Tag: py3-none-manylinux_2_28_x86_64", "Tag: py3-none-manylinux_2_31_x86_64"]
