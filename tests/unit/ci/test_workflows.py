"""The workflows, read as data: what each job calls, and how inputs, outputs and permissions are wired."""

import fnmatch
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import Any

import pytest

from ci.flow import make_plan
from ci.jobs import FlowSettings
from ci.pipeline import STEPS_BY_NAME
from ci.plan import data, inputs
from ci.plan.inputs import Inputs
from ci.plan.job_variables import DispatchedJob, JobValues, job_variables
from ci.plan.outputs import outputs
from core.cli import verb_parser
from core.cli.options import ROOT, WithoutEffect
from core.errors import UsageError
from core.run.plan import job_outputs
from docs.command_tables import all_sessions
from tests.kit.github_expressions import expand
from tests.kit.planning import plan_event, pull_request
from tests.kit.workflow_files import (
    ACTIONS,
    FOLDER,
    READING,
    SESSIONS,
    Step,
    Workflow,
    WorkflowJob,
    called_sessions,
    called_workflows,
    command_steps,
    local_actions,
    minutes_of,
    references,
    steps,
    text_of_workflows,
    words_of,
    workflow_jobs,
    workflows,
)

DAYS_FOR_ANOTHER_TRY = 7

# Two variables are split into words: a list of sessions, and a flag or nothing.
SPLIT_VARIABLES = {"SESSIONS", "STAGED"}

# The workflows that people dispatch, and the ones with their jobs.
ENTRY_POINTS = {
    "build_portable_linux_python_packages.yml": "build_rocm.yml",
    "build_windows_python_packages.yml": "build_rocm.yml",
    "build_portable_linux_pytorch_wheels.yml": "build_pytorch.yml",
    "build_windows_pytorch_wheels.yml": "build_pytorch.yml",
    "test_rocm_wheels.yml": "test_rocm.yml",
    "test_pytorch_wheels.yml": "test_pytorch.yml",
    "ci_linux.yml": "ci_family.yml",
    "ci_windows.yml": "ci_family.yml",
    "release_portable_linux_pytorch_wheels.yml": "release.yml",
    "release_windows_pytorch_wheels.yml": "release.yml",
}
RELEASES = fnmatch.filter(ENTRY_POINTS, "release_*")
ENTRY_POINTS_OF_LINUX = fnmatch.filter(ENTRY_POINTS, "*linux*")
ENTRY_POINTS_OF_ONE_JOB = [
    *fnmatch.filter(ENTRY_POINTS, "build_*"),
    *fnmatch.filter(ENTRY_POINTS, "test_*"),
]

# What a container gets of a machine with a GPU.
DEVICES_OF_A_GPU = re.compile(
    r"\$\{\{ !(?:fromJSON\(inputs\.cell\)|matrix\.cell)\.without_gpu"
    r" && '[^']*--device=/dev/kfd[^']*' \|\| '' \}\}"
)


def environment_of(step: Step) -> dict[str, str]:
    """Return the variables that a step has; `plan_job` sets some for the steps behind it."""
    environment: dict[str, str] = {}
    environment.update(step.workflow.tree.get("env", {}))
    environment.update(step.job.get("env", {}))

    for earlier_step in step.job["steps"]:
        if earlier_step is step.tree:
            break
        if called_sessions(earlier_step.get("run", "")) == [READING]:
            environment.update(job_variables(JobValues(gpu_family="gfx94X-dcgpu")))

    environment.update(step.tree.get("env", {}))
    return environment


def commands_of(file: str) -> Iterator[Step]:
    """Yield the steps of a workflow that run a command."""
    for step in command_steps():
        if step.workflow.name == file:
            yield step


def used_variables(command: str) -> set[str]:
    """Return the variables that a command takes values from, in bash's words or cmd's."""
    of_bash = re.findall(r"\$\{?([A-Z_]+)", command)
    of_cmd = re.findall(r"!([A-Z_]+)!", command)
    return {*of_bash, *of_cmd}


# What a step runs


@pytest.mark.parametrize("file", workflows())
def test_a_step_is_one_call_of_nox(file: str) -> None:
    for step in commands_of(file):
        assert "\n" not in step.command.strip(), step.path
        assert not re.search(r"[;&|`]|\$\(", step.command), step.path
        assert words_of(step.command)[:2] == ["nox", "-s"], step.path


