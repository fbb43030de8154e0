"""What compiled files say of themselves, and their search paths."""

from typing import BinaryIO


def up(value: int, alignment: int) -> int:
    """Round up to a multiple."""
    return -(-value // alignment) * alignment


def read_at(stream: BinaryIO, offset: int, size: int) -> bytes:
    """Read a part of a file; a ValueError where the file ends before it."""
    stream.seek(offset)
    data = stream.read(size)
    if len(data) != size:
        raise ValueError("it is cut off")
    return data
