"""A run's wheels and sdists as its records promise them: found, chosen, pinned."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from email import message_from_bytes
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ci.groups import artifact_groups
from ci.mirror_data import mirror
from core import records, stores, wheels
from core.distributions import SIDECAR
from core.errors import MissingInputError, StoreError, UsageError, nearest
from core.families import CPU, group_families

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from core.options import Common
    from core.outputs import RunOutputs
    from core.records import FileRecord
    from core.stores import Store


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """One artifact group of a run, where it was found.

    Attributes:
        store: The store.
        outputs: The run's paths in it.
        name: The group.
    """

    store: Store
    outputs: RunOutputs
    name: str

    @property
    def prefix(self) -> str:
        """Key prefix of the group's wheels."""
        return self.outputs.python_prefix(self.name)

    @property
    def where(self) -> str:
        """The place, for people."""
        return f"{self.store.url}/{self.prefix}"

    @property
    def family(self) -> str:
        """The GPU families that the group is for, joined by ``;``; "" for none."""
        found = group_families(self.name)
        return "" if found == CPU else found


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A wheel or sdist that a run or a page offers.

    Attributes:
        name: File name.
        distribution: Normalised distribution name.
        version: Its version.
        sha256: Hex SHA-256; "" where a page does not say.
        key: Its key in the store; "" for a page's.
        size: Bytes; 0 where a page does not say.
        requires_python: A wheel's Requires-Python; "" for none.
        metadata_sha256: Hex SHA-256 of a wheel's sidecar; "" where there is none.
        url: Its address, for a page's.
    """

    name: str
    distribution: str
    version: str
    sha256: str = ""
    key: str = ""
    size: int = 0
    requires_python: str = ""
    metadata_sha256: str = ""
    url: str = ""


def find_group(common: Common, group: str) -> RunGroup:
    """Find a group of a run: in the store that is named, else in the bucket of the run's repository.

    Args:
        common: Names the run and the store.
        group: The group; "" for the only one that the run has.

    Raises:
        MissingInputError: No store has wheels of the run, or of the group.
        UsageError: The run has several groups and none was named.
    """
    looked_at, problem = [], None
    for store, outputs in _places(common):
        try:
            found = artifact_groups(store, outputs, group)
        except MissingInputError as missing:
            looked_at.append(f"{store.url}/{outputs.prefix}")
            problem = missing
            continue
        if len(found) > 1:
            raise UsageError(
                f"Run {outputs.run_id} has the groups {', '.join(found)}.",
                hint="Choose one with --artifact-group.",
            )
        return RunGroup(store=store, outputs=outputs, name=found[0])
    what = f"group {group} of run {common.run_id}" if group else f"run {common.run_id}"
    raise MissingInputError(
        f"There are no wheels of {what} in {' nor in '.join(dict.fromkeys(looked_at))}.",
        hint=(problem.hint if problem else "") or "Name another run, --artifact-group or --store.",
    )


def _places(common: Common) -> Iterator[tuple[Store, RunOutputs]]:
    """Give the places to look in, one at a time: the named store, then the bucket of CI's runs."""
    for location in filter(None, (common.store, common.read_store)):
        store = stores.open_store(location, root=common.root)
        for external_repo in dict.fromkeys((common.external_repo, "")):
            yield store, replace(common.outputs, external_repo=external_repo)


def offered(group: RunGroup) -> tuple[Offer, ...]:
    """List what successful stages recorded for a group, by file name.

    Raises:
        MissingInputError: Nothing is recorded.
        StoreError: A recorded file of the local run differs from each of its records.
    """
    by_key: dict[str, dict[str, FileRecord]] = {}
    for record in records.read_all(group.store, group.outputs, group.name):
        for one in record.files if record.status == "ok" else ():
            if one.distribution:
                by_key.setdefault(one.key, {})[one.sha256] = one
    found = []
    for key, versions in by_key.items():
        # a file of the local run may have been made twice: the last one lies there
        digest = next(iter(versions)) if len(versions) == 1 else group.store.digest(key)
        found += [versions[digest]] if digest in versions else []
    if not found:
        raise MissingInputError(
            f"No record of group {group.name} names a wheel in {group.store.url}/{group.outputs.prefix}.",
            hint="Put the wheels there with nox -s upload, which records them.",
        )
    return tuple(sorted((offer_of(one) for one in found), key=lambda one: one.name))


def offer_of(one: FileRecord) -> Offer:
    """Give a recorded file as one on offer."""
    return Offer(
        name=one.name,
        distribution=one.distribution,
        version=one.version,
        sha256=one.sha256,
        key=one.key,
        size=one.size,
        requires_python=one.requires_python,
        metadata_sha256=one.metadata_sha256,
    )


def required_by(store: Store, one: Offer) -> tuple[str, ...]:
    """Read what a wheel requires, from its sidecar; an sdist decides that where it is installed.

    Raises:
        MissingInputError: The sidecar is not there.
        StoreError: It differs from its record.
    """
    if not one.name.endswith(".whl"):
        return ()
    key = f"{one.key}{SIDECAR}"
    raw = store.read(key)
    # records of an earlier version name no digest
    if one.metadata_sha256 and hashlib.sha256(raw).hexdigest() != one.metadata_sha256:
        raise StoreError(f"{key} in {store.url} differs from its record.", hint="Upload the wheel again.")
    return tuple(str(line) for line in message_from_bytes(raw).get_all("Requires-Dist", ()))


def fits(one: Offer, python_tag: str) -> bool:
    """Say whether a file is for a Python, given by its ABI tag such as ``cp312``; an sdist is for all."""
    if not one.name.endswith(".whl"):
        return True
    return any(
        tag.abi in {python_tag, "abi3"} or (tag.abi == "none" and tag.interpreter in {"py3", python_tag})
        for tag in wheels.parse_wheel_name(one.name).tags
    )


def parse_requirements(words: Sequence[str]) -> tuple[Requirement, ...]:
    """Read requirements as people write them: in one word or several, separated by spaces.

    Raises:
        UsageError: One is no requirement, or there is none.
    """
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
    """Pin requirements to the versions on offer; those of others' distributions stay as they are.

    Args:
        requirements: What is asked for.
        offers: What is there for the Python.
        newest: Take the newest of several versions, instead of asking which is meant.

    Raises:
        MissingInputError: A distribution of ours, or the version asked for, is not in the run.
        UsageError: The run has several versions that would do, or an address is given for one of ours.
    """
    return tuple(_pinned(one, offers, newest=newest) for one in requirements)


def _pinned(requirement: Requirement, offers: Sequence[Offer], *, newest: bool) -> str:
    name = canonicalize_name(requirement.name)
    held = sorted({Version(one.version) for one in offers if one.distribution == name})
    if not held:
        if mirror().is_ours(name):
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


def constraints(offers: Sequence[Offer]) -> tuple[str, ...]:
    """Hold each distribution that is offered in one version to that version, whoever requires it."""
    versions: dict[str, set[str]] = {}
    for one in offers:
        versions.setdefault(one.distribution, set()).add(one.version)
    return tuple(f"{name}=={next(iter(held))}" for name, held in sorted(versions.items()) if len(held) == 1)
