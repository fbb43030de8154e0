"""A source distribution written again under another version, with some of its files edited.

Format: the source distribution format (PEP 625 names, PKG-INFO in the top folder). Sdists of ours
hold sources only, so they are read whole, up to a limit.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from typing import TYPE_CHECKING

from core.archive import zip_members
from core.errors import MissingInputError, WheelError
from core.wheel.wheel_editing import Edited
from core.wheel.wheel_writer import Member, write_sdist
from core.wheel.wheels import parse_sdist_name

if TYPE_CHECKING:
    from pathlib import Path

    from core.wheel.wheel_editing import Edit

LIMIT = 64 << 20
_PKG_INFO = "PKG-INFO"


def edit_sdist(source: Path, folder: Path, *, version: str, edit: Edit, epoch: int | None = None) -> Edited:
    """Write an sdist again under another version.

    The top folder and the file name follow the version; who may run a file stays.

    Args:
        source: The old sdist.
        folder: Where the new one goes.
        version: The new version.
        edit: What becomes of each file, by its path below the top folder.
        epoch: The time that every member carries (default: 1980-01-01).

    Raises:
        MissingInputError: There is no old sdist.
        WheelError: It is broken or hostile, or unpacks to more than `LIMIT` bytes.
    """
    name = parse_sdist_name(source.name)
    old = _read(source)
    if _PKG_INFO not in old:
        raise WheelError(f"{source.name} holds no {_PKG_INFO}.")
    new = {path: (edit(path, content), executable) for path, (content, executable) in old.items()}
    members = [
        Member(name=path, source=content, executable=executable)
        for path, (content, executable) in new.items()
        if path != _PKG_INFO
    ]
    try:
        metadata = new[_PKG_INFO][0].decode()
    except UnicodeDecodeError as problem:
        raise WheelError(f"{source.name}: {_PKG_INFO} is not UTF-8: {problem}.") from problem
    file = write_sdist(folder, name.distribution, version, members, metadata=metadata, epoch=epoch)
    changed = tuple(sorted(path for path in old if new[path] != old[path]))
    return Edited(file=file, members=tuple(old), changed=changed)


def _read(source: Path) -> dict[str, tuple[bytes, bool]]:
    """Read every file: path below the top folder -> its bytes, and whether it is executable."""
    top = source.name.removesuffix(".tar.gz")
    found: dict[str, tuple[bytes, bool]] = {}
    try:
        with gzip.open(source) as stream:
            data = stream.read(LIMIT + 1)
        if len(data) > LIMIT:
            raise WheelError(f"{source.name} unpacks to more than {LIMIT} bytes.")
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for one in archive:
                if one.isdir():
                    continue
                path = _path(source, one, top)
                if path in found:
                    raise WheelError(f"{source.name} holds {one.name} twice.")
                reader = archive.extractfile(one)
                found[path] = (reader.read() if reader else b"", bool(one.mode & 0o111))
    except FileNotFoundError:
        raise MissingInputError(f"{source} does not exist.") from None
    except (tarfile.TarError, EOFError, OSError, zlib.error) as problem:
        raise WheelError(f"{source.name} is no readable sdist: {problem}.") from problem
    return found


def _path(source: Path, one: tarfile.TarInfo, top: str) -> str:
    why = zip_members.unsafe_path(one.name)
    if not one.isreg():
        why = "neither a file nor a folder"
    elif not why and not one.name.startswith(f"{top}/"):
        why = f"outside of {top}"
    if why:
        raise WheelError(f"{source.name} holds {one.name!r}: {why}.")
    return one.name.removeprefix(f"{top}/")
