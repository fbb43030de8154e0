"""What compiled files say of themselves, and their search paths."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from core.errors import ArtifactError


def align(value: int, alignment: int) -> int:
    """Return the next multiple of the alignment, or the value where it is one."""
    return -(-value // alignment) * alignment


def read_at(
    stream: BinaryIO,
    offset: int,
    size: int,
) -> bytes:
    """Read a part of a file; a ValueError where the file ends before it."""
    stream.seek(offset)
    data = stream.read(size)
    if len(data) != size:
        raise ValueError("it is cut off")
    return data


@contextmanager
def refused_where_damaged(name: str, kind: str) -> Iterator[None]:
    """Turn what a damaged file makes its readers raise into one error."""
    try:
        yield
    except (struct.error, ValueError, OverflowError, OSError, IndexError) as problem:
        raise ArtifactError(
            f"{name} is a damaged {kind} file: {problem}.", hint="Build or download it again."
        ) from problem
