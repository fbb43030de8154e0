"""GitHub with the runs that a test needs, and nothing that is asked over a network."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ci.github import Run, RunQuery
from core.errors import MissingInputError, ServiceError

WORKFLOW = "multi_arch_ci.yml"


def github_run(
    run_id: str,
    workflow: str = WORKFLOW,
    *,
    status: str = "completed",
    conclusion: str = "success",
    fork: bool = False,
) -> Run:
    """Return a run as GitHub lists it; without a workflow, it is one of any."""
    return Run(
        run_id=run_id,
        commit="d" * 40,
        status=status,
        conclusion=conclusion,
        created=f"2026-11-{run_id}",
        url="",
        fork=fork,
        workflow=workflow,
    )


@dataclass
class FakeGitHub:
    """GitHub with these runs, the newest first.

    `queries` are those it was asked, and `listed` is how many runs it gave. A `silent` one cannot be reached.
    """

    known_runs: list[Run] = field(default_factory=list)
    silent: bool = False
    queries: list[RunQuery] = field(default_factory=list)
    listed: int = 0

    def whole_commit(self, _repository: str, commit: str) -> str:
        """Return the whole of a commit."""
        return commit.ljust(40, "d")

    def run(self, repository: str, run_id: str) -> Run:
        """Return a run by its number."""
        for run in self.known_runs:
            if run.run_id == run_id:
                return run
        raise MissingInputError(f"GitHub has nothing at /repos/{repository}/actions/runs/{run_id}.")

    def runs(self, query: RunQuery) -> Iterator[Run]:
        """Yield the runs of a query's workflow."""
        self.queries.append(query)
        if self.silent:
            raise ServiceError("GitHub cannot be reached.")
        for run in self.known_runs:
            if run.workflow in {"", query.workflow}:
                self.listed += 1
                yield run
