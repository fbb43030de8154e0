"""Where the runs of CI lie, by repository, fork and release type; where wheels are distributed from.

Every step may read such a run, and tests read what a release has staged, so core knows this much of CI: its
part of `ci/buckets.toml`. Who may write where is `ci.publish.buckets`'s.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.data import Model, data_file, json_object, load_toml, read_text
from core.errors import UsageError, nearest

STAGING = "v2-staging"  # the folder of a distribution store whose wheels are up for testing
BUCKETS_FILE = Path(__file__).resolve().parents[2] / "ci/buckets.toml"
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
    if _is_same_repository(repository, data.repository):
        return data
    return load_toml(BUCKETS_FILE, RunBuckets)


def is_own(data: RunBuckets, origin: Origin) -> bool:
    """Return whether a run is of the main repository's own branches."""
    return _is_same_repository(origin.repository, data.repository) and not origin.fork


def _is_same_repository(repository: str, other: str) -> bool:
    """Return whether two names are one repository's: GitHub ignores their case."""
    return repository.casefold() == other.casefold()


def location(data: RunBuckets, origin: Origin, release_type: str) -> Location:
    """Return where the outputs of a repository's run lie."""
    if not REPOSITORY.fullmatch(origin.repository):
        raise UsageError(f"{origin.repository!r} is not a repository.", hint="Write it as owner/name.")
    run_bucket = data.release_types.get(release_type)
    if run_bucket is None:
        suggestion = nearest(release_type, data.release_types)
        raise UsageError(
            f"No bucket holds artifacts of release type {release_type!r}. {suggestion}",
            hint="Releases are promoted from a prerelease's outputs; name its release type.",
        )

    if is_own(data, origin) or not run_bucket.external_bucket:
        store = f"s3://{run_bucket.bucket}"
        return Location(store=store, external_repo="")

    # Several repositories share the bucket of others: each has a folder there.
    store = f"s3://{run_bucket.external_bucket}"
    owner_and_name = origin.repository.replace("/", "-")
    return Location(store=store, external_repo=f"{owner_and_name}/")


def distribution_store(data: RunBuckets, release_type: str, store: str = "") -> str:
    """Return the store that releases of a type are distributed from: ``s3://{bucket}``, a folder, or `store`.

    A bucket that the data has for another release type, or for runs, is refused.
    """
    distribution = data.distributions.get(release_type)
    if store:
        _refuse_bucket_of_others(data, distribution, release_type, store)
        return store

    if distribution is None:
        release_types = ", ".join(data.distributions)
        raise UsageError(
            f"Wheels of release type {release_type!r} are not distributed.",
            hint=f"Give --release-type ({release_types}), or a store with --distribution-store.",
        )
    if distribution.folder:
        return distribution.folder
    return f"s3://{distribution.bucket}"


def _refuse_bucket_of_others(
    data: RunBuckets, distribution: Distribution | None, release_type: str, store: str
) -> None:
    if not store.startswith("s3://"):
        return

    reserved_buckets: set[str] = set()
    for run_bucket in data.release_types.values():
        reserved_buckets.add(run_bucket.bucket)
        reserved_buckets.add(run_bucket.external_bucket)
    for other_distribution in data.distributions.values():
        if other_distribution != distribution:
            reserved_buckets.add(other_distribution.bucket)

    bucket = store.split("/")[2]
    if bucket in reserved_buckets:
        raise UsageError(
            f"{store} is the bucket of another release type, or of runs: no place for type {release_type}.",
            hint="Correct --release-type or --distribution-store.",
        )


def origin_from(env: Mapping[str, str], data: RunBuckets) -> Origin:
    """Return whose run this process belongs to by GitHub's variables; outside CI the main repository's.

    A pull request is a fork's where its head lies in another repository, or in one that is gone.
    """
    repository = env.get("GITHUB_REPOSITORY") or data.repository
    pull_request = _event(env).get("pull_request")
    if not isinstance(pull_request, dict):
        return Origin(repository=repository)

    # GitHub writes null for what is gone.
    head = pull_request.get("head") or {}
    head_repository = head.get("repo") or {}
    head_name = str(head_repository.get("full_name", ""))
    is_fork = not _is_same_repository(head_name, repository)
    return Origin(repository=repository, fork=is_fork)


def _event(env: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the event that began the CI run; an empty one outside CI."""
    path = env.get("GITHUB_EVENT_PATH")
    if not path:
        return {}
    text = read_text(Path(path))
    return json_object(text, where=f"{path}, the event of a CI run,")