@pytest.mark.parametrize("file", workflows())
def test_a_step_calls_sessions_that_exist(file: str) -> None:
    session_names = {session.name for session in all_sessions()}

    for step in commands_of(file):
        called = called_sessions(step.command)
        assert called, step.path
        if called != [SESSIONS]:
            assert set(called) <= session_names, step.path


@cache
def verbs_by_session() -> Mapping[str, tuple[str, str]]:
    """Return the front door and the verb that each session calls."""
    verbs: dict[str, tuple[str, str]] = {}
    for session in all_sessions():
        if session.calls:
            front_door, verb = session.calls[:2]
            verbs[session.name] = (front_door, verb)
    return verbs


def options_of(session: str) -> set[str]:
    """Return the options that a session's verb has."""
    front_door, verb_name = verbs_by_session()[session]
    verbs = import_module(f"{front_door}.__main__").VERBS
    (verb,) = [verb for verb in verbs if verb.name == verb_name]
    _module, parser = verb_parser(front_door, verb)

    options: set[str] = set()
    for action in parser._actions:
        if not isinstance(action, WithoutEffect):
            options.update(action.option_strings)
    return options


# The stages of a plan whose jobs run in a workflow.
STAGES = {
    "build_pytorch.yml": ("build_pytorch",),
    "test_rocm.yml": ("test_rocm",),
    "test_pytorch.yml": ("test_pytorch", "test_torch"),
    "therock-nightly.yml": ("test_pytorch",),
}


def planned_sessions(file: str) -> set[str]:
    """Return the sessions that a plan may write for the jobs of a workflow."""
    plan = make_plan(["--event=schedule", "--torch-ref=nightly"], FlowSettings())

    sessions: set[str] = set()
    for job in plan.jobs:
        if job.stage in STAGES[file]:
            for name in job.sessions:
                sessions.add(STEPS_BY_NAME[name].session)
    return sessions


def sessions_of(step: Step) -> Collection[str]:
    """Return the sessions that a step may run."""
    sessions = called_sessions(step.command)
    if sessions == [SESSIONS]:
        return planned_sessions(step.workflow.name)
    return sessions


def options_in(command: str) -> set[str]:
    """Return the options that a call of nox hands on to its sessions."""
    _nox, _, arguments = command.partition(" -- ")

    options: set[str] = set()
    for argument in words_of(arguments):
        if argument == "$STAGED":
            options.add("--staged")
        elif argument.startswith("--"):
            options.add(argument.partition("=")[0])
    return options


def test_every_option_is_known_to_every_session_that_gets_it() -> None:
    checked_sessions = 0
    for step in command_steps():
        options = options_in(step.command)
        if not options:
            continue
        sessions = sessions_of(step)
        assert sessions, step.path

        for session in sessions:
            # `in_image` hands on what it does not know to the sessions in the image.
            if session in verbs_by_session() and session != "in_image":
                assert options <= options_of(session), f"{step.path}: {session}"
                checked_sessions += 1
    assert checked_sessions > 40


@pytest.mark.parametrize("file", workflows())
def test_values_reach_commands_by_the_environment_alone(file: str) -> None:
    for step in commands_of(file):
        assert "${{" not in step.command, step.path
        # cmd would take %NAME% for a part of the command
        assert "%" not in step.command, step.path
        assert used_variables(step.command) <= set(environment_of(step)), step.path


@pytest.mark.parametrize("file", workflows())
def test_variables_are_quoted_but_for_those_that_are_to_be_split(file: str) -> None:
    for step in commands_of(file):
        without_quoted_values = re.sub(r'"[^"]*"', '""', step.command)
        unquoted = re.findall(r'(?<!["=\w/])[$!]([A-Z_]+)', without_quoted_values)
        assert set(unquoted) <= SPLIT_VARIABLES, step.path


def test_a_flag_that_is_not_quoted_is_a_constant_of_the_workflow() -> None:
    flags: set[str] = set()
    for step in steps():
        environment = step.job.get("env", {})
        if "STAGED" in environment:
            flags.add(environment["STAGED"])

    assert flags == {"${{ inputs.staged && '--staged' || '' }}"}


