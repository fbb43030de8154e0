"""Planning a run: on a laptop from options, in CI from the environment, with the same plan."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.verbs import configure
from core.errors import DataError, FatalError, MissingInputError, UsageError
from core.run.plan import Plan
from tests.kit.front_doors import run_verb, use_checkout
from tests.kit.machines import Answer, answer_processes
from tests.kit.planning import Payload, pull_request, push


@dataclass(frozen=True, kw_only=True)
class Completed:
    """How the verb ended: its exit code, and what it printed."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def plan(self) -> Plan:
        """The plan that it printed."""
        assert self.exit_code == 0, self.stderr
        return Plan.model_validate_json(self.stdout)


Configure = Callable[..., Completed]
Happen = Callable[..., None]


@pytest.fixture(name="configure")
def configure_fixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Configure:
    """Run the verb in a checkout without git."""
    use_checkout(monkeypatch, configure, tmp_path)
    answer_processes(monkeypatch, lambda _: Answer(status=128, stderr="fatal: not a git repository"))

    def run(*options: object) -> Completed:
        capsys.readouterr()
        exit_code = run_verb("ci", "configure", *options)
        printed = capsys.readouterr()
        return Completed(exit_code=exit_code, stdout=printed.out, stderr=printed.err)

    return run


@pytest.fixture
def happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Happen:
    """Set the environment of a job that an event started."""

    def set_environment(event_name: str, payload: Payload, *, inputs_of_call: str = "") -> None:
        event_file = tmp_path / "event.json"
        event_file.write_text(json.dumps(payload))
        variables = {
            "GITHUB_EVENT_NAME": event_name,
            "GITHUB_EVENT_PATH": str(event_file),
            "GITHUB_REPOSITORY": "ROCm/TheRock",
            "GITHUB_REF_NAME": "main",
            "GITHUB_RUN_ID": "17",
            "GITHUB_OUTPUT": str(tmp_path / "outputs"),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
            "CI_INPUTS": inputs_of_call,
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_environment


def read_outputs(path: Path) -> Mapping[str, str]:
    """Return the outputs of a job, which GitHub reads as ``name<<END``, lines, ``END``."""
    values: dict[str, str] = {}
    lines = iter(path.read_text().splitlines())
    for line in lines:
        name, _, end = line.partition("<<")
        values[name] = "\n".join(iter(lambda: next(lines), end))
    return values


# --- The same plan on a laptop and in CI -----------------------------------------------------


def test_a_laptop_prints_the_plan_that_ci_makes(configure: Configure, happen: Happen) -> None:
    labels = ("--label", "build:pytorch", "--label", "gfx1151")
    laptop = configure("--event", "pull_request", *labels, "--json", "--run-id", "17").plan

    happen("pull_request", pull_request("gfx1151", "build:pytorch"))
    in_ci = configure("--json").plan

    assert in_ci.jobs == laptop.jobs
    assert in_ci.variants == laptop.variants
    assert in_ci.left_out == laptop.left_out
    assert in_ci.event.labels == laptop.event.labels
    assert in_ci.event.number == 7


def test_prints_decisions_jobs_and_what_is_left_out(configure: Configure) -> None:
    labels = ("--label", "build:pytorch", "--label", "gfx1151")

    completed = configure("--event", "pull_request", *labels, "--changed", "docs/x.md")

    assert "only docs/x.md changed" in completed.stderr
    assert "gfx1151, nightly, Python 3.12" in completed.stderr
    assert "built from nightly on, or by label" in completed.stderr


def test_sets_the_outputs_of_a_job(configure: Configure, happen: Happen, tmp_path: Path) -> None:
    happen("push", push("release/1"))

    assert configure("--output", tmp_path / "plan.json").exit_code == 0

    values = read_outputs(tmp_path / "outputs")
    assert json.loads(values["build_pytorch"]) is True
    (group, *_others) = json.loads(values["linux_groups"])
    assert group["artifact_group"] == "gfx94X-dcgpu"
    assert group["build_pytorch"][0]["job"] == "build_pytorch gfx94X-dcgpu, nightly, Python 3.12"
    assert values["plan_digest"] == Plan.read(tmp_path / "plan.json").digest()


@pytest.mark.parametrize("platform", ["linux", "windows"])
def test_a_workflow_of_one_platform_plans_no_other_one(
    configure: Configure, happen: Happen, platform: str
) -> None:
    happen("schedule", {})

    event_plan = configure("--release-type", "nightly", "--platforms", platform, "--json").plan
    both_plan = configure("--release-type", "nightly", "--json").plan

    assert {job.platform for job in both_plan.jobs} == {"linux", "windows"}
    assert event_plan.jobs == tuple(job for job in both_plan.jobs if job.platform == platform)


def test_the_summary_of_a_job_tells_what_could_not_be_asked(
    configure: Configure, happen: Happen, tmp_path: Path
) -> None:
    happen("push", push("release/1"))

    assert configure().exit_code == 0

    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "git cannot tell which files have changed" in summary
    assert "everything counts as changed" in summary


def test_the_summary_of_a_job_lists_jobs_and_what_is_left_out(
    configure: Configure, happen: Happen, tmp_path: Path
) -> None:
    happen("push", push("release/1"))

    assert configure().exit_code == 0

    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "gfx94X\\-dcgpu, nightly, Python 3.12" in summary
    assert "<details><summary>Left out" in summary


# --- Inputs ----------------------------------------------------------------------------------


def test_inputs_of_a_calling_workflow_replace_those_of_the_event(
    configure: Configure, happen: Happen
) -> None:
    inputs = {
        "linux_amdgpu_families": "gfx94X-dcgpu",
        "pytorch_git_refs": "sample",
        "build_pytorch": True,
    }
    payload = {"inputs": {"something_of_the_caller": "x"}}
    happen("workflow_dispatch", payload, inputs_of_call=json.dumps(inputs))

    plan = configure("--json").plan

    assert {job.torch_ref for job in plan.jobs} == {"sample"}


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 5000])
def test_refuses_inputs_that_are_no_json_object(configure: Configure, happen: Happen, text: str) -> None:
    happen("workflow_dispatch", {}, inputs_of_call=text)

    completed = configure()

    assert completed.exit_code == DataError.exit_code
    assert "CI_INPUTS" in completed.stderr


