"""What the source lock promised of a wheel, compared with what the wheel says of itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from core.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.tags import Tag

    from pytorch_build.check.findings import Finding
    from pytorch_build.check.view import Expectation, WheelView

CHECK = "expected"
_CPYTHON = re.compile(r"cp3(\d+)t?")


def check(view: WheelView, expectation: Expectation) -> Iterator[Finding]:
    """Compare distribution, version, Python tag and requirements."""
    if canonicalize_name(expectation.distribution) != view.name.distribution:
        message = f"This is {view.name.distribution}; {expectation.distribution} is expected."
        yield view.finding("error", CHECK, message)
    if _version(expectation) != view.name.version:
        message = f"The version is {view.name.version}; {expectation.version} is expected."
        yield view.finding("error", CHECK, message)
    wanted = expectation.python_tag
    if wanted and not any(fits(tag, wanted) for tag in view.name.tags):
        found = ", ".join(sorted({f"{tag.interpreter}-{tag.abi}" for tag in view.name.tags}))
        yield view.finding("error", CHECK, f"The wheel is for {found}; {wanted} is expected.")
    if view.metadata is not None:
        for text in expectation.requires:
            yield from _check_requirement(view, _requirement(text))


def fits(tag: Tag, wanted: str) -> bool:
    """Whether a wheel's tag is right for a Python tag."""
    interpreter, _, abi = wanted.partition("-")
    abi = abi or interpreter
    if tag.interpreter in {"py3", f"py{interpreter[2:3]}"}:
        return tag.abi == "none"
    if tag.abi == "abi3":
        # The stable ABI holds for this and later versions, not for free-threaded ones (PEP 703).
        return not abi.endswith("t") and _minor(tag.interpreter) <= _minor(interpreter)
    return tag.interpreter == interpreter and tag.abi in {abi, "none"}


def _minor(interpreter: str) -> int:
    found = _CPYTHON.fullmatch(interpreter)
    return int(found.group(1)) if found else 1000


def _check_requirement(view: WheelView, wanted: Requirement) -> Iterator[Finding]:
    stated = [
        requirement
        for requirement in _stated(view)
        if canonicalize_name(requirement.name) == canonicalize_name(wanted.name)
    ]
    if any(_same(requirement, wanted) for requirement in stated):
        return
    if not stated:
        yield view.finding("error", CHECK, f"METADATA does not require {wanted}.")
        return
    found = ", ".join(sorted(str(requirement) for requirement in stated))
    yield view.finding("error", CHECK, f"METADATA requires {found}; {wanted} is expected.")


def _stated(view: WheelView) -> Iterator[Requirement]:
    for text in view.metadata.requires_dist if view.metadata else ():
        try:
            yield Requirement(text)
        except InvalidRequirement:
            continue  # `check_archive` reports it


def _same(stated: Requirement, wanted: Requirement) -> bool:
    """Whether METADATA asks for what is wanted; it may ask for more extras, never under a condition."""
    if stated.marker is not None and wanted.marker is None and not stated.marker.evaluate():
        return False
    extras = {canonicalize_name(extra) for extra in stated.extras}
    return stated.specifier == wanted.specifier and extras >= {
        canonicalize_name(extra) for extra in wanted.extras
    }


def _version(expectation: Expectation) -> Version:
    try:
        return Version(expectation.version)
    except InvalidVersion as problem:
        raise DataError(f"The expected version {expectation.version!r} is no version.") from problem


def _requirement(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement as problem:
        raise DataError(f"The expected requirement {text!r} cannot be read: {problem}.") from problem