def may_run_on_windows(step: Step) -> bool:
    """Return whether a step's job has machines with Windows."""
    if step.job.get("runs-on", "ubuntu-24.04") == "ubuntu-24.04":
        return False
    return "platform" in step.workflow.inputs or "windows" in str(step.job.get("strategy", ""))


def shell_of(step: Step) -> str:
    """Return the shell that runs a step's command."""
    shell: str = step.tree.get("shell") or step.job["defaults"]["run"]["shell"]
    return shell


def test_on_windows_commands_take_values_as_their_shell_reads_them() -> None:
    shells: set[str] = set()
    for step in command_steps():
        if not may_run_on_windows(step):
            continue
        shell = shell_of(step)
        shells.add(shell)

        if shell == "bash":
            assert "!" not in step.command, step.path
        else:
            assert re.match(r"cmd .*/V:ON", shell), step.path
            assert "$" not in step.command, step.path
            assert "inputs.platform == 'windows'" in step.tree["if"], step.path
    assert len(shells) == 2


def test_a_step_of_windows_is_the_one_of_linux_in_cmds_words() -> None:
    checked_pairs = 0
    for step in command_steps():
        if step.tree.get("id") != "windows":
            continue
        (linux_step,) = [tree for tree in step.job["steps"] if tree.get("id") == "linux"]

        assert words_of(step.command) == words_of(linux_step["run"])
        assert step.tree["timeout-minutes"] == linux_step["timeout-minutes"]
        checked_pairs += 1
    assert checked_pairs == 3


MACHINES = pytest.mark.parametrize("hosted", [False, True], ids=["self-hosted", "hosted"])


@MACHINES
def test_every_job_has_a_time_limit(*, hosted: bool) -> None:
    for job in workflow_jobs():
        if "uses" not in job.tree:
            limit = minutes_of(job.tree["timeout-minutes"], hosted=hosted)
            assert 0 < limit <= 720, job.path


@MACHINES
def test_every_step_has_a_time_limit_within_that_of_its_job(*, hosted: bool) -> None:
    longest_test = data.MAX_HOSTED_MINUTES if hosted else data.MAX_MINUTES

    for step in command_steps():
        limit = minutes_of(step.tree["timeout-minutes"], hosted=hosted, planned=longest_test)
        limit_of_job = minutes_of(step.job["timeout-minutes"], hosted=hosted)
        assert 0 < limit <= limit_of_job, step.path


# Actions and images


def used_actions() -> Iterator[tuple[str, str]]:
    """Yield the file and the action or workflow of each ``uses:``, with the comment behind it."""
    paths = [*FOLDER.glob("*.yml"), *ACTIONS.rglob("action.yml")]
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            match = re.fullmatch(r"\s*(?:- )?uses: (.*)", line)
            if match:
                yield path.name, match[1]


def test_local_actions_and_workflows_that_are_used_exist() -> None:
    actions = list(used_actions())

    assert len(actions) > 50
    for file, action in actions:
        if action.startswith("./"):
            assert (ROOT / action).exists(), file


def test_actions_of_others_are_pinned_by_one_commit_with_its_version() -> None:
    pins: dict[str, str] = {}
    for file, action in used_actions():
        if action.startswith("./"):
            continue
        match = re.fullmatch(r"([\w-]+/[\w-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+", action)
        assert match, f"{file}: {action}"
        assert pins.setdefault(match[1], action) == action, file
    assert pins


def is_upload(step: Mapping[str, Any]) -> bool:
    """Return whether a step uploads an artifact to GitHub."""
    return "actions/upload-artifact@" in step.get("uses", "")


def days_of_artifacts() -> Mapping[str, int]:
    """Return for how many days artifacts are kept, by the step or the action that uploads them."""
    days: dict[str, int] = {}
    for step in steps():
        if is_upload(step.tree):
            days[step.path] = step.tree["with"]["retention-days"]

    for name, action in local_actions().items():
        for tree in action["runs"]["steps"]:
            if is_upload(tree):
                assert tree["with"]["retention-days"] == "${{ inputs.days }}"
                days[name] = int(action["inputs"]["days"]["default"])
    return days


def test_a_job_that_is_run_again_within_a_week_finds_what_was_handed_over() -> None:
    days = days_of_artifacts()

    assert "hand_over" in days
    assert len(days) == 3
    assert min(days.values()) >= DAYS_FOR_ANOTHER_TRY, days


