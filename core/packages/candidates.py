"""Candidates: wheels and sdists that a source offers for a requirement."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from email import message_from_bytes
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from core import files, http
from core.env.installer import configured_sources
from core.errors import ServiceError, StoreError, WheelError
from core.http import has_secret, open_url, remote_file, without_secret
from core.links import Link, links
from core.wheel import distributions, parse_name, parse_wheel_name, read_metadata

if TYPE_CHECKING:
    from core.run import Platform
    from core.run.records import FileRecord
    from core.stores import Store


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A wheel or sdist that a source offers.

    Attributes:
        name: The file's name.
        distribution: The normalised name of its distribution.
        version: Its version.
        sha256: Its digest; None where a page does not say it.
        key: Its key in the store of a run or of staging; None for one of a page, an index or a folder.
        url: Its address, or its path; None for one of a store.
        size: Its bytes; None where a page does not say them.
        requires_python: The Pythons that it is for; None for any.
        metadata_sha256: The digest of a recorded wheel's METADATA.
        yanked: Whether it is taken only where its version is named exactly (PEP 592).
    """

    name: str
    distribution: str
    version: str
    sha256: str | None = None
    key: str | None = None
    url: str | None = None
    size: int | None = None
    requires_python: str | None = None
    metadata_sha256: str | None = None
    yanked: bool = False

    @property
    def is_wheel(self) -> bool:
        """Whether it is a wheel, and no sdist."""
        return self.name.endswith(".whl")

    @property
    def build_tag(self) -> tuple[int, str] | tuple[()]:
        """The build tag of a wheel, by which wheels of one version are ordered (PEP 427)."""
        if not self.is_wheel:
            return ()
        return parse_wheel_name(self.name).build_tag

    @property
    def is_remote(self) -> bool:
        """Whether it has an address, and is no file of this machine or of a store."""
        return self.url is not None and "://" in self.url

    def require_digest(self) -> str:
        """Return its digest; `with_digest` computes the one that no page says."""
        if self.sha256 is None:
            raise WheelError(f"The digest of {self.name} is not known.")
        return self.sha256

    def require_url(self) -> str:
        """Return its address or path; a file of a store has none."""
        if self.url is None:
            raise WheelError(f"{self.name} has neither an address nor a path.")
        return self.url

    def fits(self, python_tag: str | None = None, platform: Platform | None = None) -> bool:
        """Return whether it is for a Python (``cp312``) and a platform; None stands for any."""
        if not self.is_wheel:
            return True
        if platform is not None and not distributions.on_platform(self.name, platform):
            return False
        if python_tag is None:
            return True

        for tag in parse_wheel_name(self.name).tags:
            if tag.abi in {python_tag, "abi3"}:
                return True
            if tag.abi == "none" and tag.interpreter in {"py3", python_tag}:
                return True
        return False

    def runs_on(self, python_version: str) -> bool:
        """Return whether its Requires-Python allows a version; an invalid one allows every version."""
        if self.requires_python is None:
            return True
        try:
            return SpecifierSet(self.requires_python).contains(python_version, prereleases=True)
        except InvalidSpecifier:
            return True

    def is_preferred_to(self, other: Candidate) -> bool:
        """Return whether installers take this file of a version before another: a wheel, a later build."""
        if self.is_wheel != other.is_wheel:
            return self.is_wheel
        return self.build_tag > other.build_tag

    def satisfies(self, specifier: SpecifierSet) -> bool:
        """Return whether its version is asked for; a yanked one, only where it is named exactly (PEP 592)."""
        if self.yanked and not any(
            clause.operator in {"==", "==="} and "*" not in clause.version for clause in specifier
        ):
            return False
        return specifier.contains(self.version, prereleases=True)


def candidate_of_record(record: FileRecord) -> Candidate:
    """Return a recorded file as a candidate."""
    return Candidate(
        name=record.name,
        distribution=record.distribution,
        version=record.version,
        sha256=record.sha256,
        key=record.key,
        size=record.size,
        requires_python=record.requires_python or None,
        metadata_sha256=record.metadata_sha256 or None,
    )


