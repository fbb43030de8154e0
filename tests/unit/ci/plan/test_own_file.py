"""One file of the user's over the project's data: found, merged, explained, and as the guide shows it."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from ci.publish.buckets import buckets
from ci.verbs import cells
from core.cli import options
from core.cli.options import ROOT, use_config_file
from core.data import LAYERED, in_force, use_user_file, user_file
from core.errors import MissingInputError, UsageError
from core.families import default_family, family
from core.run.locations import buckets_of, run_buckets
from core.run.plan import Plan
from pytorch_build.build.machine import load_needs
from pytorch_build.refs.torch_refs import load_refs
from tests.kit.front_doors import run_verb

GUIDE = (ROOT / "docs" / "fork_and_downstream.md").read_text(encoding="utf-8")

# The guide shows a file, a command, and in a paragraph what that plans.
GUIDE_EXAMPLE = re.compile(
    r"commit `pytorch-build.toml`:\n\n```toml\n(?P<file>.*?)```\n\n```bash.*?```\n\n(?P<plans>.*?)\n\n",
    re.DOTALL,
)

CI_MATRIX_FILE = """\
# ours
[matrix.ci]
pythons = [
  "3.13",
]

[[matrix.ci.exclude]]
gpu_families = ["gfx1151"]
"""


def guide_example(part: str) -> str:
    """Return the guide's file, or the paragraph that says what it plans."""
    example = GUIDE_EXAMPLE.search(GUIDE)
    assert example is not None
    return example[part]


@pytest.fixture
def guide_file(tmp_path: Path) -> Path:
    file = tmp_path / "own.toml"
    file.write_text(guide_example("file"))
    return file


def configure(capsys: pytest.CaptureFixture[str], *configure_options: object) -> str:
    """Return what the verb prints."""
    capsys.readouterr()
    assert run_verb("ci", "configure", *configure_options) == 0
    return capsys.readouterr().out


def plan_push(capsys: pytest.CaptureFixture[str], file: Path) -> Plan:
    printed = configure(capsys, "--event", "push", "--config-file", file, "--json")
    return Plan.model_validate_json(printed)


# --- The guide's file ------------------------------------------------------------------------


