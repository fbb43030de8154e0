"""Who builds: what a job of GitHub Actions says of itself, for the records of what it makes.

https://docs.github.com/actions/reference/workflows-and-actions/variables
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# where a record's details have it
BUILDER = "builder"


def builder_from(env: Mapping[str, str]) -> dict[str, str]:
    """Name the workflow that this process is a job of."""
    server, workflow, repository = (
        env.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_WORKFLOW_REF", "GITHUB_REPOSITORY")
    )
    if not (server and workflow and repository) or env.get("ACT"):
        return {}
    attempt = f"{env.get('GITHUB_RUN_ID', '')}/attempts/{env.get('GITHUB_RUN_ATTEMPT') or '1'}"
    return {
        "id": f"{server}/{workflow}",
        "invocation": f"{server}/{repository}/actions/runs/{attempt}",
        "source": f"{server}/{repository}",
        "commit": env.get("GITHUB_SHA", ""),
    }
