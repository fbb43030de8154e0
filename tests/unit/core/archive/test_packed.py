import io
import random
import threading
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.archive import DeferredFile, EditedFile, Member, packed
from core.archive.packed import PackedData, Packing, Workers
from core.archive.zip_writer import HashingStream, ZipWriter
from core.errors import BuildError, MissingInputError

# Members are looked at in pieces; the smallest whose samples do not overlap.
PIECE = 32 * 1024


def noise(size: int, seed: int = 0) -> bytes:
    """Return bytes that do not shrink."""
    return random.Random(seed).randbytes(size)  # noqa: S311 - test data


def repeated_words(count: int, seed: int = 0) -> bytes:
    """Return words, which shrink as programs do."""
    generator = random.Random(seed)  # noqa: S311 - test data
    known = [b"hip", b"blas", b"kernel", b"gfx942", b"\0\0\0\0", b"wave", b"lane"]
    return b" ".join(generator.choice(known) + b"%d" % generator.randrange(1000) for _ in range(count))


def write_archive(members: Sequence[Member], packing: Packing) -> bytes:
    """Return an archive of members."""
    raw = io.BytesIO()
    writer = ZipWriter(HashingStream(raw), packing=packing)
    writer.add(members)
    writer.finish()
    return raw.getvalue()


def pack(
    members: Sequence[Member],
    *,
    jobs: int = 2,
    level: int = 5,
    scratch: Path | None = None,
) -> bytes:
    """Return an archive of members, packed by workers of its own."""
    with Workers(jobs=jobs) as workers:
        return write_archive(
            members,
            Packing(
                workers=workers,
                level=level,
                scratch=scratch,
            ),
        )


def read_archive(content: bytes) -> dict[str, bytes]:
    """Return the members of an archive, in the order of its directory."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


# Members that are made late, or edited


def test_a_made_file_is_packed_and_deleted(tmp_path: Path) -> None:
    path = tmp_path / "made"

    def make() -> Path:
        path.write_bytes(b"content")
        return path

    content = pack([Member(name="a", source=DeferredFile(size=7, make=make))])

    assert read_archive(content) == {"a": b"content"}
    assert not path.exists()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make members of kilobytes large ones, with segments of a few pieces."""
    monkeypatch.setattr(packed, "PIECE", PIECE)
    monkeypatch.setattr(packed, "LARGE", 2 * PIECE)
    monkeypatch.setattr(packed, "LARGEST_SEGMENT", 5 * PIECE)