def test_the_nightly_image_is_pushed_with_a_password_of_its_registry_alone() -> None:
    (step,) = [step for step in steps() if "Push the image" in step.path]

    condition = r"startsWith\(vars\.NIGHTLY_IMAGE, 'ghcr\.io/'\) && github\.token \|\| ''"
    assert re.search(condition, step.tree["env"]["REGISTRY_PASSWORD"])
    assert "ghcr.io" not in str({**step.tree, "env": {}})


def test_images_are_pinned_in_one_place() -> None:
    images = re.findall(r"ghcr\.io/[^\s']+", text_of_workflows())

    assert len(images) == 2
    for image in images:
        assert re.fullmatch(r"ghcr\.io/rocm/\w+@sha256:[0-9a-f]{64}", image)
        assert image in workflows()["setup.yml"].text


def options_of_container(job: WorkflowJob) -> str:
    """Return the options of docker that a job's container has."""
    options: str = job.tree.get("container", {}).get("options", "")
    return options


def test_no_container_gets_devices_without_asking_whether_its_machine_has_them() -> None:
    for job in workflow_jobs():
        without_conditions = re.sub(DEVICES_OF_A_GPU, "", options_of_container(job))
        assert "--device" not in without_conditions, job.path


def test_a_container_that_tests_gets_the_devices_of_its_machine() -> None:
    checked_jobs = 0
    for job in workflow_jobs():
        if "test_image" in str(job.tree.get("container", "")):
            assert re.search(DEVICES_OF_A_GPU, options_of_container(job)), job.path
            checked_jobs += 1
    assert checked_jobs == 3


def test_no_workflow_decides_by_the_release_type() -> None:
    for job in workflow_jobs():
        assert "release_type" not in str(job.tree.get("if", "")), job.path
    for step in steps():
        assert "release_type" not in str(step.tree.get("if", "")), step.path
    assert not re.search(r"release_type\s*[!=]=", text_of_workflows())


def test_no_workflow_hands_every_secret_to_another() -> None:
    assert "secrets: inherit" not in text_of_workflows()


def test_leaves_out_under_act_only_what_needs_github() -> None:
    """One condition, and only on steps of actions that act cannot have; artifacts it has."""
    for step in steps():
        needs_github = not re.search("^$|actions/checkout@|_over$", step.action)
        is_left_out = "!env.ACT" in str(step.tree.get("if", ""))
        assert is_left_out is needs_github, step.path

    for job in workflow_jobs():
        assert "env.ACT" not in str({**job.tree, "steps": []}), job.path


def test_steps_that_run_under_act_use_no_action_of_others() -> None:
    """For act fetches them before it knows that their step is left out."""
    not_run_by_act = {"therock-nightly.yml", "therock-stable.yml", "unit_tests.yml"}
    for step in steps():
        is_checkout = "actions/checkout@" in step.action
        if step.action and not is_checkout and step.workflow.name not in not_run_by_act:
            assert step.action.startswith("./"), step.path


# Inputs and outputs


def input_defaults(workflow: Workflow, event: str) -> Mapping[str, object]:
    """Return what inputs are where nobody gives them; a dispatch gives one without a default as ""."""
    defaults: dict[str, object] = {}
    for name, settings in workflow.inputs_of(event).items():
        defaults[name] = settings.get("default") or ""
    return defaults


@pytest.mark.parametrize("file", workflows())
def test_inputs_that_are_read_are_declared_alike_for_calls_and_dispatches(file: str) -> None:
    workflow = workflows()[file]
    events = {"workflow_call", "workflow_dispatch"} & set(workflow.on)

    for event in events:
        for path in references(workflow.tree, "inputs"):
            assert path[0] in workflow.inputs_of(event), event
    if len(events) == 2:
        assert input_defaults(workflow, "workflow_call") == input_defaults(workflow, "workflow_dispatch")


@pytest.mark.parametrize("file", ["ci.yml", *RELEASES])
def test_a_request_offers_what_configure_knows(file: str) -> None:
    known_inputs = {field.name for field in fields(Inputs)}

    assert set(workflows()[file].inputs) <= known_inputs


