"""Which stores are kept in order, and by whom."""

from ci.cleanup.plan import retention
from ci.plan.data import OwnStore
from ci.publish.buckets import buckets
from ci.verbs.maintenance import matrices

OWN = "ROCm/TheRock"


def test_every_bucket_is_kept_once_by_roles_of_its_own() -> None:
    found = matrices(buckets(), OwnStore(), repository=OWN, release_type="ci")
    known = buckets()
    runs = {b for one in known.release_types.values() for b in (one.bucket, one.external_bucket) if b}
    releases = {one.bucket for one in known.distributions.values() if one.bucket}
    mirrored = [row["store"].removeprefix("s3://") for row in found["mirror_matrix"]]
    kept = [row["store"].removeprefix("s3://") for row in found["retention_matrix"]]
    assert sorted(mirrored) == sorted(runs)
    assert sorted(kept) == sorted(runs | releases)
    roles = [{row["aws_role"] for row in rows} for rows in found.values()]
    assert not roles[0] & roles[1]
    writers = {one.role for one in known.release_types.values()} | {
        one.external_role for one in known.release_types.values()
    }
    assert not (roles[0] | roles[1]) & writers
    for row in found["retention_matrix"]:
        retention().policy(row["release_type"])
    # a bucket of others' runs, or of releases, has no page over runs
    shown = {row["store"].removeprefix("s3://") for row in found["retention_matrix"] if row["history"]}
    assert shown == {one.bucket for one in known.release_types.values()}


def test_types_that_share_a_bucket_leave_it_to_the_one_that_it_is_named_after() -> None:
    found = matrices(buckets(), OwnStore(), repository=OWN, release_type="ci")
    types = {row["store"]: row["release_type"] for row in found["retention_matrix"]}
    assert types["s3://therock-dev-artifacts"] == "dev"
    assert types["s3://therock-nightly-artifacts"] == "nightly"


def test_a_downstream_keeps_its_own_store_alone() -> None:
    own = OwnStore(store="s3://mine", region="eu-west-1", mirror_role="a", retention_role="b")
    found = matrices(buckets(), own, repository="example/wheels", release_type="dev")
    row = {"store": "s3://mine", "release_type": "dev", "aws_region": "eu-west-1"}
    assert found == {
        "mirror_matrix": [{**row, "aws_role": "a"}],
        "retention_matrix": [{**row, "aws_role": "b", "history": "yes"}],
    }


def test_a_fork_without_settings_keeps_nothing() -> None:
    found = matrices(buckets(), OwnStore(), repository="somebody/TheRock", release_type="ci")
    assert found == {"mirror_matrix": [], "retention_matrix": []}
