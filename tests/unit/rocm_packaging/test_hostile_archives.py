"""Hostile and damaged archives of artifacts, of which nothing may be left on the disk."""

import lzma
import random
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from core.archive.tar import TarLimits, pax_records
from core.errors import ArtifactError
from rocm_packaging.archives import ArchiveName
from tests.kit.tar_members import (
    END,
    MANIFEST,
    XZ_NAME,
    ZSTD_NAME,
    TarMember,
    compress,
    device,
    extended_header,
    file,
    folder,
    hardlink,
    pax_record,
    symlink,
    tar,
    unpack,
    unpack_compressed,
)

BOTH_NAMES = pytest.mark.parametrize("name", [ZSTD_NAME, XZ_NAME], ids=["zstd", "xz"])
INCOMPRESSIBLE = random.Random(9).randbytes(300_000)  # noqa: S311 - an input, not a secret
MIB = 1 << 20


def refuse(
    content: bytes,
    target: Path,
    *,
    name: ArchiveName = ZSTD_NAME,
    limits: TarLimits | None = None,
) -> str:
    """Return the message with which an archive is refused, which leaves nothing at all."""
    return refuse_compressed(compress(content, name), target, name=name, limits=limits)


def refuse_compressed(
    content: bytes, target: Path, *, name: ArchiveName = ZSTD_NAME, limits: TarLimits | None = None
) -> str:
    """Return the message with which a compressed archive is refused, which leaves nothing at all."""
    paths_before = {target, *target.parent.rglob("*")}
    with pytest.raises(ArtifactError) as raised:
        unpack_compressed(content, target, name=name, limits=limits)
    assert {target, *target.parent.rglob("*")} == paths_before
    return raised.value.message


# Hostile archives: what stands behind the manifest, and what the message mentions

HOSTILE_NAMES = {
    "absolute": ("/etc/passwd", "absolute path"),
    "absolute behind a dot": (".//etc/passwd", "absolute path"),
    "drive of Windows": ("C:/windows", "absolute path"),
    "up from a stage": ("a/stage/../../../x", "leaves its folder"),
    "up at once": ("../x", "leaves its folder"),
    "up to the stage's folder": ("a/stage/..", "leaves its folder"),
    "two slashes": ("a/stage//x", "shortest form"),
    "dot within": ("a/stage/./x", "shortest form"),
    "backslashes": ("a/stage/..\\..\\x", "backslash"),
    "empty": ("", "empty or cut-off"),
    "unlisted stage": ("c/stage/x", "outside of the folders"),
    "longer than a stage": ("a/stagex", "outside of the folders"),
    "the stage itself": ("a/stage", "outside of the folders"),
    "our marker": (".archive.sha256", "outside of the folders"),
    "a second manifest": (MANIFEST.name, "outside of the folders"),
}

HOSTILE_KINDS = {
    "folder beside a stage": ([folder("a/other")], "outside of the folders"),
    "character device": (
        [device("a/stage/x", tarfile.CHRTYPE)],
        "character device",
    ),
    "block device": ([device("a/stage/x", tarfile.BLKTYPE)], "block device"),
    "pipe": ([device("a/stage/x", tarfile.FIFOTYPE)], "named pipe"),
    "unknown": ([device("a/stage/x", b"V")], "unknown type"),
    "link with content": (
        [TarMember(name="a/stage/x", type=tarfile.SYMTYPE, link="y", size=512)],
        "size 512",
    ),
}

