"""Which bucket and which role a run's files go by."""

import pytest

from ci.publish.buckets import Buckets, access, buckets, server_writes_pages, takes_samples
from core.data import validated
from core.run.locations import Origin

REPOSITORY = "ROCm/TheRock"
ROLES = "arn:aws:iam::692859939525:role/"


@pytest.mark.parametrize(
    ("repository", "fork", "release_type", "role"),
    [
        (REPOSITORY, False, "ci", f"{ROLES}therock-ci"),
        ("ROCm/rocm-libraries", False, "ci", f"{ROLES}therock-ci-external"),
        (REPOSITORY, True, "ci", None),
        (REPOSITORY, False, "nightly", f"{ROLES}therock-nightly"),
    ],
    ids=["TheRock", "another repository", "fork", "nightly"],
)
def test_chooses_the_role_by_the_runs_origin(
    repository: str,
    *,
    fork: bool,
    release_type: str,
    role: str | None,
) -> None:
    granted = access(buckets(), Origin(repository=repository, fork=fork), release_type)

    assert granted.role == role
    assert granted.region == "us-east-2"


def test_lets_clients_write_pages_by_default() -> None:
    assert not server_writes_pages(buckets(), "s3://therock-ci-artifacts")


@pytest.mark.parametrize(
    ("store", "is_servers"),
    [
        ("s3://therock-ci-artifacts/", True),
        ("s3://therock-ci-artifacts-external", True),
        ("s3://x", False),
        ("out", False),
        ("s3://", False),
    ],
)
def test_leaves_the_pages_of_a_release_types_buckets_to_the_server(store: str, *, is_servers: bool) -> None:
    data = buckets().model_dump()
    data["release_types"]["ci"]["pages"] = "server"
    changed_buckets = validated(data, Buckets, where="buckets.toml")

    assert server_writes_pages(changed_buckets, store) is is_servers


def test_takes_wheels_of_the_sample_in_rehearsals_alone() -> None:
    assert {name for name in buckets().distributions if takes_samples(buckets(), name)} == {"rehearsal"}
