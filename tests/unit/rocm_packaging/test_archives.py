import hashlib
import io
import lzma
import os
import random
import stat
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from core.archive.tar import Policy, pax_records
from core.errors import ArtifactError, FatalError, StoreError
from rocm_packaging import archives
from rocm_packaging.archives import ArchiveName, extract, extracted_digest, parse_name, parse_sidecar
from rocm_packaging.artifacts import scan
from tests.kit.artifact_archives import pack

ZSTD_NAME = ArchiveName(name="blas", component="lib", target="generic")
XZ_NAME = replace(ZSTD_NAME, suffix=".tar.xz")
BOTH_NAMES = pytest.mark.parametrize("name", [ZSTD_NAME, XZ_NAME], ids=["zstd", "xz"])

MIB = 1 << 20
END = bytes(2 * tarfile.BLOCKSIZE)
INCOMPRESSIBLE = random.Random(9).randbytes(300_000)  # noqa: S311 - an input, not a secret
TarFormat = Literal[0, 1, 2]


@dataclass(frozen=True, kw_only=True)
class TarMember:
    """A member as a hostile hand writes it: any field, any content, and a size that may be false."""

    name: str
    content: bytes = b""
    type: bytes = tarfile.REGTYPE
    link: str = ""
    mode: int = 0o644
    size: int | None = None
    format: TarFormat = tarfile.PAX_FORMAT

    def to_bytes(self) -> bytes:
        """Return the member's blocks."""
        header = tarfile.TarInfo(self.name)
        header.type = self.type
        header.linkname = self.link
        header.mode = self.mode
        header.size = len(self.content) if self.size is None else self.size
        padding = bytes(-len(self.content) % tarfile.BLOCKSIZE)
        return header.tobuf(self.format, "utf-8", "surrogateescape") + self.content + padding


MANIFEST = TarMember(name="artifact_manifest.txt", content=b"a/stage\nb/stage\n")


def file(name: str, content: bytes = b"", *, mode: int = 0o644, size: int | None = None) -> TarMember:
    """Return a file."""
    return TarMember(name=name, content=content, mode=mode, size=size)


def folder(name: str, mode: int = 0o755) -> TarMember:
    """Return a folder."""
    return TarMember(name=name, type=tarfile.DIRTYPE, mode=mode)


def symlink(name: str, link: str) -> TarMember:
    """Return a symbolic link."""
    return TarMember(name=name, type=tarfile.SYMTYPE, link=link)


def hardlink(name: str, link: str) -> TarMember:
    """Return a hard link."""
    return TarMember(name=name, type=tarfile.LNKTYPE, link=link)


def device(name: str, type_: bytes) -> TarMember:
    """Return a member that is neither file, folder nor link."""
    return TarMember(name=name, type=type_)


def pax_record(text: bytes) -> bytes:
    """Return a record of an extended header; its length counts its own digits."""
    length = len(text) + 2
    while len(b"%d %s\n" % (length, text)) != length:
        length += 1
    return b"%d %s\n" % (length, text)


def extended_header(*records: bytes, is_global: bool = False) -> TarMember:
    """Return an extended header with these records, for the next member or for all."""
    return TarMember(
        name="pax",
        type=tarfile.XGLTYPE if is_global else tarfile.XHDTYPE,
        content=b"".join(records),
        format=tarfile.USTAR_FORMAT,
    )


def tar(*members: TarMember, end: bytes = END) -> bytes:
    """Return an archive that begins with the manifest."""
    return b"".join(member.to_bytes() for member in (MANIFEST, *members)) + end


def compress(content: bytes, name: ArchiveName = ZSTD_NAME) -> bytes:
    """Return an archive compressed as its name says."""
    return lzma.compress(content, preset=0) if name is XZ_NAME else zstandard.compress(content, 1)


def unpack(
    content: bytes,
    target: Path,
    *,
    name: ArchiveName = ZSTD_NAME,
    policy: Policy | None = None,
    sha256: str = "",
) -> Path:
    """Compress an archive and extract it; return the artifact's folder."""
    return extract(io.BytesIO(compress(content, name)), name, target, policy=policy, sha256=sha256)


