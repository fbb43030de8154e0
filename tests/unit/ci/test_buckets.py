from __future__ import annotations

import pytest

from ci.buckets import buckets, distribution_store, location
from core.errors import UsageError

OWN = "ROCm/TheRock"


@pytest.mark.parametrize(
    ("repository", "fork", "release_type", "expected"),
    [
        (OWN, False, "ci", ("therock-ci-artifacts", "")),
        ("rocm/therock", False, "ci", ("therock-ci-artifacts", "")),
        (OWN, True, "ci", ("therock-ci-artifacts-external", "ROCm-TheRock/")),
        ("ROCm/rocm-libraries", False, "ci", ("therock-ci-artifacts-external", "ROCm-rocm-libraries/")),
        ("someone/TheRock", True, "ci", ("therock-ci-artifacts-external", "someone-TheRock/")),
        (OWN, False, "dev", ("therock-dev-artifacts", "")),
        (OWN, False, "nightly", ("therock-nightly-artifacts", "")),
        ("ROCm/other", False, "prerelease", ("therock-prerelease-artifacts", "")),
    ],
)
def test_the_bucket_follows_repository_fork_and_release_type(
    repository: str, *, fork: bool, release_type: str, expected: tuple[str, str]
) -> None:
    found = location(buckets(), repository, fork=fork, release_type=release_type)
    assert (found.bucket, found.external_repo) == expected


def test_no_bucket_holds_releases() -> None:
    with pytest.raises(UsageError, match=r"release type 'release'.*'prerelease'"):
        location(buckets(), OWN, fork=False, release_type="release")


@pytest.mark.parametrize("repository", ["TheRock", "a/b/c", "../x", "a/", "", "a b/c"])
def test_other_words_are_no_repository(repository: str) -> None:
    with pytest.raises(UsageError, match="no repository"):
        location(buckets(), repository, fork=False, release_type="ci")


def test_every_release_type_but_ci_has_a_distribution_bucket() -> None:
    assert distribution_store(buckets(), "nightly") == "s3://therock-nightly-python"
    with pytest.raises(UsageError, match=r"'ci' are handed out from nowhere.\nGive --release-type \(dev, "):
        distribution_store(buckets(), "ci")
