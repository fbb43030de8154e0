"""Pull requests of reports: which commit is checked out, and what an event's file plans elsewhere."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.plan import events
from ci.verbs import configure
from core.run.plan import Plan
from tests.kit.front_doors import run_verb, use_checkout
from tests.kit.planning import REPOSITORY, pull_request
from tests.kit.repos import commit_files, run_git

pytestmark = pytest.mark.processes


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a checkout of the branch ``pr``, which is a commit of code behind ``main``."""
    repository = tmp_path / "checkout"
    commit_files(repository, {"core/run.py": "1"})
    run_git(repository, "checkout", "-q", "-b", "pr")
    commit_files(repository, {"core/run.py": "2"})
    run_git(repository, "checkout", "-q", "main")
    commit_files(repository, {"docs/main.md": ""})
    run_git(repository, "checkout", "-q", "pr")
    return repository


def event_of(repository: Path) -> events.Event:
    """Return the pull request of the branch ``pr`` to ``main``."""
    payload = payload_of(repository)
    return events.parse("pull_request", payload, repository=REPOSITORY)


def payload_of(repository: Path) -> dict[str, Any]:
    """Return what GitHub sends of the pull request."""
    payload: dict[str, Any] = pull_request()
    payload["pull_request"]["head"]["sha"] = run_git(repository, "rev-parse", "pr")
    payload["pull_request"]["base"]["sha"] = run_git(repository, "rev-parse", "main")
    return payload


def merge(repository: Path, branch: str) -> None:
    """Merge a branch into what is checked out."""
    run_git(repository, "merge", "-q", "--no-ff", "-m", "merge", branch)


# https://github.com/ROCm/TheRock/issues/6162
# The head of a pull request, a merge of main, was taken for GitHub's merge, and its code was overlooked.
def test_a_head_that_merges_main_is_not_taken_for_githubs_merge(repository: Path) -> None:
    merge(repository, "main")

    assert events.changed_by_git(event_of(repository), repository) == ["core/run.py"]


def test_githubs_merge_brings_the_files_of_the_pull_request(repository: Path) -> None:
    event = event_of(repository)
    run_git(repository, "checkout", "-q", "--detach", "main")
    merge(repository, "pr")

    # With the depth of 2 that CI fetches, git knows no commit that both sides have.
    assert events.changed_by_git(replace(event, base="c" * 40), repository) == ["core/run.py"]


def test_commits_that_the_base_got_meanwhile_are_not_the_pull_requests(repository: Path) -> None:
    assert events.changed_by_git(event_of(repository), repository) == ["core/run.py"]


def test_a_head_that_merges_another_branch_brings_that_too(repository: Path) -> None:
    run_git(repository, "checkout", "-q", "-b", "other", "main~1")
    commit_files(repository, {"ci/other.py": ""})
    run_git(repository, "checkout", "-q", "pr")
    merge(repository, "other")

    assert events.changed_by_git(event_of(repository), repository) == ["ci/other.py", "core/run.py"]


# https://github.com/ROCm/TheRock/issues/6162
@pytest.mark.parametrize("checked_out", ["githubs merge", "the head", "something else"])
def test_a_payload_makes_the_same_plan_wherever_it_is_read(
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    checked_out: str,
) -> None:
    run_git(repository, "checkout", "-q", "-B", "pr", "main~1")
    commit_files(repository, {"docs/of-the-pr.md": ""})
    event_file = tmp_path / "event.json"
    event_file.write_text(json.dumps(payload_of(repository)))
    if checked_out == "githubs merge":
        run_git(repository, "checkout", "-q", "--detach", "main")
        merge(repository, "pr")
    elif checked_out == "something else":
        run_git(repository, "checkout", "-q", "main")
    use_checkout(monkeypatch, configure, repository)

    exit_code = run_verb("ci", "configure", "--event=pull_request", f"--payload={event_file}", "--json")

    assert exit_code == 0
    plan = Plan.model_validate_json(capsys.readouterr().out)
    assert not plan.enable_build_jobs.value
    assert "docs/of-the-pr.md" in plan.enable_build_jobs.reason


# The job of a fork runs for the fork's repository.
def test_a_payload_names_the_repository_of_its_run() -> None:
    assert events.repository_of({"repository": {"full_name": "some/fork"}}) == "some/fork"
    assert events.repository_of(pull_request()) is None
