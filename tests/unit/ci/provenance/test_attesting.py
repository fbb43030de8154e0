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


def jobs() -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (path.name, name): job
        for path in FOLDER.glob("*.yml")
        for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items()
    }


def test_what_is_published_of_builds_is_attested_and_nothing_else_is() -> None:
    found = {}
    for place, job in jobs().items():
        used = [step.get("uses", "") for step in job.get("steps", [])]
        if ATTEST in used:
            found[place] = job["steps"][used.index(ATTEST)]
            assert job["permissions"]["attestations"] == job["permissions"]["id-token"] == "write"
            before = [step.get("run", "") for step in job["steps"][: used.index(ATTEST)]]
            assert "nox -s provenance" in before[-1]
    assert set(found) == {("publish.yml", "publish")}
    # GitHub does not exist under act
    (step,) = found.values()
    assert step["if"] == "${{ !env.ACT && inputs.attest && vars.ATTESTATIONS != 'false' }}"
    calls = {place[0]: job for place, job in jobs().items() if "publish.yml" in job.get("uses", "")}
    assert {name for name, job in calls.items() if job["with"].get("attest")} == {
        name for name in calls if name.startswith("build_")
    }


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
