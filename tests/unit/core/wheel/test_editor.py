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
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.archive import Member
from core.errors import MissingInputError, WheelError
from core.wheel import editor
from core.wheel.editor import TEXT_LIMIT, Additions, edit_sdist, edit_wheel
from core.wheel.record import verify_record
from core.wheel.writer import WrittenFile
from tests.kit.wheels import add_record, read_members, record_row, record_text, sha256, write_members

MEBIBYTE = 1 << 20

OLD = "demo-1.0rc1"
NEW = "demo-1.0"
FILE_NAME = f"{OLD}-py3-none-any.whl"
NOISE = hashlib.shake_256(b"noise").digest(20_000)
MEMBERS = {
    "demo/__init__.py": b"__version__ = '1.0rc1'\n",
    "demo/data.bin": b"\0" + NOISE,
    "demo/tool.sh": b"#!/bin/sh\necho 1.0rc1\n",
    "demo/empty.py": b"",
    f"{OLD}.data/purelib/more.bin": b"\0more" * 99,
    f"{OLD}.data/scripts/run": b"#!python\n",
    f"{OLD}.dist-info/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0rc1\n\nText.\n",
    f"{OLD}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{OLD}.dist-info/entry_points.txt": b"[console_scripts]\nrun = demo:main\n",
    f"{OLD}.dist-info/licenses/NOTICE.bin": b"\0binary",
}

Edit = Callable[[str, bytes], bytes]


def write_wheel(
    folder: Path,
    members: Mapping[str, bytes] = MEMBERS,
    *,
    record: str | None = None,
    compression: int = zipfile.ZIP_DEFLATED,
) -> Path:
    """Write a wheel with the RECORD of its members, or with another one."""
    if record is None:
        recorded = add_record(members)
    else:
        recorded = {**members, f"{OLD}.dist-info/RECORD": record.encode()}
    return write_members(folder / FILE_NAME, recorded, compression=compression)


def finalize(_member: str, content: bytes) -> bytes:
    """Write the new version into a text."""
    return content.replace(b"1.0rc1", b"1.0")


def keep(_member: str, content: bytes) -> bytes:
    """Leave a text as it is."""
    return content


def finalize_wheel(wheel: Path) -> WrittenFile:
    """Write a wheel again as version 1.0, and verify it."""
    written_file = edit_wheel(
        wheel,
        wheel.parent / "new",
        version="1.0",
        edit=finalize,
    )
    assert verify_record(written_file.path) == ()
    return written_file


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Return a wheel of a release candidate."""
    return write_wheel(tmp_path)


FINAL_MEMBERS = {
    name.replace(OLD, NEW): content if b"\0" in content else finalize(name, content)
    for name, content in MEMBERS.items()
}


# Another version


def test_changes_the_version_in_texts_and_folders_and_nothing_else(wheel: Path) -> None:
    members = read_members(finalize_wheel(wheel).path)

    del members[f"{NEW}.dist-info/RECORD"]
    assert members == FINAL_MEMBERS


def test_returns_the_name_size_digest_and_members_of_the_new_wheel(wheel: Path) -> None:
    written_file = finalize_wheel(wheel)

    assert written_file.path == wheel.parent / "new" / f"{NEW}-py3-none-any.whl"
    assert written_file.sha256 == sha256(written_file.path)
    assert written_file.size == written_file.path.stat().st_size
    assert written_file.members == tuple(FINAL_MEMBERS)


def test_leaves_the_old_wheel_as_it_is(wheel: Path) -> None:
    content = wheel.read_bytes()

    finalize_wheel(wheel)

    assert wheel.read_bytes() == content


def test_writes_a_new_record_last(wheel: Path) -> None:
    members = read_members(finalize_wheel(wheel).path)

    record_path = f"{NEW}.dist-info/RECORD"
    assert list(members)[-1] == record_path
    rows = csv.reader(io.StringIO(members[record_path].decode()))
    assert [name for name, _digest, _size in rows] == [*FINAL_MEMBERS, record_path]


def test_programs_stay_executable(wheel: Path) -> None:
    with zipfile.ZipFile(finalize_wheel(wheel).path) as archive:
        modes = {info.filename: stat.S_IMODE(info.external_attr >> 16) for info in archive.infolist()}

    programs = {"demo/tool.sh", f"{NEW}.data/scripts/run"}
    assert {name for name, mode in modes.items() if mode == 0o755} == programs
    assert set(modes.values()) == {0o755, 0o644}


def packed_bytes(wheel: Path, member: str) -> bytes:
    """Return a member's bytes as they lie in the archive."""
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo(member)
    content = wheel.read_bytes()
    lengths = content[info.header_offset + 26 : info.header_offset + 30]
    name_length = int.from_bytes(lengths[:2], "little")
    extra_length = int.from_bytes(lengths[2:], "little")
    start = info.header_offset + 30 + name_length + extra_length
    return content[start : start + info.compress_size]


