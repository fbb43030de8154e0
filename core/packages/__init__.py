"""Wheels and sdists on offer: a run's as records promise them, a page's as it lists them."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from email import message_from_bytes
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from core.errors import MissingInputError, ServiceError, StoreError, UsageError, WheelError
from core.families import CPU, group_families
from core.http import Link, has_secret, links, open_url, remote_file, without_secret
from core.run import Platform, RunOutputs, artifact_groups, records
from core.run.locations import STAGING
from core.stores import Store
from core.stores.location import open_store
from core.wheel import distributions, parse_name, parse_wheel_name

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

    from core.cli.options import Common


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """One artifact group of a run, where it was found."""

    store: Store
    outputs: RunOutputs
    name: str

    @property
    def prefix(self) -> str:
        """Key prefix of the group's wheels."""
        return self.outputs.python_prefix(self.name)

    @property
    def where(self) -> str:
        """The place, as messages show it."""
        return f"{self.store.url}/{self.prefix}"

    @property
    def family(self) -> str:
        """The GPU families that the group is for, joined by ``;``; "" for none."""
        found = group_families(self.name)
        return "" if found == CPU else found


@dataclass(frozen=True, kw_only=True)
class StagedGroup:
    """The wheels of an artifact group that a distribution store has up for testing."""

    store: Store
    name: str

    @property
    def prefix(self) -> str:
        """Key prefix of the wheels."""
        return f"{STAGING}/{self.name}"

    @property
    def page_key(self) -> str:
        """Key of the flat page, for ``pip --find-links``."""
        return f"{self.prefix}/index.html"

    @property
    def where(self) -> str:
        """The place, as messages show it."""
        return f"{self.store.url}/{self.prefix}"

    def offers(self) -> tuple[Offer, ...]:
        """List the files that the flat page links to, each with its key; no page is an error."""
        if self.store.find(self.page_key) is None:
            raise MissingInputError(
                f"Nothing is staged in {self.where}.",
                hint="Stage the run first: nox -s stage (same --run-id, --store and --release-type).",
            )
        page = self.store.read(self.page_key).decode()
        return tuple(
            replace(offer, key=f"{self.prefix}/{offer.name}") for offer in offers_of_page(page, self.page_key)
        )


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A wheel or sdist that a source offers: by its address or path, or in a store by its key.

    What a page does not say is "" or 0; one that is `yanked` (PEP 592) is taken only by its exact version.
    """

    name: str
    distribution: str
    version: str
    sha256: str = ""
    key: str = ""
    size: int = 0
    requires_python: str = ""
    yanked: bool = False
    metadata_sha256: str = ""
    url: str = ""


def find_group(common: Common, group: str) -> RunGroup:
    """Find a group of a run ("" for the only one), in the named store, else in the bucket of CI's runs."""
    looked_at, hint = [], ""
    for store, outputs in _places(common):
        try:
            found = artifact_groups(store, outputs, group)
        except MissingInputError as missing:
            looked_at.append(f"{store.url}/{outputs.prefix}")
            hint = missing.hint
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
        hint=hint or "Name another run, --artifact-group or --store.",
    )


def _places(common: Common) -> Iterator[tuple[Store, RunOutputs]]:
    """Return the places to look in, one at a time: the named store, then the bucket of CI's runs."""
    for location in filter(None, (common.store, common.read_store)):
        store = open_store(location, root=common.root)
        for external_repo in dict.fromkeys((common.external_repo, "")):
            yield store, replace(common.outputs, external_repo=external_repo)


def offered(group: RunGroup) -> tuple[Offer, ...]:
    """List what successful stages recorded for a group, by file name; nothing recorded is an error."""
    by_key: dict[str, dict[str, records.FileRecord]] = {}
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


def offer_of(one: records.FileRecord) -> Offer:
    """Return a recorded file as one on offer."""
    return Offer(**one.model_dump(exclude={"license"}))


def offers_of_page(text: str, page: str) -> Iterator[Offer]:
    """List the files of ours that the page at an address links to."""
    here = urlsplit(page)
    for href, link in links(text).items():
        url = urljoin(page, href)
        there = urlsplit(url)
        if has_secret(page) and there.netloc == here.netloc.rpartition("@")[2]:
            url = there._replace(netloc=here.netloc).geturl()
        yield from offers_named(link.name, url=url, link=link)


def offers_named(name: str, *, url: str, link: Link | None = None) -> Iterator[Offer]:
    """Read what a file's name says, if it is one of ours; other files may lie beside them."""
    if not distributions.is_distribution(name):
        return
    try:
        parsed = parse_name(name)
    except WheelError:
        return
    if distributions.is_ours(parsed.distribution):
        yield Offer(
            name=name,
            distribution=parsed.distribution,
            version=str(parsed.version),
            url=url,
            sha256=link.sha256 if link else "",
            requires_python=link.requires_python if link else "",
            yanked=bool(link and link.yanked),
        )


def required_by(store: Store, one: Offer) -> tuple[str, ...]:
    """Read what a wheel of a run requires from its sidecar; an sdist decides that where it is installed."""
    if not one.name.endswith(".whl"):
        return ()
    key = f"{one.key}{distributions.SIDECAR}"
    raw = store.read(key)
    # records of an earlier version name no digest
    if one.metadata_sha256 and hashlib.sha256(raw).hexdigest() != one.metadata_sha256:
        raise StoreError(f"{key} in {store.url} differs from its record.", hint="Upload the wheel again.")
    return requirements_in(raw)


def requirements_in(metadata: bytes) -> tuple[str, ...]:
    """Return the requirements that a METADATA file names."""
    return tuple(str(line) for line in message_from_bytes(metadata).get_all("Requires-Dist", ()))


def remote_metadata(url: str, *, cert: str = "") -> bytes:
    """Read a remote wheel's METADATA: of its sidecar (PEP 658), else by ranges, else of the whole file."""
    # most indexes have none
    with suppress(ServiceError), open_url(f"{url}.metadata", cert=cert) as answer:
        return bytes(answer.read())
    shown = without_secret(url)
    try:
        with zipfile.ZipFile(remote_file(url, cert=cert)) as archive:
            found = [one for one in archive.namelist() if re.fullmatch(r"[^/]*\.dist-info/METADATA", one)]
            if len(found) == 1:
                return archive.read(found[0])
    except zipfile.BadZipFile as problem:
        raise WheelError(f"{shown} is not a wheel: {problem}.") from problem
    raise WheelError(f"{shown} is not a wheel: it has no METADATA.")


def takes(wanted: SpecifierSet, one: Offer) -> bool:
    """Return whether a file's version is wanted; a yanked one, only where it is named exactly (PEP 592)."""
    exact = any(part.operator in {"==", "==="} and "*" not in part.version for part in wanted)
    return wanted.contains(one.version, prereleases=True) and (exact or not one.yanked)


def fits(one: Offer, python_tag: str, platform: Platform | None = None) -> bool:
    """Return whether a file is for a Python (``cp312``; "" for any) and a platform; an sdist is for all."""
    if not one.name.endswith(".whl") or (platform and not distributions.on_platform(one.name, platform)):
        return not one.name.endswith(".whl")
    return not python_tag or any(
        tag.abi in {python_tag, "abi3"} or (tag.abi == "none" and tag.interpreter in {"py3", python_tag})
        for tag in parse_wheel_name(one.name).tags
    )
