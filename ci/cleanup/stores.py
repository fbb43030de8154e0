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


def list_stores(release_type: str, repository: str | None = None) -> None:
    """Print the stores of a repository, by default of the one that CI runs for; set them as job outputs."""
    env = environment()
    if repository is None:
        repository = env.get("GITHUB_REPOSITORY") or buckets().repository

    rows_by_output = matrices(buckets(), data.upload(), repository=repository, release_type=release_type)
    for name, rows in rows_by_output.items():
        shown_rows = [(row["store"], row["release_type"], row["aws_role"] or "none") for row in rows]
        console.table(("store", "policy", "role"), shown_rows, title=name)
        job_files(env).set_output(name, compact(rows))


def matrices(known: Buckets, own: OwnStore, *, repository: str, release_type: str) -> Mapping[str, Rows]:
    """Return the stores whose dependencies are mirrored, and those whose old runs go, with a history."""
    if own.store:
        row = {"store": own.store, "release_type": release_type, "aws_region": own.region}
        return {
            "mirror_matrix": [{**row, "aws_role": own.mirror_role}],
            "retention_matrix": [{**row, "aws_role": own.retention_role, "history": "yes"}],
        }
    if not is_own(known, Origin(repository=repository)):
        return {"mirror_matrix": [], "retention_matrix": []}
    # of types that share a bucket, the one that it is named after decides how long runs are kept
    plain = sorted(known.release_types.items(), key=lambda one: "-" in one[0])
    runs = {bucket: name for name, one in reversed(plain) for bucket in (one.bucket, one.external_bucket)}
    releases = {one.bucket: name for name, one in known.distributions.items()}

    region = {"aws_region": known.region}

    def rows(of: Mapping[str, str], role: str) -> Rows:
        # who names no role keeps the buckets in order by other means
        if not role:
            return []
        return [
            {"store": f"s3://{bucket}", "release_type": name, **region, "aws_role": role.format(type=name)}
            for bucket, name in sorted(of.items())
            if bucket
        ]

    # runs of others lie in folders of theirs, and releases are no runs
    here = {f"s3://{one.bucket}" for one in known.release_types.values()}
    kept = rows(runs | releases, known.maintenance.retention_role)
    return {
        "mirror_matrix": rows(runs, known.maintenance.mirror_role),
        "retention_matrix": [{**row, "history": "yes" if row["store"] in here else ""} for row in kept],
    }