HOSTILE_LINKS = {
    "absolute": ([symlink("a/stage/x", "/etc")], "'/etc'"),
    "up": ([symlink("a/stage/x", "../../..")], "outside"),
    "down and up": ([symlink("a/stage/x", "y/../../../../out")], "outside"),
    "backslashes": ([symlink("a/stage/x", "..\\..\\..")], "outside"),
    "drive of Windows": ([symlink("a/stage/x", "C:evil")], "outside"),
    "empty": ([symlink("a/stage/x", "")], "outside"),
    "circle": ([symlink("a/stage/x", "x")], "circles"),
    # Each link stays inside by itself; together they do not.
    "two links": (
        [
            symlink("a/stage/up", "../.."),
            symlink("b/stage/x", "../../a/stage/up/.."),
        ],
        "outside",
    ),
    "two links turned": (
        [
            symlink("b/stage/x", "../../a/stage/up/.."),
            symlink("a/stage/up", "../.."),
        ],
        "outside",
    ),
    # The classic: a link out of the folder, then a file behind it.
    "file behind a link out": (
        [symlink("a/stage/x", "../../.."), file("a/stage/x/evil")],
        "'a/stage/x/evil'",
    ),
    "file behind a link": (
        [symlink("a/stage/x", "y"), file("a/stage/x/evil")],
        "symlink",
    ),
    "hard and absolute": ([hardlink("a/stage/x", "/etc/passwd")], "'/etc/passwd'"),
    "hard and up": (
        [hardlink("a/stage/x", "../../etc/passwd")],
        "not a file before it",
    ),
    "hard to a later file": (
        [hardlink("a/stage/x", "a/stage/later")],
        "not a file before it",
    ),
    "hard to the manifest": (
        [hardlink("a/stage/x", MANIFEST.name)],
        "not a file before it",
    ),
    "hard to a link": (
        [symlink("a/stage/x", "y"), hardlink("a/stage/z", "a/stage/x")],
        "not a file before it",
    ),
    "hard to a folder": (
        [folder("a/stage/x"), hardlink("a/stage/z", "a/stage/x")],
        "not a file before it",
    ),
}

REPEATED_MEMBERS = {
    "file and file": ([file("a/stage/x"), file("a/stage/x")], "twice"),
    "file and link": ([file("a/stage/x"), symlink("a/stage/x", "y")], "twice"),
    "link and file": ([symlink("a/stage/x", "y"), file("a/stage/x")], "twice"),
    "file and folder": ([file("a/stage/x"), folder("a/stage/x")], "twice"),
    "folder and file": ([file("a/stage/x/y"), file("a/stage/x")], "twice"),
    "file below a file": (
        [file("a/stage/x"), file("a/stage/x/y")],
        "which is a file",
    ),
}

X = file("a/stage/x")
HOSTILE_HEADERS = {
    "without a member": (
        [extended_header(pax_record(b"path=a/stage/y"))],
        "extended header",
    ),
    "absolute path": (
        [extended_header(pax_record(b"path=/etc/passwd")), X],
        "absolute path",
    ),
    "link that is no text": (
        [extended_header(pax_record(b"linkpath=\xff")), symlink("a/stage/x", "y")],
        "malformed",
    ),
    "link out": (
        [
            extended_header(pax_record(b"linkpath=../../../")),
            symlink("a/stage/x", "y"),
        ],
        "outside",
    ),
    "too long": ([extended_header(b"99 path=a/stage/y\n"), X], "cut off"),
    "no length": ([extended_header(b"path=a/stage/y\n"), X], "no length"),
    "negative size": ([extended_header(pax_record(b"size=-1")), X], "size -1"),
    "size that is no number": (
        [extended_header(pax_record(b"size=9999999999x")), X],
        "9999999999x",
    ),
    "path that is no text": (
        [extended_header(pax_record(b"path=\xff\xfe\xfd")), X],
        "malformed",
    ),
    "sparse file": (
        [extended_header(pax_record(b"GNU.sparse.major=1")), X],
        "sparse",
    ),
    "global path": (
        [extended_header(pax_record(b"path=/etc/passwd"), is_global=True), X],
        "global header",
    ),
    "long name": (
        [TarMember(name="x", type=tarfile.GNUTYPE_LONGNAME, content=b"a" * 70_000)],
        "70000 bytes",
    ),
}

