"""Libraries that get another search path on their way into a wheel."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from core import process
from core.errors import BuildError
from rocm_packaging import elf
from rocm_packaging.growing import grown
from rocm_packaging.patching import patchelf

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from core.zip_sources import Edited
    from pytorch_build.fat.content import RocmFile

_LARGE = 256 << 20  # patchelf holds a file twice in memory


def with_search_path(file: RocmFile, search: Sequence[str], scratch: Path) -> Path | Edited:
    """Give a library with a search path: what is to be written in its place.

    Args:
        file: The library.
        search: The new DT_RPATH.
        scratch: A folder for what has to be written meanwhile.

    Raises:
        BuildError: patchelf left another path.
        ProcessError: patchelf failed.
    """
    plain = file.source
    if file.info is not None:
        plain = scratch / "unpacked" / file.path
        plain.parent.mkdir(parents=True, exist_ok=True)
        with file.opened() as stream, plain.open("wb") as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)
    if plain.stat().st_size >= _LARGE:
        edited = grown(plain, ":".join(search))
        if edited is not None:
            return edited
    target = scratch / "patched" / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    process.capture([patchelf(), "--force-rpath", "--set-rpath", ":".join(search), "--output", target, plain])
    after = elf.read(target)
    if after is None or after.search != tuple(search) or not after.is_rpath:
        raise BuildError(f"patchelf did not leave the RPATH {':'.join(search)} in {file.path}.")
    return target
