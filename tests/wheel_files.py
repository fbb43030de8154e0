"""Wheels written member by member, so that any of it can be wrong."""

import base64
import hashlib
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path


def sha(data: bytes) -> str:
    """Hash bytes as records and objects say them."""
    return hashlib.sha256(data).hexdigest()


def contents(path: Path) -> dict[str, bytes]:
    """Read every member."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def record_line(name: str, data: bytes, algorithm: str = "sha256") -> str:
    """Write a member's line of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()
    return f"{name},{algorithm}={digest},{len(data)}\n"


def record_of(members: Mapping[str, bytes]) -> str:
    """Write the RECORD of members, one of which lies in ``.dist-info``."""
    info = next(name for name in members if ".dist-info/" in name).partition("/")[0]
    return "".join(record_line(name, data) for name, data in members.items()) + f"{info}/RECORD,,\n"


def write_members(
    path: Path,
    members: Mapping[str, bytes],
    *,
    record: str | None = "",
    method: int = zipfile.ZIP_DEFLATED,
    level: int | None = None,
    when: tuple[int, int, int, int, int, int] = (2026, 3, 4, 5, 6, 8),
) -> Path:
    """Write a wheel with the RECORD that is given ("": the right one; None: without one)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    info = f"{'-'.join(path.name.split('-')[:2])}.dist-info"
    listed = {} if record is None else {f"{info}/RECORD": (record or record_of(members)).encode()}
    with zipfile.ZipFile(path, "w", method, compresslevel=level) as archive:
        for name, data in (*members.items(), *listed.items()):
            entry = zipfile.ZipInfo(name, when)
            entry.compress_type = method
            executable = name.endswith((".sh", "/run", "/tool"))
            entry.external_attr = (stat.S_IFREG | (0o775 if executable else 0o664)) << 16
            with archive.open(entry, "w") as stream:
                stream.write(data)
    return path
