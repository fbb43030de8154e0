import struct
import zipfile
import zlib
from pathlib import Path

import pytest

from core.errors import FatalError, WheelError
from core.wheel import record
from core.wheel.record import Tap, require_listing, require_sound, verify_record
from tests.kit.wheels import add_record, record_row, record_text, write_members

INFO = "demo-1.0.dist-info"
NAME = "demo-1.0-py3-none-any.whl"


def members(**more: bytes) -> dict[str, bytes]:
    return {
        "demo/__init__.py": b"x = 1\n",
        "demo/data.bin": bytes(range(256)) * 9000,
        "demo/py.typed": b"",
        f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **more,
    }


def write(folder: Path, files: dict[str, bytes], record: str | None = "", *, stored: bool = False) -> Path:
    """Write a wheel with a text as its RECORD ("": the right one; None: without one)."""
    recorded = add_record(files) if record == "" else dict(files)
    if record:
        recorded[f"{INFO}/RECORD"] = record.encode()
    compression = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    return write_members(folder / NAME, recorded, compression=compression)


@pytest.fixture(name="sound")
def sound_fixture(tmp_path: Path) -> Path:
    return write(tmp_path, members())


def found(path: Path) -> dict[str, str]:
    said: dict[str, str] = {}
    for problem in verify_record(path):
        said[problem.member] = said.get(problem.member, "") + problem.message
    return said


def test_a_sound_wheel_has_no_problems(sound: Path) -> None:
    assert verify_record(sound) == ()
    require_sound(sound)


def test_stronger_and_padded_digests_absent_sizes_and_signatures_are_accepted(tmp_path: Path) -> None:
    files = members()
    rows = [record_row(name, data, "sha512").rsplit(",", 1)[0] + "==," for name, data in files.items()]
    files |= {f"{INFO}/RECORD.jws": b"{}"}
    assert verify_record(write(tmp_path, files, "\n".join([*rows, f"{INFO}/RECORD,,"]))) == ()


RECORD = record_text(members())
FIRST = record_row("demo/__init__.py", b"x = 1\n").rstrip()


@pytest.mark.parametrize(
    ("changed", "record", "problems"),
    [
        ({"demo/__init__.py": b"x = 2\n"}, RECORD, {"demo/__init__.py": "does not have the sha256"}),
        ({}, RECORD.replace(",6\n", ",7\n"), {"demo/__init__.py": "has 6 bytes; RECORD says 7"}),
        ({}, RECORD.replace(",6\n", ",six\n"), {"demo/__init__.py": "a size that is not a number"}),
        (
            {},
            RECORD.replace("demo/__init__.py", "demo/gone.py"),
            {"demo/__init__.py": "is not listed", "demo/gone.py": "which the wheel does not hold"},
        ),
        ({}, f"{FIRST}\n{RECORD}", {"demo/__init__.py": "line 2 lists demo/__init__.py again"}),
        *(
            ({}, RECORD.replace(FIRST, f"demo/__init__.py,{digest},6"), {"demo/__init__.py": f"): {said}."})
            for digest, said in (
                ("md5=abc", "a digest by 'md5'; sha256, sha384, sha512 are accepted"),
                ("", "no digest"),
                ("sha256=!!", "a digest that is not urlsafe base64"),
            )
        ),
        (
            {},
            RECORD.replace(FIRST, "demo/__init__.py"),
            {f"{INFO}/RECORD": "has 1 fields", "demo/__init__.py": "is not listed"},
        ),
        ({}, None, {"": f"holds no {INFO}/RECORD"}),
        ({f"{INFO}/METADATA": None}, None, {"": f"holds no {INFO}/RECORD"}),
        *(
            (
                {f"{INFO}/{name}": None},
                record_text({path: data for path, data in members().items() if not path.endswith(name)}),
                {f"{INFO}/{name}": f"The wheel holds no {INFO}/{name}"},
            )
            for name in ("METADATA", "WHEEL")
        ),
        *(
            ({name: b"x"}, record_text(members() | {name: b"x"}), {name: " is a"})
            for name in ("/etc/passwd", "../up.py", "demo/../../up.py", "C:/x.py", "a\\b.py", "a//b", "./a")
        ),
    ],
)
def test_each_problem_is_named(
    tmp_path: Path, changed: dict[str, bytes | None], record: str | None, problems: dict[str, str]
) -> None:
    files = {name: data for name, data in (members() | changed).items() if data is not None}
    path = write(tmp_path, files, record)
    said = found(path)
    assert said.keys() == problems.keys()
    assert all(words in said[member] for member, words in problems.items())
    first, more = said[min(said)], " (1 more problems)" if len(said) > 1 else ""
    with pytest.raises(WheelError, match=r"demo-1\.0-py3-none-any\.whl: ") as caught:
        require_sound(path)
    assert str(caught.value) == f"{NAME}: {first}{more}\nBuild or download the wheel again."