@pytest.mark.parametrize(
    "compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED], ids=["deflated", "stored"]
)
def test_copies_members_as_they_are_compressed(tmp_path: Path, compression: int) -> None:
    old = write_wheel(tmp_path, compression=compression)

    new = finalize_wheel(old).path

    with zipfile.ZipFile(new) as archive:
        assert archive.getinfo("demo/data.bin").compress_type == compression
    for name in ("demo/data.bin", f"{OLD}.data/purelib/more.bin", f"{OLD}.dist-info/WHEEL"):
        assert packed_bytes(new, name.replace(OLD, NEW)) == packed_bytes(old, name)


def test_equal_wheels_give_equal_bytes_whatever_their_times(tmp_path: Path) -> None:
    recorded = add_record(MEMBERS)
    first = write_members(tmp_path / "first" / FILE_NAME, recorded, modified=(2026, 1, 1, 0, 0, 0))
    second = write_members(tmp_path / "second" / FILE_NAME, recorded, modified=(2025, 7, 7, 7, 7, 8))
    assert first.read_bytes() != second.read_bytes()

    assert finalize_wheel(first).sha256 == finalize_wheel(second).sha256


def test_members_have_the_time_that_is_asked_for(wheel: Path, tmp_path: Path) -> None:
    by_default = finalize_wheel(wheel)
    dated = edit_wheel(
        wheel,
        tmp_path / "dated",
        version="1.0",
        edit=finalize,
        epoch=1_700_000_000,
    )

    with zipfile.ZipFile(by_default.path) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    with zipfile.ZipFile(dated.path) as archive:
        assert {info.date_time[:3] for info in archive.infolist()} == {(2023, 11, 14)}


def test_leaves_out_signatures_of_the_old_record(tmp_path: Path) -> None:
    signatures = {f"{OLD}.dist-info/RECORD.jws": b"{}", f"{OLD}.dist-info/RECORD.p7s": b"\0"}

    new = finalize_wheel(write_wheel(tmp_path, {**MEMBERS, **signatures})).path

    assert not any("RECORD." in name for name in read_members(new))


def test_takes_digests_of_copied_members_over(tmp_path: Path) -> None:
    rows: list[str] = []
    for name, content in MEMBERS.items():
        without_size = record_row(name, content, "sha512").rpartition(",")[0]
        rows.append(f"{without_size},\n")
    old = write_wheel(tmp_path, record="".join(rows) + f"{OLD}.dist-info/RECORD,,\n")

    record = read_members(finalize_wheel(old).path)[f"{NEW}.dist-info/RECORD"].decode()

    assert record_row("demo/data.bin", MEMBERS["demo/data.bin"], "sha512") in record
    assert record_row("demo/__init__.py", b"__version__ = '1.0'\n") in record


def test_a_wrong_digest_in_record_is_as_wrong_in_the_new_one(tmp_path: Path) -> None:
    name = "demo/data.bin"
    changed = bytes(len(MEMBERS[name]))
    old = write_wheel(tmp_path, record=record_text({**MEMBERS, name: changed}))

    new = edit_wheel(old, tmp_path / "new", version="1.0", edit=finalize).path

    (problem,) = verify_record(new)
    assert problem.member == name
    assert "sha256" in problem.message


def test_edits_texts_up_to_a_limit_and_all_of_dist_info(tmp_path: Path) -> None:
    unedited = {"demo/large.txt": b"x" * (TEXT_LIMIT + 1)}
    edited = {"demo/limit.txt": b"x" * TEXT_LIMIT, "demo/late.bin": b"x" * 5000 + b"\0"}
    contents: dict[str, bytes] = {}

    def edit(member: str, content: bytes) -> bytes:
        contents[member] = content
        return content

    old = write_wheel(tmp_path, {**MEMBERS, **unedited, **edited})
    edit_wheel(old, tmp_path / "new", version="1.0", edit=edit)

    expected = {**MEMBERS, **edited}
    for name in ("demo/data.bin", "demo/empty.py", f"{OLD}.data/purelib/more.bin"):
        del expected[name]
    assert contents == expected


