"""A writer of what is read of PE files."""

import struct
from collections.abc import Mapping, Sequence

_ADDRESS, _OFFSET = 0x1000, 0x400


def pe_file(
    *,
    needed: Sequence[str] = (),
    delayed: Sequence[str] = (),
    name: str = "",
    machine: int = 0x8664,
    dll: bool = True,
    magic: int = 0x20B,
    sections: Mapping[str, bytes] | None = None,
) -> bytes:
    """Write a PE file: a section with its import and export tables, then those that are given."""
    body, directories = bytearray(), [(0, 0)] * 16

    def add(data: bytes) -> int:
        body.extend(data + bytes(-len(data) % 8))
        return _ADDRESS + len(body) - len(data) - (-len(data) % 8)

    def text(word: str) -> int:
        return add(word.encode() + b"\0")

    if name:
        directories[0] = (add(struct.pack("<IIHHIIIIIII", 0, 0, 0, 0, text(name), 1, 0, 0, 0, 0, 0)), 40)
    if needed:
        rows = b"".join(struct.pack("<IIIII", 1, 0, 0, text(one), 1) for one in needed)
        directories[1] = (add(rows + bytes(20)), len(rows) + 20)
    if delayed:
        rows = b"".join(struct.pack("<IIIIIIII", 1, text(one), 0, 0, 0, 0, 0, 0) for one in delayed)
        directories[13] = (add(rows + bytes(32)), len(rows) + 32)
    table = b"".join(struct.pack("<II", *one) for one in directories)
    optional = struct.pack("<H", magic).ljust(108, b"\0") + struct.pack("<I", 16) + table
    flags = 0x22 | (0x2000 if dll else 0)
    all_sections = {".rdata": bytes(body), **(sections or {})}
    coff = struct.pack("<HHIIIHH", machine, len(all_sections), 0, 0, 0, len(optional), flags)
    head = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40) + b"PE\0\0" + coff + optional
    contents = b""
    for index, (title, data) in enumerate(all_sections.items()):
        at = _OFFSET + len(contents)
        facts = (len(data), _ADDRESS * (1 + 0x1000 * index), len(data), at, 0, 0, 0, 0, 0x40000040)
        head += struct.pack("<8sIIIIIIHHI", title.encode(), *facts)
        contents += data
    return head.ljust(_OFFSET, b"\0") + contents
