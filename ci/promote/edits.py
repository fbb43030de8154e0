"""What becomes of each text file of a wheel or sdist whose version changes: not a byte besides.

Formats: core metadata (METADATA and PKG-INFO), dependency specifiers (PEP 508), and the ``requires.txt`` of
setuptools.
"""

import ast
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ci.promote.version_change import FileChange, PlaceRule, RocmChange, new_version, rules
from core.errors import WheelError
from core.wheel.editor import TEXT_LIMIT, is_text
from rocm_packaging.packages.layouts import device_target

# A space is not among them, so that an apostrophe in a sentence never opens a literal.
_LITERAL = re.compile(rb"(?P<quote>['\"])(?P<version>[0-9A-Za-z.+_!-]+)(?P=quote)")

_METADATA = re.compile(r"(?:[^/]+\.dist-info/METADATA|(?:.*/)?PKG-INFO)")
_FIELD = re.compile(r"(?P<name>[A-Za-z0-9-]+):(?P<space>[ \t]*)(?P<value>.*?)(?P<end>[ \t]*\r?)", re.DOTALL)
# The first empty line ends the fields; the description follows.
_END_OF_FIELDS = re.compile(r"\n\r?\n")

_CLAUSE = re.compile(r"(?P<operator>===|==|~=|!=|<=|>=|<|>)(?P<space>\s*)(?P<version>[^\s,;()]+)")
_FOLLOWING_OPERATORS = frozenset({"===", "==", "~=", ">=", "<="})
_PINNING_OPERATORS = frozenset({"===", "=="})

_REQUIRES = re.compile(r".*\.egg-info/requires\.txt")
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

TargetLists = list[str] | dict[str, list[str]]


class MemberEdits:
    """The edits of one package, and the problems that they met: an `Edit` of `core.wheel.editor`."""

    def __init__(
        self,
        file_change: FileChange,
        change: RocmChange,
    ) -> None:
        """Edit the members of one file."""
        self._file_change = file_change
        self._change = change
        self._mention = change.mention()
        self._edit_counts = dict.fromkeys(rules().places_of(file_change.distribution), 0)
        self._problems: list[str] = []

    def __call__(self, member: str, content: bytes, /) -> bytes:
        """Return the new content of a text file, by its path in the wheel or below the sdist's folder."""
        try:
            edited_content = self._edit(member, content)
        except WheelError as problem:
            self._problems.append(f"{member}: {problem.message}")
            return content
        self.search(member, edited_content)
        return edited_content

    def search(self, member: str, content: bytes) -> None:
        """Look for the old version where it must not be any more."""
        mention = self._mention.search(content)
        if mention is None or rules().may_mention(self._file_change.distribution, member):
            return
        line = content.count(b"\n", 0, mention.start()) + 1
        self._problems.append(f"{member}: line {line} still holds {mention[0].decode()}.")

    def search_tar(self, member: str, path: Path) -> None:
        """Look into a tar: its text files are content, and must not hold the old version either."""
        try:
            with tarfile.open(path) as archive:
                for name, content in _small_files(archive):
                    if is_text(content):
                        self.search(f"{member}/{name}", content)
        except (tarfile.TarError, EOFError, OSError) as problem:
            self._problems.append(f"{member}: it cannot be read as a tar: {problem}.")

    def require_done(self, members: Iterable[str]) -> None:
        """Raise if a place was missing, a new path holds the old version, or anything else was wrong."""
        for member in members:
            if self._mention.search(member.encode()):
                self._problems.append(f"{member}: its path still holds the old version.")
        for place, count in self._edit_counts.items():
            if place.required and not count:
                self._problems.append(f"{place.members}: there is no such file.")
        self.require_no_problems()

    def require_no_problems(self) -> None:
        """Raise if anything was wrong with what was read so far."""
        if self._problems:
            lines = [f"  {problem}" for problem in sorted(set(self._problems))]
            raise WheelError(
                f"{self._file_change.source} cannot become {self._file_change.new}:\n" + "\n".join(lines),
                hint="Where packages hold versions is written in ci/promote/rewriting.toml.",
            )

    def _edit(self, member: str, content: bytes) -> bytes:
        if _METADATA.fullmatch(member):
            return edit_metadata(
                content,
                old=self._file_change.old,
                new=self._file_change.new,
                change=self._change,
            )
        if _REQUIRES.fullmatch(member):
            return edit_requires(content, self._change)
        for place in self._edit_counts:
            if fnmatchcase(member, place.members):
                content = self._edit_place(place, content)
        return content

    def _edit_place(self, place: PlaceRule, content: bytes) -> bytes:
        versions = self._file_change if place.holds == "own" else self._change
        edited_content, count = replace_literals(content, Version(versions.old), versions.new)
        if place.required and not count:
            raise WheelError(f"It does not hold {Version(versions.old)} between quotes.")

        self._edit_counts[place] += 1
        if place.targets and self._change.targets:
            return edit_dist_info(edited_content, self._change)
        return edited_content


