"""What the workflows attest: who may, where, and what."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import yaml  # type: ignore[import-untyped]

from core.cli.options import ROOT
from core.run import RunOutputs

FOLDER = ROOT / ".github" / "workflows"
ATTEST = "./.github/actions/attest"
ACTION = ROOT / ATTEST / "action.yml"
BUILDS = {
    "build_portable_linux_python_packages.yml",
    "build_portable_linux_pytorch_wheels.yml",
    "build_windows_python_packages.yml",
    "build_windows_pytorch_wheels.yml",
}


def jobs() -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (path.name, name): job
        for path in FOLDER.glob("*.yml")
        for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items()
    }


def test_every_build_attests_what_it_uploaded_and_nothing_else_does() -> None:
    found = {}
    for (workflow, name), job in jobs().items():
        used = [step.get("uses", "") for step in job.get("steps", [])]
        place = [number for number, one in enumerate(used) if one.startswith(ATTEST)]
        if place:
            found[workflow] = job["steps"][place[0]]
            assert job["permissions"]["attestations"] == job["permissions"]["id-token"] == "write"
            before = [step.get("run", "") for step in job["steps"][: place[0]]]
            assert "upload provenance" in before[-1], name
    assert set(found) == BUILDS
    for step in found.values():
        # an upload is decided against for forks, and GitHub does not exist under act
        assert step["if"] == "${{ !env.ACT && inputs.upload && vars.ATTESTATIONS != 'false' }}"


def test_who_may_attest_builds_or_calls_who_does() -> None:
    callers = BUILDS | {"ci_linux.yml", "ci_windows.yml"}
    for (workflow, name), job in jobs().items():
        may = "attestations" in job.get("permissions", {})
        calls = str(job.get("uses", "")).rpartition("/")[2] in callers
        assert may is (calls or workflow in BUILDS), f"{workflow}, {name}"


def test_the_globs_find_a_runs_wheels_and_sdists_wherever_the_run_lies() -> None:
    steps = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["runs"]["steps"]
    assert [step["uses"].partition("@")[0] for step in steps] == ["actions/attest-build-provenance"]
    for patterns in (step["with"]["subject-path"].split() for step in steps):
        for repository in ("", "down-stream/"):
            prefix = RunOutputs(run_id="1", platform="linux", external_repo=repository).python_prefix("cpu")
            for name in ("torch-2.whl", "rocm-7.tar.gz"):
                path = PurePosixPath("out", prefix, name)
                # pathlib's ** is one folder before Python 3.13, so both ends are held by themselves
                assert [
                    one for one in patterns if path.match(one.replace("out/**/", "", 1).replace("/**", "/*"))
                ]
        assert all(one.startswith("out/**/python/**/") for one in patterns)
