"""What becomes of each text file of a wheel or sdist whose version changes: not a byte besides.

Formats: core metadata (METADATA and PKG-INFO), dependency specifiers (PEP 508), and the ``requires.txt`` of
setuptools.
"""

import ast
import re
import tarfile
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ci.promote.version_change import Place, Renamed, RocmChange, new_version, rules
from core.errors import WheelError
from core.wheel.editor import TEXT_LIMIT, is_text
from rocm_packaging.packages.layouts import device_target

# A space is not among them, so that an apostrophe in a sentence never opens a literal.
_LITERAL = re.compile(rb"(?P<quote>['\"])(?P<version>[0-9A-Za-z.+_!-]+)(?P=quote)")
_METADATA = re.compile(r"(?:[^/]+\.dist-info/METADATA|(?:.*/)?PKG-INFO)")
_REQUIRES = re.compile(r".*\.egg-info/requires\.txt")
_FIELD = re.compile(r"(?P<name>[A-Za-z0-9-]+):(?P<space>[ \t]*)(?P<value>.*?)(?P<end>[ \t]*\r?)", re.DOTALL)
_CLAUSE = re.compile(r"(?P<operator>===|==|~=|!=|<=|>=|<|>)(?P<space>\s*)(?P<version>[^\s,;()]+)")
_FOLLOWING = frozenset({"===", "==", "~=", ">=", "<="})
_PINNING = frozenset({"===", "=="})
_SECTION = re.compile(r"\s*(?:\[.*|#.*)?")
_DEFAULT_EXTRA = re.compile(r"""extra *== *["']device["']""")
_TARGET_SECTION = re.compile(r"\[device-(?P<gpu>gfx[0-9a-z_-]+)\s*(?::.*)?\]")
_DEFAULT_SECTION = re.compile(r"\[device\s*(?::.*)?\]")
# One assignment a list where we wrote the file, one call a target where TheRock's builder did.
_LIST = re.compile(r"(?P<name>\w+_TARGET_FAMILIES|FAMILY_TARGETS|PROMISED_FILES) = (?P<value>[\[{].*[\]}])")
_APPEND = re.compile(
    r"(?P<name>\w+_TARGET_FAMILIES)\.append\((?P<quote>['\"])(?P<gpu>gfx[^'\"]+)(?P=quote)\)"
)
_BITCODE = re.compile(r".*/oclc_isa_version_(\w+)\.bc")
_DEFAULT = re.compile(r"(?<=^DEFAULT_TARGET_FAMILY = )(?P<quote>['\"])(?P<gpu>gfx[^'\"]+)(?P=quote)$")


