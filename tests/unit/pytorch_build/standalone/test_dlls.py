from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.errors import CheckError
from pytorch_build.standalone.portable import analyse_dlls, require_brought
from tests.unit.pytorch_build.check.conftest import write_wheel
from tests.unit.rocm_packaging.pe_files import pe_file

if TYPE_CHECKING:
    from pathlib import Path

NAME = "torchvision-0.25.0-cp312-cp312-win_amd64.whl"


def test_each_dll_is_sorted_by_what_brings_it(tmp_path: Path) -> None:
    files = {
        "torchvision/_C.pyd": pe_file(
            needed=("C10.dll", "KERNEL32.dll", "python312.dll", "jpeg8.dll", "zlib.dll")
        ),
        "torchvision/jpeg8.dll": pe_file(needed=("VCRUNTIME140_1.dll",), delayed=("amdhip64_7.dll",)),
        "torchvision/a.py": b"",
    }
    needs = analyse_dlls(write_wheel(tmp_path, NAME, files))
    user, jpeg = ("torchvision/_C.pyd",), ("torchvision/jpeg8.dll",)
    assert needs.inside == {"jpeg8.dll": user}
    assert needs.promised == {"kernel32.dll": user, "python312.dll": user, "vcruntime140_1.dll": jpeg}
    assert needs.others == {"amdhip64_7.dll": jpeg, "c10.dll": user}
    assert needs.missing == {"zlib.dll": user}
    with pytest.raises(
        CheckError, match=r"needs DLLs that nothing brings: zlib\.dll \(for torchvision/_C\.pyd\)"
    ):
        require_brought(tmp_path / NAME, needs)