def test_options_name_refs_and_families(configure: Configure) -> None:
    options = ("--torch-ref", "release/2.10", "--gpu-family", "gfx1151")

    plan = configure("--event", "schedule", *options, "--json").plan

    assert {job.gpu_family for job in plan.jobs} == {"gfx1151"}
    assert {job.torch_ref for job in plan.jobs} == {None, "release/2.10"}
    assert {job.platform for job in plan.jobs} == {"linux", "windows"}


def test_an_option_builds_a_family_only_on_its_platforms(configure: Configure) -> None:
    plan = configure("--event", "workflow_dispatch", "--gpu-family", "gfx94X-dcgpu", "--json").plan

    assert {job.platform for job in plan.jobs} == {"linux"}


def test_suggests_the_family_that_is_meant(configure: Configure) -> None:
    completed = configure("--event", "workflow_dispatch", "--gpu-family", "gfx94y")

    assert completed.exit_code == UsageError.exit_code
    assert "Did you mean" in completed.stderr


# --- Mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "mention"),
    [
        ((), UsageError, "no event"),
        (("--label", "x"), UsageError, "no event"),
        (("--event", "pull-request"), UsageError, "'pull_request'"),
        (("--event", "push", "--label", "ci:skip"), UsageError, "--label"),
        (("--event", "pull_request", "--label", "build: pytorch"), UsageError, "'build:pytorch'"),
        (("--event", "pull_request", "--repository", "x"), UsageError, "owner/name"),
        (("--event", "schedule", "--input", "test_type"), UsageError, "NAME=VALUE"),
        (("--payload", "none.json"), MissingInputError, "none.json"),
        (("--event", "push", "--changed", "@none.txt"), MissingInputError, "none.txt"),
        (("--event", "schedule", "--changed", "a.py"), UsageError, "--changed"),
        (("--event", "push", "--fork"), UsageError, "--fork"),
        (("--payload", "event.json", "--event", "push", "--fork"), UsageError, "--payload"),
    ],
)
def test_reports_a_mistake_without_a_traceback(
    configure: Configure, options: tuple[str, ...], error: type[FatalError], mention: str
) -> None:
    completed = configure(*options)

    assert completed.exit_code == error.exit_code
    assert mention in completed.stderr
    assert "Traceback" not in completed.stderr


def test_refuses_options_that_describe_an_event_in_ci(configure: Configure, happen: Happen) -> None:
    happen("workflow_dispatch", {})

    completed = configure("--label", "ci:skip")

    assert completed.exit_code == UsageError.exit_code
    assert "--event" in completed.stderr


# --- Trying payloads -------------------------------------------------------------------------


def test_plans_for_a_payload_of_github(configure: Configure, tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    file.write_text(json.dumps(pull_request("ci:skip", head=None)))

    plan = configure("--payload", file, "--json").plan

    assert not plan.trusted.value
    assert "ci:skip" in plan.enable_build_jobs.reason


def test_asks_for_the_name_of_an_event_that_the_payload_does_not_tell(
    configure: Configure, tmp_path: Path
) -> None:
    file = tmp_path / "push.json"
    file.write_text(json.dumps(push("main")))

    completed = configure("--payload", file)

    assert completed.exit_code == UsageError.exit_code
    assert "--event" in completed.stderr


def test_reads_changed_files_from_a_file(configure: Configure, tmp_path: Path) -> None:
    file = tmp_path / "files.txt"
    file.write_text("docs/a.md\ndocs/b.md\n")

    plan = configure("--event=push", "--changed", f"@{file}", "--json").plan

    assert "2 files" in plan.enable_build_jobs.reason


# A plan that was written before


def test_a_plan_that_needs_no_rocm_of_others_stays_as_it_is(configure: Configure, tmp_path: Path) -> None:
    plan_file = tmp_path / "plan.json"
    configure("--event=pull_request", "--torch-ref=sample", f"--output={plan_file}")
    plan = Plan.read(plan_file)

    completed = configure(f"--plan={plan_file}", "--run-id=9", f"--store={tmp_path / 'out'}")

    assert completed.exit_code == 0, completed.stderr
    assert "nothing in the plan needs ROCm from elsewhere" in completed.stderr
    assert Plan.read(plan_file) == plan


@pytest.mark.parametrize(
    "option", ["--event=push", "--label=build:pytorch", "--explain", "--output=new.json"]
)
def test_refuses_options_of_an_event_for_a_plan(configure: Configure, tmp_path: Path, option: str) -> None:
    completed = configure(f"--plan={tmp_path / 'plan.json'}", option)

    assert completed.exit_code == UsageError.exit_code
    assert f"{option.partition('=')[0]} has no effect with --plan" in completed.stderr


def test_names_a_plan_that_does_not_exist(configure: Configure, tmp_path: Path) -> None:
    completed = configure(f"--plan={tmp_path / 'plan.json'}")

    assert completed.exit_code == MissingInputError.exit_code
    assert "plan.json" in completed.stderr
