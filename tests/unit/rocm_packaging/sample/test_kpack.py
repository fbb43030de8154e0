from __future__ import annotations

import importlib
import struct
from typing import Any

import pytest

from rocm_packaging.sample import kpack
from rocm_packaging.sample.artifacts import TEMPLATES

msgpack: Any = importlib.import_module("pip._vendor.msgpack")


@pytest.mark.parametrize("count", [1, 7, 20])
def test_an_archive_holds_each_librarys_code_object(count: int) -> None:
    code = {f"lib/lib{number}.so.1": bytes([number]) * (number + 3) for number in range(count)}
    data = kpack.archive("blas", "gfx942", code)
    magic, version, table = struct.unpack_from("<4sIQ", data)
    assert (magic, version) == (b"KPAK", 1)
    said = msgpack.unpackb(data[table:])
    assert (said["group_name"], said["gfx_arches"]) == ("blas_lib", ["gfx942"])
    assert set(said["toc"]) == {f"{path}#0" for path in code}
    for path, content in code.items():
        entry = said["toc"][f"{path}#0"]["gfx942"]
        blob = said["blobs"][entry["ordinal"]]
        assert data[blob["offset"] : blob["offset"] + blob["size"]] == content
        assert entry["original_size"] == len(content)


def test_a_library_says_where_its_archives_are() -> None:
    said = msgpack.unpackb(kpack.reference("blas", "lib/deep/libx.so.1"))
    assert said == {
        "kpack_search_paths": ["../../.kpack/blas_lib_@GFXARCH@.kpack"],
        "kernel_name": "lib/deep/libx.so.1",
    }
    assert kpack.path_of("blas", "gfx942") == ".kpack/blas_lib_gfx942.kpack"


def test_the_compilers_only_code_object_is_found() -> None:
    wrapped = b"__CLANG_OFFLOAD_BUNDLE__".ljust(4096, b"\0") + b"\x7fELF".ljust(4096, b"\1")
    assert kpack.code_object(wrapped) == b"\x7fELF".ljust(64, b"\1")
    assert (TEMPLATES / "bin" / "tool").read_text(encoding="utf-8").startswith("#!/bin/sh\n")