FALSE_SIZES = {
    "more content": ([file("a/stage/x", b"12345678", size=4)], "'a/stage/x'"),
    "more blocks": ([file("a/stage/x", b"1" * 2048, size=512)], "malformed header"),
    "less content": ([file("a/stage/x", b"1234", size=MIB)], "truncated"),
}

HOSTILE_MEMBERS = {f"name: {case}": ([file(name)], reason) for case, (name, reason) in HOSTILE_NAMES.items()}
for kind_of_fault, cases in {
    "kind": HOSTILE_KINDS,
    "link": HOSTILE_LINKS,
    "twice": REPEATED_MEMBERS,
    "header": HOSTILE_HEADERS,
    "size": FALSE_SIZES,
}.items():
    for case, members_and_reason in cases.items():
        HOSTILE_MEMBERS[f"{kind_of_fault}: {case}"] = members_and_reason


@pytest.mark.parametrize(("members", "reason"), HOSTILE_MEMBERS.values(), ids=HOSTILE_MEMBERS)
def test_refuses_a_hostile_member(tmp_path: Path, members: list[TarMember], reason: str) -> None:
    assert reason in refuse(tar(*members), tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"", "truncated", id="no bytes"),
        pytest.param(END, "empty", id="no member"),
        pytest.param(X.to_bytes() + MANIFEST.to_bytes() + END, "'a/stage/x'", id="second"),
        pytest.param(
            symlink(MANIFEST.name, "/etc/passwd").to_bytes() + END,
            MANIFEST.name,
            id="link",
        ),
        pytest.param(
            replace(MANIFEST, content=b"../x\n").to_bytes() + END,
            "'../x'",
            id="stage above",
        ),
        pytest.param(
            replace(MANIFEST, content=b".\n").to_bytes() + END,
            "'.'",
            id="stage of everything",
        ),
        pytest.param(
            replace(MANIFEST, content=b"\xff\n").to_bytes() + END,
            "UTF-8",
            id="no text",
        ),
        pytest.param(
            replace(MANIFEST, content=b"a\n" * MIB).to_bytes() + END,
            f"{2 * MIB} bytes",
            id="long",
        ),
    ],
)
def test_refuses_an_archive_without_a_sound_manifest_first(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    assert reason in refuse(content, tmp_path / "out")


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        pytest.param(END + b"hidden", "behind its end", id="content"),
        pytest.param(END + bytes(3 * MIB) + b"x", "behind its end", id="content behind zeros"),
        pytest.param(END[:512] + MANIFEST.to_bytes(), "malformed header", id="half an end"),
    ],
)
def test_refuses_content_behind_the_end(tmp_path: Path, end: bytes, reason: str) -> None:
    assert reason in refuse(tar(end=end), tmp_path / "out")


def test_accepts_zeros_behind_the_end(tmp_path: Path) -> None:
    assert unpack(tar(end=END + bytes(3 * MIB)), tmp_path / "out").is_dir()


def test_does_not_take_a_broken_header_for_the_end(tmp_path: Path) -> None:
    content = bytearray(tar(file("a/stage/x"), file("a/stage/y")))
    content[len(MANIFEST.to_bytes()) + 3] ^= 1

    assert MANIFEST.name in refuse(bytes(content), tmp_path / "out")


# Truncated and damaged archives


@pytest.mark.parametrize("missing_bytes", [1, 100, 513, 1024, 1536, 2048])
def test_refuses_a_truncated_tar_wherever_it_ends(tmp_path: Path, missing_bytes: int) -> None:
    content = tar(file("a/stage/x", b"1"), file("a/stage/y", b"2"))

    assert "truncated" in refuse(content[:-missing_bytes], tmp_path / "out")


@BOTH_NAMES
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_refuses_a_truncated_archive(tmp_path: Path, name: ArchiveName, share: float) -> None:
    content = compress(
        tar(file("a/stage/x", INCOMPRESSIBLE[:100_000]), file("a/stage/y", b"2")),
        name,
    )

    message = refuse_compressed(content[: int(len(content) * share)], tmp_path / "out", name=name)

    assert name.filename in message