def test_memory_does_not_follow_the_size_of_a_wheel(tmp_path: Path) -> None:
    members = {**MEMBERS, "demo/large.bin": bytes(16 * MEBIBYTE)}
    old = write_wheel(tmp_path, members, compression=zipfile.ZIP_STORED)
    del members

    tracemalloc.start()
    edit_wheel(old, tmp_path / "new", version="1.0", edit=finalize)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 8 * MEBIBYTE


def declare_size(
    wheel: Path,
    member: str,
    *,
    size: int,
    declared: int,
) -> None:
    """Let the headers of a wheel's first member declare another size of it."""
    content = bytearray(wheel.read_bytes())
    # A header's fixed part ends at the member's name: 30 bytes, with the size at 22, and 46, with it at 24.
    in_directory = content.rindex(member.encode(), 0, content.rindex(b"demo/data.bin")) - 46 + 24
    for offset in (22, in_directory):
        assert content[offset : offset + 4] == size.to_bytes(4, "little")
        content[offset : offset + 4] = declared.to_bytes(4, "little")
    wheel.write_bytes(content)


def test_rejects_a_text_that_unpacks_to_more_than_it_declares(wheel: Path, tmp_path: Path) -> None:
    declare_size(
        wheel,
        "demo/__init__.py",
        size=len(MEMBERS["demo/__init__.py"]),
        declared=5,
    )

    with pytest.raises(WheelError, match="5 bytes"):
        edit_wheel(wheel, tmp_path / "new", version="1.0", edit=keep)


def refuse(member: str, _content: bytes) -> bytes:
    """Refuse every text."""
    raise WheelError(f"{member} is refused.")


@pytest.mark.parametrize(
    ("version", "edit", "mentioned"),
    [
        ("1.0", refuse, "demo/__init__"),
        ("1.0rc1", keep, "1.0rc1"),
        ("1.0.0-rc.1", keep, "1.0.0-rc.1"),
        ("new", keep, "'new'"),
    ],
    ids=["edit", "same version", "equal version", "no version"],
)
def test_a_refused_edit_leaves_nothing(
    wheel: Path, tmp_path: Path, version: str, edit: Edit, mentioned: str
) -> None:
    with pytest.raises(WheelError, match=mentioned):
        edit_wheel(wheel, tmp_path / "new", version=version, edit=edit)

    assert not (tmp_path / "new").exists()


def test_rejects_a_wheel_with_an_unsafe_path(tmp_path: Path) -> None:
    old = write_wheel(tmp_path, {**MEMBERS, "../escape.py": b"x = 1\n"})

    with pytest.raises(WheelError, match=r"\.\./escape\.py"):
        edit_wheel(old, tmp_path / "new", version="1.0", edit=keep)

    assert not (tmp_path / "new").exists()


WORDS = st.text(string.ascii_lowercase + "é+ ,\"'", min_size=1, max_size=9).filter(
    lambda word: word.strip() == word
)
PATHS = st.lists(WORDS, min_size=1, max_size=3).map("/".join)
CONTENTS = st.binary(max_size=300) | st.text(max_size=300).map(str.encode)


