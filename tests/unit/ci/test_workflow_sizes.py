"""How large a run's values become in what holds them: a variable of a process, an output, a matrix."""

import re

import pytest

from ci.verbs import notify
from tests.kit.workflow_files import EXPRESSION, steps, workflows
from tests.kit.workflow_values import LARGEST_RUNS, largest_plan, run_values

# Linux' MAX_ARG_STRLEN, of NAME=VALUE with the byte that ends it: https://man7.org/linux/man-pages/man2/execve.2.html
MAX_VARIABLE = 128 * 1024
SUMMARIES = ("ci.yml", "maintenance.yml", "release.yml", "therock-nightly.yml")
RESULT = re.compile(r"toJSON\(needs\.([\w-]+)\.result\)")


@pytest.mark.parametrize("release_type", LARGEST_RUNS)
def test_no_variable_of_a_step_grows_past_what_a_process_takes(release_type: str) -> None:
    values = run_values(largest_plan(release_type))
    checked_variables = 0
    for where, workflow, job, step in steps():
        environment = {**workflow.tree.get("env", {}), **job.get("env", {}), **step.get("env", {})}
        for name, template in environment.items():
            length = len(f"{name}=") + values.length_of(str(template)) + 1
            assert length <= MAX_VARIABLE, f"{where}: {name}"
            checked_variables += 1
    assert checked_variables > 300


def written_results(template: str) -> str:
    """Return the variable of a summary's step where every job succeeded."""
    return EXPRESSION.sub(lambda match: RESULT.sub('"success"', match[1]).strip(), template)


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_summary_is_told_the_result_of_every_job_that_it_waits_for(name: str) -> None:
    job = workflows()[name].jobs["summary"]
    (template,) = [step["env"]["NEEDS"] for step in job["steps"] if "NEEDS" in step.get("env", {})]

    assert RESULT.findall(template) == ([job["needs"]] if isinstance(job["needs"], str) else job["needs"])
    assert set(notify.read_needs(written_results(template)).values()) == {"success"}