class MemberEdits:
    """The edits of one package, and what they found wrong: an `Edit` of `core.wheel.editor`."""

    def __init__(self, plan: Renamed, change: RocmChange) -> None:
        self._plan, self._change = plan, change
        self._mention = change.mention()
        self._places = dict.fromkeys(rules().places_of(plan.distribution), 0)
        self._problems: list[str] = []

    def __call__(self, member: str, content: bytes, /) -> bytes:
        """Return the new content of a text file, by its path in the wheel or below the sdist's folder."""
        try:
            edited = self._edited(member, content)
        except WheelError as problem:
            self._problems.append(f"{member}: {problem.message}")
            return content
        self.see(member, edited)
        return edited

    def see(self, member: str, content: bytes) -> None:
        """Look for the old version where it must not be any more."""
        found = self._mention.search(content)
        if found and not rules().may_mention(self._plan.distribution, member):
            line = content.count(b"\n", 0, found.start()) + 1
            self._problems.append(f"{member}: line {line} still holds {found[0].decode()}.")

    def see_tar(self, member: str, path: Path) -> None:
        """Look into a tar: its text files are content, and must not hold the old version either."""
        try:
            with tarfile.open(path) as archive:
                while (one := archive.next()) is not None:
                    archive.members.clear()  # type: ignore[attr-defined] # it would keep all of them
                    reader = archive.extractfile(one) if one.isfile() and one.size <= TEXT_LIMIT else None
                    content = reader.read() if reader else b""
                    if content and is_text(content):
                        self.see(f"{member}/{one.name}", content)
        except (tarfile.TarError, EOFError, OSError) as problem:
            self._problems.append(f"{member}: it cannot be read as a tar: {problem}.")

    def require_done(self, members: Iterable[str]) -> None:
        """Raise if a place was missing, a new path holds the old version, or anything else was wrong."""
        old = (member for member in members if self._mention.search(member.encode()))
        absent = (place.members for place, seen in self._places.items() if place.required and not seen)
        self._problems += [f"{member}: its path still holds the old version." for member in old]
        self._problems += [f"{member}: there is no such file." for member in absent]
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
            return metadata(content, old=self._plan.old, new=self._plan.new, change=self._change)
        if _REQUIRES.fullmatch(member):
            lines = content.decode("utf-8", "surrogateescape").split("\n")
            lines = [one if _SECTION.fullmatch(one) else requirement(one, self._change) for one in lines]
            return "\n".join(requires_lines(lines, self._change)).encode("utf-8", "surrogateescape")
        for place in self._places:
            if fnmatchcase(member, place.members):
                content = self._in_place(place, content)
        return content

    def _in_place(self, place: Place, content: bytes) -> bytes:
        of = self._plan if place.holds == "own" else self._change
        edited, count = literals(content, Version(of.old), of.new)
        if place.required and not count:
            raise WheelError(f"It does not hold {Version(of.old)} between quotes.")
        self._places[place] += 1
        return dist_info(edited, self._change) if place.targets and self._change.targets else edited


def literals(content: bytes, old: Version, new: str) -> tuple[bytes, int]:
    """Replace a version wherever it is a whole quoted text, in any spelling; return also how often."""
    count = 0

    def replaced(found: re.Match[bytes]) -> bytes:
        nonlocal count
        if _version(found["version"].decode()) != old:
            return found[0]
        count += 1
        return found["quote"] + new.encode() + found["quote"]

    return _LITERAL.sub(replaced, content), count


def metadata(content: bytes, *, old: str, new: str, change: RocmChange) -> bytes:
    """Change Version and the requirements on packages of the set, and leave out targets that are not kept."""
    text = content.decode("utf-8", "surrogateescape")
    # the first empty line ends the fields; the description follows
    found = re.search(r"\n\r?\n", text)
    head, rest = (text[: found.start()], text[found.start() :]) if found else (text, "")
    lines = head.split("\n")
    stated = 0
    for number, line in enumerate(lines):
        field = _FIELD.fullmatch(line)
        name = field["name"].lower() if field else ""
        if not field or name not in {"version", "requires-dist"}:
            continue
        value = field["value"]
        if name == "version":
            stated += 1
            if _version(value) != Version(old):
                raise WheelError(f"It states version {value!r}, not {old}.")
            value = new
        elif number + 1 < len(lines) and lines[number + 1].startswith((" ", "\t")):
            raise WheelError(f"The requirement {value!r} goes on in the next line, which is not supported.")
        else:
            value = requirement(value, change)
        lines[number] = f"{field['name']}:{field['space']}{value}{field['end']}"
    lines = list(metadata_lines(lines, change))
    if stated != 1:
        raise WheelError(f"It has {stated} Version fields, not one.")
    return ("\n".join(lines) + rest).encode("utf-8", "surrogateescape")


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
        version = _version(clause["version"])
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


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None  # a wildcard, or an arbitrary text behind `===`


def _is_another(name: str, version: Version, change: RocmChange) -> bool:
    """Return whether a pinned version is that of a package built with another ROCm than the new one."""
    if rules().kind_of(name) == "rocm":
        return version != Version(change.new)
    local = f".{version.local or ''}"
    return "rocm" in local and not local.endswith(f".{change.new_local}")


