"""Core metadata and requirements with other versions, and not a byte changed besides.

Formats: core metadata (METADATA and PKG-INFO), dependency specifiers (PEP 508), and the
``requires.txt`` of setuptools.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ci.promote.keeping import metadata_lines, requires_lines
from ci.promote.renaming import new_version
from ci.promote.rewriting_rules import rules
from core.errors import WheelError

if TYPE_CHECKING:
    from ci.promote.keeping import Kept
    from ci.promote.renaming import RocmChange

_FIELD = re.compile(r"(?P<name>[A-Za-z0-9-]+):(?P<space>[ \t]*)(?P<value>.*?)(?P<end>[ \t]*\r?)", re.DOTALL)
_CLAUSE = re.compile(r"(?P<operator>===|==|~=|!=|<=|>=|<|>)(?P<space>\s*)(?P<version>[^\s,;()]+)")
_FOLLOWING = frozenset({"===", "==", "~=", ">=", "<="})
_PINNING = frozenset({"===", "=="})
_SECTION = re.compile(r"\s*(?:\[.*|#.*)?")


def metadata(content: bytes, *, old: str, new: str, change: RocmChange, kept: Kept | None = None) -> bytes:
    """Change Version and the requirements on packages of the set."""
    text = content.decode("utf-8", "surrogateescape")
    head, blank, body = _head_and_body(text)
    lines = head.split("\n")
    stated = 0
    for number, line in enumerate(lines):
        field = _FIELD.fullmatch(line)
        name = field["name"].lower() if field else ""
        if not field or name not in {"version", "requires-dist"}:
            continue
        if name == "version":
            stated += 1
            value = _version(field["value"], old=old, new=new)
        else:
            value = requirement(_unfolded(field["value"], lines, number), change)
        lines[number] = f"{field['name']}:{field['space']}{value}{field['end']}"
    if kept is not None:
        lines = list(metadata_lines(lines, kept))
    if stated != 1:
        raise WheelError(f"It has {stated} Version fields, not one.")
    return ("\n".join(lines) + blank + body).encode("utf-8", "surrogateescape")


def requirement(text: str, change: RocmChange) -> str:
    """Change the versions in a requirement on a package of the set; others stay as they are."""
    try:
        name = canonicalize_name(Requirement(text).name)
    except InvalidRequirement as problem:
        raise WheelError(f"The requirement {text!r} cannot be read: {problem}.") from problem
    if rules().kind_of(name) is None or "@" in text.partition(";")[0]:
        return text
    specifiers, semicolon, marker = text.partition(";")

    def changed(clause: re.Match[str]) -> str:
        version = _read(clause["version"])
        new = new_version(name, version, change) if version else None
        if new is not None and clause["operator"] in _FOLLOWING:
            return f"{clause['operator']}{clause['space']}{new}"
        if version and clause["operator"] in _PINNING and _is_another(name, version, change):
            raise WheelError(
                f"The requirement {text!r} is not on ROCm {change.old}.",
                hint="A set is built against one ROCm version, and promoted as a whole.",
            )
        return clause[0]

    return _CLAUSE.sub(changed, specifiers) + semicolon + marker


def requires_txt(content: bytes, change: RocmChange, kept: Kept | None = None) -> bytes:
    """Change the requirements in a ``requires.txt``, and leave out those on targets that are not kept."""
    lines = content.decode("utf-8", "surrogateescape").split("\n")
    edited = [line if _SECTION.fullmatch(line) else requirement(line, change) for line in lines]
    if kept is not None:
        edited = list(requires_lines(edited, kept))
    return "\n".join(edited).encode("utf-8", "surrogateescape")


def _head_and_body(text: str) -> tuple[str, str, str]:
    """Split the fields from the description: the first empty line ends them."""
    found = re.search(r"\n\r?\n", text)
    return (text[: found.start()], found[0], text[found.end() :]) if found else (text, "", "")


def _version(stated: str, *, old: str, new: str) -> str:
    if _read(stated) != Version(old):
        raise WheelError(f"It states version {stated!r}, not {old}.")
    return new


def _unfolded(value: str, lines: list[str], number: int) -> str:
    if number + 1 < len(lines) and lines[number + 1].startswith((" ", "\t")):
        raise WheelError(f"The requirement {value!r} goes on in the next line, which is not supported.")
    return value


def _read(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None  # a wildcard, or an arbitrary text behind `===`


def _is_another(name: str, version: Version, change: RocmChange) -> bool:
    """Whether a pinned version is that of a package built with another ROCm than the new one."""
    if rules().kind_of(name) == "rocm":
        return version != Version(change.new)
    local = f".{version.local or ''}"
    return "rocm" in local and not local.endswith(f".{change.new_local}")