def test_every_output_of_the_plan_that_is_read_exists() -> None:
    plan = make_plan(["--event=schedule", "--torch-ref=nightly"], FlowSettings())
    outputs_of_steps = {
        "configure": set(outputs(plan)),
        "rocm": set(outputs(plan)),
        "resolve": set(job_outputs(plan, {})),
        "plan": {"artifact_id"},
    }

    read_outputs = 0
    for path in references(workflows()["setup.yml"].tree, "steps"):
        if path[1] == "outputs":
            step, _outputs, output = path
            assert output in outputs_of_steps[step]
            read_outputs += 1
    assert read_outputs > 15


def test_every_step_of_a_run_knows_where_the_run_is_kept() -> None:
    """Where that is decides which folder of the store, or of this machine, is the run's."""
    checked_steps = 0
    for step in command_steps():
        if "--run-id=" in step.command:
            assert environment_of(step)["RUN_STORE"].endswith(".store }}"), step.path
            checked_steps += 1
    assert checked_steps > 20


@pytest.mark.parametrize(
    ("file", "platforms"),
    [
        pytest.param("ci.yml", {"linux", "windows"}, id="CI, of both platforms"),
        pytest.param("release.yml", {'"$PLATFORM"'}, id="a release, of its platform"),
    ],
)
def test_a_report_is_written_of_each_platform_that_a_workflow_has(file: str, platforms: set[str]) -> None:
    reported_platforms: set[str] = set()
    for step in workflows()[file].jobs["summary"]["steps"]:
        command = step.get("run", "")
        if called_sessions(command) == ["report"]:
            reported_platforms.update(re.findall(r"--platform=(\S+)", command))

    assert reported_platforms == platforms


# Events


def test_a_run_cannot_cancel_that_of_another_fork() -> None:
    for file, workflow in workflows().items():
        concurrency: Mapping[str, Any] = workflow.tree.get("concurrency", {})
        if "pull_request" in workflow.on:
            assert concurrency, file
        if not concurrency:
            continue

        # Forks have branches of the same names.
        group = concurrency["group"]
        assert "head_ref" not in group, file
        if concurrency["cancel-in-progress"]:
            assert "github.event.pull_request.number || github.run_id" in group, file


@pytest.mark.parametrize("file", [*RELEASES, "release.yml"])
def test_no_release_waits_for_another_one_or_cancels_it(file: str) -> None:
    """GitHub keeps one waiting run of a group, and cancels it silently for a newer one."""
    workflow = workflows()[file]

    assert "concurrency" not in workflow.tree
    for name, job in workflow.jobs.items():
        assert "concurrency" not in job, name


def test_a_merge_queue_starts_whatever_checks_a_pull_request() -> None:
    files = {file for file, workflow in workflows().items() if "pull_request" in workflow.on}

    assert files == {"ci.yml", "unit_tests.yml"}
    for file in files:
        assert "merge_group" in workflows()[file].on, file


def test_pushes_run_ci_on_the_long_lived_branches_of_the_data() -> None:
    branches = workflows()["ci.yml"].on["push"]["branches"]

    assert tuple(branches) == data.load().triggers.long_lived_branches


def is_label_of_ci(label: str) -> bool:
    """Return whether `configure` reads a label, which it may refuse."""
    plan_data = data.load()
    without_labels = inputs.read_labels([], plan_data)
    try:
        return inputs.read_labels([label], plan_data) != without_labels
    except UsageError:
        return True


@pytest.mark.parametrize("part", ["concurrency", "setup"])
def test_ci_knows_the_labels_that_configure_knows(part: str) -> None:
    workflow = workflows()["ci.yml"]
    conditions = {
        "concurrency": workflow.tree["concurrency"]["group"],
        "setup": workflow.jobs["setup"]["if"],
    }
    prefixes = re.findall(r"startsWith\(github\.event\.label\.name, '([^']+)'\)", conditions[part])

    assert len(prefixes) == 6
    for prefix in prefixes:
        assert is_label_of_ci(f"{prefix}someone"), prefix


def test_configure_leaves_labels_alone_that_are_not_of_ci() -> None:
    assert not is_label_of_ci("documentation")


def test_the_path_filter_names_workflows_that_exist() -> None:
    for pattern in data.load().triggers.paths.workflows:
        assert fnmatch.filter(workflows(), pattern), pattern


