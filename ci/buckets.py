"""Which bucket, and which folder of it, holds the outputs of a run."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from core.data import Model, load_toml
from core.errors import UsageError, nearest

BUCKETS_FILE = Path(__file__).with_name("buckets.toml")
_REPOSITORY = re.compile(r"(?P<owner>[A-Za-z0-9-]+)/(?P<name>[A-Za-z0-9._-]+)")


class ReleaseType(Model):
    """The buckets of a release type.

    Attributes:
        bucket: Where runs of the main repository leave their outputs.
        external_bucket: Where those of forks and other repositories do; "" for the same one.
    """

    bucket: str
    external_bucket: str = ""


class Distribution(Model):
    """Where wheels of a release type are handed out from.

    Attributes:
        bucket: The S3 bucket.
    """

    bucket: str


class Buckets(Model):
    """What `buckets.toml` says.

    Attributes:
        repository: The main repository, ``{owner}/{name}``.
        workflow: File name of its workflow whose runs build artifacts.
        region: The buckets' region.
        release_types: Buckets by release type.
        distributions: Distribution buckets by release type; ``ci`` has none.
    """

    repository: str
    workflow: str
    region: str
    release_types: dict[str, ReleaseType]
    distributions: dict[str, Distribution]


@dataclass(frozen=True, kw_only=True)
class Location:
    """Where a run's outputs lie.

    Attributes:
        bucket: The S3 bucket.
        external_repo: ``{owner}-{repo}/`` in a bucket that several repositories share, else empty.
    """

    bucket: str
    external_repo: str


@functools.cache
def buckets() -> Buckets:
    """Read the data file."""
    return load_toml(BUCKETS_FILE, Buckets)


def location(data: Buckets, repository: str, *, fork: bool, release_type: str) -> Location:
    """Say where the outputs of a repository's run lie.

    Args:
        data: The buckets there are.
        repository: ``{owner}/{name}`` of the repository that the run belongs to.
        fork: Whether the run built a commit of a fork of it.
        release_type: The run's release type.

    Raises:
        UsageError: The repository is named otherwise, or no bucket holds such runs.
    """
    match = _REPOSITORY.fullmatch(repository)
    if match is None:
        raise UsageError(f"{repository!r} is no repository.", hint="Write it as owner/name.")
    chosen = data.release_types.get(release_type)
    if chosen is None:
        raise UsageError(
            f"No bucket holds artifacts of release type {release_type!r}. "
            f"{nearest(release_type, data.release_types)}",
            hint="Releases are promoted from a prerelease's outputs; name its release type.",
        )
    # GitHub takes repository names in any case
    own = repository.casefold() == data.repository.casefold() and not fork
    if own or not chosen.external_bucket:
        return Location(bucket=chosen.bucket, external_repo="")
    return Location(bucket=chosen.external_bucket, external_repo=f"{match['owner']}-{match['name']}/")


def distribution_store(data: Buckets, release_type: str) -> str:
    """Name the store that releases of a type are handed out from, as ``s3://{bucket}``.

    Raises:
        UsageError: The release type has none.
    """
    chosen = data.distributions.get(release_type)
    if chosen is None:
        raise UsageError(
            f"Wheels of release type {release_type!r} are handed out from nowhere.",
            hint=f"Give --release-type ({', '.join(data.distributions)}), or a store with "
            "--distribution-store.",
        )
    return f"s3://{chosen.bucket}"