def unpack_compressed(
    content: bytes, target: Path, *, name: ArchiveName = ZSTD_NAME, policy: Policy | None = None
) -> Path:
    """Extract an archive that is compressed; return the artifact's folder."""
    return extract(io.BytesIO(content), name, target, policy=policy, sha256="")


def refuse(
    content: bytes,
    target: Path,
    *,
    name: ArchiveName = ZSTD_NAME,
    policy: Policy | None = None,
) -> str:
    """Return the message with which an archive is refused, which leaves nothing at all."""
    return refuse_compressed(compress(content, name), target, name=name, policy=policy)


def refuse_compressed(
    content: bytes, target: Path, *, name: ArchiveName = ZSTD_NAME, policy: Policy | None = None
) -> str:
    """Return the message with which a compressed archive is refused, which leaves nothing at all."""
    paths_before = {target, *target.parent.rglob("*")}
    with pytest.raises(ArtifactError) as raised:
        unpack_compressed(content, target, name=name, policy=policy)
    assert {target, *target.parent.rglob("*")} == paths_before
    return raised.value.message


def permissions(path: Path) -> int:
    """Return the permissions of a path."""
    return stat.S_IMODE(path.lstat().st_mode)


# Names


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        ("core-hip_lib_generic.tar.zst", ArchiveName(name="core-hip", component="lib", target="generic")),
        (
            "blas_lib_gfx94X-dcgpu.tar.xz",
            ArchiveName(name="blas", component="lib", target="gfx94X-dcgpu", suffix=".tar.xz"),
        ),
        (
            "blas_test_gfx942:xnack+.tar.zst",
            ArchiveName(name="blas", component="test", target="gfx942", features=":xnack+"),
        ),
        (
            "b_dbg_gfx90a:sramecc+:xnack-.tar.zst",
            ArchiveName(name="b", component="dbg", target="gfx90a", features=":sramecc+:xnack-"),
        ),
    ],
)
def test_reads_and_writes_the_name_of_an_archive(filename: str, name: ArchiveName) -> None:
    assert parse_name(filename) == name
    assert name.filename == filename


def test_names_folders_without_colons_on_windows() -> None:
    name = parse_name("blas_test_gfx942:xnack+.tar.zst")

    assert name.folder("linux") == "blas_test_gfx942:xnack+"
    assert ":" not in name.folder("windows")


@pytest.mark.parametrize(
    "filename",
    [
        *("blas_lib.tar.zst", "blas_lib_generic_x.tar.zst", "_lib_generic.tar.zst", "blas__generic.tar.zst"),
        *("blas_lib_generic.tar", "blas_lib_generic.tar.gz", "blas_lib_generic", "1a_lib_generic.tar.zst"),
        *("blas_lib_.tar.zst", "blas_lib_...tar.zst", "a/b_lib_generic.tar.zst", "b_lib_gfx942:x.tar.zst"),
        *("blas_lib_generic.tar.zst.sha256sum", "b_LIB_generic.tar.zst", "b_lib_a/../b.tar.zst"),
    ],
)
def test_refuses_a_malformed_name(filename: str) -> None:
    with pytest.raises(ArtifactError) as raised:
        parse_name(filename)

    assert repr(filename) in raised.value.message


def test_offers_the_nearest_component() -> None:
    with pytest.raises(ArtifactError, match="'lib'"):
        parse_name("blas_libs_generic.tar.zst")


# Digests beside archives


@pytest.mark.parametrize(
    "text", ["{digest}\n", "{upper}  blas_lib_generic.tar.zst\n"], ids=["digest", "digest and name"]
)
def test_reads_the_first_word_of_a_digest_file(text: str) -> None:
    digest = "ab" * 32

    assert parse_sidecar(text.format(digest=digest, upper=digest.upper()), where="x") == digest


@pytest.mark.parametrize("text", ["", "\n", "abc\n", f"x{'ab' * 32}"])
def test_refuses_a_digest_file_without_a_digest(text: str) -> None:
    with pytest.raises(ArtifactError, match="blas"):
        parse_sidecar(text, where="blas.sha256sum")


# Sound archives


