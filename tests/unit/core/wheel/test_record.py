import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from core.archive.zips import read_archive
from core.errors import FatalError, WheelError
from core.wheel import record
from core.wheel.record import Tap, require_listing, require_sound, verify_record
from tests.kit.wheels import add_record, record_row, record_text, write_members

INFO = "demo-1.0.dist-info"
RECORD_PATH = f"{INFO}/RECORD"
FILE_NAME = "demo-1.0-py3-none-any.whl"

INIT = b"x = 1\n"
MEMBERS = {
    "demo/__init__.py": INIT,
    "demo/data.bin": bytes(range(256)) * 9000,
    "demo/py.typed": b"",
    f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
RECORD = record_text(MEMBERS)
INIT_ROW = record_row("demo/__init__.py", INIT).rstrip()

# Offsets in the headers of a zip: the local one and the one in the central directory (APPNOTE 4.3.7, 4.3.12).
LOCAL_METHOD = 8
LOCAL_CRC = 14
LOCAL_SIZE = 22
CENTRAL_METHOD = 10
CENTRAL_CRC = 16
CENTRAL_SIZE = 24
CENTRAL_NAME = 46
CENTRAL_LOCAL_OFFSET = 42


def write_wheel(
    folder: Path,
    members: Mapping[str, bytes] = MEMBERS,
    *,
    record_content: str | None = None,
    compression: int = zipfile.ZIP_DEFLATED,
) -> Path:
    """Write a wheel with the RECORD of its members, or with another one."""
    if record_content is None:
        recorded = add_record(members)
    else:
        recorded = {**members, RECORD_PATH: record_content.encode()}
    return write_members(folder / FILE_NAME, recorded, compression=compression)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Return a sound wheel."""
    return write_wheel(tmp_path)


def problems_of(wheel: Path) -> dict[str, str]:
    """Return what is wrong with a wheel: member to the messages about it."""
    problems: dict[str, str] = {}
    for problem in verify_record(wheel):
        problems[problem.member] = problems.get(problem.member, "") + problem.message
    return problems


# Sound wheels


def test_a_sound_wheel_has_no_problems(wheel: Path) -> None:
    assert verify_record(wheel) == ()
    require_sound(wheel)


def test_accepts_stronger_digests_with_padding_and_without_sizes(tmp_path: Path) -> None:
    rows: list[str] = []
    for name, content in MEMBERS.items():
        digest = record_row(name, content, "sha512").split(",")[1]
        rows.append(f"{name},{digest}==,\n")

    wheel = write_wheel(tmp_path, record_content="".join(rows) + f"{RECORD_PATH},,\n")

    assert verify_record(wheel) == ()


def test_accepts_signatures_that_record_does_not_list(tmp_path: Path) -> None:
    members = {**MEMBERS, f"{INFO}/RECORD.jws": b"{}"}

    assert verify_record(write_wheel(tmp_path, members, record_content=RECORD)) == ()


def test_lists_the_members_and_the_rows_of_a_wheel(wheel: Path) -> None:
    listing = require_listing(wheel)

    names = {*MEMBERS, RECORD_PATH}
    assert listing.folder == INFO
    assert {member.name for member in listing.members} == names
    assert set(listing.rows) == names


# Rows of RECORD


def test_names_a_member_with_another_digest(tmp_path: Path) -> None:
    members = {**MEMBERS, "demo/__init__.py": b"x = 2\n"}

    problems = problems_of(write_wheel(tmp_path, members, record_content=RECORD))

    assert problems.keys() == {"demo/__init__.py"}
    assert "sha256" in problems["demo/__init__.py"]


@pytest.mark.parametrize(
    ("row", "mentioned"),
    [
        (INIT_ROW.replace(",6", ",7"), "6 bytes; RECORD says 7"),
        (INIT_ROW.replace(",6", ",six"), "not a number"),
        (f"{INIT_ROW}\n{INIT_ROW}", "line 2"),
        ("demo/__init__.py,md5=abc,6", "'md5'"),
        ("demo/__init__.py,,6", "no digest"),
        ("demo/__init__.py,sha256=!!,6", "base64"),
    ],
    ids=["size", "no size", "twice", "weak digest", "no digest", "no base64"],
)
def test_names_a_member_with_a_faulty_row(tmp_path: Path, row: str, mentioned: str) -> None:
    problems = problems_of(write_wheel(tmp_path, record_content=RECORD.replace(INIT_ROW, row)))

    assert problems.keys() == {"demo/__init__.py"}
    assert mentioned in problems["demo/__init__.py"]


def test_names_a_row_without_its_fields(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, record_content=RECORD.replace(INIT_ROW, "demo/__init__.py"))

    problems = problems_of(wheel)

    assert problems.keys() == {RECORD_PATH, "demo/__init__.py"}
    assert "1 fields" in problems[RECORD_PATH]
    assert "not listed" in problems["demo/__init__.py"]


def test_names_a_listed_member_that_is_not_there(tmp_path: Path) -> None:
    record_content = RECORD.replace("demo/__init__.py", "demo/gone.py")

    problems = problems_of(write_wheel(tmp_path, record_content=record_content))

    assert problems.keys() == {"demo/gone.py", "demo/__init__.py"}
    assert "not hold" in problems["demo/gone.py"]


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../up.py", "demo/../../up.py", "C:/x.py", "a\\b.py", "a//b", "./a"]
)
def test_names_a_member_whose_path_is_unsafe(tmp_path: Path, name: str) -> None:
    problems = problems_of(write_wheel(tmp_path, {**MEMBERS, name: b"x"}))

    assert problems.keys() == {name}


# The files of .dist-info


@pytest.mark.parametrize("name", ["METADATA", "WHEEL"])
def test_names_a_missing_file_of_dist_info(tmp_path: Path, name: str) -> None:
    members = {path: content for path, content in MEMBERS.items() if path != f"{INFO}/{name}"}

    problems = problems_of(write_wheel(tmp_path, members))

    assert problems.keys() == {f"{INFO}/{name}"}
    assert f"{INFO}/{name}" in problems[f"{INFO}/{name}"]


def test_names_a_missing_record(tmp_path: Path) -> None:
    problems = problems_of(write_members(tmp_path / FILE_NAME, MEMBERS))

    assert problems.keys() == {""}
    assert RECORD_PATH in problems[""]


def test_names_the_dist_info_of_another_version(wheel: Path) -> None:
    renamed = wheel.rename(wheel.with_name("demo-1.1-py3-none-any.whl"))

    assert INFO in problems_of(renamed)[""]


def test_lists_no_wheel_with_the_dist_info_of_another_version(wheel: Path) -> None:
    renamed = wheel.rename(wheel.with_name("demo-1.1-py3-none-any.whl"))

    with pytest.raises(WheelError) as raised:
        require_listing(renamed)

    assert raised.value.message.startswith(f"{renamed.name}: ")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b'"demo"x,,\n'], ids=["no UTF-8", "no CSV"])
def test_names_a_record_that_is_no_text(tmp_path: Path, content: bytes) -> None:
    wheel = write_members(tmp_path / FILE_NAME, {RECORD_PATH: content})

    assert "UTF-8 CSV" in problems_of(wheel)[RECORD_PATH]


# Errors of unsound wheels


def test_an_error_has_the_first_problem_of_a_wheel(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, {**MEMBERS, "demo/__init__.py": b"x = 2\n"}, record_content=RECORD)

    with pytest.raises(WheelError) as raised:
        require_sound(wheel)

    assert raised.value.message == f"{FILE_NAME}: {problems_of(wheel)['demo/__init__.py']}"


def test_an_error_counts_the_further_problems_of_a_wheel(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, record_content=RECORD.replace("demo/__init__.py", "demo/gone.py"))

    with pytest.raises(WheelError) as raised:
        require_sound(wheel)

    assert "demo/__init__.py" in raised.value.message
    assert "1 more" in raised.value.message


# Archives that installers refuse


def add_member(wheel: Path, member: str | zipfile.ZipInfo, *, compression: int) -> None:
    """Add a member to a wheel whose RECORD lists it already."""
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(member, INIT, compression)


def symbolic_link(name: str) -> zipfile.ZipInfo:
    """Return a member that is a symbolic link."""
    info = zipfile.ZipInfo(name)
    info.create_system = 3  # Unix
    info.external_attr = 0o120777 << 16
    return info


@pytest.mark.parametrize(
    ("member", "compression", "mentioned"),
    [
        (symbolic_link("demo/link"), zipfile.ZIP_DEFLATED, "symbolic link"),
        ("demo/x", zipfile.ZIP_LZMA, "method 14"),
    ],
    ids=["link", "method"],
)
def test_names_a_member_that_installers_refuse(
    tmp_path: Path, member: str | zipfile.ZipInfo, compression: int, mentioned: str
) -> None:
    name = member if isinstance(member, str) else member.filename
    wheel = write_wheel(tmp_path, record_content=record_text({**MEMBERS, name: INIT}))
    add_member(wheel, member, compression=compression)

    assert mentioned in problems_of(wheel)[name]


def central_offset(content: bytes | bytearray, member: str) -> int:
    """Return where a member's header in the central directory begins."""
    offset = content.index(b"PK\x01\x02")
    while not content[offset + CENTRAL_NAME :].startswith(member.encode()):
        offset = content.index(b"PK\x01\x02", offset + 4)
    return offset


def local_offset(wheel: Path, member: str) -> int:
    """Return where a member's local header begins."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.getinfo(member).header_offset


def patch_bytes(wheel: Path, changes: Mapping[int, bytes]) -> None:
    """Write bytes at offsets of a file."""
    content = bytearray(wheel.read_bytes())
    for offset, replacement in changes.items():
        content[offset : offset + len(replacement)] = replacement
    wheel.write_bytes(content)


@pytest.mark.parametrize(
    ("member", "size", "mentioned"),
    [("demo/data.bin", 10, "10 bytes"), ("demo/__init__.py", 7, "6 bytes of the 7")],
    ids=["more data", "less data"],
)
def test_names_a_member_of_another_size_than_its_headers_say(
    wheel: Path, member: str, size: int, mentioned: str
) -> None:
    size_bytes = struct.pack("<I", size)
    central = central_offset(wheel.read_bytes(), member)
    patch_bytes(
        wheel,
        {local_offset(wheel, member) + LOCAL_SIZE: size_bytes, central + CENTRAL_SIZE: size_bytes},
    )

    assert mentioned in problems_of(wheel)[member]


def test_a_wheel_may_unpack_to_the_limit_and_no_byte_more(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = read_archive(wheel).total_size

    monkeypatch.setattr(record, "MAX_UNPACKED", total)
    assert problems_of(wheel) == {}

    monkeypatch.setattr(record, "MAX_UNPACKED", total - 1)
    assert str(total - 1) in problems_of(wheel)[""]


def test_refuses_members_that_share_bytes(tmp_path: Path) -> None:
    inner = b"inner = True\n"
    name = b"demo/in.py"
    sizes = (zlib.crc32(inner), len(inner), len(inner), len(name), 0)
    copy = struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 0, 0, 0, *sizes) + name + inner
    members = {**MEMBERS, "demo/outer.bin": b"." * 50 + copy + b"." * 50, "demo/in.py": inner}
    wheel = write_wheel(tmp_path, members, compression=zipfile.ZIP_STORED)
    assert verify_record(wheel) == ()

    # Let the directory lead to the copy of the member that lies in another one.
    content = wheel.read_bytes()
    pointer = central_offset(content, "demo/in.py") + CENTRAL_LOCAL_OFFSET
    patch_bytes(wheel, {pointer: struct.pack("<I", content.index(copy))})

    with pytest.raises(WheelError, match="belong to another member"):
        verify_record(wheel)


def test_names_a_damaged_member(wheel: Path) -> None:
    offset = local_offset(wheel, "demo/data.bin") + 60
    patch_bytes(wheel, {offset: bytes([wheel.read_bytes()[offset] ^ 0xFF])})

    assert problems_of(wheel).keys() == {"demo/data.bin"}


def test_names_a_member_with_data_behind_its_end(tmp_path: Path) -> None:
    compressed = zlib.compress(INIT)[2:-4] + b"hidden"
    members = {**MEMBERS, "demo/__init__.py": compressed}
    wheel = write_wheel(
        tmp_path,
        members,
        record_content=RECORD,
        compression=zipfile.ZIP_STORED,
    )

    # The member was stored as it is; now its headers say that it is compressed.
    method = struct.pack("<H", zipfile.ZIP_DEFLATED)
    crc = struct.pack("<I", zlib.crc32(INIT))
    size = struct.pack("<I", len(INIT))
    local = local_offset(wheel, "demo/__init__.py")
    central = central_offset(wheel.read_bytes(), "demo/__init__.py")
    patch_bytes(
        wheel,
        {
            local + LOCAL_METHOD: method,
            local + LOCAL_CRC: crc,
            local + LOCAL_SIZE: size,
            central + CENTRAL_METHOD: method,
            central + CENTRAL_CRC: crc,
            central + CENTRAL_SIZE: size,
        },
    )

    problems = problems_of(wheel)
    assert problems.keys() == {"demo/__init__.py"}
    assert "behind the end" in problems["demo/__init__.py"]


# Members that are looked at while they are verified


def test_a_tap_gets_the_wanted_members_complete(tmp_path: Path) -> None:
    libraries = {"demo/a.so": b"\x7fELF" + b"a" * 3_000_000, "demo/b.so": b"\x7fELFb"}
    wheel = write_wheel(tmp_path, {**MEMBERS, **libraries, "demo/c.so": b"no ELF file"})
    contents: dict[str, bytes] = {}

    def inspect(name: str, file: Path) -> None:
        assert file.is_relative_to(tmp_path)
        contents[name] = file.read_bytes()

    tap = Tap(
        wanted=lambda name, first_bytes: name.endswith(".so") and first_bytes[1:4] == b"ELF",
        inspect=inspect,
        folder=tmp_path,
    )
    problems = verify_record(wheel, tap=tap, jobs=2)

    assert problems == ()
    assert contents == libraries
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME], "the copies are gone"


def test_a_full_disk_is_no_broken_wheel(wheel: Path, tmp_path: Path) -> None:
    def fail(_name: str, _file: Path) -> None:
        raise OSError(28, "No space left on device")

    tap = Tap(
        wanted=lambda _name, _first_bytes: True,
        inspect=fail,
        folder=tmp_path,
    )
    with pytest.raises(FatalError, match="No space left on device") as raised:
        verify_record(wheel, tap=tap)

    assert not isinstance(raised.value, WheelError)
