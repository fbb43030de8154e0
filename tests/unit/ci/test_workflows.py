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
import yaml  # type: ignore[import-untyped]

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
    FOLDER,
    READING,
    SESSIONS,
    Step,
    Workflow,
    called_sessions,
    calls,
    command_steps,
    minutes_of,
    references,
    steps,
    words_of,
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
# What a container gets of a machine with a GPU.
DEVICES_OF_A_GPU = re.compile(
    r"\$\{\{ !(?:fromJSON\(inputs\.cell\)|matrix\.cell)\.without_gpu"
    r" && '[^']*--device=/dev/kfd[^']*' \|\| '' \}\}"
)
RELEASES = [name for name in ENTRY_POINTS if name.startswith("release_")]


def environment_of(step: Step) -> dict[str, str]:
    """Return the variables that a step has; `plan_job` sets some for the steps behind it."""
    environment = {**step.workflow.tree.get("env", {}), **step.job.get("env", {})}
    for earlier_step in step.job["steps"]:
        if earlier_step is step.tree:
            break
        if called_sessions(earlier_step.get("run", "")) == [READING]:
            environment.update(job_variables(JobValues(gpu_family="gfx94X-dcgpu")))
    environment.update(step.tree.get("env", {}))
    return environment


def commands_of(name: str) -> Iterator[Step]:
    """Yield the steps of a workflow that run a command."""
    for step in command_steps():
        if step.workflow.name == name:
            yield step


def used_variables(command: str) -> set[str]:
    """Return the variables that a command takes values from."""
    return set(re.findall(r"\$\{?([A-Z_]+)", command)) | set(re.findall(r"!([A-Z_]+)!", command))


# What a step runs


@pytest.mark.parametrize("name", workflows())
def test_a_step_is_one_call_of_nox_to_sessions_that_exist(name: str) -> None:
    session_names = {session.name for session in all_sessions()}
    for step in commands_of(name):
        assert "\n" not in step.command.strip(), step.path
        assert not re.search(r"[;&|`]|\$\(", step.command), step.path
        assert words_of(step.command)[:2] == ["nox", "-s"], step.path

        called = called_sessions(step.command)
        assert called, step.path
        if called != [SESSIONS]:
            assert set(called) <= session_names, step.path


@cache
def verbs_by_session() -> Mapping[str, tuple[str, str]]:
    """Return the front door and the verb that each session calls."""
    return {session.name: (session.calls[0], session.calls[1]) for session in all_sessions() if session.calls}


def options_of(session: str) -> set[str]:
    """Return the options that a session's verb has."""
    package, verb_name = verbs_by_session()[session]
    (verb,) = [verb for verb in import_module(f"{package}.__main__").VERBS if verb.name == verb_name]
    _module, parser = verb_parser(package, verb)
    options: set[str] = set()
    for action in parser._actions:
        if not isinstance(action, WithoutEffect):
            options.update(action.option_strings)
    return options


def planned_sessions(file: str) -> set[str]:
    """Return the sessions that a plan may write for the jobs of a workflow."""
    stages = {
        "build_pytorch.yml": ("build_pytorch",),
        "test_rocm.yml": ("test_rocm",),
        "test_pytorch.yml": ("test_pytorch", "test_torch"),
        "therock-nightly.yml": ("test_pytorch",),
    }[file]
    plan = make_plan(["--event=schedule", "--torch-ref=nightly"], FlowSettings())

    sessions: set[str] = set()
    for cell in plan.jobs:
        if cell.stage in stages:
            sessions.update(STEPS_BY_NAME[step].session for step in cell.sessions)
    return sessions


def options_in(command: str) -> set[str]:
    """Return the options that a call of nox hands on to its sessions."""
    options: set[str] = set()
    _nox, _, arguments = command.partition(" -- ")
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
        sessions: Collection[str] = called_sessions(step.command)
        if sessions == [SESSIONS]:
            sessions = planned_sessions(step.workflow.name)
            assert sessions, step.path

        for session in sessions:
            if session in verbs_by_session() and session != "in_image":
                assert options <= options_of(session), f"{step.path}: {session}"
                checked_sessions += 1
    assert checked_sessions > 40


