"""What a wheel or sdist on this machine says of itself; one whose name lies is refused."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import dataclass
from email.parser import BytesParser
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ci.publish.indexing.names import read_name
from core import files
from core.errors import WheelError
from core.wheel import read_metadata

if TYPE_CHECKING:
    from pathlib import Path

_MAX_TEXT = 16 << 20


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What an index says of a file."""

    sha256: str
    requires_python: str = ""
    metadata: bytes = b""
    metadata_sha256: str = ""


def read_distribution(path: Path) -> Facts:
    """Read a wheel or sdist."""
    if path.suffix == ".whl":
        metadata = read_metadata(path)
        _held(path, metadata.name, str(metadata.version), "METADATA")
        return Facts(
            sha256=files.sha256(path),
            requires_python=" ".join(metadata.requires_python.split()),
            metadata=metadata.raw,
            metadata_sha256=hashlib.sha256(metadata.raw).hexdigest(),
        )
    return Facts(sha256=files.sha256(path), requires_python=_sdist_requires_python(path))


def _sdist_requires_python(path: Path) -> str:
    """Read PKG-INFO, the first of an sdist's files in most: the rest is not unpacked."""
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                if member.name.count("/") == 1 and member.name.endswith("/PKG-INFO") and member.isfile():
                    stream = archive.extractfile(member)
                    text = stream.read(_MAX_TEXT) if stream else b""
                    fields = BytesParser().parsebytes(text, headersonly=True)
                    _held(path, str(fields.get("Name", "")), str(fields.get("Version", "")), "PKG-INFO")
                    return " ".join(str(fields.get("Requires-Python", "")).split())
    except (tarfile.TarError, OSError, EOFError) as problem:
        raise WheelError(f"{path.name} is no gzipped tar archive: {problem}.") from problem
    raise WheelError(f"{path.name} is no sdist: it holds no PKG-INFO.")


def _held(path: Path, name: str, version: str, where: str) -> None:
    said = read_name(path.name)
    try:
        same = canonicalize_name(name) == said.name and Version(version) == said.version
    except InvalidVersion:
        same = False
    if not same:
        raise WheelError(
            f"{path.name}: {where} says {name} {version}.",
            hint="A file is renamed by rewriting its metadata, not by its name alone.",
        )
