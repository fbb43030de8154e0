"""Where the runs of CI lie: which bucket, which folder of it, by repository, fork and release type.

Every stage may read such a run, so core knows this much of CI: its part of `ci/buckets.toml`; who may write
where, and what is handed out from where, is `ci.publish.buckets`'s.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core.data import Model, data_file, json_object, read_text
from core.errors import UsageError, nearest

BUCKETS_FILE = Path(__file__).resolve().parents[2] / "ci" / "buckets.toml"
REPOSITORY = re.compile(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+")


class RunBucket(Model, extra="ignore"):
    """A release type's buckets: the main repository's, and that of others ("" for the same)."""

    bucket: str
    external_bucket: str = ""


class CompilerCaches(Model, extra="ignore"):
    """Where builds of the main repository share what they compiled."""

    region: str
    bucket: str
    role: str
    session_seconds: int
    types: Mapping[str, str]


class RunBuckets(Model, extra="ignore"):
    """What `ci/buckets.toml` says of runs; `repository` is the main one, ``{owner}/{name}``."""

    repository: str
    release_types: Mapping[str, RunBucket]
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


def is_own(data: RunBuckets, origin: Origin) -> bool:
    """Return whether a run is of the main repository's own branches; GitHub ignores the case of names."""
    return origin.repository.casefold() == data.repository.casefold() and not origin.fork


def location(data: RunBuckets, origin: Origin, release_type: str) -> Location:
    """Return where the outputs of a repository's run lie."""
    if not REPOSITORY.fullmatch(origin.repository):
        raise UsageError(f"{origin.repository!r} is not a repository.", hint="Write it as owner/name.")
    chosen = data.release_types.get(release_type)
    if chosen is None:
        raise UsageError(
            f"No bucket holds artifacts of release type {release_type!r}. "
            f"{nearest(release_type, data.release_types)}",
            hint="Releases are promoted from a prerelease's outputs; name its release type.",
        )
    if is_own(data, origin) or not chosen.external_bucket:
        return Location(store=f"s3://{chosen.bucket}", external_repo="")
    folder = f"{origin.repository.replace('/', '-')}/"
    return Location(store=f"s3://{chosen.external_bucket}", external_repo=folder)


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