@pytest.mark.parametrize("tail", [b"", b"tail" * 700], ids=["no tail", "tail"])
@pytest.mark.parametrize("size", [5_000, 1_500_000], ids=["read", "mapped"])
@pytest.mark.parametrize("level", [0, 5])
@pytest.mark.usefixtures("small_pieces")
def test_edits_are_in_the_archive_and_not_in_the_file(
    tmp_path: Path, tail: bytes, size: int, level: int
) -> None:
    source = tmp_path / "file"
    original = b"0123456789" * (size // 10)
    source.write_bytes(original)
    # One of them lies across the pages of a mapped file.
    edits = ((4094, b"NEWBYTES"), (20, b"x"), (size - 1, b"y"))

    content = pack(
        [
            Member(
                name="a",
                source=EditedFile(
                    path=source,
                    edits=edits,
                    tail=tail,
                ),
            )
        ],
        level=level,
    )

    expected = original[:20] + b"x" + original[21:4094] + b"NEWBYTES" + original[4102:-1] + b"y" + tail
    assert read_archive(content) == {"a": expected}
    assert source.read_bytes() == original


# Large members

LARGE_MEMBERS = {
    "noise": noise(15 * PIECE),
    "words": repeated_words(60_000),
    "both": bytes(8 * PIECE) + noise(15 * PIECE) + b"kernel " * 32_000 + noise(15 * PIECE),
    "a little noise in a long segment": bytes(15 * PIECE) + noise(PIECE) + bytes(8 * PIECE),
}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", LARGE_MEMBERS)
@pytest.mark.parametrize("level", [0, 1, 5])
def test_packs_a_large_member_at_any_level(tmp_path: Path, level: int, name: str) -> None:
    source = tmp_path / "large"
    source.write_bytes(LARGE_MEMBERS[name])
    members = [
        Member(
            name="large",
            source=source,
        ),
        Member(
            name="small",
            source=b"x",
        ),
    ]

    content = pack(members, level=level, scratch=tmp_path)

    assert read_archive(content) == {"large": LARGE_MEMBERS[name], "small": b"x"}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        is_stored = archive.getinfo("large").compress_type == zipfile.ZIP_STORED
    assert is_stored == (level == 0 or name == "noise")
    assert list(tmp_path.iterdir()) == [source], "the scratch files are gone"


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", LARGE_MEMBERS)
def test_packs_a_large_member_alike_on_any_number_of_cores(tmp_path: Path, name: str) -> None:
    source = tmp_path / "large"
    source.write_bytes(LARGE_MEMBERS[name])
    members = [
        Member(
            name="large",
            source=source,
        ),
        Member(
            name="small",
            source=b"x",
        ),
    ]

    first = pack(members, jobs=1, scratch=tmp_path)

    assert pack(members, jobs=4, scratch=tmp_path) == first


@pytest.mark.usefixtures("small_pieces")
def test_noise_lies_as_it_is_between_segments_that_shrink() -> None:
    dense = noise(10 * PIECE)
    source = bytes(8 * PIECE) + dense + b"text " * 72_000

    content = pack([Member(name="fat", source=source)])

    # A stored block (RFC 1951) has at most 65,535 bytes.
    assert dense[:0xFFFF] in content
    assert len(content) < len(dense) + 2 * PIECE


@given(st.lists(st.booleans(), min_size=2, max_size=10), st.integers(1, PIECE))
def test_packs_any_sequence_of_noise_and_zeros(kinds: list[bool], last_size: int) -> None:
    pieces = [noise(PIECE, seed) if is_dense else bytes(PIECE) for seed, is_dense in enumerate(kinds)]
    source = b"".join([*pieces[:-1], pieces[-1][:last_size]])
    segment_sizes: list[int] = []
    deflate_segment = packed.deflate_segment

    def deflate_and_note(data: memoryview | bytes, level: int, *, is_last: bool) -> bytes:
        segment_sizes.append(len(data))
        return deflate_segment(data, level, is_last=is_last)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "PIECE", PIECE)
        patch.setattr(packed, "LARGE", 1)
        patch.setattr(packed, "LARGEST_SEGMENT", 3 * PIECE)
        patch.setattr(packed, "deflate_segment", deflate_and_note)
        content = pack([Member(name="a", source=source)])

    assert read_archive(content) == {"a": source}
    # No segment takes more memory than a piece of work may.
    assert max(segment_sizes, default=0) <= 3 * PIECE


def test_deflates_no_member_again_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [
        Member(name="a", source=repeated_words(500, 0)),
        Member(name="b", source=repeated_words(500, 1)),
    ]
    content = pack(members)
    known: dict[bytes, PackedData] = {}
    with Workers(jobs=1) as workers:
        ordered_members = packed.longest_first(members)
        for member in packed.packed_in_order(ordered_members, workers, Packing()):
            known[member.sha256] = member.data

    monkeypatch.setattr(packed, "deflate_segment", None)  # whoever calls it fails

    assert write_archive(members, Packing(known=known)) == content


# The order of members


SIZES = {"a": 10, "b": 2000, "c": 20, "d": 5000, "e": 2000}


@pytest.fixture
def sized_members(monkeypatch: pytest.MonkeyPatch) -> list[Member]:
    """Return large and small members."""
    monkeypatch.setattr(packed, "LARGE", 1000)
    return [Member(name=name, source=noise(size)) for name, size in SIZES.items()]


def test_packs_large_members_first(sized_members: list[Member]) -> None:
    order = packed.longest_first(sized_members)

    assert [sized.member.name for sized in order] == ["d", "b", "e", "a", "c"]


def test_lists_members_in_their_order_wherever_they_lie(sized_members: list[Member]) -> None:
    raw = io.BytesIO()
    writer = ZipWriter(HashingStream(raw))

    written_members = writer.add(sized_members)
    written_members += writer.add([Member(name="f", source=b"6")])
    writer.finish()

    assert [(member.name, member.size) for member in written_members] == [*SIZES.items(), ("f", 1)]
    assert list(read_archive(raw.getvalue())) == ["a", "b", "c", "d", "e", "f"]
    with zipfile.ZipFile(raw) as archive:
        by_place = sorted(archive.infolist(), key=lambda info: info.header_offset)
    assert [info.filename for info in by_place] == ["d", "b", "e", "a", "c", "f"]


