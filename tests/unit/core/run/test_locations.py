import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.errors import DataError, MissingInputError, UsageError
from core.run.locations import (
    Origin,
    distribution_store,
    is_own,
    location,
    origin_from,
    run_buckets,
)

MAIN_REPOSITORY = "ROCm/TheRock"


@pytest.mark.parametrize(
    ("repository", "is_fork", "release_type", "bucket", "folder"),
    [
        (MAIN_REPOSITORY, False, "ci", "therock-ci-artifacts", ""),
        ("rocm/therock", False, "ci", "therock-ci-artifacts", ""),
        (MAIN_REPOSITORY, True, "ci", "therock-ci-artifacts-external", "ROCm-TheRock/"),
        ("ROCm/rocm-libraries", False, "ci", "therock-ci-artifacts-external", "ROCm-rocm-libraries/"),
        ("someone/TheRock", True, "ci", "therock-ci-artifacts-external", "someone-TheRock/"),
        (MAIN_REPOSITORY, False, "dev", "therock-dev-artifacts", ""),
        (MAIN_REPOSITORY, False, "nightly", "therock-nightly-artifacts", ""),
        ("ROCm/other", False, "prerelease", "therock-prerelease-artifacts", ""),
    ],
    ids=["main", "other case", "fork", "other repository", "its fork", "dev", "nightly", "prerelease"],
)
def test_the_bucket_of_a_run_follows_from_repository_fork_and_release_type(
    repository: str, *, is_fork: bool, release_type: str, bucket: str, folder: str
) -> None:
    run_location = location(run_buckets(), Origin(repository=repository, fork=is_fork), release_type)

    assert run_location.store == f"s3://{bucket}"
    assert run_location.external_repo == folder


def test_no_bucket_holds_releases() -> None:
    with pytest.raises(UsageError) as raised:
        location(run_buckets(), Origin(repository=MAIN_REPOSITORY), "release")

    assert "'release'" in raised.value.message
    assert "'prerelease'" in raised.value.message


@pytest.mark.parametrize("name", ["TheRock", "a/b/c", "../x", "a/", "", "a b/c"])
def test_rejects_a_name_that_is_no_repositorys(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        location(run_buckets(), Origin(repository=name), "ci")

    assert repr(name) in raised.value.message


# Distribution


@pytest.mark.parametrize(
    ("release_type", "store"), [("nightly", "s3://therock-nightly-python"), ("rehearsal", "out/rehearsal")]
)
def test_distributes_each_release_type_from_a_store_of_its_own(release_type: str, store: str) -> None:
    assert distribution_store(run_buckets(), release_type) == store


def test_distributes_no_wheels_of_ci() -> None:
    with pytest.raises(UsageError) as raised:
        distribution_store(run_buckets(), "ci")

    assert "'ci'" in raised.value.message
    assert "--release-type (dev, " in raised.value.hint


@pytest.mark.parametrize(
    ("release_type", "store"), [("rehearsal", "s3://mine"), ("dev", "s3://therock-dev-python/")]
)
def test_takes_a_named_store_that_is_no_other_types(release_type: str, store: str) -> None:
    assert distribution_store(run_buckets(), release_type, store) == store


@pytest.mark.parametrize("release_type", ["rehearsal", "dev", "ci"])
@pytest.mark.parametrize(
    "bucket", ["therock-nightly-python", "therock-release-python/x", "therock-ci-artifacts"]
)
def test_rejects_the_bucket_of_another_release_type(release_type: str, bucket: str) -> None:
    with pytest.raises(UsageError) as raised:
        distribution_store(run_buckets(), release_type, f"s3://{bucket}")

    assert f"s3://{bucket}" in raised.value.message


# Origins


def write_event(folder: Path, text: str) -> dict[str, str]:
    """Write the event of a job of the main repository; return the job's variables."""
    path = folder / "event.json"
    path.write_text(text)
    return {"GITHUB_REPOSITORY": MAIN_REPOSITORY, "GITHUB_EVENT_PATH": str(path)}


def pull_request(repository: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the event of a pull request from a repository."""
    return {"pull_request": {"head": {"repo": repository}}}


@pytest.mark.parametrize(
    ("event", "is_fork"),
    [
        pytest.param(pull_request({"full_name": "rocm/TheRock", "fork": True}), False, id="own branch"),
        pytest.param(pull_request({"full_name": "someone/TheRock"}), True, id="fork"),
        pytest.param(pull_request(None), True, id="deleted fork"),
        pytest.param({"pull_request": {"head": None}}, True, id="no head"),
        pytest.param({"ref": "refs/heads/main"}, False, id="push"),
        pytest.param({"pull_request": "https://…"}, False, id="comment"),
        pytest.param({}, False, id="nothing"),
    ],
)
def test_knows_the_pull_request_of_a_fork_by_its_head(
    tmp_path: Path, event: dict[str, Any], *, is_fork: bool
) -> None:
    origin = origin_from(write_event(tmp_path, json.dumps(event)), run_buckets())

    assert origin == Origin(repository=MAIN_REPOSITORY, fork=is_fork)
    assert is_own(run_buckets(), origin) is not is_fork


def test_outside_ci_a_run_is_of_the_main_repository() -> None:
    assert origin_from({}, run_buckets()) == Origin(repository=MAIN_REPOSITORY)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_names_a_file_that_is_no_event(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"event\.json"):
        origin_from(write_event(tmp_path, text), run_buckets())


def test_names_an_event_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"event\.json"):
        origin_from({"GITHUB_EVENT_PATH": str(tmp_path / "event.json")}, run_buckets())
