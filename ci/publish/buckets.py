"""Who writes run outputs, and where wheels are distributed from. Where runs lie: `core.run.locations`."""

from collections.abc import Collection, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator

from core.cli.options import RELEASE_TYPES
from core.data import Model, data_file
from core.errors import UsageError, nearest
from core.run.locations import BUCKETS_FILE, Origin, RunBucket, RunBuckets, is_own, location
from core.run.plan import Upload


def one_of(name: str, known: Collection[str]) -> str:
    """Refuse a name of the data that is not known."""
    if name not in known:
        raise ValueError(f"{name!r} is not known. {nearest(name, known)}")
    return name


ReleaseName = Annotated[str, AfterValidator(lambda name: one_of(name, RELEASE_TYPES))]


class ReleaseType(RunBucket, extra="forbid"):
    """The buckets of a release type, and who writes to them."""

    role: str = ""
    external_role: str = ""
    pages: Literal["client", "server"] = "client"


class Distribution(Model):
    """Where wheels of a release type are distributed from: a bucket or a folder; `samples`: the sample's."""

    bucket: str = ""
    folder: str = ""
    samples: bool = False


class Products(Model):
    """Where upstream distributes what it builds."""

    bucket: str
    role: str
    folder: str
    index: str
    streams: dict[str, str]
    distributions: dict[str, tuple[str, ...]]


class Maintenance(Model):
    """Who keeps the buckets in order, with ``{type}``, the release type."""

    mirror_role: str
    retention_role: str


class Buckets(RunBuckets, extra="forbid"):
    """What `buckets.toml` says."""

    region: str
    release_types: Mapping[ReleaseName, ReleaseType]
    maintenance: Maintenance
    products: Products
    distributions: dict[ReleaseName, Distribution]


buckets = data_file(BUCKETS_FILE, Buckets)


def access(data: Buckets, origin: Origin, release_type: str) -> Upload:
    """Return where a run of a repository writes, and as which role."""
    place = location(data, origin, release_type)
    chosen = data.release_types[release_type]
    role = chosen.role if is_own(data, origin) or not chosen.external_bucket else chosen.external_role
    # GitHub gives a pull request from a fork no identity that a role could be assumed with
    role = "" if origin.fork else role
    return Upload(store=place.store, external_repo=place.external_repo, role=role, region=data.region)


def server_writes_pages(data: Buckets, store: str) -> bool:
    """Whether the pages of runs in a store are left to the server behind its bucket."""
    return any(
        store.rstrip("/") in {f"s3://{chosen.bucket}", f"s3://{chosen.external_bucket}"}
        for chosen in data.release_types.values()
        if chosen.pages == "server"
    )


def takes_samples(data: Buckets, release_type: str) -> bool:
    """Whether wheels of the sample are released so, and no others."""
    return release_type in data.distributions and data.distributions[release_type].samples


def distribution_store(data: Buckets, release_type: str, named: str = "") -> str:
    """Return the store that releases of a type are distributed from: ``s3://{bucket}``, a folder, or `named`.

    A bucket that the data has for another release type, or for runs, is refused.
    """
    chosen = data.distributions.get(release_type)
    taken = {one.bucket for one in data.distributions.values() if one != chosen}
    taken |= {name for one in data.release_types.values() for name in (one.bucket, one.external_bucket)}
    if named.startswith("s3://") and named.split("/")[2] in taken:
        raise UsageError(
            f"{named} is the bucket of another release type, or of runs: no place for type {release_type}.",
            hint="Correct --release-type or --distribution-store.",
        )
    if named:
        return named
    if chosen is None:
        raise UsageError(
            f"Wheels of release type {release_type!r} are not distributed.",
            hint=f"Give --release-type ({', '.join(data.distributions)}), or a store with "
            "--distribution-store.",
        )
    return chosen.folder or f"s3://{chosen.bucket}"
