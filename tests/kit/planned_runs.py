"""What sessions of a simulated run give to the jobs after them: the outputs of real plans."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.cleanup.stores import matrices
from ci.flow import with_placeholders
from ci.plan import data
from ci.plan.job_variables import job_variables, values_of_planned_job
from ci.plan.outputs import outputs
from ci.plan.plan import plan
from ci.publish.buckets import buckets
from ci.verbs.configure import plan_basis
from core.cli import Verb, verb_parser
from core.cli.options import common_from
from core.data import compact
from core.run import Platform
from core.run.plan import Plan, job_outputs
from tests.kit.planning import BUILT_FILE
from tests.kit.simulated_runs import Event, SimulatedStep, StepResult

CONFIGURE = Verb("configure", "ci.verbs.configure", "an event -> the plan of the run")


@dataclass(kw_only=True)
class PlannedRun:
    """Answers the steps of one run: it plans when `configure` does, and keeps the plan."""

    folder: Path  # for the event's file
    config_file: Path | None = None  # the repository's own data
    event: Event
    plan: Plan | None = field(default=None, init=False)

    def run_step(self, step: SimulatedStep) -> StepResult:
        """Return what a step leaves."""
        if "plan_job" in step.words:
            return StepResult(variables=self._job_variables(step))
        return StepResult(outputs=self._outputs(step))

    def _outputs(self, step: SimulatedStep) -> Mapping[str, str]:
        """Return the outputs of a step."""
        if step.action.endswith("/hand_over"):
            return {"artifact_id": "17"}
        if "configure" in step.words and "--plan=plan.json" in step.words:
            assert self.plan is not None
            self.plan = with_placeholders(self.plan)
            return outputs(self.plan)
        if "configure" in step.words:
            self.plan = self._make_plan(step)
            return outputs(self.plan)
        if "resolve" in step.words:
            assert self.plan is not None
            return job_outputs(self.plan, {})
        if "--list-stores" in step.words:
            return self._stores()
        return {}

    def _make_plan(self, step: SimulatedStep) -> Plan:
        """Return the plan that the step's own options and variables give."""
        event_file = self.folder / "event.json"
        event_file.write_text(json.dumps(self.event.github["event"]), encoding="utf-8")
        env = {
            **step.variables,
            "GITHUB_TOKEN": "",
            "GITHUB_EVENT_NAME": self.event.github["event_name"],
            "GITHUB_EVENT_PATH": str(event_file),
            "GITHUB_REPOSITORY": self.event.github["repository"],
            "GITHUB_REF_NAME": "main",
            "GITHUB_RUN_ID": self.event.github["run_id"],
        }
        options = [word for word in step.words[step.words.index("--") + 1 :] if "--output" not in word]
        options.append(f"--release-type={step.variables['RELEASE_TYPE']}")
        if self.event.github["event_name"] in {"pull_request", "push", "merge_group"}:
            # Which files have changed would be git's to say.
            assert step.variables["CI_INPUTS"] == "{}"
            options += [
                f"--event={self.event.github['event_name']}",
                f"--payload={event_file}",
                f"--repository={self.event.github['repository']}",
                f"--changed={BUILT_FILE}",
            ]
        if self.config_file is not None:
            options.append(f"--config-file={self.config_file}")
        _module, parser = verb_parser("ci", CONFIGURE)
        arguments = parser.parse_args(options)
        return plan(plan_basis(arguments, common_from(arguments), env))

    def _job_variables(self, step: SimulatedStep) -> Mapping[str, str]:
        """Return the variables of the job of the plan that a step names."""
        assert self.plan is not None
        assert step.variables["PLAN_DIGEST"] == self.plan.digest()
        platform: Platform = "windows" if step.variables.get("PLATFORM") == "windows" else "linux"
        job = self.plan.find_job(platform, json.loads(step.variables["CELL"])["job"])
        return job_variables(values_of_planned_job(self.plan, job, source_lock=None))

    def _stores(self) -> Mapping[str, str]:
        repository = self.event.github["repository"]
        rows = matrices(buckets(), data.upload(), repository=repository, release_type="ci")
        return {name: compact(list(stores)) for name, stores in rows.items()}


def github_event(name: str, repository: str, payload: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Return GitHub's context of a run."""
    return {
        "event_name": name,
        "event": payload or {},
        "repository": repository,
        "run_id": "17",
        "actor": "somebody",
        "token": "a token",
    }