def files_of_ci() -> Sequence[str]:
    """Return the files that a run of CI is made of: its workflows, and the actions that their steps use."""
    workflow_names = {"ci.yml", *called_workflows("ci.yml")}

    files: set[str] = set()
    for name in workflow_names:
        files.add(f".github/workflows/{name}")
    for step in steps():
        if step.workflow.name in workflow_names and step.action.startswith("./"):
            files.add(f"{step.action.removeprefix('./')}/action.yml")
    return sorted(files)


@pytest.mark.parametrize("file", files_of_ci())
def test_a_change_of_what_a_run_of_ci_is_made_of_is_built(file: str) -> None:
    plan = plan_event("pull_request", pull_request(), files=[file])

    assert plan.enable_build_jobs.reason == f"{file} has changed"
    assert plan.matrix("linux", "build_rocm")


def test_a_run_of_ci_is_made_of_what_carries_its_outputs_too() -> None:
    assert {
        ".github/workflows/fetch.yml",
        ".github/workflows/publish.yml",
        ".github/actions/hand_over/action.yml",
        ".github/actions/take_over/action.yml",
    } <= {*files_of_ci()}


# Entry points


@pytest.mark.parametrize(("file", "called_file"), ENTRY_POINTS.items())
def test_an_entry_point_calls_the_workflow_that_has_its_jobs(file: str, called_file: str) -> None:
    (job,) = workflows()[file].jobs.values()

    assert job["uses"] == f"./.github/workflows/{called_file}"
    assert job["with"]["platform"] in {"linux", "windows", "${{ inputs.platform }}"}


def of_windows(file: str) -> Workflow:
    """Return the entry point of Windows that does what one of Linux does."""
    return workflows()[file.replace("portable_", "").replace("linux", "windows")]


@pytest.mark.parametrize("file", ENTRY_POINTS_OF_LINUX)
def test_entry_points_of_linux_and_windows_have_the_same_inputs(file: str) -> None:
    linux_inputs: set[str] = set()
    for name in workflows()[file].inputs:
        linux_inputs.add(name.replace("linux", "windows"))
    windows_inputs = set(of_windows(file).inputs)

    # On Windows nothing runs in a container.
    assert linux_inputs - windows_inputs <= {"container_image"}
    assert windows_inputs <= linux_inputs


def without_image(text: str) -> str:
    """Return a text of JSON without the member that names the image of a container."""
    return re.sub(r',\s*"(?:build|test)_image": [^}]*\}\}', "", text)


@pytest.mark.parametrize("file", ENTRY_POINTS_OF_LINUX)
def test_entry_points_of_linux_and_windows_hand_the_same_to_their_jobs(file: str) -> None:
    (linux_job,) = workflows()[file].jobs.values()
    (windows_job,) = of_windows(file).jobs.values()
    linux_values = dict(linux_job["with"])
    windows_values = dict(windows_job["with"])
    linux_values.pop("platform", None)
    assert windows_values.pop("platform")

    assert linux_values.keys() == windows_values.keys()
    for name, value in windows_values.items():
        assert without_image(linux_values[name]) == value, name


@pytest.mark.parametrize("file", ENTRY_POINTS_OF_ONE_JOB)
def test_a_dispatched_job_knows_the_machines_of_github(file: str) -> None:
    (job,) = workflows()[file].jobs.values()
    runners = data.load().runners

    for label in (*runners.github, *runners.self_hosted):
        dispatch_inputs: dict[str, object] = dict.fromkeys(workflows()[file].inputs, "")
        dispatch_inputs["timeout_minutes"] = 300
        dispatch_inputs["build_runs_on"] = label
        dispatch_inputs["test_runs_on"] = label
        contexts = {"github": {"run_id": "17"}, "inputs": dispatch_inputs}

        cell = json.loads(expand(job["with"]["cell"], contexts))

        assert cell["runner"] == label
        assert cell["hosted"] is runners.is_hosted(label)
        assert DispatchedJob.model_validate(cell).gpu_family == ""


def test_windows_wheels_are_built_without_triton() -> None:
    default = workflows()["build_windows_pytorch_wheels.yml"].inputs["sessions"]["default"]

    assert "triton" not in default
