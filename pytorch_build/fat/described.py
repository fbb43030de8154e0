"""What a stand-alone wheel says of itself: its version, its requirements, torch's version module."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from core.errors import WheelError
from rocm_packaging.layouts import is_rocm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.version import Version

_CONTINUED = (" ", "\t")


def standalone_version(version: Version, label: str) -> str:
    """Mark a version: ``2.10.0+rocm7.10.0`` becomes ``2.10.0+rocm7.10.0.standalone``.

    PEP 440 lets a local version have letters, digits and dots, and sorts the longer one later.

    Raises:
        WheelError: It is marked already.
    """
    if version.local and label in version.local.split("."):
        raise WheelError(f"Version {version} is that of a stand-alone wheel already.")
    return f"{version}.{label}" if version.local else f"{version}+{label}"


def standalone_metadata(content: bytes, version: str) -> bytes:
    """Edit METADATA: the version, and no requirement on ROCm's packages.

    Args:
        content: The old file.
        version: The new version.
    """
    head, gap, body = content.decode().partition("\n\n")
    lines: list[str] = []
    for field in _fields(head):
        name, _, value = field.partition(":")
        if name.lower() == "version":
            lines.append(f"Version: {version}")
        elif name.lower() != "requires-dist" or not _needs_rocm(value):
            lines.append(field)
    return ("\n".join(lines) + (gap + body if gap else "\n")).encode()


def _fields(head: str) -> Iterator[str]:
    """Split a header into fields, each with its continuation lines."""
    field = ""
    for line in head.splitlines():
        if line.startswith(_CONTINUED):
            field += f"\n{line}"
            continue
        if field:
            yield field
        field = line
    if field:
        yield field


def _needs_rocm(requirement: str) -> bool:
    try:
        return is_rocm(canonicalize_name(Requirement(" ".join(requirement.split())).name))
    except InvalidRequirement:
        return False


def standalone_module(content: bytes, old: Version, new: str) -> bytes:
    """Edit ``version.py``: every quoted text that is the old version becomes the new one."""

    def replaced(found: re.Match[str]) -> str:
        return f"{found[1]}{new}{found[1]}" if found[2] == str(old) else found[0]

    return re.sub(r"""(['"])([^'"\n]*)\1""", replaced, content.decode()).encode()
