"""Kernel archives (``.kpack``) of the miniature ROCm, and what its libraries say of them."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING

import zstandard

from rocm_packaging.packages import kpack

if TYPE_CHECKING:
    from collections.abc import Mapping


_ENTRIES = 32  # behind a bundle's magic and count


def path_of(artifact: str, target: str) -> str:
    """Return an archive's path in ROCm's tree."""
    return kpack.archive_name(f"{artifact}_lib", target)


def code_object(bundle: bytes) -> bytes:
    """Take the only code object out of a bundle of the sample's compiler, whose first entry is the host's."""
    (length,) = struct.unpack_from("<Q", bundle, _ENTRIES + 16)
    start, size = struct.unpack_from("<QQ", bundle, _ENTRIES + 24 + length)
    return bundle[start : start + size]


def archive(artifact: str, target: str, code: Mapping[str, bytes]) -> bytes:
    """Write an archive.

    Args:
        artifact: The artifact that it belongs to.
        target: Its gfx target.
        code: Code object by the path of its library.
    """
    frames = [zstandard.ZstdCompressor().compress(content) for content in code.values()]
    kernels = [
        (kpack.Kernel(binary=f"{path}#0", target=target, size=len(content)), len(frame))
        for (path, content), frame in zip(code.items(), frames, strict=True)
    ]
    stream = io.BytesIO()
    kpack.write(stream, f"{artifact}_lib", target, frames, kernels)
    return stream.getvalue()


def reference(artifact: str, path: str) -> bytes:
    """Write what a library says of its archives, as its section ``.rocm_kpack_ref`` holds it."""
    return kpack.reference(f"{artifact}_lib", path).packed()
