import pytest

from ci.publish.buckets import (
    Buckets,
    access,
    buckets,
    distribution_store,
    server_writes_pages,
    takes_samples,
)
from core.data import validated
from core.errors import UsageError
from core.run.locations import Origin

OWN = "ROCm/TheRock"
ROLES = "arn:aws:iam::692859939525:role/"


@pytest.mark.parametrize(
    ("repository", "fork", "release_type", "role"),
    [
        (OWN, False, "ci", f"{ROLES}therock-ci"),
        ("ROCm/rocm-libraries", False, "ci", f"{ROLES}therock-ci-external"),
        (OWN, True, "ci", ""),
        (OWN, False, "nightly", f"{ROLES}therock-nightly"),
    ],
)
def test_the_role_follows_its_origin(repository: str, *, fork: bool, release_type: str, role: str) -> None:
    found = access(buckets(), Origin(repository=repository, fork=fork), release_type)
    assert (found.role, found.region) == (role, "us-east-2")


def test_pages_are_the_clients_unless_the_data_says_otherwise() -> None:
    assert not server_writes_pages(buckets(), "s3://therock-ci-artifacts")
    data = buckets().model_dump()
    data["release_types"]["ci"]["pages"] = "server"
    changed = validated(data, Buckets, where="buckets.toml")
    stores = ["s3://therock-ci-artifacts/", "s3://therock-ci-artifacts-external", "s3://x", "out", "s3://"]
    assert [server_writes_pages(changed, store) for store in stores] == [True, True, False, False, False]


def test_every_release_type_but_ci_has_a_distribution_bucket() -> None:
    assert distribution_store(buckets(), "nightly") == "s3://therock-nightly-python"
    with pytest.raises(UsageError, match=r"'ci' are not distributed.\nGive --release-type \(dev, "):
        distribution_store(buckets(), "ci")


def test_a_rehearsal_has_a_folder_and_no_type_takes_the_bucket_of_another() -> None:
    assert distribution_store(buckets(), "rehearsal") == "out/rehearsal"
    assert distribution_store(buckets(), "rehearsal", "s3://mine") == "s3://mine"
    assert distribution_store(buckets(), "dev", "s3://therock-dev-python/") == "s3://therock-dev-python/"
    for kind in ("rehearsal", "dev", "ci"):
        for bucket in ("therock-nightly-python", "therock-release-python/x", "therock-ci-artifacts"):
            with pytest.raises(UsageError, match=f"s3://{bucket} is the bucket of another release type"):
                distribution_store(buckets(), kind, f"s3://{bucket}")
    assert {name for name in buckets().distributions if takes_samples(buckets(), name)} == {"rehearsal"}
