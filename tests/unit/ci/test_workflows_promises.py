"""What the documentation promises of workflows, read from `.github/workflows`."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from core.cli.options import ROOT


def read_workflow(name: str) -> Mapping[Any, Any]:
    """Read a workflow; YAML reads the key `on` as true."""
    text = (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")
    workflow: Mapping[Any, Any] = yaml.safe_load(text)
    return workflow


@pytest.mark.parametrize(
    "name",
    ["release_portable_linux_pytorch_wheels.yml", "release_windows_pytorch_wheels.yml"],
    ids=["linux", "windows"],
)
def test_releases_run_every_night_and_when_dispatched_or_called(name: str) -> None:
    triggers = read_workflow(name)[True]

    assert set(triggers) == {"schedule", "workflow_dispatch", "workflow_call"}
    (schedule,) = triggers["schedule"]
    minute, hour, *days = schedule["cron"].split()
    assert minute.isdigit()
    assert hour.isdigit()
    assert days == ["*", "*", "*"]


@pytest.mark.parametrize("variable", ["COMPILER_CACHE", "COMPILER_CACHE_STORE"])
def test_builds_take_a_compiler_cache_from_the_repositorys_variables(variable: str) -> None:
    jobs = read_workflow("build_pytorch.yml")["jobs"]

    values = [job["env"][variable] for job in jobs.values() if variable in job.get("env", {})]

    assert values == [f"${{{{ vars.{variable} }}}}"]
