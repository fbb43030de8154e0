from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest
import zstandard

from pytorch_build.toolchain import pins, providing
from pytorch_build.toolchain.pins import Toolchain, load_toolchain

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY, LICENSE = b"MZ, and the rest of a DLL", b"Apache License v2.0 with LLVM Exceptions"


def packed(**members: bytes) -> bytes:
    """Write a ``.tar.zst``: the names' double underscores stand for slashes, single ones for dots."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name.replace("__", "/").replace("_", "."))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return zstandard.compress(stream.getvalue())


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive as the real one is, served by nobody yet, and data that pins it."""
    data = load_toolchain()
    pin = data.openmp.download
    path = tmp_path / "mirror" / "win-64" / pin.url.rpartition("/")[2]
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as outer:
        outer.writestr("metadata.json", "{}")
        outer.writestr(
            pin.library.archive, packed(Library__bin__omp_txt=b"", Library__bin__libomp_dll=LIBRARY)
        )
        outer.writestr(pin.license_file.archive, packed(info__licenses__openmp__LICENSE_TXT=LICENSE))
    changed = pin.model_copy(
        update={
            "sha256": sha256(path.read_bytes()),
            "library": pin.library.model_copy(update={"sha256": sha256(LIBRARY)}),
            "license_file": pin.license_file.model_copy(update={"sha256": sha256(LICENSE)}),
        }
    )
    made = data.model_copy(update={"openmp": data.openmp.model_copy(update={"download": changed})})

    def loaded() -> Toolchain:
        return made

    for module in (pins, providing):
        monkeypatch.setattr(module, "load_toolchain", loaded)
    return path
