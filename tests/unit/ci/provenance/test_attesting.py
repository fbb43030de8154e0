"""What the workflows attest: who may, where, and what."""

from pathlib import PurePosixPath

import pytest
import yaml  # type: ignore[import-untyped]

from core.cli.options import ROOT
from core.run import RunOutputs
from tests.kit.workflow_files import Step, calls, steps

ATTEST = "./.github/actions/attest"
ACTION = ROOT / ATTEST / "action.yml"
CONDITION = "${{ !env.ACT && inputs.attest && vars.ATTESTATIONS != 'false' }}"


@pytest.fixture(scope="module")
def attesting_step() -> Step:
    """Return the only step that attests."""
    (step,) = [step for step in steps() if step.action == ATTEST]
    return step


def test_attests_in_the_job_that_publishes_alone(attesting_step: Step) -> None:
    permissions = attesting_step.job["permissions"]

    assert attesting_step.path.startswith("publish.yml, publish,")
    assert permissions["attestations"] == "write"
    assert permissions["id-token"] == "write"


def test_attests_after_the_statements_were_written(attesting_step: Step) -> None:
    steps_of_job = attesting_step.job["steps"]
    previous_step = steps_of_job[steps_of_job.index(attesting_step.tree) - 1]

    assert "nox -s provenance" in previous_step["run"]


def test_attests_where_the_caller_wants_it_and_github_exists(attesting_step: Step) -> None:
    # GitHub does not exist under act.
    assert attesting_step.tree["if"] == CONDITION


def test_attests_what_is_published_of_builds_and_nothing_else() -> None:
    publishing_jobs = {call.path: call.inputs for call in calls() if call.target.name == "publish.yml"}

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
