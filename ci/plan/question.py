"""Everything that a plan is made from, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.plan import families
from ci.plan.globs import matches

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from ci.plan.data import Data, Tier
    from ci.plan.events import Event
    from ci.plan.inputs import Inputs
    from ci.plan.labels import Labels
    from ci.plan.paths import Changes
    from ci.publish.buckets import Buckets
    from core.run.outputs import Platform
    from pytorch_build.refs.torch_refs import TorchRef

DISPATCHES = ("workflow_dispatch", "workflow_call")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What happened, what was asked for, and what is known."""

    event: Event
    inputs: Inputs
    labels: Labels
    changes: Changes
    data: Data
    buckets: Buckets
    refs: Mapping[Platform, Mapping[str, TorchRef]]
    today: date
    run_id: str = ""
    release_type: str = "ci"
    notes: tuple[str, ...] = ()

    @property
    def merged(self) -> bool:
        """Whether the event is a push to a branch that lives long."""
        branch = self.event.branch
        patterns = self.data.triggers.long_lived_branches
        return self.event.name == "push" and bool(branch) and matches(branch, patterns)

    @property
    def type(self) -> str:
        """The release type of the run."""
        return self.inputs.release_type or self.release_type

    @property
    def tier(self) -> tuple[Tier | None, str]:
        """Which families are built without being asked for, and why."""
        if self.event.name in DISPATCHES:
            return None, "the dispatch names its families"
        if self.labels.all_families:
            return "nightly", "label ci:run-all-archs"
        if self.event.name == "schedule" or self.type != "ci":
            return "nightly", "the nightly schedule" if self.type == "ci" else f"release type {self.type}"
        if self.merged:
            return "postsubmit", f"a push to {self.event.branch}"
        return "presubmit", "every pull request" if self.event.name == "pull_request" else "a push"

    @property
    def does_after_merge(self) -> bool:
        """Whether tests run where no machine has the GPU, too: always but before a merge."""
        return self.event.name != "pull_request" and (self.event.name != "push" or self.merged)

    def tests_reach(self, needed: Tier) -> bool:
        """Say whether this run does the tests of a family that is tested from a tier on."""
        tier = "nightly" if self.event.name in DISPATCHES else self.tier[0]
        return families.reaches(tier, needed)
