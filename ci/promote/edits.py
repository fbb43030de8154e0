"""Core metadata and requirements with other versions, and not a byte changed besides.

Formats: core metadata (METADATA and PKG-INFO), dependency specifiers (PEP 508), and the
``requires.txt`` of setuptools.
"""

from __future__ import annotations

import re
import tarfile
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ci.promote import keeping
from ci.promote.keeping import metadata_lines, requires_lines
from ci.promote.version_change import new_version, rules
from core.errors import WheelError
from core.wheel.wheel_editing import TEXT_LIMIT, is_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ci.promote.keeping import Kept
    from ci.promote.version_change import Place, Renamed, RocmChange


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


# No space is among them, so that an apostrophe in a sentence never opens a literal.
_LITERAL = re.compile(rb"(?P<quote>['\"])(?P<version>[0-9A-Za-z.+_!-]+)(?P=quote)")
_METADATA = re.compile(r"(?:[^/]+\.dist-info/METADATA|(?:.*/)?PKG-INFO)")
_REQUIRES = re.compile(r".*\.egg-info/requires\.txt")


class MemberEdits:
    """The edits of one package, and what they found wrong: an `Edit` of `core.wheel.wheel_editing`."""

    def __init__(self, plan: Renamed, change: RocmChange, kept: Kept | None = None) -> None:
        self._plan, self._change, self._kept = plan, change, kept
        self._mention = change.mention()
        self._places = dict.fromkeys(rules().places_of(plan.distribution), 0)
        self._problems: list[str] = []

    def __call__(self, member: str, content: bytes, /) -> bytes:
        """Give the new content of a text file, by its path in the wheel or below the sdist's folder."""
        try:
            edited = self._edited(member, content)
        except WheelError as problem:
            self._problems.append(f"{member}: {problem.message}")
            return content
        self.see(member, edited)
        return edited

    def see(self, member: str, content: bytes) -> None:
        """Look for the old version where it may not be any more."""
        found = self._mention.search(content)
        if found and not rules().may_mention(self._plan.distribution, member):
            line = content.count(b"\n", 0, found.start()) + 1
            self._problems.append(f"{member}: line {line} still holds {found[0].decode()}.")

    def see_paths(self, members: Iterable[str]) -> None:
        """Look for the old version in paths, which nothing but ``.dist-info`` and ``.data`` carry."""
        self._problems += [
            f"{member}: its path still holds the old version."
            for member in members
            if self._mention.search(member.encode())
        ]

    def see_tar(self, member: str, path: Path) -> None:
        """Look into a tar: its text files are content, and may not hold the old version either."""
        try:
            with tarfile.open(path) as archive:
                while (one := archive.next()) is not None:
                    archive.members.clear()  # type: ignore[attr-defined] # it would keep all of them
                    if not one.isfile() or not 0 < one.size <= TEXT_LIMIT:
                        continue
                    reader = archive.extractfile(one)
                    content = reader.read() if reader else b""
                    if is_text(content):
                        self.see(f"{member}/{one.name}", content)
        except (tarfile.TarError, EOFError, OSError) as problem:
            self._problems.append(f"{member}: it cannot be read as a tar: {problem}.")

    def require_done(self) -> None:
        """Raise if a place was missing, or anything else was wrong."""
        self._problems += [
            f"{place.members}: there is no such file."
            for place, seen in self._places.items()
            if place.required and not seen
        ]
        self.require_nothing_found()

    def require_nothing_found(self) -> None:
        """Raise if anything was wrong with what was seen, whether or not that was all."""
        if self._problems:
            listed = "\n".join(f"  {problem}" for problem in sorted(set(self._problems)))
            raise WheelError(
                f"{self._plan.source} cannot become {self._plan.new}:\n{listed}",
                hint="Where packages hold versions is written in ci/promote/rewriting.toml.",
            )

    def _edited(self, member: str, content: bytes) -> bytes:
        if _METADATA.fullmatch(member):
            plan = self._plan
            return metadata(content, old=plan.old, new=plan.new, change=self._change, kept=self._kept)
        if _REQUIRES.fullmatch(member):
            return requires_txt(content, self._change, self._kept)
        for place in self._places:
            if fnmatchcase(member, place.members):
                content = self._in_place(place, content)
        return content

    def _in_place(self, place: Place, content: bytes) -> bytes:
        own = place.holds == "own"
        old = Version(self._plan.old if own else self._change.old)
        new = self._plan.new if own else self._change.new
        edited, count = literals(content, old, new)
        if place.required and not count:
            raise WheelError(f"It does not hold {old} between quotes.")
        self._places[place] += 1
        return keeping.dist_info(edited, self._kept) if place.targets and self._kept else edited


def literals(content: bytes, old: Version, new: str) -> tuple[bytes, int]:
    """Replace a version wherever it is a whole quoted text, in any spelling."""
    count = 0

    def replaced(found: re.Match[bytes]) -> bytes:
        nonlocal count
        try:
            same = Version(found["version"].decode()) == old
        except InvalidVersion:
            return found[0]
        if not same:
            return found[0]
        count += 1
        return found["quote"] + new.encode() + found["quote"]

    return _LITERAL.sub(replaced, content), count
