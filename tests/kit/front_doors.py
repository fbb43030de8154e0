"""The front doors of `ci` and `pytorch_build`, as a shell goes through them."""

from dataclasses import dataclass

from ci.__main__ import VERBS
from core.cli import main
from pytorch_build.__main__ import VERBS as PYTORCH_BUILD_VERBS


def run_ci(*words: object) -> int:
    """Run a verb with its options; return the exit code."""
    return main("ci", "", VERBS, [*map(str, words)])


@dataclass(frozen=True, kw_only=True)
class FrontDoorResult:
    """How a front door ended: its exit code, its standard output, and what it reported beside."""

    exit_code: int
    output: str
    report: str

    @property
    def errors(self) -> list[str]:
        """Return the lines that report errors."""
        return [line for line in self.report.splitlines() if line.startswith("error: ")]


def run_pytorch_build(*words: object) -> int:
    """Run a verb of `pytorch_build` with its options; return the exit code."""
    return main("pytorch_build", "", PYTORCH_BUILD_VERBS, [*map(str, words)])