@pytest.mark.parametrize("name", workflows())
def test_values_reach_commands_by_the_environment_alone(name: str) -> None:
    for step in commands_of(name):
        assert "${{" not in step.command, step.path
        # cmd would take %NAME% for a part of the command
        assert "%" not in step.command, step.path
        assert used_variables(step.command) <= set(environment_of(step)), step.path

        without_quoted_values = re.sub(r'"[^"]*"', '""', step.command)
        unquoted = re.findall(r'(?<!["=\w/])[$!]([A-Z_]+)', without_quoted_values)
        assert set(unquoted) <= SPLIT_VARIABLES, step.path


def test_a_word_that_is_not_quoted_is_a_constant_of_the_workflow() -> None:
    flags: set[str] = set()
    for step in steps():
        environment = step.job.get("env", {})
        if "STAGED" in environment:
            flags.add(environment["STAGED"])

    assert flags == {"${{ inputs.staged && '--staged' || '' }}"}


def may_run_on_windows(workflow: Workflow, job: Mapping[str, Any]) -> bool:
    """Return whether a job has machines with Windows."""
    if job.get("runs-on", "ubuntu-24.04") == "ubuntu-24.04":
        return False
    return "platform" in workflow.inputs or "windows" in str(job.get("strategy", ""))


def test_on_windows_commands_take_values_as_their_shell_reads_them() -> None:
    checked_shells: list[str] = []
    for step in command_steps():
        if not may_run_on_windows(step.workflow, step.job):
            continue
        shell = step.tree.get("shell") or step.job["defaults"]["run"]["shell"]
        checked_shells.append(shell)
        if shell == "bash":
            assert "!" not in step.command, step.path
            continue
        assert re.match(r"cmd .*/V:ON", shell), step.path
        assert "$" not in step.command, step.path
        assert "inputs.platform == 'windows'" in step.tree["if"], step.path
    assert len(set(checked_shells)) == 2


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


@pytest.mark.parametrize("hosted", [False, True], ids=["self-hosted", "hosted"])
def test_every_step_and_job_has_a_time_limit(*, hosted: bool) -> None:
    for name, workflow in workflows().items():
        for job_name, job in workflow.jobs.items():
            if "uses" not in job:
                assert 0 < minutes_of(job["timeout-minutes"], hosted=hosted) <= 720, f"{name}, {job_name}"

    longest_test = data.MAX_HOSTED_MINUTES if hosted else data.MAX_MINUTES
    for step in command_steps():
        limit = minutes_of(step.tree["timeout-minutes"], hosted=hosted, planned=longest_test)
        limit_of_job = minutes_of(step.job["timeout-minutes"], hosted=hosted)
        assert 0 < limit <= limit_of_job, step.path


# Actions and images


def used_actions() -> Iterator[tuple[str, str]]:
    """Yield the actions and workflows that are used, with their comments, and the file of each."""
    for path in [*FOLDER.glob("*.yml"), *(ROOT / ".github" / "actions").rglob("action.yml")]:
        for line in path.read_text(encoding="utf-8").splitlines():
            match = re.fullmatch(r"\s*(?:- )?uses: (.*)", line)
            if match:
                yield path.name, match[1]


def test_actions_are_pinned_by_commit_with_their_version() -> None:
    pins: dict[str, set[str]] = {}
    actions = list(used_actions())
    assert len(actions) > 50
    for file, action in actions:
        if action.startswith("./"):
            assert (ROOT / action).exists(), file
            continue
        match = re.fullmatch(r"([\w-]+/[\w-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+", action)
        assert match, f"{file}: {action}"
        pins.setdefault(match[1], set()).add(action)
    assert all(len(versions) == 1 for versions in pins.values()), pins


