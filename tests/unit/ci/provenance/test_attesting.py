"""What the workflows attest: who may, where, and what."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from core.cli.options import ROOT
from core.run import RunOutputs
from tests.kit.workflow_files import calls, steps

ATTEST = "./.github/actions/attest"
ACTION = ROOT / ATTEST / "action.yml"
CONDITION = "${{ !env.ACT && inputs.attest && vars.ATTESTATIONS != 'false' }}"


@pytest.fixture(scope="module")
def attesting_step() -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
    """Return the only step that attests, with its place and its job."""
    (attesting,) = [
        (place, job, step) for place, _workflow, job, step in steps() if step.get("uses") == ATTEST
    ]
    return attesting


def test_attests_in_the_job_that_publishes_alone(
    attesting_step: tuple[str, Mapping[str, Any], Mapping[str, Any]],
) -> None:
    place, job, _step = attesting_step

    assert place.startswith("publish.yml, publish,")
    assert job["permissions"]["attestations"] == "write"
    assert job["permissions"]["id-token"] == "write"


def test_attests_after_the_statements_were_written(
    attesting_step: tuple[str, Mapping[str, Any], Mapping[str, Any]],
) -> None:
    _place, job, step = attesting_step
    previous_step = job["steps"][job["steps"].index(step) - 1]

    assert "nox -s provenance" in previous_step["run"]


def test_attests_where_the_caller_wants_it_and_github_exists(
    attesting_step: tuple[str, Mapping[str, Any], Mapping[str, Any]],
) -> None:
    _place, _job, step = attesting_step

    # GitHub does not exist under act.
    assert step["if"] == CONDITION


def test_attests_what_is_published_of_builds_and_nothing_else() -> None:
    publishing_jobs = {
        place: job["with"] for place, _workflow, job, target in calls() if target.name == "publish.yml"
    }

    attesting_jobs = {place for place, inputs in publishing_jobs.items() if inputs.get("attest")}

    assert attesting_jobs == {place for place in publishing_jobs if place.startswith("build_")}
    assert attesting_jobs


def subject_paths() -> list[str]:
    """Return the patterns of the files that are attested."""
    action = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    (step,) = action["runs"]["steps"]
    assert step["uses"].partition("@")[0] == "actions/attest-build-provenance"
    return str(step["with"]["subject-path"]).split()


@pytest.mark.parametrize("repository", ["", "down-stream/"], ids=["the bucket's", "another repository"])
@pytest.mark.parametrize("name", ["torch-2.whl", "rocm-7.tar.gz"])
def test_finds_a_runs_wheels_and_sdists_wherever_the_run_lies(repository: str, name: str) -> None:
    run = RunOutputs(run_id="1", platform="linux", external_repo=repository)
    path = PurePosixPath("out", run.python_prefix("cpu"), name)

    # pathlib's ** is one folder before Python 3.13, so both ends are matched by themselves.
    patterns = [pattern.replace("out/**/", "", 1).replace("/**", "/*") for pattern in subject_paths()]

    assert any(path.match(pattern) for pattern in patterns)


def test_attests_files_in_the_folders_of_wheels_alone() -> None:
    for pattern in subject_paths():
        assert pattern.startswith("out/**/python/**/")