# Threads and memory


def test_makes_no_more_files_at_once_than_memory_allows(tmp_path: Path) -> None:
    lock = threading.Lock()
    running: set[int] = set()
    most: list[int] = []

    def made_file(number: int) -> DeferredFile:
        def make() -> Path:
            with lock:
                running.add(number)
                most.append(len(running))
            path = tmp_path / str(number)
            path.write_bytes(bytes(1000))
            with lock:
                running.remove(number)
            return path

        return DeferredFile(size=1000, make=make)

    members = [
        Member(
            name=f"m{number}",
            source=made_file(number),
        )
        for number in range(20)
    ]
    with Workers(jobs=8, memory=2000) as workers:
        write_archive(members, Packing(workers=workers))

    assert max(most) <= 2


def noise_members(first_seed: int) -> list[Member]:
    """Return members that shrink to a part of their size."""
    seeds = range(first_seed, first_seed + 15)
    return [Member(name=str(seed), source=noise(300, seed) * 9) for seed in seeds]


@pytest.mark.parametrize("jobs", [1, 4])
def test_archives_that_are_written_side_by_side_share_workers(jobs: int) -> None:
    archives = [noise_members(first_seed) for first_seed in range(4)]
    contents: dict[int, bytes] = {}

    def write(index: int, workers: Workers) -> None:
        contents[index] = write_archive(archives[index], Packing(workers=workers))

    with Workers(jobs=jobs, memory=5000) as workers:
        threads = [
            threading.Thread(
                target=write,
                args=(index, workers),
            )
            for index in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    assert [contents[index] for index in range(4)] == [pack(members, jobs=1) for members in archives]


def small_members(count: int = 200) -> list[Member]:
    """Return members that are packed together."""
    return [
        Member(
            name=f"s{number:03}",
            source=b"x" * 100,
        )
        for number in range(count)
    ]


def test_a_failed_archive_gives_its_memory_back() -> None:
    def make() -> Path:
        raise BuildError("patchelf did not like it.")

    members = [
        *small_members(),
        Member(
            name="t",
            source=DeferredFile(
                size=9,
                make=make,
            ),
        ),
    ]
    with Workers(jobs=2, memory=30_000) as workers:
        with pytest.raises(BuildError, match="patchelf"):
            write_archive(members, Packing(workers=workers))

        assert workers.take(30_000, wait=False)


def test_a_written_archive_gives_its_memory_back() -> None:
    members = small_members()
    with Workers(jobs=2, memory=30_000) as workers:
        content = write_archive(members, Packing(workers=workers))

        assert workers.take(30_000, wait=False)

    assert list(read_archive(content)) == [member.name for member in members]


def test_members_that_are_packed_together_give_all_memory_back_where_one_is_gone(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(50)]
    for path in paths:
        path.write_bytes(noise(100))
    order = packed.longest_first(
        [
            Member(
                name=path.name,
                source=path,
            )
            for path in paths
        ]
    )
    paths[20].unlink()

    with Workers(jobs=1, memory=5000) as workers:
        with pytest.raises(MissingInputError, match="20 "):
            list(packed.packed_in_order(order, workers, Packing()))

        assert workers.take(5000, wait=False)


# Deflate streams


def inflate(content: bytes) -> bytes:
    """Return what a complete deflate stream holds."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    inflated = inflater.decompress(content)
    assert inflater.eof
    assert not inflater.unused_data
    return inflated


def test_a_segment_with_something_behind_it_is_hardly_larger() -> None:
    content = repeated_words(30_000)

    closed = packed.deflate_segment(content, 5, is_last=True)
    opened = packed.deflate_segment(content, 5, is_last=False)

    assert len(opened) <= 1.05 * len(closed)


@given(
    st.lists(
        st.binary(
            min_size=1,
            max_size=3000,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 12),
)
def test_joins_segments_of_any_data(segments: list[bytes], level: int) -> None:
    stream = b"".join(packed.deflate_segment(data, level, is_last=False) for data in segments[:-1])
    stream += packed.deflate_segment(segments[-1], level, is_last=True)

    assert inflate(stream) == b"".join(segments)