def uploaded_artifacts() -> Iterator[tuple[str, str]]:
    """Yield what uploads artifacts, and for how many days they are kept."""
    for step in steps():
        if "actions/upload-artifact@" in step.action:
            yield step.path, str(step.tree["with"]["retention-days"])
    for path in (ROOT / ".github" / "actions").rglob("action.yml"):
        action = yaml.safe_load(path.read_text(encoding="utf-8"))
        for tree in action["runs"]["steps"]:
            if "actions/upload-artifact@" in tree.get("uses", ""):
                assert tree["with"]["retention-days"] == "${{ inputs.days }}"
                yield path.parent.name, action["inputs"]["days"]["default"]


def test_a_job_that_is_run_again_within_a_week_finds_what_was_handed_over() -> None:
    days_by_uploader = dict(uploaded_artifacts())

    assert "hand_over" in days_by_uploader
    assert len(days_by_uploader) == 3
    for uploader, days in days_by_uploader.items():
        assert int(days) >= DAYS_FOR_ANOTHER_TRY, uploader


def test_the_nightly_image_is_pushed_with_a_password_of_its_registry_alone() -> None:
    (step,) = [step for step in steps() if "Push the image" in step.path]

    condition = r"startsWith\(vars\.NIGHTLY_IMAGE, 'ghcr\.io/'\) && github\.token \|\| ''"
    assert re.search(condition, step.tree["env"]["REGISTRY_PASSWORD"])
    assert "ghcr.io" not in str({**step.tree, "env": {}})


def test_images_are_pinned_in_one_place() -> None:
    texts = "".join(workflow.text for workflow in workflows().values())
    images = re.findall(r"ghcr\.io/[^\s']+", texts)

    assert len(images) == 2
    assert all(re.fullmatch(r"ghcr\.io/rocm/\w+@sha256:[0-9a-f]{64}", image) for image in images)
    assert all(image in workflows()["setup.yml"].text for image in images)


def test_a_container_gets_devices_only_where_its_machine_has_them() -> None:
    checked_jobs = 0
    for name, workflow in workflows().items():
        for job_name, job in workflow.jobs.items():
            options = job.get("container", {}).get("options", "")
            without_conditions = re.sub(DEVICES_OF_A_GPU, "", options)
            assert "--device" not in without_conditions, f"{name}, {job_name}"
            if "test_image" in str(job.get("container", "")):
                assert re.search(DEVICES_OF_A_GPU, options), f"{name}, {job_name}"
                checked_jobs += 1
    assert checked_jobs == 3


def test_no_workflow_decides_by_the_release_type() -> None:
    for name, workflow in workflows().items():
        for job in workflow.jobs.values():
            for part in (job, *job.get("steps", [])):
                assert "release_type" not in str(part.get("if", "")), name
        assert not re.search(r"release_type\s*[!=]=", workflow.text), name
        assert "secrets: inherit" not in workflow.text, name


def test_leaves_out_under_act_only_what_needs_github() -> None:
    """One condition, and only on steps of actions that act cannot have; artifacts it has."""
    for step in steps():
        needs_github = not re.search("^$|actions/checkout@|_over$", step.action)
        is_left_out = "!env.ACT" in str(step.tree.get("if", ""))
        assert is_left_out is needs_github, step.path
    for name, workflow in workflows().items():
        without_steps = {job: {**tree, "steps": []} for job, tree in workflow.jobs.items()}
        assert "env.ACT" not in str(without_steps), name


def test_steps_that_run_under_act_use_no_action_of_others() -> None:
    """For act fetches them before it knows that their step is left out."""
    not_run_by_act = {"therock-nightly.yml", "therock-stable.yml", "unit_tests.yml"}
    for step in steps():
        is_checkout = "actions/checkout@" in step.action
        if step.action and not is_checkout and step.workflow.name not in not_run_by_act:
            assert step.action.startswith("./"), step.path


# Inputs and outputs