@BOTH_NAMES
def test_extracts_files(tmp_path: Path, name: ArchiveName) -> None:
    content = tar(folder("a/stage"), file("a/stage/lib/x.so.1", b"lib" * 1000), file("b/stage/empty", b""))

    artifact = unpack(content, tmp_path / "out", name=name)

    assert artifact.name == "blas_lib_generic"
    assert (artifact / "a/stage/lib/x.so.1").read_bytes() == b"lib" * 1000
    assert (artifact / "b/stage/empty").read_bytes() == b""
    assert [artifact.stages for artifact in scan(tmp_path / "out")] == [("a/stage", "b/stage")]


def test_extracts_links(tmp_path: Path) -> None:
    content = tar(
        file("a/stage/lib/x.so.1", b"library"),
        symlink("a/stage/lib/x.so", "x.so.1"),
        symlink("a/stage/early", "../../b/stage/late"),
        hardlink("b/stage/hard", "a/stage/lib/x.so.1"),
        file("b/stage/late"),
    )

    artifact = unpack(content, tmp_path / "out")

    assert (artifact / "a/stage/lib/x.so").readlink() == Path("x.so.1")
    assert (artifact / "a/stage/early").resolve() == (artifact / "b/stage/late").resolve()
    assert (artifact / "b/stage/hard").samefile(artifact / "a/stage/lib/x.so.1")


@pytest.mark.parametrize(
    ("member", "mode"),
    [
        pytest.param(file("a/stage/x", mode=0o755), 0o755, id="program"),
        pytest.param(folder("a/stage/x", 0o750), 0o750, id="folder"),
        pytest.param(file("a/stage/x", mode=0o6755), 0o755, id="set-user-id"),
        pytest.param(file("a/stage/x", mode=0o111), 0o711, id="unreadable"),
        pytest.param(folder("a/stage/x", 0o1777), 0o777, id="sticky folder"),
    ],
)
def test_keeps_permissions_but_none_that_give_power(tmp_path: Path, member: TarMember, mode: int) -> None:
    artifact = unpack(tar(member), tmp_path / "out")

    assert permissions(artifact / "a/stage/x") == mode


def test_extracts_into_a_folder_that_nobody_may_enter(tmp_path: Path) -> None:
    artifact = unpack(tar(folder("a/stage/x", 0o000), file("a/stage/x/y", b"inner")), tmp_path / "out")

    assert (artifact / "a/stage/x/y").read_bytes() == b"inner"


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "GNU"])
def test_extracts_long_names_and_links(tmp_path: Path, tar_format: TarFormat) -> None:
    name = "a/stage/" + "/".join(["d" * 60] * 5) + "/file-ü"
    members = [file(name, b"deep"), symlink("b/stage/link", f"../../{name}"), hardlink("b/stage/hard", name)]

    artifact = unpack(tar(*(replace(member, format=tar_format) for member in members)), tmp_path / "out")

    assert (artifact / name).read_bytes() == b"deep"
    assert (artifact / "b/stage/link").read_bytes() == b"deep"
    assert (artifact / "b/stage/hard").samefile(artifact / name)


def test_accepts_leading_dots_and_repeated_folders(tmp_path: Path) -> None:
    members = [
        replace(MANIFEST, name="./artifact_manifest.txt"),
        folder("./a"),
        folder("./a/stage"),
        folder("./a/stage"),
        file("./a/stage/x", b"1"),
    ]
    content = b"".join(member.to_bytes() for member in members) + END

    artifact = unpack(content, tmp_path / "out")

    assert (artifact / "a/stage/x").read_bytes() == b"1"


@BOTH_NAMES
def test_accepts_several_compressed_streams_in_a_row(tmp_path: Path, name: ArchiveName) -> None:
    content = tar(file("a/stage/x", INCOMPRESSIBLE))
    padding = bytes(8) if name is XZ_NAME else b""
    streams = compress(content[:1000], name) + padding + compress(content[1000:], name)

    artifact = unpack_compressed(streams, tmp_path / "out", name=name)

    assert (artifact / "a/stage/x").read_bytes() == INCOMPRESSIBLE


