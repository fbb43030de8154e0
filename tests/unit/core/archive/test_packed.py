import io
import os
import random
import threading
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import core.archive
from core.archive import Edited, Made, Member
from core.archive import packed as archives
from core.archive.packed import Packing, Workers
from core.archive.zips import HashingStream, ZipWriter
from core.errors import BuildError, MissingInputError


def archived(members: list[Member], jobs: int = 2, **options: Any) -> bytes:
    raw = io.BytesIO()
    with Workers(jobs=jobs) as workers:
        writer = ZipWriter(HashingStream(raw), packing=Packing(**{"workers": workers, **options}))
        writer.add(members)
    writer.finish()
    return raw.getvalue()


def test_a_made_member_is_made_when_its_turn_comes_and_goes_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "made"

    def make() -> Path:
        path.write_bytes(b"content")
        return path

    data = archived([Member(name="a", source=Made(size=7, make=make))])
    assert zipfile.ZipFile(io.BytesIO(data)).read("a") == b"content"
    assert not path.exists()


def test_memory_is_held_to_its_bound(tmp_path: Path) -> None:
    held, most, lock = 0, 0, threading.Lock()

    def maker(number: int) -> Made:
        def make() -> Path:
            nonlocal held, most
            with lock:
                held += 1
                most = max(most, held)
            path = tmp_path / str(number)
            path.write_bytes(bytes(1000))
            with lock:
                held -= 1
            return path

        return Made(size=1000, make=make)

    members = [Member(name=f"m{number}", source=maker(number)) for number in range(20)]
    with Workers(jobs=8, memory=2000) as workers:
        archived(members, workers=workers)
    assert most <= 2