def metadata_lines(lines: Sequence[str], change: RocmChange) -> Sequence[str]:
    """Drop the extras and requirements of targets that are not kept from the fields of core metadata.

    What the extra ``device`` requires, one target's package, becomes that of the first target that is kept.
    """
    if not change.targets:
        return lines
    found = []
    for line in lines:
        name, _, value = line.partition(":")
        value = value.strip()
        if name.lower() == "provides-extra" and value.startswith("device-gfx"):
            found += [line] if change.keeps_target(value.removeprefix("device-")) else []
        elif name.lower() != "requires-dist" or change.keeps_requirement(value):
            found.append(line)
        elif _DEFAULT_EXTRA.search(value):
            found.append(_on_another(line, value, lines, change))
    return found


def requires_lines(lines: Sequence[str], change: RocmChange) -> Sequence[str]:
    """Do the same to the lines of a ``requires.txt``, whose sections are the extras."""
    if not change.targets:
        return lines
    found, dropped, default = [], False, False
    for line in lines:
        if line.startswith("["):
            section = _TARGET_SECTION.fullmatch(line.strip())
            dropped = section is not None and not change.keeps_target(section["gpu"])
            default = _DEFAULT_SECTION.fullmatch(line.strip()) is not None
        stays = not line.strip() or line.startswith(("[", "#")) or change.keeps_requirement(line)
        if not dropped and (stays or default):
            found.append(line if stays else _on_another(line, line, lines, change))
    return found


def _on_another(line: str, requirement: str, lines: Sequence[str], change: RocmChange) -> str:
    """Let the requirement of the extra ``device`` be on a kept target's package that the file names, too."""
    old = canonicalize_name(Requirement(requirement).name)
    kind = old.removesuffix(device_target(old))
    others = re.findall(rf"{re.escape(kind)}(gfx[0-9a-z]+)", "\n".join(lines))
    new = next((gpu for gpu in others if gpu in change.targets), None)
    if new is None:
        raise WheelError(f"It does not name {kind} of {', '.join(change.targets)}.")
    return line.replace(old, f"{kind}{new}", 1)


def dist_info(content: bytes, change: RocmChange) -> bytes:
    """Drop the targets that are not kept from a ``_dist_info.py``; the default becomes one that is."""
    offered: dict[str, list[str]] = {}
    lines = []
    for line in content.decode().split("\n"):
        if found := _APPEND.fullmatch(line):
            if not change.keeps_target(found["gpu"]):
                continue
            offered.setdefault(found["name"], []).append(found["gpu"])
        elif found := _LIST.fullmatch(line):
            value = _kept_of(found["value"], change)
            offered[found["name"]] = list(value)
            line = f"{found['name']} = {value!r}"  # noqa: PLW2901 - the line as it is now
        lines.append(line)
    if not (names := offered.get("AVAILABLE_TARGET_FAMILIES", [])):
        raise WheelError("It does not list a gfx target that is kept.")
    only = [of for key, of in offered.items() if key.startswith(("LINUX_", "WINDOWS_")) and of]
    default = next((one for one in names if all(one in of for of in only)), names[0])
    kept = change.keeps_target
    lines = [_DEFAULT.sub(lambda one: one[0] if kept(one["gpu"]) else repr(default), line) for line in lines]
    return "\n".join(lines).encode()


def _kept_of(text: str, change: RocmChange) -> list[str] | dict[str, list[str]]:
    """Leave what is not kept out of a list of targets, or of the lists of families."""
    try:
        value: list[str] | dict[str, list[str]] = ast.literal_eval(text)
    except (ValueError, SyntaxError) as problem:
        raise WheelError(f"It lists gfx targets by a program, not by name: {text}.") from problem

    def kept(one: str) -> bool:
        gpu = _BITCODE.sub(r"gfx\1", one)
        return not gpu.startswith("gfx") or change.keeps_target(gpu)  # other files are for every target

    if isinstance(value, list):
        return list(filter(kept, value))
    return {name: left for name, of in value.items() if (left := list(filter(kept, of)))}