def test_ignores_records_of_extended_headers_that_nobody_needs(tmp_path: Path) -> None:
    content = tar(
        extended_header(pax_record(b"comment=a\xff\xfebcd"), is_global=True),
        extended_header(pax_record(b"mtime=1700000000")),
        file("a/stage/x", b"1"),
    )

    artifact = unpack(content, tmp_path / "out")

    assert (artifact / "a/stage/x").read_bytes() == b"1"


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
    "character device": ([device("a/stage/x", tarfile.CHRTYPE)], "character device"),
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
    "two links": ([symlink("a/stage/up", "../.."), symlink("b/stage/x", "../../a/stage/up/..")], "outside"),
    "two links turned": (
        [symlink("b/stage/x", "../../a/stage/up/.."), symlink("a/stage/up", "../..")],
        "outside",
    ),
    # The classic: a link out of the folder, then a file behind it.
    "file behind a link out": (
        [symlink("a/stage/x", "../../.."), file("a/stage/x/evil")],
        "'a/stage/x/evil'",
    ),
    "file behind a link": ([symlink("a/stage/x", "y"), file("a/stage/x/evil")], "symlink"),
    "hard and absolute": ([hardlink("a/stage/x", "/etc/passwd")], "'/etc/passwd'"),
    "hard and up": ([hardlink("a/stage/x", "../../etc/passwd")], "not a file before it"),
    "hard to a later file": ([hardlink("a/stage/x", "a/stage/later")], "not a file before it"),
    "hard to the manifest": ([hardlink("a/stage/x", MANIFEST.name)], "not a file before it"),
    "hard to a link": (
        [symlink("a/stage/x", "y"), hardlink("a/stage/z", "a/stage/x")],
        "not a file before it",
    ),
    "hard to a folder": ([folder("a/stage/x"), hardlink("a/stage/z", "a/stage/x")], "not a file before it"),
}

REPEATED_MEMBERS = {
    "file and file": ([file("a/stage/x"), file("a/stage/x")], "twice"),
    "file and link": ([file("a/stage/x"), symlink("a/stage/x", "y")], "twice"),
    "link and file": ([symlink("a/stage/x", "y"), file("a/stage/x")], "twice"),
    "file and folder": ([file("a/stage/x"), folder("a/stage/x")], "twice"),
    "folder and file": ([file("a/stage/x/y"), file("a/stage/x")], "twice"),
    "file below a file": ([file("a/stage/x"), file("a/stage/x/y")], "which is a file"),
}

