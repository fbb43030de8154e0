import hashlib
import io
import lzma
import os
import stat
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from core.archive.tar import Policy, pax_records
from core.errors import ArtifactError, FatalError, StoreError
from rocm_packaging import archives
from rocm_packaging.archives import ArchiveName, extract, extracted_digest, parse_name, parse_sidecar
from rocm_packaging.artifacts import scan
from tests.kit.artifact_archives import pack

NAME = ArchiveName(name="blas", component="lib", target="generic")
XZ_NAME = replace(NAME, suffix=".tar.xz")
END = bytes(2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A member as a hostile hand writes it: any field, any data."""

    name: str
    data: bytes = b""
    type: bytes = tarfile.REGTYPE
    link: str = ""
    mode: int = 0o644
    size: int | None = None
    form: Literal[0, 1, 2] = tarfile.PAX_FORMAT

    def bytes(self) -> bytes:
        info = tarfile.TarInfo(self.name)
        info.type, info.linkname, info.mode = self.type, self.link, self.mode
        info.size = len(self.data) if self.size is None else self.size
        padded = self.data + bytes(-len(self.data) % tarfile.BLOCKSIZE)
        return info.tobuf(self.form, "utf-8", "surrogateescape") + padded


MANIFEST = Piece(name="artifact_manifest.txt", data=b"a/stage\nb/stage\n")


def folder(name: str, mode: int = 0o755) -> Piece:
    return Piece(name=name, type=tarfile.DIRTYPE, mode=mode)


def symlink(name: str, link: str) -> Piece:
    return Piece(name=name, type=tarfile.SYMTYPE, link=link)


def hardlink(name: str, link: str) -> Piece:
    return Piece(name=name, type=tarfile.LNKTYPE, link=link)


def tar(*pieces: Piece, end: bytes = END) -> bytes:
    return b"".join(piece.bytes() for piece in (MANIFEST, *pieces)) + end


def compressed(data: bytes, name: ArchiveName = NAME) -> bytes:
    return lzma.compress(data, preset=0) if name is XZ_NAME else zstandard.compress(data)


def unpack(data: bytes, target: Path, name: ArchiveName = NAME, **options: Any) -> Path:
    return unpack_raw(compressed(data, name), target, name, **options)


def unpack_raw(data: bytes, target: Path, name: ArchiveName = NAME, **options: Any) -> Path:
    options.setdefault("sha256", "")
    return extract(io.BytesIO(data), name, target, **options)


def refused(data: bytes, target: Path, said: str, **options: Any) -> None:
    """See that it is refused with these words, and that nothing at all is left."""
    before = {target, *target.parent.rglob("*")}
    with pytest.raises(ArtifactError, match=said):
        unpack(data, target, **options)
    assert {target, *target.parent.rglob("*")} == before


# --- names ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("core-hip_lib_generic.tar.zst", ("core-hip", "lib", "generic", "", ".tar.zst")),
        ("blas_lib_gfx94X-dcgpu.tar.xz", ("blas", "lib", "gfx94X-dcgpu", "", ".tar.xz")),
        ("blas_test_gfx942:xnack+.tar.zst", ("blas", "test", "gfx942", ":xnack+", ".tar.zst")),
        ("b_dbg_gfx90a:sramecc+:xnack-.tar.xz", ("b", "dbg", "gfx90a", ":sramecc+:xnack-", ".tar.xz")),
    ],
)
def test_names_are_read_and_written(filename: str, expected: tuple[str, ...]) -> None:
    name = parse_name(filename)
    assert (name.name, name.component, name.target, name.features, name.suffix) == expected
    assert name.filename == filename
    assert ":" not in name.folder("windows")
    assert name.folder("linux") == filename.partition(".")[0]


@pytest.mark.parametrize(
    "filename",
    [
        *("blas_lib.tar.zst", "blas_lib_generic_x.tar.zst", "_lib_generic.tar.zst", "blas__generic.tar.zst"),
        *("blas_lib_generic.tar", "blas_lib_generic.tar.gz", "blas_lib_generic", "1a_lib_generic.tar.zst"),
        *("blas_lib_.tar.zst", "blas_lib_...tar.zst", "a/b_lib_generic.tar.zst", "b_lib_gfx942:x.tar.zst"),
        *("blas_lib_generic.tar.zst.sha256sum", "b_LIB_generic.tar.zst", "b_lib_a/../b.tar.zst"),
        "blas_libs_generic.tar.zst",  # an unknown component, with the nearest
    ],
)
def test_malformed_names_are_refused(filename: str) -> None:
    with pytest.raises(ArtifactError, match=r"is not the name of an artifact's archive|Did you mean 'lib'"):
        parse_name(filename)


def test_sidecars_are_read_by_their_first_word() -> None:
    digest = "ab" * 32
    assert parse_sidecar(f"{digest}\n", where="x") == digest
    assert parse_sidecar(f"{digest.upper()}  blas_lib_generic.tar.zst\n", where="x") == digest
    for text in ("", "\n", "abc\n", f"x{digest}"):
        with pytest.raises(ArtifactError, match="x holds no SHA-256"):
            parse_sidecar(text, where="x")


# --- what is legal -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [NAME, XZ_NAME])
def test_files_modes_and_links_come_out(tmp_path: Path, name: ArchiveName) -> None:
    data = tar(
        folder("a/stage", 0o750),
        Piece(name="a/stage/bin/tool", data=b"run", mode=0o755),
        Piece(name="a/stage/lib/x.so.1", data=b"lib" * 1000),
        symlink("a/stage/lib/x.so", "x.so.1"),
        symlink("a/stage/early", "../../b/stage/late"),
        hardlink("b/stage/hard", "a/stage/lib/x.so.1"),
        Piece(name="b/stage/late", data=b""),
    )
    out = unpack(data, tmp_path / "out", name)
    assert out.name == "blas_lib_generic"
    assert (out / "a/stage/lib/x.so").read_bytes() == b"lib" * 1000
    assert (out / "a/stage/lib/x.so").readlink() == Path("x.so.1")
    assert (out / "b/stage/hard").samefile(out / "a/stage/lib/x.so.1")
    assert (out / "a/stage/early").resolve() == (out / "b/stage/late").resolve()
    assert stat.S_IMODE((out / "a/stage/bin/tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((out / "a/stage").stat().st_mode) == 0o750
    assert [artifact.stages for artifact in scan(tmp_path / "out")] == [("a/stage", "b/stage")]


def test_permissions_are_kept_but_none_that_give_power(tmp_path: Path) -> None:
    data = tar(
        Piece(name="a/stage/suid", data=b"x", mode=0o6755),
        Piece(name="a/stage/sealed", data=b"x", mode=0o111),
        folder("a/stage/sticky", 0o1777),
        folder("a/stage/closed", 0o000),
        Piece(name="a/stage/closed/inner", data=b"x"),
    )
    out = unpack(data, tmp_path / "out")
    modes = {path: stat.S_IMODE((out / "a/stage" / path).stat().st_mode) for path in ("suid", "sealed")}
    assert modes == {"suid": 0o755, "sealed": 0o711}
    assert stat.S_IMODE((out / "a/stage/sticky").stat().st_mode) == 0o777
    assert (out / "a/stage/closed/inner").read_bytes() == b"x"


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_and_links_come_out(tmp_path: Path, form: Literal[0, 1, 2]) -> None:
    name = "a/stage/" + "/".join(["d" * 60] * 5) + "/file-ü"
    data = tar(
        Piece(name=name, data=b"deep", form=form),
        Piece(name="b/stage/link", type=tarfile.SYMTYPE, link=f"../../{name}", form=form),
        Piece(name="b/stage/hard", type=tarfile.LNKTYPE, link=name, form=form),
    )
    out = unpack(data, tmp_path / "out")
    assert (out / name).read_bytes() == (out / "b/stage/link").read_bytes() == b"deep"
    assert (out / "b/stage/hard").samefile(out / name)


def test_a_leading_dot_and_repeated_folders_are_harmless(tmp_path: Path) -> None:
    data = b"".join(
        piece.bytes()
        for piece in (
            replace(MANIFEST, name="./artifact_manifest.txt"),
            folder("./a"),
            folder("./a/stage"),
            folder("./a/stage"),
            Piece(name="./a/stage/x", data=b"1"),
        )
    )
    assert (unpack(data + END, tmp_path / "out") / "a/stage/x").read_bytes() == b"1"


def test_several_compressed_streams_in_a_row_are_one_archive(tmp_path: Path) -> None:
    data = tar(Piece(name="a/stage/x", data=os.urandom(300_000)))
    zst = b"".join(zstandard.compress(part) for part in (data[:1000], data[1000:]))
    assert (unpack_raw(zst, tmp_path / "zst") / "a/stage/x").stat().st_size == 300_000
    xz = lzma.compress(data[:1000]) + bytes(8) + lzma.compress(data[1000:])
    assert (unpack_raw(xz, tmp_path / "xz", XZ_NAME) / "a/stage/x").stat().st_size == 300_000


# --- what is hostile -----------------------------------------------------------------------


def record(text: bytes) -> bytes:
    """A pax record; its length counts its own digits."""
    length = next(n for n in range(200) if n == len(str(n)) + len(text) + 2)
    return b"%d %s\n" % (length, text)


def pax(records: bytes, kind: bytes = tarfile.XHDTYPE) -> Piece:
    return Piece(name="pax", type=kind, data=records, form=tarfile.USTAR_FORMAT)


@pytest.mark.parametrize(
    ("hostile", "said"),
    [
        (Piece(name="/etc/passwd"), "'/etc/passwd' is an absolute path"),
        (Piece(name=".//etc/passwd"), "is an absolute path"),
        (Piece(name="C:/windows"), "is an absolute path"),
        (Piece(name="a/stage/../../../x"), "a path that leaves its folder"),
        (Piece(name="../x"), "a path that leaves its folder"),
        (Piece(name="a/stage/.."), "a path that leaves its folder"),
        (Piece(name="a/stage//x"), "is a path that is not in its shortest form"),
        (Piece(name="a/stage/./x"), "is a path that is not in its shortest form"),
        (Piece(name="a/stage/..\\..\\x"), "is a backslash, which is a separator on Windows"),
        (Piece(name=""), "is an empty or cut-off name"),
        (Piece(name="c/stage/x"), "'c/stage/x' lies outside of the folders"),
        (Piece(name="a/stagex"), "lies outside of the folders"),
        (Piece(name="a/stage"), "lies outside of the folders"),
        (folder("a/other"), "lies outside of the folders"),
        (Piece(name=".archive.sha256", data=b"0" * 64), "lies outside of the folders"),
        (MANIFEST, "lies outside of the folders"),
        (Piece(name="a/stage/dev", type=tarfile.CHRTYPE), "'a/stage/dev', which is a character device"),
        (Piece(name="a/stage/dev", type=tarfile.BLKTYPE), "which is a block device"),
        (Piece(name="a/stage/pipe", type=tarfile.FIFOTYPE), "which is a named pipe"),
        (Piece(name="a/stage/odd", type=b"V"), "of an unknown type"),
        (symlink("a/stage/x", "/etc"), "'a/stage/x' links to '/etc', which is outside"),
        (symlink("a/stage/x", "../../.."), "which is outside"),
        (symlink("a/stage/x", "y/../../../../out"), "which is outside"),
        (symlink("a/stage/x", "..\\..\\.."), "which is outside"),
        (symlink("a/stage/x", "C:evil"), "which is outside"),
        (symlink("a/stage/x", ""), "which is outside"),
        (symlink("a/stage/x", "x"), "leads in circles"),
        (hardlink("a/stage/x", "/etc/passwd"), "'a/stage/x' is a hard link to '/etc/passwd'"),
        (hardlink("a/stage/x", "../../etc/passwd"), "is not a file before it"),
        (hardlink("a/stage/x", "a/stage/later"), "is not a file before it"),
        (hardlink("a/stage/x", "artifact_manifest.txt"), "is not a file before it"),
        (Piece(name="a/stage/x", type=tarfile.SYMTYPE, link="y", size=512), "the size 512"),
        # the classic: a link out of the folder, then a file behind it
        ((symlink("a/stage/x", "../../.."), Piece(name="a/stage/x/evil")), "'a/stage/x/evil' lies behind"),
        ((symlink("a/stage/x", "y"), Piece(name="a/stage/x/evil")), "which is a symlink"),
        # each link stays inside by itself; together they do not
        ((symlink("a/stage/up", "../.."), symlink("b/stage/x", "../../a/stage/up/..")), "which is outside"),
        ((symlink("b/stage/x", "../../a/stage/up/.."), symlink("a/stage/up", "../..")), "which is outside"),
        ((symlink("a/stage/x", "y"), hardlink("a/stage/z", "a/stage/x")), "is not a file before it"),
        ((folder("a/stage/x"), hardlink("a/stage/z", "a/stage/x")), "is not a file before it"),
        ((Piece(name="a/stage/x"), Piece(name="a/stage/x")), "'a/stage/x' is there twice"),
        ((Piece(name="a/stage/x"), symlink("a/stage/x", "y")), "is there twice"),
        ((symlink("a/stage/x", "y"), Piece(name="a/stage/x")), "is there twice"),
        ((Piece(name="a/stage/x"), folder("a/stage/x")), "is there twice"),
        ((Piece(name="a/stage/x/y"), Piece(name="a/stage/x")), "is there twice"),
        ((Piece(name="a/stage/x"), Piece(name="a/stage/x/y")), "which is a file"),
        ((pax(record(b"path=a/stage/y")),), "ends after an extended header"),
        ((pax(record(b"path=/etc/passwd")), Piece(name="a/stage/x")), "'/etc/passwd' is an absolute path"),
        ((pax(record(b"linkpath=\xff")), symlink("a/stage/x", "y")), "malformed extended header"),
        ((pax(record(b"linkpath=../../../")), symlink("a/stage/x", "y")), "which is outside"),
        ((pax(b"99 path=a/stage/y\n"), Piece(name="a/stage/x")), "cut off"),
        ((pax(b"path=a/stage/y\n"), Piece(name="a/stage/x")), "no length"),
        ((pax(record(b"size=-1")), Piece(name="a/stage/x")), "the size -1"),
        ((pax(record(b"size=9999999999x")), Piece(name="a/stage/x")), "the size 9999999999x"),
        ((pax(record(b"path=\xff\xfe\xfd")), Piece(name="a/stage/x")), "malformed extended header"),
        ((pax(record(b"GNU.sparse.major=1")), Piece(name="a/stage/x")), "a sparse file"),
        ((pax(record(b"path=/etc/passwd"), tarfile.XGLTYPE), Piece(name="a/stage/x")), "by a global header"),
        ((Piece(name="x", type=tarfile.GNUTYPE_LONGNAME, data=b"a" * 70_000),), "of 70000 bytes"),
        # data longer or shorter than its header says
        (Piece(name="a/stage/x", data=b"12345678", size=4), "more data at 'a/stage/x' than its header says"),
        (Piece(name="a/stage/x", data=b"1" * 2048, size=512), "malformed header after 'a/stage/x'"),
        (Piece(name="a/stage/x", data=b"1234", size=1 << 20), "is truncated after 'a/stage/x'"),
        # the manifest comes first
        (b"", "is truncated"),
        (END, "it is empty"),
        (Piece(name="a/stage/x").bytes() + MANIFEST.bytes() + END, "'a/stage/x' comes first"),
        (symlink("artifact_manifest.txt", "/etc/passwd").bytes() + END, "comes first"),
        (replace(MANIFEST, data=b"../x\n").bytes() + END, r"lists '\.\./x'"),
        (replace(MANIFEST, data=b".\n").bytes() + END, r"lists '\.'"),
        (replace(MANIFEST, data=b"\xff\n").bytes() + END, "not UTF-8"),
        (replace(MANIFEST, data=b"a\n" * (1 << 20)).bytes() + END, "of 2097152 bytes"),
    ],
)
def test_hostile_archives_are_refused_by_the_member_and_the_reason(
    tmp_path: Path, hostile: Piece | tuple[Piece, ...] | bytes, said: str
) -> None:
    if not isinstance(hostile, bytes):
        hostile = tar(*(hostile if isinstance(hostile, tuple) else (hostile,)))
    refused(hostile, tmp_path / "out", said)


def test_what_lies_behind_the_end_is_refused(tmp_path: Path) -> None:
    refused(tar(end=END + b"hidden"), tmp_path / "out", "goes on behind its end")
    refused(tar(end=END + bytes(3 << 20) + b"x"), tmp_path / "out", "goes on behind its end")
    refused(tar(end=END[:512] + MANIFEST.bytes()), tmp_path / "out", "malformed header")
    assert unpack(tar(end=END + bytes(3 << 20)), tmp_path / "out").is_dir()


def test_a_broken_header_in_the_middle_is_no_end(tmp_path: Path) -> None:
    data = bytearray(tar(Piece(name="a/stage/x"), Piece(name="a/stage/y")))
    data[len(MANIFEST.bytes()) + 3] ^= 1
    refused(bytes(data), tmp_path / "out", "malformed header after 'artifact_manifest.txt'")


@pytest.mark.parametrize("cut", [1, 100, 513, 1024, 1536, 2048])
def test_truncated_tars_are_refused_wherever_they_end(tmp_path: Path, cut: int) -> None:
    whole = tar(Piece(name="a/stage/x", data=b"1"), Piece(name="a/stage/y", data=b"2"))
    refused(whole[:-cut], tmp_path / "out", "is truncated")


@pytest.mark.parametrize("name", [NAME, XZ_NAME])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_truncated_archives_are_refused(tmp_path: Path, name: ArchiveName, share: float) -> None:
    data = tar(Piece(name="a/stage/x", data=os.urandom(100_000)), Piece(name="a/stage/y", data=b"2"))
    whole = compressed(data, name)
    with pytest.raises(ArtifactError, match=r"truncated|damaged"):
        unpack_raw(whole[: int(len(whole) * share)], tmp_path / "out", name)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("name", [NAME, XZ_NAME])
def test_damaged_archives_are_refused(tmp_path: Path, name: ArchiveName) -> None:
    data = tar(Piece(name="a/stage/x", data=os.urandom(10_000)))
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    whole = bytearray(lzma.compress(data) if name is XZ_NAME else compressor.compress(data))
    whole[len(whole) // 2] ^= 0xFF
    with pytest.raises(ArtifactError, match="damaged"):
        unpack_raw(bytes(whole), tmp_path / "out", name)
    with pytest.raises(ArtifactError, match="damaged"):
        unpack_raw(b"no archive at all", tmp_path / "out", name)


@pytest.mark.parametrize("name", [NAME, XZ_NAME])
def test_bombs_are_refused_before_they_fill_the_disk(tmp_path: Path, name: ArchiveName) -> None:
    policy = Policy(ratio_from=1 << 20, max_ratio=50)
    data = tar(Piece(name="a/stage/zeros", data=bytes(8 << 20)))
    refused(data, tmp_path / "out", "at 'a/stage/zeros': a decompression bomb", name=name, policy=policy)
    trailing = tar(end=bytes(8 << 20))
    refused(trailing, tmp_path / "out", "a decompression bomb", name=name, policy=policy)


def test_sizes_and_numbers_have_limits(tmp_path: Path) -> None:
    data = tar(Piece(name="a/stage/x", data=b"1" * (2 << 20)))
    less = Policy(max_bytes=(2 << 20) - 1)
    refused(data, tmp_path / "out", "'a/stage/x' of 2.0 MiB, more than any artifact is granted", policy=less)
    refused(data, tmp_path / "out", "a decompression bomb", policy=Policy(max_bytes=(2 << 20) + 512))
    many = tar(*(Piece(name=f"a/stage/{i}") for i in range(20)))
    refused(many, tmp_path / "out", "more than 20 members", policy=Policy(max_members=20))
    huge = tar(Piece(name="a/stage/x", size=1 << 62))
    refused(huge, tmp_path / "out", "more than any artifact is granted")


def test_memory_has_a_limit(tmp_path: Path) -> None:
    data = tar(Piece(name="a/stage/x", data=os.urandom(2 << 20)))
    parameters = zstandard.ZstdCompressionParameters(window_log=24)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    zst = frame.compress(data) + frame.flush()
    with pytest.raises(ArtifactError, match="too much memory"):
        unpack_raw(zst, tmp_path / "out", policy=Policy(max_memory=1 << 20))
    with pytest.raises(ArtifactError, match=r"[Mm]emory"):
        unpack(data, tmp_path / "out", XZ_NAME, policy=Policy(max_memory=1 << 17))


def test_extended_headers_may_say_what_nobody_looks_at(tmp_path: Path) -> None:
    comment = pax(record(b"comment=a\xff\xfebcd"), tarfile.XGLTYPE)
    data = tar(comment, pax(record(b"mtime=1700000000")), Piece(name="a/stage/x", data=b"1"))
    assert (unpack(data, tmp_path / "out") / "a/stage/x").read_bytes() == b"1"


@given(st.binary(max_size=200))
def test_pax_records_are_read_or_refused(data: bytes) -> None:
    try:
        found = pax_records(data)
    except ValueError:
        return
    assert bool(found) == bool(data)


# --- whole or not at all -------------------------------------------------------------------


def test_the_digest_is_of_the_bytes_that_were_extracted(tmp_path: Path) -> None:
    data = compressed(tar(Piece(name="a/stage/x", data=b"1")))
    digest = hashlib.sha256(data).hexdigest()
    seen: list[int] = []
    done = extract(io.BytesIO(data), NAME, tmp_path, sha256=digest, on_bytes=seen.append)
    assert (extracted_digest(done), sum(seen)) == (digest, len(data))
    assert extracted_digest(tmp_path) == ""


def test_another_digest_is_refused_and_leaves_what_was_there(tmp_path: Path) -> None:
    old = unpack(tar(Piece(name="a/stage/x", data=b"old")), tmp_path / "out")
    with pytest.raises(ArtifactError, match=r"blas_lib_generic.tar.zst has the SHA-256 .*but its .sha256sum"):
        unpack(tar(Piece(name="a/stage/x", data=b"new")), tmp_path / "out", sha256="ab" * 32)
    assert (old / "a/stage/x").read_bytes() == b"old"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["blas_lib_generic"]


def test_a_damaged_archive_is_told_by_its_digest_and_its_damage(tmp_path: Path) -> None:
    data = zstandard.compress(tar(Piece(name="a/stage/x", data=os.urandom(9000))))
    with pytest.raises(ArtifactError, match=r"has the SHA-256 .*\(.* is truncated.*\)"):
        unpack_raw(data[:5000], tmp_path / "out", sha256=hashlib.sha256(data).hexdigest())


def test_an_artifact_is_replaced_as_a_whole(tmp_path: Path) -> None:
    unpack(tar(Piece(name="a/stage/old", data=b"1")), tmp_path / "out")
    out = unpack(tar(Piece(name="a/stage/new", data=b"2")), tmp_path / "out")
    assert [path.name for path in (out / "a/stage").iterdir()] == ["new"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["blas_lib_generic"]


class Breaking(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() > 50_000:
            raise ConnectionResetError("reset")
        return super().read(min(size or 0, 10_000))


@pytest.mark.parametrize("name", [NAME, XZ_NAME])
def test_a_stream_that_breaks_off_is_the_stores_error(tmp_path: Path, name: ArchiveName) -> None:
    data = tar(Piece(name="a/stage/x", data=os.urandom(100_000)))
    with pytest.raises(StoreError, match="broke off after 60000 bytes: reset"):
        extract(Breaking(compressed(data, name)), name, tmp_path / "out", sha256="")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int, _data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(FatalError, match=r"a/stage/x could not be written: No space left"):
        unpack(tar(Piece(name="a/stage/x", data=b"1")), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


# --- writing -------------------------------------------------------------------------------


def contents(place: Path) -> dict[str, tuple[int, str | bytes]]:
    found: dict[str, tuple[int, str | bytes]] = {}
    for path in sorted(place.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.name != archives.MARKER:
            content = str(path.readlink()) if path.is_symlink() else path.is_file() and path.read_bytes()
            found[path.relative_to(place).as_posix()] = (mode, content or b"")
    return found


PARTS = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0"), min_size=1, max_size=40).filter(
    lambda part: part not in {".", ".."} and len(part.encode()) < 200
)


@settings(max_examples=25, deadline=None)
@given(
    tree=st.dictionaries(
        st.lists(PARTS, min_size=1, max_size=4).map(tuple),
        st.tuples(st.binary(max_size=3000), st.booleans()),
        max_size=8,
    ),
    suffix=st.sampled_from(archives.SUFFIXES),
)
def test_any_tree_survives_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[tuple[str, ...], tuple[bytes, bool]], suffix: str
) -> None:
    root = tmp_path_factory.mktemp("trip")
    source = root / "blas_lib_generic"
    source.mkdir()
    (source / "artifact_manifest.txt").write_text("a/stage\n", encoding="utf-8")
    for parts, (data, executable) in tree.items():
        path = source.joinpath("a/stage", *parts)
        if any(above.is_file() for above in path.parents) or path.is_dir():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o755 if executable else 0o644)
    packed = pack(source, root, suffix=suffix)
    with packed.open("rb") as stream:
        out = extract(stream, parse_name(packed.name), root / "out", sha256="")
    assert contents(out) == contents(source)
    walked: Sequence[str] = [entry.path for entry in scan(root / "out")[0].entries]
    assert len(walked) == sum(path.is_file() for path in (source / "a").rglob("*"))


@settings(max_examples=120, deadline=None)
@given(place=st.integers(0, 6 * 512), value=st.integers(0, 255))
def test_no_byte_leads_outside(tmp_path_factory: pytest.TempPathFactory, place: int, value: int) -> None:
    data = bytearray(
        tar(symlink("a/stage/l", "x"), Piece(name="a/stage/x", data=b"1"), hardlink("b/stage/h", "a/stage/x"))
    )
    data[place] = value
    root = tmp_path_factory.mktemp("flip")
    try:
        unpack(bytes(data), root / "out")
    except ArtifactError:
        assert list((root / "out").iterdir()) == []
    assert list(root.iterdir()) == [root / "out"]
