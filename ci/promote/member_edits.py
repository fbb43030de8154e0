"""What becomes of each text file of a wheel or sdist whose version changes."""

from __future__ import annotations

import re
import tarfile
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from ci.promote import keeping, metadata_edits
from ci.promote.rewriting_rules import rules
from core.errors import WheelError
from core.wheel.editor import TEXT_LIMIT, is_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ci.promote.keeping import Kept
    from ci.promote.renaming import Renamed, RocmChange
    from ci.promote.rewriting_rules import Place

# No space is among them, so that an apostrophe in a sentence never opens a literal.
_LITERAL = re.compile(rb"(?P<quote>['\"])(?P<version>[0-9A-Za-z.+_!-]+)(?P=quote)")
_METADATA = re.compile(r"(?:[^/]+\.dist-info/METADATA|(?:.*/)?PKG-INFO)")
_REQUIRES = re.compile(r".*\.egg-info/requires\.txt")


class MemberEdits:
    """The edits of one package, and what they found wrong: an `Edit` of `core.wheel.editor`."""

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
            return metadata_edits.metadata(
                content, old=plan.old, new=plan.new, change=self._change, kept=self._kept
            )
        if _REQUIRES.fullmatch(member):
            return metadata_edits.requires_txt(content, self._change, self._kept)
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