def candidates_on_page(text: str, page_location: str) -> Iterator[Candidate]:
    """Yield the files of ours that the page at an address or path links to."""
    location_parts = urlsplit(page_location)
    for href, link in links(text).items():
        url = urljoin(page_location, href)
        url_parts = urlsplit(url)
        # A page behind a password writes links to its own host without it.
        if has_secret(page_location) and url_parts.netloc == location_parts.netloc.rpartition("@")[2]:
            url = url_parts._replace(netloc=location_parts.netloc).geturl()
        candidate = candidate_named(link.name, url=url, link=link)
        if candidate is not None:
            yield candidate


def candidate_named(name: str, *, url: str, link: Link | None = None) -> Candidate | None:
    """Return the candidate that a file's name describes; None for files of others, which may lie beside."""
    if not distributions.is_distribution(name):
        return None
    try:
        parsed = parse_name(name)
    except WheelError:
        return None
    if not distributions.is_ours(parsed.distribution):
        return None

    candidate = Candidate(name=name, distribution=parsed.distribution, version=str(parsed.version), url=url)
    if link is None:
        return candidate
    return replace(
        candidate,
        sha256=link.sha256 or None,
        requires_python=link.requires_python or None,
        yanked=link.yanked,
    )


def with_digest(candidate: Candidate) -> Candidate:
    """Return a candidate with its digest, which is computed where no page says it."""
    if candidate.sha256 is not None:
        return candidate
    url = candidate.require_url()
    if candidate.is_remote:
        return replace(candidate, sha256=http.digest_of(url, cert=configured_sources().cert))
    return replace(candidate, sha256=files.sha256(Path(url)))


def pin_of(distribution: str, version: str, candidates: Sequence[Candidate]) -> str:
    """Return the line of a requirements file that takes one of a version's files, and no other one."""
    hashes = [f"--hash=sha256:{candidate.require_digest()}" for candidate in candidates]
    return " ".join((f"{distribution}=={version}", *hashes))


# --- What candidates require -----------------------------------------------------------------


def read_requirements(candidate: Candidate, store: Store | None = None) -> tuple[str, ...]:
    """Return what a wheel requires; nothing for an sdist, which decides that where it is installed.

    `store` is the one that has a candidate with a key.
    """
    if not candidate.is_wheel:
        return ()
    if store is not None and candidate.key is not None:
        return requirements_in(_read_sidecar(store, candidate))
    url = candidate.require_url()
    if candidate.is_remote:
        return requirements_in(remote_metadata(url, cert=configured_sources().cert))
    return requirements_in(read_metadata(Path(url)).raw)


def _read_sidecar(store: Store, candidate: Candidate) -> bytes:
    """Return the METADATA that lies beside a wheel of a store, compared with its record."""
    key = f"{candidate.key}{distributions.SIDECAR}"
    metadata = store.read(key)
    # Records of an earlier version name no digest.
    recorded_digest = candidate.metadata_sha256
    if recorded_digest is not None and hashlib.sha256(metadata).hexdigest() != recorded_digest:
        raise StoreError(f"{key} in {store.url} differs from its record.", hint="Upload the wheel again.")
    return metadata


def requirements_in(metadata: bytes) -> tuple[str, ...]:
    """Return the requirements that a METADATA file names."""
    return tuple(map(str, message_from_bytes(metadata).get_all("Requires-Dist", ())))


def remote_metadata(url: str, *, cert: str = "") -> bytes:
    """Return a remote wheel's METADATA: of its sidecar (PEP 658), else by ranges, else of the whole file."""
    # Most indexes have no sidecar.
    with suppress(ServiceError), open_url(f"{url}.metadata", cert=cert) as answer:
        metadata = bytes(answer.read())
        # A server may answer every address with a page, such as its login.
        if message_from_bytes(metadata)["Metadata-Version"] is not None:
            return metadata

    shown_url = without_secret(url)
    try:
        with zipfile.ZipFile(remote_file(url, cert=cert)) as archive:
            names = [name for name in archive.namelist() if re.fullmatch(r"[^/]*\.dist-info/METADATA", name)]
            if len(names) == 1:
                return archive.read(names[0])
    except zipfile.BadZipFile as problem:
        raise WheelError(f"{shown_url} is not a wheel: {problem}.") from problem
    raise WheelError(f"{shown_url} is not a wheel: it has no METADATA.")
