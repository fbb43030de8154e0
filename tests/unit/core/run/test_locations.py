import json
from pathlib import Path
from typing import Any

import pytest

from core.errors import DataError, MissingInputError, UsageError
from core.run.locations import Origin, is_own, location, origin_from, run_buckets

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
    found = location(run_buckets(), Origin(repository=repository, fork=fork), release_type)
    assert (found.store, found.external_repo) == (f"s3://{expected[0]}", expected[1])


def test_no_bucket_holds_releases() -> None:
    with pytest.raises(UsageError, match=r"release type 'release'.*'prerelease'"):
        location(run_buckets(), Origin(repository=OWN, fork=False), "release")


@pytest.mark.parametrize("repository", ["TheRock", "a/b/c", "../x", "a/", "", "a b/c"])
def test_other_words_are_no_repository(repository: str) -> None:
    with pytest.raises(UsageError, match="is not a repository"):
        location(run_buckets(), Origin(repository=repository, fork=False), "ci")


def pull(**head: Any) -> dict[str, Any]:
    return {"pull_request": {"head": head}}


@pytest.mark.parametrize(
    ("event", "fork"),
    [
        (pull(repo={"full_name": "rocm/TheRock", "fork": True}), False),
        (pull(repo={"full_name": "someone/TheRock"}), True),
        # a fork that was deleted since
        (pull(repo=None), True),
        ({"pull_request": {"head": None}}, True),
        ({"ref": "refs/heads/main"}, False),
        ({"pull_request": "https://…"}, False),
        ({}, False),
    ],
)
def test_a_forks_pull_request_is_known_by_head(event: dict[str, Any], *, fork: bool, tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text(json.dumps(event))
    env = {"GITHUB_REPOSITORY": OWN, "GITHUB_EVENT_PATH": str(tmp_path / "event.json")}
    found = origin_from(env, run_buckets())
    assert found == Origin(repository=OWN, fork=fork)
    assert is_own(run_buckets(), found) is not fork


def test_outside_ci_the_main_repository_is_meant() -> None:
    assert origin_from({}, run_buckets()) == Origin(repository=OWN)


@pytest.mark.parametrize("text", ["{", "[]", None])
def test_an_event_that_is_none_is_an_error(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises((DataError, MissingInputError), match=r"event\.json"):
        origin_from({"GITHUB_EVENT_PATH": str(path)}, run_buckets())
