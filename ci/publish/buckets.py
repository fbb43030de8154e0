"""Who writes run outputs. Where runs lie and wheels are distributed from: `core.run.locations`."""

from collections.abc import Collection, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator

from core.cli.options import RELEASE_TYPES
from core.data import Model, data_file
from core.errors import nearest
from core.run.locations import (
    BUCKETS_FILE,
    Distribution,
    Origin,
    RunBucket,
    RunBuckets,
    is_own,
    location,
)
from core.run.plan import Upload


def one_of(name: str, known_names: Collection[str]) -> str:
    """Return a name of the data; refuse one that is not known."""
    if name not in known_names:
        raise ValueError(f"{name!r} is not known. {nearest(name, known_names)}")
    return name


ReleaseName = Annotated[str, AfterValidator(lambda name: one_of(name, RELEASE_TYPES))]


class ReleaseType(RunBucket, extra="forbid"):
    """The buckets of a release type, and who writes to them."""

    role: str = ""
    external_role: str = ""
    pages: Literal["client", "server"] = "client"


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

    mirror_role: str = ""
    retention_role: str = ""


class Buckets(RunBuckets, extra="forbid"):
    """What `buckets.toml` says."""

    region: str
    release_types: Mapping[ReleaseName, ReleaseType]
    maintenance: Maintenance = Maintenance()
    products: Products
    distributions: Mapping[ReleaseName, Distribution]


buckets = data_file(BUCKETS_FILE, Buckets)


def access(bucket_data: Buckets, origin: Origin, release_type: str) -> Upload:
    """Return where a run of a repository writes, and as which role."""
    bucket = location(bucket_data, origin, release_type)
    buckets_of_type = bucket_data.release_types[release_type]
    role = buckets_of_type.role
    if not is_own(bucket_data, origin) and buckets_of_type.external_bucket:
        role = buckets_of_type.external_role
    if origin.fork:
        # GitHub gives a pull request from a fork no identity that a role could be assumed with.
        role = ""
    return Upload(
        store=bucket.store, external_repo=bucket.external_repo, role=role, region=bucket_data.region
    )


def server_writes_pages(bucket_data: Buckets, store: str) -> bool:
    """Return whether the pages of runs in a store are left to the server behind its bucket."""
    for release_type in bucket_data.release_types.values():
        addresses = {f"s3://{release_type.bucket}", f"s3://{release_type.external_bucket}"}
        if release_type.pages == "server" and store.rstrip("/") in addresses:
            return True
    return False


def takes_samples(bucket_data: Buckets, release_type: str) -> bool:
    """Return whether wheels of the sample are released so, and no others."""
    return release_type in bucket_data.distributions and bucket_data.distributions[release_type].samples