X = file("a/stage/x")
HOSTILE_HEADERS = {
    "without a member": ([extended_header(pax_record(b"path=a/stage/y"))], "extended header"),
    "absolute path": ([extended_header(pax_record(b"path=/etc/passwd")), X], "absolute path"),
    "link that is no text": (
        [extended_header(pax_record(b"linkpath=\xff")), symlink("a/stage/x", "y")],
        "malformed",
    ),
    "link out": ([extended_header(pax_record(b"linkpath=../../../")), symlink("a/stage/x", "y")], "outside"),
    "too long": ([extended_header(b"99 path=a/stage/y\n"), X], "cut off"),
    "no length": ([extended_header(b"path=a/stage/y\n"), X], "no length"),
    "negative size": ([extended_header(pax_record(b"size=-1")), X], "size -1"),
    "size that is no number": ([extended_header(pax_record(b"size=9999999999x")), X], "9999999999x"),
    "path that is no text": ([extended_header(pax_record(b"path=\xff\xfe\xfd")), X], "malformed"),
    "sparse file": ([extended_header(pax_record(b"GNU.sparse.major=1")), X], "sparse"),
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

HOSTILE_MEMBERS = {
    **{f"name: {case}": ([file(name)], reason) for case, (name, reason) in HOSTILE_NAMES.items()},
    **{f"kind: {case}": values for case, values in HOSTILE_KINDS.items()},
    **{f"link: {case}": values for case, values in HOSTILE_LINKS.items()},
    **{f"twice: {case}": values for case, values in REPEATED_MEMBERS.items()},
    **{f"header: {case}": values for case, values in HOSTILE_HEADERS.items()},
    **{f"size: {case}": values for case, values in FALSE_SIZES.items()},
}


@pytest.mark.parametrize(("members", "reason"), HOSTILE_MEMBERS.values(), ids=HOSTILE_MEMBERS)
def test_refuses_a_hostile_member(tmp_path: Path, members: list[TarMember], reason: str) -> None:
    assert reason in refuse(tar(*members), tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"", "truncated", id="no bytes"),
        pytest.param(END, "empty", id="no member"),
        pytest.param(X.to_bytes() + MANIFEST.to_bytes() + END, "'a/stage/x'", id="second"),
        pytest.param(symlink(MANIFEST.name, "/etc/passwd").to_bytes() + END, MANIFEST.name, id="link"),
        pytest.param(replace(MANIFEST, content=b"../x\n").to_bytes() + END, "'../x'", id="stage above"),
        pytest.param(replace(MANIFEST, content=b".\n").to_bytes() + END, "'.'", id="stage of everything"),
        pytest.param(replace(MANIFEST, content=b"\xff\n").to_bytes() + END, "UTF-8", id="no text"),
        pytest.param(replace(MANIFEST, content=b"a\n" * MIB).to_bytes() + END, f"{2 * MIB} bytes", id="long"),
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
    content = compress(tar(file("a/stage/x", INCOMPRESSIBLE[:100_000]), file("a/stage/y", b"2")), name)

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
    policy = Policy(ratio_from=MIB, max_ratio=50)

    assert "bomb" in refuse(content, tmp_path / "out", name=name, policy=policy)


@pytest.mark.parametrize(
    ("members", "policy", "subject"),
    [
        pytest.param(
            [file("a/stage/x", b"1" * 2 * MIB)],
            Policy(max_bytes=2 * MIB - 1),
            "'a/stage/x'",
            id="size of a member",
        ),
        pytest.param([file("a/stage/x", b"1" * 2 * MIB)], Policy(max_bytes=2 * MIB + 512), "bomb", id="size"),
        pytest.param(
            [file(f"a/stage/{number}") for number in range(20)],
            Policy(max_members=20),
            "20 members",
            id="members",
        ),
        pytest.param([file("a/stage/x", size=1 << 62)], None, "'a/stage/x'", id="impossible size"),
    ],
)
def test_limits_sizes_and_numbers(
    tmp_path: Path, members: list[TarMember], policy: Policy | None, subject: str
) -> None:
    assert subject in refuse(tar(*members), tmp_path / "out", policy=policy)


def test_limits_the_memory_of_decompressing_zstd(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=24)
    # Without the size of its content a frame has the whole window.
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    content = frame.compress(tar(X)) + frame.flush()

    message = refuse_compressed(content, tmp_path / "out", policy=Policy(max_memory=MIB))

    assert "memory" in message


def test_limits_the_memory_of_decompressing_xz(tmp_path: Path) -> None:
    message = refuse(tar(X), tmp_path / "out", name=XZ_NAME, policy=Policy(max_memory=1 << 17))

    assert "memory" in message.lower()


# Complete or not at all


def test_keeps_the_digest_of_the_extracted_archive(tmp_path: Path) -> None:
    content = compress(tar(X))
    digest = hashlib.sha256(content).hexdigest()
    byte_counts: list[int] = []

    artifact = extract(io.BytesIO(content), ZSTD_NAME, tmp_path, sha256=digest, on_bytes=byte_counts.append)

    assert extracted_digest(artifact) == digest
    assert sum(byte_counts) == len(content)


def test_knows_no_digest_of_a_folder_that_was_not_extracted(tmp_path: Path) -> None:
    assert extracted_digest(tmp_path) == ""


def test_keeps_the_artifact_where_the_digest_is_another(tmp_path: Path) -> None:
    artifact = unpack(tar(file("a/stage/x", b"old")), tmp_path / "out")

    with pytest.raises(ArtifactError) as raised:
        unpack(tar(file("a/stage/x", b"new")), tmp_path / "out", sha256="ab" * 32)

    assert ZSTD_NAME.filename in raised.value.message
    assert "ab" * 32 in raised.value.message
    assert (artifact / "a/stage/x").read_bytes() == b"old"
    assert list((tmp_path / "out").iterdir()) == [artifact]


def test_names_both_digest_and_damage_of_an_archive(tmp_path: Path) -> None:
    content = compress(tar(file("a/stage/x", INCOMPRESSIBLE[:9000])))
    digest = hashlib.sha256(content).hexdigest()

    with pytest.raises(ArtifactError) as raised:
        extract(io.BytesIO(content[:5000]), ZSTD_NAME, tmp_path / "out", sha256=digest)

    assert digest in raised.value.message
    assert "truncated" in raised.value.message


def test_replaces_an_artifact_as_a_whole(tmp_path: Path) -> None:
    unpack(tar(file("a/stage/old", b"1")), tmp_path / "out")

    artifact = unpack(tar(file("a/stage/new", b"2")), tmp_path / "out")

    assert [path.name for path in (artifact / "a/stage").iterdir()] == ["new"]
    assert list((tmp_path / "out").iterdir()) == [artifact]


class BreakingStream(io.BytesIO):
    """A connection that breaks after 60,000 bytes, of which each read gives 10,000."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes, or break."""
        if self.tell() >= 60_000:
            raise ConnectionResetError("reset")
        return super().read(min(size or 0, 10_000))


@BOTH_NAMES
def test_reports_a_broken_connection_as_the_stores_error(tmp_path: Path, name: ArchiveName) -> None:
    stream = BreakingStream(compress(tar(file("a/stage/x", INCOMPRESSIBLE[:100_000])), name))

    with pytest.raises(StoreError, match="60000 bytes"):
        extract(stream, name, tmp_path / "out", sha256="")

    assert list((tmp_path / "out").iterdir()) == []


def test_leaves_nothing_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_handle: int, _data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fail)

    with pytest.raises(FatalError, match="a/stage/x"):
        unpack(tar(file("a/stage/x", b"1")), tmp_path / "out")

    assert list((tmp_path / "out").iterdir()) == []


