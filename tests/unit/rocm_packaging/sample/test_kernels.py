import io

import pytest

from rocm_packaging.packages.kpack import read
from rocm_packaging.sample.facts import TEMPLATES
from rocm_packaging.sample.kernels import code_object, kernel_archive
from tests.kit.binaries import offload_bundle


@pytest.mark.parametrize("library_count", [1, 7, 20])
def test_archives_the_code_object_of_each_library(library_count: int) -> None:
    codes = {f"lib/lib{number}.so.1": bytes([number]) * (number + 3) for number in range(library_count)}

    stream = io.BytesIO(kernel_archive("blas", "gfx942", codes))

    archive = read(stream)
    assert archive.group == "blas_lib"
    assert archive.targets == ("gfx942",)
    assert {kernel.binary: archive.content(stream, kernel) for kernel in archive.kernels} == {
        f"{path}#0": code for path, code in codes.items()
    }


def test_finds_the_only_code_object_of_a_bundle() -> None:
    code = b"\x7fELF".ljust(70, b"\1")

    assert code_object(offload_bundle("gfx942", code=code)) == code


def test_has_a_script_for_a_program() -> None:
    assert (TEMPLATES / "bin" / "tool").read_text(encoding="utf-8").startswith("#!/bin/sh\n")
