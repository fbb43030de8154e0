from __future__ import annotations

import os
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.archive import compression


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


@pytest.mark.parametrize("level", [1, 4, 5, 9, 12])
def test_chunks_join_to_one_stream(level: int) -> None:
    parts = [text(15_000, seed) for seed in range(4)]
    packed = [compression.deflate_chunk(part, level, last=part is parts[-1]) for part in parts]
    assert inflated(*packed) == b"".join(parts)


def test_a_joint_costs_next_to_nothing() -> None:
    data = text(30_000)
    closed = compression.deflate_chunk(data, 5, last=True)
    opened = compression.deflate_chunk(data, 5, last=False)
    assert len(opened) - len(closed) <= 5, "zlib stood in, or more than an empty block was added"


@given(st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=4), st.integers(1, 12))
def test_any_data_joins(parts: list[bytes], level: int) -> None:
    packed = [
        compression.deflate_chunk(part, level, last=index == len(parts) - 1)
        for index, part in enumerate(parts)
    ]
    assert inflated(*packed) == b"".join(parts)


def test_data_that_cannot_be_compressed_joins() -> None:
    parts = [os.urandom(100_000), bytes(100_000), text(5_000), b"x"]
    packed = [compression.deflate_chunk(part, 5, last=part == b"x") for part in parts]
    assert inflated(*packed) == b"".join(parts)
