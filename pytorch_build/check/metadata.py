"""METADATA and entry points: what they say of the wheel, and whether installers can read them.

METADATA is judged whole by `packaging.metadata` (PEP 440, 508, 639, 643, 685), entry points are read by
`importlib.metadata`. Fields that are newer than both are no errors: installers skip them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, EntryPoint
from typing import TYPE_CHECKING

from packaging.metadata import InvalidMetadata, Metadata, parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from pytorch_build.check import error, warning

if TYPE_CHECKING:
    from importlib.metadata._meta import SimplePath
    from os import PathLike

    from core.wheel import WheelMetadata
    from pytorch_build.check import Finding, WheelView

_KNOWN_MAJOR_VERSION = "2"
# importlib.metadata's own rule of what an entry point names, of which it makes no error.
_OBJECT = re.compile(r"(?P<module>[\w.]+)\s*(:\s*(?P<attribute>[\w.]+)\s*)?(\[.*\]\s*)?")
SCRIPT_GROUPS = ("console_scripts", "gui_scripts")
_SCRIPT_NAME = re.compile(r"[^/\\\s][^/\\]*")


def check(view: WheelView) -> Iterator[Finding]:
    """Yield findings on a wheel's METADATA and entry_points.txt."""
    if view.metadata is not None:
        yield from _compare_with_file_name(view, view.metadata)
        for fault in invalid_fields(view.metadata.raw):
            yield error(f"METADATA has an invalid {fault.field.title()}: {fault}.")
        yield from _find_direct_references(view.metadata)
        if not view.metadata.license:
            message = "METADATA names no licence: neither License-Expression nor License, and no classifier."
            yield warning(message)
    yield from _find_invalid_entry_points(view)


def _compare_with_file_name(view: WheelView, metadata: WheelMetadata) -> Iterator[Finding]:
    """Yield findings where METADATA or the ``.dist-info`` folder contradicts the file name."""
    name = view.name
    if canonicalize_name(metadata.name) != name.distribution:
        yield error(f"METADATA is that of {metadata.name}, the file name that of {name.distribution}.")
    if metadata.version != name.version:
        yield error(f"METADATA says version {metadata.version}, the file name {name.version}.")

    # uv looks for the folder by this name where it removes a distribution.
    expected_folder = "-".join(name.filename.split("-")[:2]) + ".dist-info"
    for folder in sorted({name.partition("/")[0] for name in view.members}):
        if folder.endswith(".dist-info") and folder != expected_folder:
            yield warning(f"Its folder is {folder}; the file name says {expected_folder}.")


def invalid_fields(raw: bytes) -> list[InvalidMetadata]:
    """Return the errors that `packaging` finds in METADATA, but for those that installers skip."""
    fields, _unparsed = parse_email(raw)
    is_newer = fields.get("metadata_version", "").partition(".")[0] == _KNOWN_MAJOR_VERSION
    faults: list[InvalidMetadata] = []
    try:
        Metadata.from_email(raw, validate=True)
    except ExceptionGroup as group:
        for fault in group.exceptions:
            # setuptools wrote License-File before a version of the format had it, and everybody reads that.
            is_skipped = re.search("unrecognized field|introduced in metadata version", str(fault))
            if not isinstance(fault, InvalidMetadata) or is_skipped:
                continue
            if fault.field != "metadata-version" or not is_newer:
                faults.append(fault)
    return faults


def _find_direct_references(metadata: WheelMetadata) -> Iterator[Finding]:
    """Yield an error for each requirement by URL (direct reference), which indexes refuse."""
    for text in metadata.requires_dist:
        try:
            url = Requirement(text).url
        except InvalidRequirement:
            continue  # the field is invalid
        if url:
            yield error(f"Requires-Dist {text!r} is a direct reference, which indexes refuse.")


class _EntryPointsFile(Distribution):
    """A distribution of which only entry_points.txt is there, for the standard library's reader."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "entry_points.txt" else None

    def locate_file(self, path: str | PathLike[str]) -> SimplePath:
        raise NotImplementedError(path)


def read_entry_points(text: str) -> tuple[EntryPoint, ...]:
    """Return the entry points that the text of entry_points.txt names; none where it cannot be read."""
    try:
        return _parse_entry_points(text)
    except ValueError:
        return ()


def _parse_entry_points(text: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a text; raise a ValueError for a line that is none."""
    first_line = text.strip().partition("\n")[0]
    if first_line and not first_line.startswith(("[", "#", ";")):
        raise ValueError(f"{first_line!r} is in no group")
    try:
        return tuple(_EntryPointsFile(text).entry_points)
    except TypeError as problem:  # of the standard library, for a line without a value
        raise ValueError("a line names no object") from problem


def _find_invalid_entry_points(view: WheelView) -> Iterator[Finding]:
    """Yield findings on entry points that cannot be read, name no object or appear twice."""
    try:
        entry_points = _parse_entry_points(view.entry_points)
    except ValueError as problem:
        yield error(f"entry_points.txt cannot be read: {problem}.")
        return

    names: set[tuple[str, str]] = set()
    for entry_point in entry_points:
        text = f"{entry_point.name} = {entry_point.value}"
        fault = _fault_of_entry_point(entry_point)
        if fault is not None:
            yield error(f"Entry point {text!r} of {entry_point.group}: {fault}.")
        if (entry_point.group, entry_point.name) in names:
            yield warning(f"Entry point {text!r} of {entry_point.group}: its group has the name twice.")
        names.add((entry_point.group, entry_point.name))


def _fault_of_entry_point(entry_point: EntryPoint) -> str | None:
    """Return what is wrong with an entry point, in words; None for a correct one."""
    match = _OBJECT.fullmatch(entry_point.value)
    if match is None:
        return "it names neither a module nor an object of one"
    if entry_point.group not in SCRIPT_GROUPS:
        return None
    if match["attribute"] is None:
        return "a script needs a function, as in module:function"
    if not _SCRIPT_NAME.fullmatch(entry_point.name):
        return "the name of a script may hold no slash"
    return None