def test_the_guides_file_plans_the_jobs_that_the_guide_names(
    guide_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paragraph = " ".join(guide_example("plans").split())

    plan = plan_push(capsys, guide_file)

    assert paragraph.startswith(f"plans {len(plan.jobs)} jobs: ")
    assert {job.gpu_family for job in plan.jobs} == set(re.findall(r"for `(gfx\S+)`", paragraph))
    assert {job.torch_ref for job in plan.jobs} == {None, "my-branch"}
    assert f"go to `{plan.store.store}`" in paragraph


def test_the_guides_file_plans_for_its_own_machines(
    guide_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_push(capsys, guide_file)

    assert {job.runner for job in plan.jobs if job.stage.startswith("build")} == {"my-builder"}
    assert {job.runner for job in plan.jobs if job.stage.startswith("test")} == {"my-mi300"}


def test_a_dispatch_of_all_families_plans_the_same_jobs(
    guide_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_options = ("--event", "workflow_dispatch", "--input=linux_amdgpu_families=all")

    printed = configure(capsys, *configure_options, "--config-file", guide_file, "--json")

    dispatched = Plan.model_validate_json(printed)
    pushed = plan_push(capsys, guide_file)
    assert {job.name for job in dispatched.jobs} == {job.name for job in pushed.jobs}


def test_a_ref_of_ones_own_is_built_for_the_families_that_it_brings_rocm_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[refs.mine]\nextends = "sample"\nrocm_families = ["gfx94X-dcgpu"]\n')
    dispatch = ("--event", "workflow_dispatch", "--input=linux_amdgpu_families=gfx94x,gfx110x")

    printed = configure(capsys, *dispatch, "--input=pytorch_git_refs=mine", "--config-file", file, "--json")

    plan = Plan.model_validate_json(printed)
    assert {job.gpu_family for job in plan.jobs} == {"gfx94X-dcgpu"}
    assert {job.torch_ref for job in plan.jobs} == {"mine"}
    assert any("mine" in row.reason for row in plan.left_out if "gfx110X" in row.what)


def test_the_guides_file_gives_the_matrix_its_families(guide_file: Path) -> None:
    use_user_file(guide_file)

    matrix = cells.load_matrix("ci", guide_file.parent)

    assert matrix.gpu_families == {"linux": ("gfx94X-lab",)}


def test_the_guides_file_gives_releases_its_families_too(guide_file: Path) -> None:
    use_user_file(guide_file)

    release = cells.load_matrix("release", guide_file.parent)

    built = cells.cells_by_session(release, load_refs(), "linux")["build_torch"]
    assert {cell.gpu_family for cell in built} == {"gfx94X-lab"}


# --- Which file, and what it changes ---------------------------------------------------------


def test_every_stage_reads_the_users_file(guide_file: Path) -> None:
    with guide_file.open("a") as stream:
        stream.write("[families.gfx94X-dcgpu]\ndefault = false\n[needs.gpu.triton]\ndisk = 3\n")

    use_user_file(guide_file)

    assert load_needs().gpu["triton"].disk == 3
    assert family("gfx94X-lab").targets == ("gfx942",)
    assert default_family(["gfx942"]) == "gfx942"
    assert run_buckets().repository == "my-organisation/wheels"
    assert buckets().repository == "my-organisation/wheels"
    assert set(buckets().release_types) == {"ci"}


def test_a_repository_of_ones_own_has_no_bucket_or_role_of_upstreams(guide_file: Path) -> None:
    use_user_file(guide_file)

    assert set(buckets().release_types) == {"ci"}
    assert set(buckets().distributions) == {"rehearsal"}
    assert buckets().maintenance.retention_role == ""


def test_explains_no_bucket_of_upstreams_as_in_force(guide_file: Path) -> None:
    use_user_file(guide_file)

    keys = in_force()

    assert "buckets.release_types.ci.bucket" in keys
    assert "buckets.release_types.nightly.bucket" not in keys
    assert "buckets.distributions.rehearsal.folder" in keys


def test_runs_of_upstream_lie_where_the_projects_data_says(guide_file: Path) -> None:
    use_user_file(guide_file)

    assert buckets_of("ROCm/TheRock").release_types["ci"].bucket == "therock-ci-artifacts"
    assert buckets_of("my-organisation/wheels").release_types["ci"].bucket == "my-wheels"


def test_a_bucket_is_added_to_upstreams_where_no_repository_is_named(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[buckets.release_types.dev]\nbucket = "ours"\n')
    use_user_file(file)

    assert buckets().release_types["dev"].bucket == "ours"
    assert buckets().release_types["ci"].bucket == "therock-ci-artifacts"


def test_the_projects_data_is_back_without_the_users_file(guide_file: Path) -> None:
    guide_file.write_text("[families.gfx94X-dcgpu]\ndefault = false\n")
    use_user_file(guide_file)

    use_user_file(None)

    assert default_family(["gfx942"]) == "gfx94X-dcgpu"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that reads the user's file from its root."""
    monkeypatch.setattr(options, "ROOT", tmp_path)
    return tmp_path


def test_reads_no_file_where_there_is_none(checkout: Path) -> None:
    assert checkout.is_dir()

    assert use_config_file(None) is None

    assert user_file().file is None


def test_reads_the_file_in_the_root(checkout: Path) -> None:
    (checkout / "pytorch-build.toml").write_text("")

    assert use_config_file(None) is None

    assert user_file().file == checkout / "pytorch-build.toml"


def test_the_variable_comes_before_the_file_in_the_root(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "pytorch-build.toml").write_text("")
    (checkout / "ci.toml").write_text("")
    monkeypatch.setenv("CI_CONFIG", "ci.toml")

    assert use_config_file(None) is None

    assert user_file().file == checkout / "ci.toml"


def test_the_option_comes_before_the_variable(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named_file = checkout / "mine.toml"
    named_file.write_text("")
    (checkout / "ci.toml").write_text("")
    monkeypatch.setenv("CI_CONFIG", "ci.toml")

    assert use_config_file(named_file) == named_file

    assert user_file().file == named_file


def test_refuses_a_variable_that_names_no_file(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_CONFIG", "absent.toml")

    with pytest.raises(MissingInputError, match=r"absent\.toml") as caught:
        use_config_file(None)

    assert str(checkout) in caught.value.message
    assert "CI_CONFIG" in caught.value.hint


# --- Explaining values -----------------------------------------------------------------------


def test_each_value_in_force_has_the_file_that_says_it() -> None:
    files: set[Path] = set()

    for value in in_force().values():
        files.add(ROOT / value.where)
        last_key = re.split(r"[.\[]", value.key)[-1].strip('"')
        assert last_key in (ROOT / value.where).read_text(encoding="utf-8"), value

    assert files == {*LAYERED}


def test_values_of_the_users_file_take_the_place_of_the_projects(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(CI_MATRIX_FILE)
    values_before = in_force()

    use_user_file(file)

    values = in_force()
    assert values.keys() == values_before.keys() | {"matrix.ci.exclude"}
    assert values["matrix.ci.pythons"].where == str(file)
    assert values["matrix.ci.exclude"].where == str(file)
    assert values["matrix.ci.pythons"].instead_of == values_before["matrix.ci.pythons"]
    assert values["matrix.release.pythons"] == values_before["matrix.release.pythons"]


def test_explains_a_value_with_its_file_and_the_one_it_replaces(
    guide_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_options = ("--config-file", guide_file, "--event", "push", "--explain", "matrix.ci")

    printed = configure(capsys, *configure_options)

    explanation = printed.partition('matrix.ci.torch_refs = ["my-branch"]')[2].splitlines()
    assert explanation[1].strip() == str(guide_file)
    assert '["nightly"], ci/m' in explanation[2]


def test_explains_a_job_with_the_values_that_lead_to_it(
    guide_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_options = ("--config-file", guide_file, "--event", "push", "--explain", "matrix.ci", "--json")

    explained = json.loads(configure(capsys, *configure_options))

    jobs = explained["jobs"]
    assert [job["stage"] for job in jobs][:2] == ["build_rocm", "build_pytorch"]
    keys = {reason["of"]: reason["key"] for reason in jobs[-1]["because"]}
    assert keys["my-branch"] == "matrix.ci.torch_refs"
    assert keys["3.12"] == "matrix.ci.pythons"
    assert keys["my-mi300"] == "runners.families.gfx94X-lab.linux.test_runner"
    assert {value["key"] for value in explained["values"]} >= {"matrix.ci.pythons", "matrix.ci.tier"}


def test_explains_every_value_of_a_table(guide_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tomllib.loads((ROOT / "ci" / "upload.toml").read_text())

    printed = configure(capsys, "--config-file", guide_file, "--explain", "upload")

    assert printed.count("ci/upload.toml\n") == len(settings)


def test_suggests_the_key_that_is_to_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb("ci", "configure", "--explain", "matrx") == UsageError.exit_code

    assert "'matrix'" in capsys.readouterr().err
