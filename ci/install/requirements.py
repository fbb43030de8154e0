"""Requirements as people ask for them, and the versions of ours that they come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from core.errors import MissingInputError, UsageError, nearest
from core.wheel.distributions import is_ours

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.packages import Offer


def parse_requirements(words: Sequence[str]) -> tuple[Requirement, ...]:
    """Read requirements as people write them: in one word or several, separated by spaces."""
    found = []
    for word in (part for one in words for part in one.split()):
        try:
            found.append(Requirement(word))
        except InvalidRequirement as problem:
            raise UsageError(
                f"--packages: {word!r} is no requirement.",
                hint="Write them as in --packages 'rocm[libraries,devel]==7.1 torch', without spaces inside.",
            ) from problem
    if not found:
        raise UsageError("--packages is empty.", hint="Name packages: --packages 'rocm[libraries] torch'.")
    return tuple(found)


def pinned(
    requirements: Sequence[Requirement], offers: Sequence[Offer], *, newest: bool = False
) -> tuple[str, ...]:
    """Pin requirements to the versions on offer; those of others' distributions stay as they are."""
    return tuple(_pinned(one, offers, newest=newest) for one in requirements)


def _pinned(requirement: Requirement, offers: Sequence[Offer], *, newest: bool) -> str:
    name = canonicalize_name(requirement.name)
    held = sorted({Version(one.version) for one in offers if one.distribution == name})
    if not held:
        if is_ours(name):
            known = nearest(name, [one.distribution for one in offers])
            raise MissingInputError(f"There is no {name} for this Python. {known}")
        return str(requirement)
    if requirement.url:
        raise UsageError(f"{requirement.name} is to come from the index, not from {requirement.url}.")
    fitting = [one for one in held if requirement.specifier.contains(one, prereleases=True)]
    versions = ", ".join(str(one) for one in held)
    if not fitting:
        raise MissingInputError(f"There is no {requirement}, but {name} {versions}.")
    if len(fitting) > 1 and not newest:
        raise UsageError(
            f"The run has several versions of {name}: {versions}.",
            hint=f"Name one, such as {name}=={fitting[-1]}.",
        )
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}{extras}=={fitting[-1]}{marker}"
