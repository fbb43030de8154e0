"""Where the runs of CI lie, by repository, fork and release type; where wheels are distributed from.

Every step may read such a run, and tests read what a release has staged, so core knows this much of CI: its
part of `ci/buckets.toml`. Who may write where is `ci.publish.buckets`'s.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core.data import Model, data_file, json_object, load_toml, read_text
from core.errors import UsageError, nearest

STAGING = "v2-staging"  # the folder of a distribution store whose wheels are up for testing
BUCKETS_FILE = Path(__file__).resolve().parents[2] / "ci" / "buckets.toml"
REPOSITORY = re.compile(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+")


class RunBucket(Model, extra="ignore"):
    """A release type's buckets: the main repository's, and that of others ("" for the same)."""

    bucket: str
    external_bucket: str = ""


class Distribution(Model):
    """Where wheels of a release type are distributed from: a bucket or a folder; `samples`: the sample's."""

    bucket: str = ""
    folder: str = ""
    samples: bool = False


class CompilerCaches(Model, extra="ignore"):
    """Where builds of the main repository share what they compiled."""

    region: str
    bucket: str
    role: str
    session_seconds: int
    types: Mapping[str, str]


class RunBuckets(Model, extra="ignore"):
    """What `ci/buckets.toml` says of runs and of what is distributed of them.

    `repository` is the main one, ``{owner}/{name}``.
    """

    repository: str
    release_types: Mapping[str, RunBucket]
    distributions: Mapping[str, Distribution]
    compiler_caches: CompilerCaches | None = None


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The repository that a run belongs to, ``{owner}/{name}``, and whether it builds a commit of a fork."""

    repository: str
    fork: bool = False


@dataclass(frozen=True, kw_only=True)
class Location:
    """A run's bucket as ``--store`` names it, and ``{owner}-{repo}/`` in one that several share, else ""."""

    store: str
    external_repo: str


run_buckets = data_file(BUCKETS_FILE, RunBuckets)


def buckets_of(repository: str) -> RunBuckets:
    """Return the data that says where a repository's runs lie: a user's own says it of the user's repository.

    What runs of others lie in, such as the artifacts of upstream's, the project's data says in any case.
    """
    data = run_buckets()
    if repository.casefold() == data.repository.casefold():
        return data
    return load_toml(BUCKETS_FILE, RunBuckets)


def is_own(data: RunBuckets, origin: Origin) -> bool:
    """Return whether a run is of the main repository's own branches; GitHub ignores the case of names."""
    return origin.repository.casefold() == data.repository.casefold() and not origin.fork


def location(data: RunBuckets, origin: Origin, release_type: str) -> Location:
    """Return where the outputs of a repository's run lie."""
    if not REPOSITORY.fullmatch(origin.repository):
        raise UsageError(f"{origin.repository!r} is not a repository.", hint="Write it as owner/name.")
    run_bucket = data.release_types.get(release_type)
    if run_bucket is None:
        raise UsageError(
            f"No bucket holds artifacts of release type {release_type!r}. "
            f"{nearest(release_type, data.release_types)}",
            hint="Releases are promoted from a prerelease's outputs; name its release type.",
        )
    if is_own(data, origin) or not run_bucket.external_bucket:
        return Location(store=f"s3://{run_bucket.bucket}", external_repo="")
    folder = f"{origin.repository.replace('/', '-')}/"
    return Location(store=f"s3://{run_bucket.external_bucket}", external_repo=folder)


def distribution_store(data: RunBuckets, release_type: str, store: str = "") -> str:
    """Return the store that releases of a type are distributed from: ``s3://{bucket}``, a folder, or `store`.

    A bucket that the data has for another release type, or for runs, is refused.
    """
    distribution = data.distributions.get(release_type)
    taken_buckets = {other.bucket for other in data.distributions.values() if other != distribution}
    for run_bucket in data.release_types.values():
        taken_buckets |= {run_bucket.bucket, run_bucket.external_bucket}

    if store.startswith("s3://") and store.split("/")[2] in taken_buckets:
        raise UsageError(
            f"{store} is the bucket of another release type, or of runs: no place for type {release_type}.",
            hint="Correct --release-type or --distribution-store.",
        )
    if store:
        return store
    if distribution is None:
        raise UsageError(
            f"Wheels of release type {release_type!r} are not distributed.",
            hint=f"Give --release-type ({', '.join(data.distributions)}), or a store with "
            "--distribution-store.",
        )
    return distribution.folder or f"s3://{distribution.bucket}"


def origin_from(env: Mapping[str, str], data: RunBuckets) -> Origin:
    """Return whose run this process belongs to by GitHub's variables; outside CI the main repository's.

    A pull request is a fork's where its head lies in another repository, or in one that is gone.
    """
    repository = env.get("GITHUB_REPOSITORY") or data.repository
    path = env.get("GITHUB_EVENT_PATH", "")
    event = json_object(read_text(Path(path)), where=f"{path}, the event of a CI run,") if path else {}
    request = event.get("pull_request")
    if not isinstance(request, dict):
        return Origin(repository=repository)
    head = ((request.get("head") or {}).get("repo") or {}).get("full_name", "")
    return Origin(repository=repository, fork=str(head).casefold() != repository.casefold())