# Any archive


@given(st.binary(max_size=200))
def test_reads_or_refuses_any_extended_header(content: bytes) -> None:
    try:
        records = pax_records(content)
    except ValueError:
        return

    assert bool(records) == bool(content)


path_parts = st.text(
    st.characters(codec="utf-8", exclude_characters="/\\\0"), min_size=1, max_size=20
).filter(lambda part: part not in {".", ".."})
Tree = dict[tuple[str, ...], tuple[bytes, bool]]


def write_tree(stage: Path, tree: Tree) -> None:
    """Write files, programs some of them, where no other one lies in the way."""
    for parts, (content, is_program) in tree.items():
        path = stage.joinpath(*parts)
        if path.is_dir() or any(parent.is_file() for parent in path.parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if is_program else 0o644)


def read_tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return the permissions and the content of each path of an artifact."""
    tree: dict[str, tuple[int, bytes]] = {}
    for path in sorted(root.rglob("*")):
        if path.name != archives.MARKER:
            content = path.read_bytes() if path.is_file() else b""
            tree[path.relative_to(root).as_posix()] = (permissions(path), content)
    return tree


@given(
    tree=st.dictionaries(
        st.lists(path_parts, min_size=1, max_size=3).map(tuple),
        st.tuples(st.binary(max_size=600), st.booleans()),
        max_size=6,
    ),
    suffix=st.sampled_from(archives.SUFFIXES),
)
def test_extracts_any_tree_as_it_was_packed(
    tmp_path_factory: pytest.TempPathFactory, tree: Tree, suffix: str
) -> None:
    root = tmp_path_factory.mktemp("trip")
    source = root / "blas_lib_generic"
    source.mkdir()
    (source / MANIFEST.name).write_text("a/stage\n", encoding="utf-8")
    write_tree(source / "a/stage", tree)

    archive = pack(source, root, suffix=suffix)
    with archive.open("rb") as stream:
        artifact = extract(stream, parse_name(archive.name), root / "out", sha256="")

    assert read_tree(artifact) == read_tree(source)
    (scanned_artifact,) = scan(root / "out")
    assert len(scanned_artifact.entries) == sum(path.is_file() for path in (source / "a").rglob("*"))


@given(offset=st.integers(0, 6 * 512), byte=st.integers(0, 255))
def test_writes_nothing_outside_whichever_byte_is_changed(
    tmp_path_factory: pytest.TempPathFactory, offset: int, byte: int
) -> None:
    content = bytearray(
        tar(symlink("a/stage/l", "x"), file("a/stage/x", b"1"), hardlink("b/stage/h", "a/stage/x"))
    )
    content[offset] = byte
    root = tmp_path_factory.mktemp("flip")
    target = root / "out"

    try:
        unpack(bytes(content), target)
    except ArtifactError:
        assert list(target.iterdir()) == []

    assert list(root.iterdir()) == [target]
