from __future__ import annotations

import pytest

from core.run.stage import builder_from

JOB = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "down/stream",
    "GITHUB_WORKFLOW_REF": "down/stream/.github/workflows/ci.yml@refs/heads/main",
    "GITHUB_RUN_ID": "17",
    "GITHUB_SHA": "1" * 40,
}


def test_a_job_names_its_workflow_and_its_attempt() -> None:
    assert builder_from(JOB) == {
        "id": "https://github.com/down/stream/.github/workflows/ci.yml@refs/heads/main",
        "invocation": "https://github.com/down/stream/actions/runs/17/attempts/1",
        "source": "https://github.com/down/stream",
        "commit": "1" * 40,
    }


@pytest.mark.parametrize("env", [{}, JOB | {"ACT": "true"}, JOB | {"GITHUB_WORKFLOW_REF": ""}])
def test_another_machine_claims_to_be_no_workflow(env: dict[str, str]) -> None:
    assert builder_from(env) == {}