@pytest.mark.parametrize("name", workflows())
def test_inputs_that_are_read_are_declared_alike_for_calls_and_dispatches(name: str) -> None:
    workflow = workflows()[name]
    read = {path[0] for path in references(workflow.tree, "inputs")}
    defaults: list[Mapping[str, object]] = []
    for event in ("workflow_call", "workflow_dispatch"):
        if event in workflow.on:
            declared = workflow.on[event].get("inputs", {})
            assert read <= set(declared)
            # A dispatch gives an input without a default as "".
            defaults.append({key: settings.get("default") or "" for key, settings in declared.items()})
    assert all(values == defaults[0] for values in defaults)


@pytest.mark.parametrize("name", ["ci.yml", *RELEASES])
def test_a_request_offers_what_configure_knows(name: str) -> None:
    known_inputs = {field.name for field in fields(Inputs)}

    assert set(workflows()[name].inputs) <= known_inputs


def test_every_output_of_the_plan_that_is_read_exists() -> None:
    plan = make_plan(["--event=schedule", "--torch-ref=nightly"], FlowSettings())
    known_outputs = {
        "configure": set(outputs(plan)),
        "rocm": set(outputs(plan)),
        "resolve": set(job_outputs(plan, {})),
        "plan": {"artifact_id"},
    }
    paths = [path for path in references(workflows()["setup.yml"].tree, "steps") if path[1] == "outputs"]

    assert len(paths) > 15
    for step, _outputs, name in paths:
        assert name in known_outputs[step], name


def test_every_step_of_a_run_knows_where_the_run_is_kept() -> None:
    """Where that is decides which folder of the store, or of this machine, is the run's."""
    checked_steps = 0
    for step in command_steps():
        if "--run-id=" in step.command:
            assert environment_of(step)["RUN_STORE"].endswith(".store }}"), step.path
            checked_steps += 1
    assert checked_steps > 20


def test_a_report_is_written_of_each_platform_that_a_workflow_has() -> None:
    platforms: dict[str, set[str]] = {}
    for name in ("ci.yml", "release.yml"):
        commands = [step.get("run", "") for step in workflows()[name].jobs["summary"]["steps"]]
        reports = " ".join(command for command in commands if called_sessions(command) == ["report"])
        platforms[name] = set(re.findall(r"--platform=(\S+)", reports))

    assert platforms == {"ci.yml": {"linux", "windows"}, "release.yml": {'"$PLATFORM"'}}


# Events


def test_a_run_cannot_cancel_that_of_another_fork() -> None:
    for name, workflow in workflows().items():
        concurrency = workflow.tree.get("concurrency")
        if "pull_request" in workflow.on:
            assert concurrency, name
        if concurrency:
            assert "head_ref" not in concurrency["group"], name
            if concurrency["cancel-in-progress"]:
                assert "github.event.pull_request.number || github.run_id" in concurrency["group"], name


@pytest.mark.parametrize("name", [*RELEASES, "release.yml"])
def test_no_release_waits_for_another_one_or_cancels_it(name: str) -> None:
    """GitHub keeps one waiting run of a group, and cancels it silently for a newer one."""
    assert "concurrency" not in workflows()[name].tree
    assert not [job for job in workflows()[name].jobs.values() if "concurrency" in job]


def test_a_merge_queue_starts_whatever_checks_a_pull_request() -> None:
    checks = {name for name, workflow in workflows().items() if "pull_request" in workflow.on}

    assert checks == {"ci.yml", "unit_tests.yml"}
    for name in checks:
        assert "merge_group" in workflows()[name].on, name


def test_pushes_run_ci_on_the_long_lived_branches_of_the_data() -> None:
    branches = workflows()["ci.yml"].on["push"]["branches"]

    assert tuple(branches) == data.load().triggers.long_lived_branches


