"""Locks of requirements, whole or in part, and the files that they are installed from."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from core import console, files
from core.cli.options import Common
from core.env import Interpreter
from core.env.installer import InstallerCall
from core.errors import DataError, nearest

BUILDS = "target"  # what builds need
TORCH_TESTS = "torch-tests"  # what upstream's own tests need besides torch

_PINNED = re.compile(r"(?m)^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[^]]*\])?==.*(\n +.*)*")
# What a requirement is there for, as pip-compile and uv note it: it says what a part needs to be whole.
_PARENT = re.compile(r"(?m)^ +#(?: via|  ) +([^\s-]\S*)$")


@dataclass(frozen=True, kw_only=True)
class LockedRequirement:
    """One requirement of a lock.

    Attributes:
        name: The normalised name of the distribution.
        text: Its lines, with the digests of its files.
        parents: The distributions that it is there for.
    """

    name: str
    text: str
    parents: tuple[str, ...]


def target_lock(
    common: Common,
    target: Interpreter,
    lock: str = BUILDS,
) -> Path | None:
    """Return the lock of requirements for a platform and Python; None for a Python without one.

    A free-threaded Python has the lock of the other one: same versions, with the files of both hashed.
    """
    series = target.series.removesuffix("t")
    platform = common.outputs.platform
    folder = common.root / "requirements"
    path = folder / f"{lock}-{platform}-{series}.txt"
    if not path.is_file():
        return None
    return path


def locked_call(
    common: Common,
    target: Interpreter,
    *,
    only: Collection[str] = (),
    replaced: Collection[str] = (),
    lock: str = BUILDS,
) -> InstallerCall:
    """Plan the installation of locked requirements; of unlocked ones for a Python that has no lock.

    Args:
        common: Where the locks lie.
        target: The interpreter that they are installed for.
        only: Those to take, with what they require; none for all.
        replaced: Requirements that take the place of locked ones of the same name.
        lock: Which lock.
    """
    path = target_lock(common, target, lock)
    if path is None:
        console.warn(f"There is no lock for Python {target.series}; what {lock}.in lists is not pinned.")
        if only:
            return InstallerCall(requirements=tuple(only))
        unlocked = common.root / "requirements" / f"{lock}.in"
        return InstallerCall(files=(unlocked,))

    if not only and not replaced:
        return InstallerCall(files=(path,), hashed=True)

    text = path.read_text(encoding="utf-8")
    if only:
        text = subset(text, only)
    replaced_names = [Requirement(requirement).name for requirement in replaced]
    text = without(text, replaced_names)
    part = write_requirements(common.cache / "locks", lock, text)
    return InstallerCall(files=(part,), hashed=True)


def parse_lock(text: str) -> Sequence[LockedRequirement]:
    """Return a lock's requirements, in their order."""
    requirements: list[LockedRequirement] = []
    for match in _PINNED.finditer(text):
        text_of_requirement = match[0]
        requirement = LockedRequirement(
            name=canonicalize_name(match["name"]),
            text=text_of_requirement,
            parents=tuple(_parents(text_of_requirement)),
        )
        requirements.append(requirement)
    return requirements


def _parents(text_of_requirement: str) -> Iterator[str]:
    """Yield the normalised names of the distributions that a requirement is there for."""
    for parent in _PARENT.findall(text_of_requirement):
        name, _bracket, _extras = parent.partition("[")
        yield canonicalize_name(name)


def subset(text: str, roots: Collection[str]) -> str:
    """Return the part of a lock that has some distributions and all that is there for their sake."""
    requirements = parse_lock(text)
    locked_names = {requirement.name for requirement in requirements}
    names: set[str] = {canonicalize_name(root) for root in roots}
    unknown_names = sorted(names - locked_names)
    if unknown_names:
        name = unknown_names[0]
        suggestion = nearest(name, locked_names)
        raise DataError(f"The lock has no {name!r}. {suggestion}", hint="Run nox -s lock.")

    has_grown = True
    while has_grown:
        children = {
            requirement.name for requirement in requirements if names.intersection(requirement.parents)
        }
        has_grown = not children <= names
        names |= children
    return _join(requirement for requirement in requirements if requirement.name in names)


def without(text: str, names: Collection[str]) -> str:
    """Return a lock without some distributions, of which the caller needs other versions."""
    unwanted = {canonicalize_name(name) for name in names}
    return _join(requirement for requirement in parse_lock(text) if requirement.name not in unwanted)


def write_requirements(
    folder: Path,
    name: str,
    text: str,
) -> Path:
    """Write a requirements file, and return its path: it has the digest, so no other text is ever there."""
    digest = files.sha256_text(text)
    path = folder / f"{name}-{digest[:16]}.txt"
    files.write_text(path, text)
    return path


def _join(requirements: Iterable[LockedRequirement]) -> str:
    return "".join(f"{requirement.text}\n" for requirement in requirements)
