import io

import pytest

from rocm_packaging.packages.kpack import read
from rocm_packaging.sample import TEMPLATES, code_object, kernel_archive
from tests.unit.pytorch_build.check.conftest import plain_bundle


@pytest.mark.parametrize("count", [1, 7, 20])
def test_an_archive_holds_each_librarys_code_object(count: int) -> None:
    code = {f"lib/lib{number}.so.1": bytes([number]) * (number + 3) for number in range(count)}
    stream = io.BytesIO(kernel_archive("blas", "gfx942", code))
    archive = read(stream)
    assert (archive.group, archive.targets) == ("blas_lib", ("gfx942",))
    assert {one.binary: archive.content(stream, one) for one in archive.kernels} == {
        f"{path}#0": content for path, content in code.items()
    }


def test_the_compilers_only_code_object_is_found() -> None:
    bundle = plain_bundle("gfx942", code=b"\x7fELF".ljust(70, b"\1"))
    assert code_object(bundle) == b"\x7fELF".ljust(70, b"\1")
    assert (TEMPLATES / "bin" / "tool").read_text(encoding="utf-8").startswith("#!/bin/sh\n")