@pytest.mark.parametrize("part", ["concurrency", "setup"])
def test_ci_knows_the_labels_that_configure_knows(part: str) -> None:
    workflow = workflows()["ci.yml"]
    conditions = {"concurrency": workflow.tree["concurrency"]["group"], "setup": workflow.jobs["setup"]["if"]}
    prefixes = re.findall(r"startsWith\(github\.event\.label\.name, '([^']+)'\)", conditions[part])
    labels = [f"{prefix}someone" for prefix in prefixes]

    # An unknown label of CI's is an error, and any other one is none of its business.
    for label in labels:
        assert is_label_of_ci(label), label
    assert not is_label_of_ci("documentation")
    assert len(labels) == 6


def is_label_of_ci(label: str) -> bool:
    """Return whether `configure` reads a label, which it may refuse."""
    try:
        return inputs.read_labels([label], data.load()) != inputs.read_labels([], data.load())
    except UsageError:
        return True


def test_the_path_filter_names_workflows_that_exist() -> None:
    for pattern in data.load().triggers.paths.workflows:
        assert fnmatch.filter(workflows(), pattern), pattern


def workflows_called_by(name: str) -> set[str]:
    """Return the workflows that one calls, and those that they call."""
    called = {call.target.name for call in calls() if call.workflow.name == name}
    for target in frozenset(called):
        called |= workflows_called_by(target)
    return called


def files_of_ci() -> Sequence[str]:
    """Return the files that a run of CI is made of: its workflows, and the actions that their steps use."""
    names = {"ci.yml", *workflows_called_by("ci.yml")}
    files = {f".github/workflows/{name}" for name in names}
    for step in steps():
        if step.workflow.name in names and step.action.startswith("./"):
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


@pytest.mark.parametrize(("name", "target"), ENTRY_POINTS.items())
def test_an_entry_point_calls_the_workflow_that_has_its_jobs(name: str, target: str) -> None:
    (job,) = workflows()[name].jobs.values()

    assert job["uses"] == f"./.github/workflows/{target}"
    assert job["with"]["platform"] in {"linux", "windows", "${{ inputs.platform }}"}


def without_image(text: str) -> str:
    return re.sub(r',\s*"(?:build|test)_image": [^}]*\}\}', "", text)


@pytest.mark.parametrize("name", [name for name in ENTRY_POINTS if "linux" in name])
def test_entry_points_of_linux_and_windows_differ_only_where_they_must(name: str) -> None:
    linux = workflows()[name]
    windows = workflows()[name.replace("portable_", "").replace("linux", "windows")]
    linux_inputs = {input_name.replace("linux", "windows") for input_name in linux.inputs}
    (linux_job,) = linux.jobs.values()
    (windows_job,) = windows.jobs.values()

    assert linux_inputs - set(windows.inputs) <= {"container_image"}
    assert set(windows.inputs) <= linux_inputs
    assert {**linux_job["with"], "platform": "windows"}.keys() == windows_job["with"].keys()
    for key, value in windows_job["with"].items():
        if key != "platform":
            assert without_image(linux_job["with"][key]) == value, key


@pytest.mark.parametrize("name", [name for name in ENTRY_POINTS if name.startswith(("build_", "test_"))])
def test_a_dispatched_job_knows_the_machines_of_github(name: str) -> None:
    (job,) = workflows()[name].jobs.values()
    runners = data.load().runners
    contexts: dict[str, Any] = {"github": {"run_id": "17"}}

    for label in (*runners.github, *runners.self_hosted):
        inputs_of_dispatch = dict.fromkeys(workflows()[name].inputs, "")
        contexts["inputs"] = {
            **inputs_of_dispatch,
            "timeout_minutes": 300,
            "build_runs_on": label,
            "test_runs_on": label,
        }
        cell = json.loads(expand(job["with"]["cell"], contexts))
        assert cell["runner"] == label
        assert cell["hosted"] is runners.is_hosted(label)
        assert DispatchedJob.model_validate(cell).gpu_family == ""


def test_windows_wheels_are_built_without_triton() -> None:
    default = workflows()["build_windows_pytorch_wheels.yml"].inputs["sessions"]["default"]

    assert "triton" not in default