def _small_files(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file of a tar that is small enough for a text."""
    while (member := archive.next()) is not None:
        # The archive would keep all of them.
        archive.members.clear()  # type: ignore[attr-defined]
        if not member.isfile() or member.size > TEXT_LIMIT:
            continue
        reader = archive.extractfile(member)
        content = b"" if reader is None else reader.read()
        if content:
            yield member.name, content


# Versions between quotes


def replace_literals(
    content: bytes,
    old: Version,
    new: str,
) -> tuple[bytes, int]:
    """Replace a version wherever it is a whole quoted text, in any spelling; return also how often."""
    count = 0

    def replace_literal(literal: re.Match[bytes]) -> bytes:
        nonlocal count
        if _parse_version(literal["version"].decode()) != old:
            return literal[0]
        count += 1
        return literal["quote"] + new.encode() + literal["quote"]

    return _LITERAL.sub(replace_literal, content), count


def _parse_version(text: str) -> Version | None:
    """Return a version; None for a wildcard, or an arbitrary text behind ``===``."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


# Core metadata


def edit_metadata(
    content: bytes,
    *,
    old: str,
    new: str,
    change: RocmChange,
) -> bytes:
    """Change Version and the requirements on packages of the set, and leave out targets that are not kept."""
    text = content.decode("utf-8", "surrogateescape")
    end_of_fields = _END_OF_FIELDS.search(text)
    description = ""
    if end_of_fields is not None:
        description = text[end_of_fields.start() :]
        text = text[: end_of_fields.start()]

    lines = text.split("\n")
    version_count = 0
    for number, line in enumerate(lines):
        field = _FIELD.fullmatch(line)
        if field is None:
            continue

        field_name = field["name"].lower()
        value = field["value"]
        if field_name == "version":
            version_count += 1
            if _parse_version(value) != Version(old):
                raise WheelError(f"It states version {value!r}, not {old}.")
            value = new
        elif field_name == "requires-dist":
            if number + 1 < len(lines) and lines[number + 1].startswith((" ", "\t")):
                raise WheelError(
                    f"The requirement {value!r} goes on in the next line, which is not supported."
                )
            value = change_requirement(value, change)
        else:
            continue
        lines[number] = f"{field['name']}:{field['space']}{value}{field['end']}"

    kept_lines = keep_metadata_lines(lines, change)
    if version_count != 1:
        raise WheelError(f"It has {version_count} Version fields, not one.")
    return ("\n".join(kept_lines) + description).encode("utf-8", "surrogateescape")


def change_requirement(text: str, change: RocmChange) -> str:
    """Change the versions in a requirement on a package of the set; others stay as they are."""
    try:
        name = canonicalize_name(Requirement(text).name)
    except InvalidRequirement as problem:
        raise WheelError(f"The requirement {text!r} cannot be read: {problem}.") from problem

    specifiers, semicolon, marker = text.partition(";")
    is_address = "@" in specifiers
    if rules().kind_of(name) is None or is_address:
        return text

    def change_clause(clause: re.Match[str]) -> str:
        version = _parse_version(clause["version"])
        if version is None:
            return clause[0]
        changed_version = new_version(name, version, change)
        if changed_version is not None and clause["operator"] in _FOLLOWING_OPERATORS:
            return f"{clause['operator']}{clause['space']}{changed_version}"
        # What the change does not reach may stay, but not a pin to what another ROCm was built with.
        if clause["operator"] in _PINNING_OPERATORS and _is_of_another_rocm(name, version, change):
            raise WheelError(
                f"The requirement {text!r} is not on ROCm {change.old}.",
                hint="A set is built against one ROCm version, and promoted as a whole.",
            )
        return clause[0]

    return _CLAUSE.sub(change_clause, specifiers) + semicolon + marker


def _is_of_another_rocm(
    name: str,
    version: Version,
    change: RocmChange,
) -> bool:
    """Return whether a pinned version is that of a package built with another ROCm than the new one."""
    if rules().kind_of(name) == "rocm":
        return version != Version(change.new)
    local_version = f".{version.local or ''}"
    return "rocm" in local_version and not local_version.endswith(f".{change.new_local}")


def keep_metadata_lines(
    lines: Sequence[str],
    change: RocmChange,
) -> Sequence[str]:
    """Drop the extras and requirements of targets that are not kept from the fields of core metadata.

    What the extra ``device`` requires, one target's package, becomes that of the first target that is kept.
    """
    if not change.targets:
        return lines

    kept_lines: list[str] = []
    for line in lines:
        field_name, _, value = line.partition(":")
        field_name = field_name.lower()
        value = value.strip()
        if field_name == "provides-extra" and value.startswith("device-gfx"):
            if change.keeps_target(value.removeprefix("device-")):
                kept_lines.append(line)
        elif field_name != "requires-dist" or change.keeps_requirement(value):
            kept_lines.append(line)
        elif _DEFAULT_EXTRA.search(value):
            kept_lines.append(_with_kept_target(line, value, lines, change))
    return kept_lines


# requires.txt


def edit_requires(content: bytes, change: RocmChange) -> bytes:
    """Change the requirements of a ``requires.txt`` like those of metadata."""
    lines = content.decode("utf-8", "surrogateescape").split("\n")
    for number, line in enumerate(lines):
        if not _SECTION.fullmatch(line):
            lines[number] = change_requirement(line, change)
    kept_lines = keep_requires_lines(lines, change)
    return "\n".join(kept_lines).encode("utf-8", "surrogateescape")


def keep_requires_lines(
    lines: Sequence[str],
    change: RocmChange,
) -> Sequence[str]:
    """Drop what is not kept from the lines of a ``requires.txt``, whose sections are the extras."""
    if not change.targets:
        return lines

    kept_lines: list[str] = []
    is_dropped = False  # the section of the line
    is_default = False
    for line in lines:
        if line.startswith("["):
            target_section = _TARGET_SECTION.fullmatch(line.strip())
            is_dropped = target_section is not None and not change.keeps_target(target_section["gpu"])
            is_default = _DEFAULT_SECTION.fullmatch(line.strip()) is not None
        if is_dropped:
            continue

        is_requirement = line.strip() != "" and not line.startswith(("[", "#"))
        if not is_requirement or change.keeps_requirement(line):
            kept_lines.append(line)
        elif is_default:
            kept_lines.append(_with_kept_target(line, line, lines, change))
    return kept_lines


def _with_kept_target(
    line: str,
    requirement: str,
    lines: Sequence[str],
    change: RocmChange,
) -> str:
    """Let the requirement of the extra ``device`` be on a kept target's package that the file names, too."""
    distribution = canonicalize_name(Requirement(requirement).name)
    prefix = distribution.removesuffix(device_target(distribution))
    for target in re.findall(rf"{re.escape(prefix)}(gfx[0-9a-z]+)", "\n".join(lines)):
        if target in change.targets:
            return line.replace(distribution, f"{prefix}{target}", 1)
    raise WheelError(f"It does not name {prefix} of {', '.join(change.targets)}.")


# _dist_info.py


def edit_dist_info(content: bytes, change: RocmChange) -> bytes:
    """Drop the targets that are not kept from a ``_dist_info.py``; the default becomes one that is."""
    kept_lines, targets_by_list = _keep_dist_info(content.decode().split("\n"), change)
    default_target = _default_target(targets_by_list)

    def replace_default(default: re.Match[str]) -> str:
        if change.keeps_target(default["gpu"]):
            return default[0]
        return repr(default_target)

    return "\n".join(_DEFAULT.sub(replace_default, line) for line in kept_lines).encode()


def _keep_dist_info(
    lines: Sequence[str],
    change: RocmChange,
) -> tuple[Sequence[str], Mapping[str, Sequence[str]]]:
    """Return the lines for kept targets, and the lists of targets that they have by name."""
    kept_lines: list[str] = []
    targets: dict[str, list[str]] = {}
    for line in lines:
        call = _APPEND.fullmatch(line)
        assignment = _LIST.fullmatch(line)
        if call is not None:
            if change.keeps_target(call["gpu"]):
                targets.setdefault(call["name"], []).append(call["gpu"])
                kept_lines.append(line)
        elif assignment is not None:
            kept_targets = _keep_targets(assignment["value"], change)
            targets[assignment["name"]] = list(kept_targets)
            kept_lines.append(f"{assignment['name']} = {kept_targets!r}")
        else:
            kept_lines.append(line)
    return kept_lines, targets


def _default_target(targets: Mapping[str, Sequence[str]]) -> str:
    """Return a target that each platform has; the first one where there is none."""
    available_targets = targets.get("AVAILABLE_TARGET_FAMILIES", ())
    if not available_targets:
        raise WheelError("It does not list a gfx target that is kept.")

    platform_lists: list[Sequence[str]] = []
    for name, platform_targets in targets.items():
        if name.startswith(("LINUX_", "WINDOWS_")) and platform_targets:
            platform_lists.append(platform_targets)
    for target in available_targets:
        if all(target in platform_targets for platform_targets in platform_lists):
            return target
    return available_targets[0]


def _keep_targets(text: str, change: RocmChange) -> TargetLists:
    """Leave what is not kept out of a list of targets, or of the lists of families."""
    try:
        lists: TargetLists = ast.literal_eval(text)
    except (ValueError, SyntaxError) as problem:
        raise WheelError(f"It lists gfx targets by a program, not by name: {text}.") from problem

    def is_kept(name: str) -> bool:
        target = _BITCODE.sub(r"gfx\1", name)
        # Files of another name are for every target.
        return not target.startswith("gfx") or change.keeps_target(target)

    if isinstance(lists, list):
        return list(filter(is_kept, lists))

    kept_lists: dict[str, list[str]] = {}
    for name, targets in lists.items():
        kept_targets = list(filter(is_kept, targets))
        if kept_targets:
            kept_lists[name] = kept_targets
    return kept_lists