def without_paths_below_files(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Leave out members below another one, as no file is a folder, too."""
    folders = tuple(f"{name}/" for name in members)
    return {name: content for name, content in members.items() if not name.startswith(folders)}


def quoted_record_text(members: Mapping[str, bytes]) -> str:
    """Return the RECORD of members whose names may have commas and quotes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name, content in members.items():
        _name, digest, size = record_row("", content).strip().split(",")
        writer.writerow((name, digest, size))
    return text.getvalue() + f"{OLD}.dist-info/RECORD,,\n"


@given(st.dictionaries(PATHS, CONTENTS, max_size=4))
def test_a_version_and_back_gives_the_same_wheel(files: dict[str, bytes]) -> None:
    named_files = {f"demo/x{name}": content for name, content in files.items()}
    members = without_paths_below_files({**named_files, **MEMBERS})
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        original = write_wheel(root, members, record=quoted_record_text(members))

        changed = edit_wheel(
            original,
            root / "changed",
            version="2.0",
            edit=keep,
        ).path
        restored = edit_wheel(
            changed,
            root / "restored",
            version="1.0rc1",
            edit=keep,
        ).path
        changed_again = edit_wheel(
            restored,
            root / "changed-again",
            version="2.0",
            edit=keep,
        ).path

        assert verify_record(changed) == ()
        assert read_members(restored) == read_members(original)
        assert changed_again.read_bytes() == changed.read_bytes()


# Additions


def write_donor(folder: Path) -> Path:
    """Write a wheel from which members are copied, compressed at another level."""
    info = "donor-2.0.dist-info"
    members = {
        "_lib/a.so": NOISE,
        "_lib/tool": b"#!/bin/sh\n",
        "_lib/unused": b"x",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: donor\nVersion: 2.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return write_members(folder / "donor-2.0-py3-none-any.whl", add_record(members), level=1)


@pytest.fixture
def donor(tmp_path: Path) -> Path:
    """Return a wheel with members to borrow."""
    return write_donor(tmp_path / "donors")


@pytest.fixture
def extended(wheel: Path, donor: Path, tmp_path: Path) -> WrittenFile:
    """Return a wheel with a new member, a replaced one and two of another wheel."""
    additions = Additions(
        members=(
            Member(name="demo/new.txt", source=b"new"),
            Member(name="demo/data.bin", source=b"replaced"),
        ),
        new_names_by_wheel={donor: {"_lib/a.so": "demo/lib/a.so", "_lib/tool": "demo/lib/tool"}},
    )
    return edit_wheel(
        wheel,
        tmp_path / "new",
        version="1.0",
        edit=finalize,
        additions=additions,
    )


def test_replaces_texts_by_their_names(wheel: Path, tmp_path: Path) -> None:
    additions = Additions(texts={"demo/__init__.py": b"new = True\n", "demo/absent.py": b""})

    new = edit_wheel(wheel, tmp_path / "new", version="1.0", additions=additions).path

    members = read_members(new)
    assert verify_record(new) == ()
    assert members["demo/__init__.py"] == b"new = True\n"
    assert "demo/absent.py" not in members


def test_adds_members_and_replaces_old_ones(extended: WrittenFile) -> None:
    members = read_members(extended.path)

    assert verify_record(extended.path) == ()
    assert members["demo/new.txt"] == b"new"
    assert members["demo/data.bin"] == b"replaced"


def test_copies_members_of_another_wheel_as_they_are_compressed_in_their_wheel(
    extended: WrittenFile, donor: Path
) -> None:
    assert packed_bytes(extended.path, "demo/lib/a.so") == packed_bytes(donor, "_lib/a.so")
    with zipfile.ZipFile(extended.path) as archive:
        assert archive.read("demo/lib/a.so") == NOISE
        assert archive.getinfo("demo/lib/tool").external_attr >> 16 == stat.S_IFREG | 0o755


def test_copies_no_other_member(extended: WrittenFile) -> None:
    added = {"demo/new.txt", "demo/lib/a.so", "demo/lib/tool"}

    assert set(extended.members) == {*FINAL_MEMBERS, *added}


def test_adds_members_before_dist_info(extended: WrittenFile) -> None:
    names = list(read_members(extended.path))

    in_dist_info = [".dist-info/" in name for name in names]
    assert in_dist_info == sorted(in_dist_info)
    assert names[-1] == f"{NEW}.dist-info/RECORD"


@pytest.mark.parametrize(
    ("names", "mentioned"),
    [
        ({"_lib/absent.so": "demo/absent.so"}, ["donor-2.0", "_lib/absent.so"]),
        ({"_lib/a.so": "demo/data.bin"}, ["demo/data.bin twice"]),
    ],
    ids=["not there", "name is taken"],
)
def test_a_refused_addition_leaves_nothing(
    wheel: Path, donor: Path, tmp_path: Path, names: dict[str, str], mentioned: list[str]
) -> None:
    with pytest.raises(WheelError) as raised:
        edit_wheel(
            wheel,
            tmp_path / "new",
            version="1.0",
            edit=keep,
            additions=Additions(new_names_by_wheel={donor: names}),
        )

    assert all(name in raised.value.message for name in mentioned)
    assert not (tmp_path / "new").exists()


def test_another_platform_changes_the_file_name_and_the_tags(wheel: Path, tmp_path: Path) -> None:
    additions = Additions(platform="manylinux_2_28_x86_64.manylinux_2_31_x86_64")

    new = edit_wheel(
        wheel,
        tmp_path / "new",
        version="1.0rc1",
        edit=keep,
        additions=additions,
    ).path

    lines = read_members(new)[f"{OLD}.dist-info/WHEEL"].decode().splitlines()
    assert new.name == f"{OLD}-py3-none-manylinux_2_28_x86_64.manylinux_2_31_x86_64.whl"
    assert verify_record(new) == ()
    assert [line for line in lines if line.startswith("Tag:")] == [
        "Tag: py3-none-manylinux_2_28_x86_64",
        "Tag: py3-none-manylinux_2_31_x86_64",
    ]


def test_a_wheel_that_is_not_there_is_a_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="demo"):
        edit_wheel(tmp_path / FILE_NAME, tmp_path / "new", version="1.0", edit=keep)


# Sdists

SDIST = "demo-1.0rc1.tar.gz"
PKG_INFO = b"Metadata-Version: 2.2\nName: demo\nVersion: 1.0rc1\n"

Entry = tarfile.TarInfo | tuple[str, bytes]


def write_tar(folder: Path, *entries: Entry) -> Path:
    """Write an sdist of PKG-INFO and of such entries; programs are executable."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for entry in [(f"{OLD}/PKG-INFO", PKG_INFO), *entries]:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
                continue
            name, data = entry
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = 0o755 if name.endswith(".sh") else 0o644
            archive.addfile(info, io.BytesIO(data))

    path = folder / SDIST
    path.write_bytes(gzip.compress(content.getvalue()))
    return path


def special_entry(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """Return an entry that is no file."""
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


def test_an_sdist_changes_its_version_and_nothing_else(tmp_path: Path) -> None:
    old = write_tar(
        tmp_path,
        (f"{OLD}/src/demo.py", b"__version__ = '1.0rc1'\n"),
        (f"{OLD}/run.sh", b"#!/bin/sh\n"),
        (f"{OLD}/data.bin", b"\0\1"),
    )

    new = edit_sdist(old, tmp_path / "new", version="1.0", edit=finalize).path

    contents: dict[str, tuple[bytes, int]] = {}
    with tarfile.open(new) as archive:
        for info in archive:
            stream = archive.extractfile(info)
            assert stream is not None
            contents[info.name] = (stream.read(), info.mode)
    assert new == tmp_path / "new" / "demo-1.0.tar.gz"
    assert contents == {
        "demo-1.0/PKG-INFO": (finalize("", PKG_INFO), 0o644),
        "demo-1.0/src/demo.py": (b"__version__ = '1.0'\n", 0o644),
        "demo-1.0/run.sh": (b"#!/bin/sh\n", 0o755),
        "demo-1.0/data.bin": (b"\0\1", 0o644),
    }


def test_leaves_out_folders_of_an_sdist(tmp_path: Path) -> None:
    old = write_tar(tmp_path, special_entry(f"{OLD}/src", tarfile.DIRTYPE), (f"{OLD}/src/a.py", b"a"))

    new = edit_sdist(old, tmp_path / "new", version="1.0", edit=finalize).path

    with tarfile.open(new) as archive:
        assert archive.getnames() == ["demo-1.0/PKG-INFO", "demo-1.0/src/a.py"]


@pytest.mark.parametrize(
    "entry",
    [
        (f"{OLD}/../../escape", b""),
        ("/etc/escape", b""),
        ("other/file", b""),
        (f"{OLD}/PKG-INFO", b""),
        special_entry(f"{OLD}/link", tarfile.SYMTYPE, "/etc/passwd"),
    ],
    ids=["escapes", "absolute", "outside", "twice", "link"],
)
def test_rejects_a_hostile_sdist(tmp_path: Path, entry: Entry) -> None:
    name = entry.name if isinstance(entry, tarfile.TarInfo) else entry[0]

    with pytest.raises(WheelError) as raised:
        edit_sdist(
            write_tar(tmp_path, entry),
            tmp_path / "new",
            version="1.0",
            edit=finalize,
        )

    assert name.rpartition("/")[2] in raised.value.message
    assert not (tmp_path / "new").exists()


def test_rejects_an_sdist_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(editor, "LIMIT", 4096)
    old = write_tar(tmp_path, (f"{OLD}/zeros", bytes(8000)))

    with pytest.raises(WheelError, match="4096"):
        edit_sdist(old, tmp_path / "new", version="1.0", edit=finalize)


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", gzip.compress(b"no tar"), gzip.compress(bytes(9999))[:30]],
    ids=["empty", "no gzip", "no tar", "cut off"],
)
def test_rejects_a_damaged_sdist(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SDIST).write_bytes(content)

    with pytest.raises(WheelError, match=SDIST):
        edit_sdist(tmp_path / SDIST, tmp_path / "new", version="1.0", edit=finalize)


def test_rejects_an_sdist_whose_metadata_is_no_utf8(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="PKG-INFO"):
        edit_sdist(
            write_tar(tmp_path), tmp_path / "new", version="1.0", edit=lambda _path, data: data + b"\xff"
        )


def test_an_sdist_that_is_not_there_is_a_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="demo"):
        edit_sdist(tmp_path / SDIST, tmp_path / "new", version="1.0", edit=finalize)