def test_the_dist_info_of_another_version(sound: Path, tmp_path: Path) -> None:
    assert "does not carry" in found(sound.rename(tmp_path / "demo-1.1-py3-none-any.whl"))[""]


@pytest.mark.parametrize("text", [b"\xff\xfe\x00", b'"demo"x,,\n'])
def test_a_record_that_is_no_text(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / NAME
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{INFO}/RECORD", text)
    assert "is not UTF-8 CSV" in found(path)[f"{INFO}/RECORD"]


def test_a_listing_is_of_what_the_wheel_says_of_itself(sound: Path) -> None:
    with zipfile.ZipFile(sound) as archive:
        listing = require_listing(sound, archive)
    assert listing.folder == INFO
    assert (
        {info.filename for info, _ in listing.files} == {*members(), f"{INFO}/RECORD"} == {*listing.entries}
    )
    other = sound.rename(sound.with_name("demo-1.1-py3-none-any.whl"))
    with (
        zipfile.ZipFile(other) as archive,
        pytest.raises(WheelError, match=rf"^{other.name}: .*does not carry"),
    ):
        require_listing(other, archive)


def link() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("demo/link")
    info.create_system, info.external_attr = 3, 0o120777 << 16
    return info


@pytest.mark.parametrize(
    ("member", "method", "words"),
    [
        ("demo/__init__.py", zipfile.ZIP_DEFLATED, "in the archive 2 times"),
        (link(), zipfile.ZIP_DEFLATED, "a symbolic link"),
        ("demo/folder/", zipfile.ZIP_DEFLATED, "The folder demo/folder/ has data"),
        ("demo/x", zipfile.ZIP_LZMA, "compressed by method 14"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_that_installers_refuse(
    tmp_path: Path, member: str | zipfile.ZipInfo, method: int, words: str
) -> None:
    name, data = member if isinstance(member, str) else member.filename, b"x = 1\n"
    path = write(tmp_path, members(), record_text(members() | {name: data}))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(member, data, method)
    assert words in found(path)[name]


def central_entry(data: bytes | bytearray, member: str) -> int:
    at = data.index(b"PK\x01\x02")
    while data[at + 46 : at + 46 + len(member)] != member.encode():
        at = data.index(b"PK\x01\x02", at + 4)
    return at


def patched_sizes(path: Path, member: str, size: int) -> None:
    """Let the headers of a member declare another size than its data inflates to."""
    with zipfile.ZipFile(path) as archive:
        offset = archive.getinfo(member).header_offset
    data = bytearray(path.read_bytes())
    data[offset + 22 : offset + 26] = struct.pack("<I", size)
    entry = central_entry(data, member)
    data[entry + 24 : entry + 28] = struct.pack("<I", size)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("member", "size", "words"),
    [("demo/data.bin", 10, "more data than the 10 bytes"), ("demo/__init__.py", 7, "6 bytes of the 7")],
)
def test_data_of_another_size_than_declared(sound: Path, member: str, size: int, words: str) -> None:
    patched_sizes(sound, member, size)
    assert words in found(sound)[member]


def test_an_archive_that_declares_too_much(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(sound) as archive:
        total = sum(info.file_size for info in archive.infolist())
    monkeypatch.setattr(record, "MAX_UNPACKED", total)
    assert found(sound) == {}
    monkeypatch.setattr(record, "MAX_UNPACKED", total - 1)
    assert f"more than {total - 1}" in found(sound)[""]


def test_members_that_share_bytes(tmp_path: Path) -> None:
    inner = b"inner = True\n"
    header = struct.pack("<4s5HIIIHH", b"PK\x03\x04", 20, 0, 0, 0, 0, zlib.crc32(inner), 13, 13, 10, 0)
    copy = header + b"demo/in.py" + inner
    files = members() | {"demo/outer.bin": b"." * 50 + copy + b"." * 50, "demo/in.py": inner}
    path = write(tmp_path, files, stored=True)
    assert verify_record(path) == ()

    data = bytearray(path.read_bytes())
    entry = central_entry(data, "demo/in.py")
    data[entry + 42 : entry + 46] = struct.pack("<I", data.index(copy))
    path.write_bytes(data)

    assert found(path) == {"demo/in.py": "demo/in.py shares bytes with another."}


def test_damaged_data(sound: Path) -> None:
    with zipfile.ZipFile(sound) as archive:
        offset = archive.getinfo("demo/data.bin").header_offset
    data = bytearray(sound.read_bytes())
    data[offset + 60] ^= 0xFF
    sound.write_bytes(data)
    assert found(sound).keys() == {"demo/data.bin"}


def test_a_local_header_under_another_name(sound: Path) -> None:
    sound.write_bytes(sound.read_bytes().replace(b"demo/data.bin", b"demo/dATA.bin", 1))
    assert "another name in its local header" in found(sound)["demo/data.bin"]


def test_data_behind_the_deflate_stream(tmp_path: Path) -> None:
    plain = b"x = 1\n"
    raw = zlib.compress(plain)[2:-4] + b"hidden"
    path = write(tmp_path, members() | {"demo/__init__.py": raw}, record_text(members()), stored=True)
    data = bytearray(path.read_bytes())
    for header, method in ((0, 8), (central_entry(data, "demo/__init__.py"), 10)):
        data[header + method : header + method + 2] = struct.pack("<H", zipfile.ZIP_DEFLATED)
        data[header + method + 6 : header + method + 10] = struct.pack("<I", zlib.crc32(plain))
        data[header + method + 14 : header + method + 18] = struct.pack("<I", len(plain))
    path.write_bytes(data)
    problems = found(path)
    assert problems.keys() == {"demo/__init__.py"}
    assert "behind the end" in problems["demo/__init__.py"]


def test_the_tap_gets_sound_members_whole(tmp_path: Path) -> None:
    files = members() | {"demo/a.so": b"\x7fELF" + b"a" * 3_000_000, "demo/b.so": b"\x7fELFb"}
    path = write(tmp_path, files)
    seen: dict[str, bytes] = {}

    def inspect(name: str, file: Path) -> None:
        assert file.is_relative_to(tmp_path)
        seen[name] = file.read_bytes()

    tap = Tap(
        wanted=lambda name, first: name.endswith(".so") and first[1:4] == b"ELF",
        inspect=inspect,
        folder=tmp_path,
    )
    assert verify_record(path, tap=tap, jobs=2) == ()
    assert seen == {name: files[name] for name in ("demo/a.so", "demo/b.so")}
    assert [entry.name for entry in tmp_path.iterdir()] == [NAME]


def test_a_full_disk_is_no_broken_wheel(sound: Path, tmp_path: Path) -> None:
    def inspect(_name: str, _file: Path) -> None:
        raise OSError(28, "No space left on device")

    said = r"could not be read or kept: No space left on device\.\nCheck the disk and the free space of the"
    with pytest.raises(FatalError, match=said) as caught:
        verify_record(sound, tap=Tap(wanted=lambda *_: True, inspect=inspect, folder=tmp_path))
    assert not isinstance(caught.value, WheelError)
