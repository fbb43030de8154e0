import hashlib
import io
import os
import random
import re
import stat
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ArtifactError, FatalError, StoreError
from rocm_packaging import archives
from rocm_packaging.archives import (
    ArchiveName,
    extract,
    extracted_digest,
    parse_name,
    parse_sidecar,
)
from rocm_packaging.artifacts import scan
from tests.kit.artifact_archives import pack
from tests.kit.tar_members import (
    END,
    MANIFEST,
    XZ_NAME,
    ZSTD_NAME,
    TarFormat,
    TarMember,
    compress,
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


def permissions(path: Path) -> int:
    """Return the permissions of a path."""
    return stat.S_IMODE(path.lstat().st_mode)


# Names


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        (
            "core-hip_lib_generic.tar.zst",
            ArchiveName(name="core-hip", component="lib", target="generic"),
        ),
        (
            "blas_lib_gfx94X-dcgpu.tar.xz",
            ArchiveName(
                name="blas",
                component="lib",
                target="gfx94X-dcgpu",
                suffix=".tar.xz",
            ),
        ),
        (
            "blas_test_gfx942:xnack+.tar.zst",
            ArchiveName(name="blas", component="test", target="gfx942", features=":xnack+"),
        ),
        (
            "b_dbg_gfx90a:sramecc+:xnack-.tar.zst",
            ArchiveName(
                name="b",
                component="dbg",
                target="gfx90a",
                features=":sramecc+:xnack-",
            ),
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
        *(
            "blas_lib.tar.zst",
            "blas_lib_generic_x.tar.zst",
            "_lib_generic.tar.zst",
            "blas__generic.tar.zst",
        ),
        *(
            "blas_lib_generic.tar",
            "blas_lib_generic.tar.gz",
            "blas_lib_generic",
            "1a_lib_generic.tar.zst",
        ),
        *(
            "blas_lib_.tar.zst",
            "blas_lib_...tar.zst",
            "a/b_lib_generic.tar.zst",
            "b_lib_gfx942:x.tar.zst",
        ),
        *(
            "blas_lib_generic.tar.zst.sha256sum",
            "b_LIB_generic.tar.zst",
            "b_lib_a/../b.tar.zst",
        ),
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
    "text",
    [
        "{digest}\n",
        "{upper}  blas_lib_generic.tar.zst\n",
        "\\{digest}  blas\\nlib.tar.zst\n",
        "SHA256 (blas_lib_generic.tar.zst) = {digest}\n",
        "SHA2-256(blas_lib_generic.tar.zst)= {upper}\n",
        "\ufeff{digest}\r\n",
    ],
    ids=["digest", "digest and name", "escaped name", "BSD", "openssl", "byte order mark"],
)
def test_reads_the_digest_of_every_form_of_digest_file(text: str) -> None:
    digest = "ab" * 32

    assert parse_sidecar(text.format(digest=digest, upper=digest.upper()), where="x") == digest


@pytest.mark.parametrize("text", ["", "\n", "abc\n", f"x{'ab' * 32}", f"MD5 (blas) = {'ab' * 32}"])
def test_refuses_a_digest_file_without_a_digest(text: str) -> None:
    with pytest.raises(ArtifactError, match="blas"):
        parse_sidecar(text, where="blas.sha256sum")


# Sound archives


@BOTH_NAMES
def test_extracts_files_of_every_stage(tmp_path: Path, name: ArchiveName) -> None:
    content = tar(
        folder("a/stage"),
        file("a/stage/lib/x.so.1", b"lib" * 1000),
        file("b/stage/empty", b""),
    )

    artifact = unpack(content, tmp_path / "out", name=name)

    assert artifact.name == "blas_lib_generic"
    assert (artifact / "a/stage/lib/x.so.1").read_bytes() == b"lib" * 1000
    assert (artifact / "b/stage/empty").read_bytes() == b""
    assert [artifact.stage_folders for artifact in scan(tmp_path / "out")] == [("a/stage", "b/stage")]


@pytest.mark.usefixtures("needs_links")
def test_extracts_links_of_both_kinds(tmp_path: Path) -> None:
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
@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps no such permissions")
def test_keeps_permissions_but_none_that_give_power(tmp_path: Path, member: TarMember, mode: int) -> None:
    artifact = unpack(tar(member), tmp_path / "out")

    assert permissions(artifact / "a/stage/x") == mode


def test_extracts_into_a_folder_that_nobody_may_enter(tmp_path: Path) -> None:
    artifact = unpack(
        tar(folder("a/stage/x", 0o000), file("a/stage/x/y", b"inner")),
        tmp_path / "out",
    )

    assert (artifact / "a/stage/x/y").read_bytes() == b"inner"


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "GNU"])
@pytest.mark.usefixtures("needs_links")
def test_extracts_long_names_and_links(tmp_path: Path, tar_format: TarFormat) -> None:
    name = "a/stage/" + "/".join(["d" * 60] * 5) + "/file-ü"
    members = [
        file(name, b"deep"),
        symlink("b/stage/link", f"../../{name}"),
        hardlink("b/stage/hard", name),
    ]

    artifact = unpack(
        tar(*(replace(member, format=tar_format) for member in members)),
        tmp_path / "out",
    )

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


def test_reads_a_long_name_that_lies_in_two_compressed_streams(tmp_path: Path) -> None:
    name = f"a/stage/{'long' * 50}"
    content = tar(extended_header(pax_record(f"path={name}".encode())), file("x", b"1"))
    middle = content.index(b"longlong") + 50
    streams = compress(content[:middle], XZ_NAME) + compress(content[middle:], XZ_NAME)

    artifact = unpack_compressed(streams, tmp_path / "out", name=XZ_NAME)

    assert (artifact / name).read_bytes() == b"1"


def test_ignores_records_of_extended_headers_that_nobody_needs(tmp_path: Path) -> None:
    content = tar(
        extended_header(pax_record(b"comment=a\xff\xfebcd"), is_global=True),
        extended_header(pax_record(b"mtime=1700000000")),
        file("a/stage/x", b"1"),
    )

    artifact = unpack(content, tmp_path / "out")

    assert (artifact / "a/stage/x").read_bytes() == b"1"


# Complete or not at all


def test_keeps_the_digest_of_the_extracted_archive(tmp_path: Path) -> None:
    content = compress(tar(file("a/stage/x")))
    digest = hashlib.sha256(content).hexdigest()
    byte_counts: list[int] = []

    artifact = extract(
        io.BytesIO(content),
        ZSTD_NAME,
        tmp_path,
        sha256=digest,
        on_bytes=byte_counts.append,
    )

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

    with pytest.raises(FatalError, match=re.escape(str(Path("a/stage/x")))):
        unpack(tar(file("a/stage/x", b"1")), tmp_path / "out")

    assert list((tmp_path / "out").iterdir()) == []


# Any archive

path_parts = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0"), min_size=1, max_size=8).filter(
    lambda part: part not in {".", ".."}
)
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


@pytest.mark.skipif(sys.platform == "win32", reason="the names are any that Linux allows")
@given(
    tree=st.dictionaries(
        st.lists(path_parts, min_size=1, max_size=3).map(tuple),
        st.tuples(st.binary(max_size=600), st.booleans()),
        max_size=4,
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
