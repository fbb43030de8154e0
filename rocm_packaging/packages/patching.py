"""Make a wheel's libraries find those of the core package: RPATHs, and stubs for linked programs."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core import process
from core.binaries import rpath
from core.errors import BuildError, MissingInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocm_packaging.packages.payload import PayloadFile

_STUB_SOURCE = Path(__file__).parents[1] / "templates" / "stub.c"
_STUB_MARK = b"@@STUB-TARGET@@"
_STUB_ROOM = 1024
_C_COMPILERS = ("cc", "gcc", "clang", "c++", "g++", "clang++")


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Where a payload lies beside the core payload in site-packages."""

    payload: str
    core: str
    folders: Sequence[str]


def search_path(file: PayloadFile, neighbours: Neighbours) -> tuple[str, ...]:
    """Give the RPATH that a file is to have.

    What is relative to the file stays, in order; absolute folders are of the build machine
    and go; the folders of core follow.
    """
    if file.facts is None:
        return ()
    folders = (f"{neighbours.core}/{folder}" for folder in neighbours.folders)
    parts = (*rpath.relative(file.facts.search), *rpath.ways(f"{neighbours.payload}/{file.path}", folders))
    return tuple(dict.fromkeys(parts))


def needs_patch(file: PayloadFile, neighbours: Neighbours) -> bool:
    """Whether a file's RPATH is not yet what it is to be."""
    facts = file.facts
    if facts is None or not facts.dynamic:
        return False
    return facts.search != search_path(file, neighbours) or not facts.is_rpath


def stub_template() -> bytes:
    """Compile the program that starts another program beside it, and whose target is filled in later."""
    compiler = next(filter(None, map(process.which, _C_COMPILERS)), None)
    if compiler is None:
        raise MissingInputError(
            "No C compiler is on the PATH, and links to programs become small programs in a wheel.",
            hint="Install one, such as the package gcc.",
        )
    with tempfile.TemporaryDirectory(prefix="stub-") as folder:
        program = Path(folder) / "stub"
        # The build id would follow from the folder's name on some compilers.
        flags = ("-O1", "-s", "-Wl,--build-id=none")
        process.capture([compiler, *flags, "-x", "c", _STUB_SOURCE, "-o", program], cwd=Path(folder))
        return program.read_bytes()


def stub(template: bytes, target: str) -> bytes:
    """Fill a stub's target in: a path relative to the stub's own folder."""
    room = _STUB_MARK.ljust(_STUB_ROOM, b"\0")
    text = target.encode()
    if template.count(room) != 1 or len(text) >= _STUB_ROOM:
        raise BuildError(f"The stub program has no place for the path {target!r}.")
    return template.replace(room, text.ljust(_STUB_ROOM, b"\0"))
