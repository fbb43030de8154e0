"""The stores that are kept in order, and by which roles: the jobs of `maintenance.yml`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.plan import data
from ci.publish.buckets import Buckets, buckets
from core import console
from core.cli.options import environment
from core.data import compact
from core.run.job_files import job_files
from core.run.locations import Origin, is_own

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ci.plan.data import OwnStore

    Rows = Sequence[Mapping[str, str]]


def list_stores(
    release_type: str,
    repository: str | None = None,
) -> None:
    """Print the stores of a repository, by default of the one that CI runs for; set them as job outputs."""
    env = environment()
    if repository is None:
        repository = env.get("GITHUB_REPOSITORY") or buckets().repository

    rows_by_output = matrices(
        buckets(),
        data.upload(),
        repository=repository,
        release_type=release_type,
    )
    for name, rows in rows_by_output.items():
        shown_rows = [(row["store"], row["release_type"], row["aws_role"] or "none") for row in rows]
        console.table(("store", "policy", "role"), shown_rows, title=name)
        job_files(env).set_output(name, compact(rows))


def matrices(
    bucket_data: Buckets,
    own_store: OwnStore,
    *,
    repository: str,
    release_type: str,
) -> Mapping[str, Rows]:
    """Return the stores whose dependencies are mirrored, and those whose old runs go, with a history."""
    if own_store.store:
        row = {"store": own_store.store, "release_type": release_type, "aws_region": own_store.region}
        return {
            "mirror_matrix": [{**row, "aws_role": own_store.mirror_role}],
            "retention_matrix": [{**row, "aws_role": own_store.retention_role, "history": "yes"}],
        }
    if not is_own(bucket_data, Origin(repository=repository)):
        return {"mirror_matrix": [], "retention_matrix": []}

    runs = _run_buckets(bucket_data)
    releases = {bucket.bucket: name for name, bucket in bucket_data.distributions.items()}
    own_stores = {f"s3://{bucket.bucket}" for bucket in bucket_data.release_types.values()}

    retention_rows: list[Mapping[str, str]] = []
    for retention_row in _rows(bucket_data, {**runs, **releases}, bucket_data.maintenance.retention_role):
        # Runs of others lie in folders of theirs, and releases are no runs.
        history = "yes" if retention_row["store"] in own_stores else ""
        retention_rows.append({**retention_row, "history": history})
    return {
        "mirror_matrix": _rows(bucket_data, runs, bucket_data.maintenance.mirror_role),
        "retention_matrix": retention_rows,
    }


def _run_buckets(bucket_data: Buckets) -> Mapping[str, str]:
    """Return the release type whose policy keeps each bucket of runs.

    Of types that share a bucket, the one that it is named after decides how long runs are kept.
    """
    plain_first = sorted(bucket_data.release_types.items(), key=lambda release_type: "-" in release_type[0])
    names: dict[str, str] = {}
    for name, release_type in plain_first:
        names.setdefault(release_type.bucket, name)
        names.setdefault(release_type.external_bucket, name)
    return names


def _rows(
    bucket_data: Buckets,
    release_types: Mapping[str, str],
    role: str,
) -> Rows:
    """Return a row for each bucket; none where no role is named: other means keep the buckets in order."""
    if not role:
        return []

    rows: list[Mapping[str, str]] = []
    for bucket, name in sorted(release_types.items()):
        if bucket:
            row = {
                "store": f"s3://{bucket}",
                "release_type": name,
                "aws_region": bucket_data.region,
                "aws_role": role.format(type=name),
            }
            rows.append(row)
    return rows
