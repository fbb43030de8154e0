"""Kernel archives (``.kpack``) of the miniature ROCm, in the format that librocm_kpack reads, uncompressed.

Source: shared/kpack of ROCm/rocm-systems (docs/multi_arch_packaging_with_kpack.md).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEADER = struct.Struct("<4sIQ")
_START = 64
_ELF_HEADER = 64

_Value = str | int | list["_Value"] | dict[str, "_Value"]


def path_of(artifact: str, target: str) -> str:
    """Return an archive's path in ROCm's tree."""
    return f".kpack/{artifact}_lib_{target}.kpack"


def code_object(bundle: bytes) -> bytes:
    """Take the only code object out of a bundle of the sample's compiler."""
    start = bundle.index(b"\x7fELF")
    return bundle[start : start + _ELF_HEADER]


def archive(artifact: str, target: str, code: Mapping[str, bytes]) -> bytes:
    """Write an archive: header, code objects, table.

    Args:
        artifact: The artifact that it belongs to.
        target: Its gfx target.
        code: Code object by the path of its library.
    """
    blobs: list[_Value] = []
    table: dict[str, _Value] = {}
    position = _START
    for ordinal, (path, content) in enumerate(code.items()):
        blobs.append({"offset": position, "size": len(content)})
        entry: _Value = {"type": "hsaco", "ordinal": ordinal, "original_size": len(content)}
        table[f"{path}#0"] = {target: entry}
        position += len(content)
    contents: _Value = {
        "format_version": 1,
        "group_name": f"{artifact}_lib",
        "gfx_arch_family": target,
        "gfx_arches": [target],
        "toc": table,
        "compression_scheme": "none",
        "blobs": blobs,
    }
    head = _HEADER.pack(b"KPAK", 1, position).ljust(_START, b"\0")
    return head + b"".join(code.values()) + _packed(contents)


def reference(artifact: str, path: str) -> bytes:
    """Write what a library says of its archives, as its section ``.rocm_kpack_ref`` holds it."""
    up = "../" * path.count("/")
    return _packed({"kpack_search_paths": [up + path_of(artifact, "@GFXARCH@")], "kernel_name": path})


def _packed(value: _Value) -> bytes:
    """Write a value in MessagePack, every length and number in 32 bits where the format has a choice."""
    if isinstance(value, int):
        return struct.pack(">BI", 0xCE, value)
    if isinstance(value, str):
        text = value.encode()
        return struct.pack(">BI", 0xDB, len(text)) + text
    if isinstance(value, list):
        return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(_packed, value))
    head = bytes([0x80 | len(value)]) if len(value) < 16 else struct.pack(">BI", 0xDF, len(value))  # noqa: PLR2004
    return head + b"".join(_packed(key) + _packed(one) for key, one in value.items())
