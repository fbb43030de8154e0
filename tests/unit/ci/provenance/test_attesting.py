"""What the workflows attest: who may, where, and what."""

from pathlib import PurePosixPath

import yaml  # type: ignore[import-untyped]

from core.cli.options import ROOT
from core.run import RunOutputs
from tests.kit.workflow_files import calls, steps

ATTEST = "./.github/actions/attest"
ACTION = ROOT / ATTEST / "action.yml"


def test_what_is_published_of_builds_is_attested_and_nothing_else_is() -> None:
    ((where, job, step),) = ((at, job, one) for at, _, job, one in steps() if one.get("uses") == ATTEST)
    assert where.startswith("publish.yml, publish,")
    assert job["permissions"]["attestations"] == job["permissions"]["id-token"] == "write"
    assert "nox -s provenance" in job["steps"][job["steps"].index(step) - 1]["run"]
    # GitHub does not exist under act
    assert step["if"] == "${{ !env.ACT && inputs.attest && vars.ATTESTATIONS != 'false' }}"
    published = {at: job["with"] for at, _, job, target in calls() if target.name == "publish.yml"}
    assert {at for at in published if published[at].get("attest")} == {
        at for at in published if at.startswith("build_")
    }


def test_the_globs_find_a_runs_wheels_and_sdists_wherever_the_run_lies() -> None:
    made = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["runs"]["steps"]
    assert [step["uses"].partition("@")[0] for step in made] == ["actions/attest-build-provenance"]
    for patterns in (step["with"]["subject-path"].split() for step in made):
        for repository in ("", "down-stream/"):
            prefix = RunOutputs(run_id="1", platform="linux", external_repo=repository).python_prefix("cpu")
            for name in ("torch-2.whl", "rocm-7.tar.gz"):
                path = PurePosixPath("out", prefix, name)
                # pathlib's ** is one folder before Python 3.13, so both ends are held by themselves
                assert [
                    one for one in patterns if path.match(one.replace("out/**/", "", 1).replace("/**", "/*"))
                ]
        assert all(one.startswith("out/**/python/**/") for one in patterns)
