import io

import pytest

from rocm_packaging.packages.kpack import read
from rocm_packaging.sample.facts import TEMPLATES
from rocm_packaging.sample.kernels import code_object, kernel_archive
from tests.kit.binaries import offload_bundle


@pytest.mark.parametrize("library_count", [1, 7, 20])
def test_archives_the_code_object_of_each_library(library_count: int) -> None:
    codes: dict[str, bytes] = {}
    for number in range(library_count):
        codes[f"lib/lib{number}.so.1"] = bytes([number]) * (number + 3)

    stream = io.BytesIO(kernel_archive("blas", "gfx942", codes))

    archive = read(stream)
    assert archive.group == "blas_lib"
    assert archive.targets == ("gfx942",)
    assert len(archive.kernels) == library_count
    for kernel in archive.kernels:
        assert archive.content(stream, kernel) == codes[kernel.binary.removesuffix("#0")]


def test_finds_the_only_code_object_of_a_bundle() -> None:
    code = b"\x7fELF".ljust(70, b"\1")

    assert code_object(offload_bundle("gfx942", code=code)) == code


def test_has_a_script_for_a_program() -> None:
    assert (TEMPLATES / "bin" / "tool").read_text(encoding="utf-8").startswith("#!/bin/sh\n")
