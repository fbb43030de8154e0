"""What a stand-alone wheel says of itself: its version, its requirements, torch's version module."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from core.errors import WheelError
from rocm_packaging.packages.layouts import device_target, is_rocm
from rocm_packaging.packages.licenses import joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from packaging.version import Version

_CONTINUED = (" ", "\t")
_EXTRA = re.compile(r"provides-extra:\s*(device-\S+)", re.IGNORECASE)


def standalone_version(version: Version, label: str) -> str:
    """Mark a version: ``2.10.0+rocm7.10.0`` becomes ``2.10.0+rocm7.10.0.standalone``.

    PEP 440 lets a local version have letters, digits and dots, and sorts the longer one later.
    """
    if version.local and label in version.local.split("."):
        raise WheelError(f"Version {version} is that of a stand-alone wheel already.")
    return f"{version}.{label}" if version.local else f"{version}+{label}"


def standalone_metadata(
    content: bytes, version: str, *, expression: str = "", license_files: Sequence[str] = ()
) -> bytes:
    """Edit METADATA: the version and licences, without requirements on ROCm's or device packages."""
    head, gap, body = content.decode().partition("\n\n")
    lines: list[str] = []
    for field in _fields(head):
        name, _, value = field.partition(":")
        if name.lower() == "version":
            lines.append(f"Version: {version}")
        elif name.lower() == "license-expression" and expression:
            own = value.strip()
            both = f"({own}) AND {expression}" if " OR " in own else joined([own, expression])
            lines.append(f"License-Expression: {both}")
            lines += [f"License-File: {path}" for path in license_files]
        elif not (_needs_rocm(value) if name.lower() == "requires-dist" else device_extras([field])):
            lines.append(field)
    return ("\n".join(lines) + (gap + body if gap else "\n")).encode()


def device_extras(fields: Iterable[str]) -> list[str]:
    """List the extras of METADATA's fields that name device packages: a host wheel has such."""
    found = (_EXTRA.fullmatch(one.strip()) for one in fields)
    return [one[1] for one in found if one]


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
        name = canonicalize_name(Requirement(" ".join(requirement.split())).name)
    except InvalidRequirement:
        return False
    return is_rocm(name) or bool(device_target(name))


def standalone_module(content: bytes, old: Version, new: str) -> bytes:
    """Edit ``version.py``: every quoted text that is the old version becomes the new one."""

    def replaced(found: re.Match[str]) -> str:
        return f"{found[1]}{new}{found[1]}" if found[2] == str(old) else found[0]

    return re.sub(r"""(['"])([^'"\n]*)\1""", replaced, content.decode()).encode()