@BOTH_NAMES
def test_refuses_a_damaged_archive(tmp_path: Path, name: ArchiveName) -> None:
    tar_content = tar(file("a/stage/x", INCOMPRESSIBLE[:10_000]))
    if name is XZ_NAME:
        content = bytearray(lzma.compress(tar_content))
    else:
        content = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(tar_content))
    content[len(content) // 2] ^= 0xFF

    assert "damaged" in refuse_compressed(bytes(content), tmp_path / "out", name=name)


@BOTH_NAMES
def test_refuses_text_under_the_name_of_an_archive(tmp_path: Path, name: ArchiveName) -> None:
    assert "damaged" in refuse_compressed(b"no archive at all", tmp_path / "out", name=name)


# Limits


@BOTH_NAMES
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(tar(file("a/stage/zeros", bytes(3 * MIB))), id="member"),
        pytest.param(tar(end=bytes(3 * MIB)), id="behind the end"),
    ],
)
def test_refuses_a_bomb_before_it_fills_the_disk(tmp_path: Path, name: ArchiveName, content: bytes) -> None:
    limits = TarLimits(ratio_from=MIB, max_ratio=50)

    assert "bomb" in refuse(content, tmp_path / "out", name=name, limits=limits)


@pytest.mark.parametrize(
    ("members", "limits", "subject"),
    [
        pytest.param(
            [file("a/stage/x", b"1" * 2 * MIB)],
            TarLimits(max_bytes=2 * MIB - 1),
            "'a/stage/x'",
            id="size of a member",
        ),
        pytest.param(
            [file("a/stage/x", b"1" * 2 * MIB)], TarLimits(max_bytes=2 * MIB + 512), "bomb", id="size"
        ),
        pytest.param(
            [file(f"a/stage/{number}") for number in range(20)],
            TarLimits(max_members=20),
            "20 members",
            id="members",
        ),
        pytest.param(
            [file("a/stage/x", size=1 << 62)],
            None,
            "'a/stage/x'",
            id="impossible size",
        ),
    ],
)
def test_limits_sizes_and_numbers(
    tmp_path: Path, members: list[TarMember], limits: TarLimits | None, subject: str
) -> None:
    assert subject in refuse(tar(*members), tmp_path / "out", limits=limits)


def test_limits_the_memory_of_decompressing_zstd(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=24)
    # Without the size of its content a frame has the whole window.
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    content = frame.compress(tar(X)) + frame.flush()

    message = refuse_compressed(content, tmp_path / "out", limits=TarLimits(max_memory=MIB))

    assert "memory" in message


def test_limits_the_memory_of_decompressing_xz(tmp_path: Path) -> None:
    message = refuse(tar(X), tmp_path / "out", name=XZ_NAME, limits=TarLimits(max_memory=1 << 17))

    assert "memory" in message.lower()


# Any archive


@given(st.binary(max_size=200))
def test_reads_or_refuses_any_extended_header(content: bytes) -> None:
    try:
        records = pax_records(content)
    except ValueError:
        return

    assert bool(records) == bool(content)


@given(offset=st.integers(0, 6 * 512), byte=st.integers(0, 255))
def test_writes_nothing_outside_whichever_byte_is_changed(
    tmp_path_factory: pytest.TempPathFactory, offset: int, byte: int
) -> None:
    content = bytearray(
        tar(
            symlink("a/stage/l", "x"),
            file("a/stage/x", b"1"),
            hardlink("b/stage/h", "a/stage/x"),
        )
    )
    content[offset] = byte
    root = tmp_path_factory.mktemp("flip")
    target = root / "out"

    try:
        unpack(bytes(content), target)
    except ArtifactError:
        assert list(target.iterdir()) == []

    assert list(root.iterdir()) == [target]