@pytest.mark.parametrize("shared", [1, 4])
def test_archives_written_side_by_side_share_workers(shared: int) -> None:
    contents = [[Member(name=f"{n}", source=os.urandom(300) * 9) for n in range(30)] for _ in range(4)]
    expected = [archived(members, jobs=1) for members in contents]
    got: dict[int, bytes] = {}
    with Workers(jobs=shared, memory=5000) as workers:
        threads = [
            threading.Thread(target=lambda n=n: got.update({n: archived(contents[n], workers=workers)}))
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert [got[n] for n in range(4)] == expected


DENSE = random.Random(7).randbytes(60_000)  # noqa: S311 - test data
PARTS = {
    "dense": [DENSE],
    "a run": [b"".join(b"%d," % number for number in range(12_000))],
    "both": [bytes(30_000), DENSE, b"kernel " * 4_000, DENSE],
    "a short stretch in a long run": [bytes(60_000), DENSE[:4096], bytes(30_000)],
}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make members of kilobytes large ones."""
    for name, value in {"PIECE": 4096, "LARGE": 8192, "RUN": 20_480, "_SAMPLE": 512}.items():
        monkeypatch.setattr(archives, name, value)
    monkeypatch.setattr(core.archive, "_MAPPED", 4096)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("level", [0, 1, 5])
def test_a_large_member_is_one_stream_at_any_level(tmp_path: Path, level: int, name: str) -> None:
    source = tmp_path / "large"
    source.write_bytes(b"".join(PARTS[name]))
    members = [Member(name="large", source=source), Member(name="small", source=b"x")]
    data = archived(members, level=level, scratch=tmp_path, jobs=1)
    assert data == archived(members, level=level, scratch=tmp_path, jobs=4)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert archive.read("large") == source.read_bytes()
        stored = archive.getinfo("large").compress_type == zipfile.ZIP_STORED
    assert stored == (level == 0 or name == "dense")
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.usefixtures("small_pieces")
def test_what_would_not_shrink_lies_in_the_stream_as_it_is(tmp_path: Path) -> None:
    source = tmp_path / "fat"
    source.write_bytes(bytes(32_768) + DENSE[:40_960] + b"text " * 9_000)
    data = archived([Member(name="fat", source=source)])
    assert DENSE[:40_960] in data
    assert len(data) < 42_500


@given(st.lists(st.booleans(), max_size=60), st.integers(1, archives.PIECE))
def test_stretches_follow_each_other_and_cover_all(dense: list[bool], last: int) -> None:
    size = (len(dense) - 1) * archives.PIECE + last if dense else 0
    found = archives._stretches(dense, size)
    assert [one.start for one in found] == [0, *(one.stop for one in found)][: len(found)]
    assert sum(map(len, found)) == size
    assert all(one.start % archives.PIECE == 0 and len(one) > 0 for one in found)
    assert all(one.dense or len(one) <= archives.RUN for one in found)
    assert all(dense[at // archives.PIECE] for one in found if one.dense for at in (one.start, one.stop - 1))


def test_a_member_known_from_before_is_not_deflated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [Member(name=name, source=text(500, seed)) for seed, name in enumerate(("a", "b"))]
    before = archived(members)
    kept = {}
    for packed in archives.packed_in_order([(one, one.size) for one in members], Workers(jobs=1), Packing()):
        kept[packed.sha256] = packed.kept
    monkeypatch.setattr(archives, "deflate_run", None)
    assert archived(members, known=kept) == before


@pytest.mark.parametrize("tail", [b"", b"tail" * 700])
@pytest.mark.parametrize("size", [5_000, 1_500_000])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("level", [0, 5])
def test_edits_show_in_the_archive_and_not_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: bytes, size: int, level: int, *, large: bool
) -> None:
    if large:
        for name, value in {"PIECE": 4096, "LARGE": 4096, "RUN": size // 12_288 * 4096 + 4096}.items():
            monkeypatch.setattr(archives, name, value)
        monkeypatch.setattr(core.archive, "_MAPPED", 4096)
    source = tmp_path / "file"
    source.write_bytes(b"0123456789" * (size // 10))
    before = source.read_bytes()
    edited = Edited(path=source, edits=((4094, b"NEWBYTES"), (20, b"x"), (size - 1, b"y")), tail=tail)
    data = archived([Member(name="a", source=edited)], level=level)
    expected = before[:20] + b"x" + before[21:4094] + b"NEWBYTES" + before[4102:-1] + b"y" + tail
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert archive.read("a") == expected
    assert source.read_bytes() == before


def test_what_takes_longest_is_packed_first_and_listed_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "LARGE", 1000)
    contents = {"a": 10, "b": 2000, "c": 20, "d": 5000, "e": 2000}
    members = [Member(name=name, source=os.urandom(size)) for name, size in contents.items()]
    order = archives.longest_first(members)
    assert [member.name for _, (member, _) in order] == ["d", "b", "e", "a", "c"]
    raw = io.BytesIO()
    writer = ZipWriter(HashingStream(raw))
    written = writer.add(members)
    later = writer.add([Member(name="f", source=b"6")])
    writer.finish()
    assert [name for name, _, _ in [*written, *later]] == ["a", "b", "c", "d", "e", "f"]
    archive = zipfile.ZipFile(raw)
    assert archive.testzip() is None
    assert archive.namelist() == ["a", "b", "c", "d", "e", "f"]
    places = sorted(archive.infolist(), key=lambda info: info.header_offset)
    assert [info.filename for info in places] == ["d", "b", "e", "a", "c", "f"]
    assert [size for _, _, size in written] == list(contents.values())


def test_small_members_are_packed_together_and_fail_together() -> None:
    def make() -> Path:
        raise BuildError("patchelf did not like it.")

    small = [Member(name=f"s{number:03}", source=b"x" * 100) for number in range(200)]
    members = [*small, Member(name="t", source=Made(size=9, make=make))]
    with Workers(jobs=2, memory=30_000) as workers:
        with pytest.raises(BuildError, match="did not like"):
            archived(members, workers=workers)
        assert workers.take(30_000, wait=False), "memory of the failed archive is still held"
        workers.give(30_000)
        data = archived(small, workers=workers)
        assert workers.take(30_000, wait=False), "memory of the written archive is still held"
    assert zipfile.ZipFile(io.BytesIO(data)).namelist() == [member.name for member in small]


def test_a_batch_gives_all_its_memory_back_when_one_of_it_is_gone(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}" for number in range(50)]
    for path in paths:
        path.write_bytes(os.urandom(100))
    order = [one for _, one in archives.longest_first([Member(name=p.name, source=p) for p in paths])]
    paths[20].unlink()
    with Workers(jobs=1, memory=5000) as workers:
        with pytest.raises(MissingInputError, match="20 could not be read"):
            list(archives.packed_in_order(order, workers, Packing()))
        assert workers.take(5000, wait=False)


def text(size: int, seed: int = 0) -> bytes:
    words = [b"hip", b"blas", b"kernel", b"gfx942", b"\0\0\0\0", b"wave", b"lane"]
    generator = random.Random(seed)  # noqa: S311 - test data
    return b" ".join(generator.choice(words) + b"%d" % generator.randrange(1000) for _ in range(size))


def inflated(*chunks: bytes) -> bytes:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    data = inflater.decompress(b"".join(chunks))
    assert inflater.eof
    assert not inflater.unused_data
    return data


def test_a_run_that_goes_on_costs_little() -> None:
    data = text(30_000)
    closed, opened = (archives.deflate_run(data, 5, last=last) for last in (True, False))
    assert len(opened) <= 1.05 * len(closed)


@given(st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=4), st.integers(1, 12))
def test_any_data_joins(parts: list[bytes], level: int) -> None:
    packed = [
        archives.deflate_run(part, level, last=index == len(parts) - 1) for index, part in enumerate(parts)
    ]
    assert inflated(*packed) == b"".join(parts)
