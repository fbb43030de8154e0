"""The workflows, read as data: what each job calls, and how inputs, outputs and permissions are wired."""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import pytest

from ci.flow import planned, release_words, unresolved
from ci.jobs import SESSIONS, Target, nightly_jobs, plan_jobs, setup_job
from ci.plan import data, inputs
from ci.plan.outputs import outputs
from core import process
from core.cli import verb_parser
from core.cli.options import ROOT
from docs.command_tables import all_sessions
from pytorch_build.lock.stored import outputs as resolved
from tests.kit.workflow_files import FOLDER, references, steps, workflows


@cache
def sessions() -> frozenset[str]:
    return frozenset(one.name for one in all_sessions())


@pytest.mark.parametrize("name", workflows())
def test_a_run_is_one_call_of_nox_to_sessions_that_exist(name: str) -> None:
    runs = [(where, step["run"]) for where, one, _, step in steps() if one.name == name and "run" in step]
    for where, run in runs:
        assert "\n" not in run.strip(), where
        assert not re.search(r"[;&|`]|\$\(", run), where
        words = shlex.split(run.replace("!", "$"))
        assert words[:2] == ["nox", "-s"], where
        end = next((index for index, word in enumerate(words[2:], 2) if word.startswith("-")), len(words))
        called = words[2:end]
        assert called, where
        if called not in (["$SESSIONS"], ["$SESSIONS$"]):
            assert set(called) <= sessions(), where


@cache
def verbs() -> Mapping[str, tuple[str, str]]:
    """Map sessions to the front door and verb that they call."""
    return {one.name: (one.calls[0], one.calls[1]) for one in all_sessions() if one.calls}


def options_of(session: str) -> set[str]:
    package, name = verbs()[session]
    known = import_module(f"{package}.__main__").VERBS
    _module, parser = verb_parser(package, next(verb for verb in known if verb.name == name))
    return set(parser._option_string_actions)


def test_every_option_is_known_to_every_session_that_gets_it() -> None:
    plan = planned(["--event=schedule", "--torch-ref=nightly"], Target())
    lists = {
        "build": {one for cell in plan.cells if cell.stage == "build_pytorch" for one in cell.sessions},
        "test": {one for cell in plan.cells if cell.stage.startswith("test") for one in cell.sessions},
    }
    checked = 0
    for where, one, _, step in steps():
        if "run" not in step or "--" not in shlex.split(step["run"].replace("!", "$")):
            continue
        words = shlex.split(step["run"].replace("!", "$"))
        called = [word for word in words[2 : words.index("--")] if re.fullmatch("[a-z_]+", word)]
        if words[2].startswith("$SESSIONS"):
            rocm = {"test_rocm"} if "rocm" in one.name else {"test_smoke"}
            called = sorted(lists["build"] if "build_" in one.name else rocm & lists["test"])
        options = {word.partition("=")[0] for word in words[words.index("--") + 1 :] if word.startswith("--")}
        for session in called:
            if session in verbs() and session != "in_image":
                assert options <= options_of(session), f"{where}: {session}"
                checked += 1
    assert checked > 40


@pytest.mark.parametrize("name", workflows())
def test_values_reach_commands_by_the_environment_alone(name: str) -> None:
    for where, one, job, step in steps():
        if one.name != name or "run" not in step:
            continue
        assert "${{" not in step["run"], where
        env = {**one.tree.get("env", {}), **job.get("env", {}), **step.get("env", {})}
        used = set(re.findall(r"\$\{?([A-Z_]+)", step["run"])) | set(re.findall(r"!([A-Z_]+)!", step["run"]))
        assert used <= set(env), where
        # in bash only the plan's list of sessions is split into words; cmd takes %NAME% for a command's part
        unquoted = re.findall(r'(?<!["=\w/])\$([A-Z_]+)', re.sub(r'"[^"]*"', '""', step["run"]))
        assert set(unquoted) <= {"SESSIONS"}, where
        assert "%" not in step["run"], where


def test_on_windows_commands_take_values_as_cmd_reads_them_safely() -> None:
    for where, one, job, step in steps():
        windows = ("windows" in one.name and "machine" not in str(job.get("runs-on"))) or "!" in step.get(
            "run", ""
        )
        if "run" not in step or not windows or job.get("runs-on") == "ubuntu-24.04":
            continue
        assert re.match(r"cmd .*/V:ON", job["defaults"]["run"]["shell"]), where
        assert "$" not in step["run"], where


def test_every_step_and_job_has_a_time_limit() -> None:
    for name, one in workflows().items():
        for job_name, job in one.jobs.items():
            if "uses" not in job:
                assert 0 < job["timeout-minutes"] <= 720, f"{name}, {job_name}"
    for where, one, job, step in steps():
        if "run" in step:
            limit = step["timeout-minutes"]
            if limit == "${{ inputs.timeout_minutes }}":
                limit = one.inputs["timeout_minutes"]["default"]
                assert job["timeout-minutes"] > data.MAX_MINUTES, where
            assert 0 < limit <= job["timeout-minutes"], where


def uses() -> Iterator[tuple[str, str]]:
    for path in [*FOLDER.glob("*.yml"), *(ROOT / ".github" / "actions").rglob("action.yml")]:
        for line in path.read_text(encoding="utf-8").splitlines():
            found = re.fullmatch(r"\s*(?:- )?uses: (.*)", line)
            if found:
                yield path.name, found[1]


def test_actions_are_pinned_by_commit_with_their_version() -> None:
    pins: dict[str, set[str]] = {}
    found = list(uses())
    assert len(found) > 50
    for where, used in found:
        if used.startswith("./"):
            assert (ROOT / used).exists(), where
            continue
        match = re.fullmatch(r"([\w-]+/[\w-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+", used)
        assert match, f"{where}: {used}"
        pins.setdefault(match[1], set()).add(used)
    assert all(len(versions) == 1 for versions in pins.values()), pins


def test_images_are_pinned_in_one_place() -> None:
    images = re.findall(r"ghcr\.io/\S+", "".join(one.text for one in workflows().values()))
    assert len(images) == 2
    assert all(re.fullmatch(r"ghcr\.io/rocm/\w+@sha256:[0-9a-f]{64}'\)?", image) for image in images)
    assert images[0] in workflows()["setup.yml"].text


def test_no_workflow_decides_by_the_release_type() -> None:
    for name, one in workflows().items():
        conditions = [
            text
            for value in one.jobs.values()
            for part in (value, *value.get("steps", []))
            for text in [str(part.get("if", ""))]
        ]
        assert not [text for text in conditions if "release_type" in text], name
        assert not re.search(r"release_type\s*[!=]=", one.text), name
        assert "secrets: inherit" not in one.text, name


def test_leaves_out_under_act_only_what_needs_github() -> None:
    """One condition, and only on steps of actions that act cannot have; artifacts it has."""
    for where, _, _, step in steps():
        alone = not re.search("^$|actions/checkout@|_over$", step.get("uses", ""))
        assert ("!env.ACT" in str(step.get("if", ""))) is alone, where
    for name, one in workflows().items():
        assert "env.ACT" not in str({job: {**value, "steps": []} for job, value in one.jobs.items()}), name


def test_steps_that_run_under_act_use_no_action_of_others() -> None:
    """For act fetches them before it knows that their step is left out."""
    alone = {"therock-nightly.yml", "therock-stable.yml", "unit_tests.yml"}
    for where, one, job, step in steps():
        windows = "windows" in one.name or "windows" in str(job.get("if", ""))
        used = step.get("uses", "./")
        if one.name not in alone and not windows and "actions/checkout@" not in used:
            assert used.startswith("./"), where


@pytest.mark.parametrize("name", workflows())
def test_inputs_that_are_read_are_declared_alike_for_calls_and_dispatches(name: str) -> None:
    one = workflows()[name]
    used = {path[0] for path in references(one.tree, "inputs")}
    declared = [
        one.on[event].get("inputs", {}) for event in ("workflow_call", "workflow_dispatch") if event in one.on
    ]
    for given_inputs in declared:
        assert used <= set(given_inputs)
        assert {key: given.get("default") for key, given in given_inputs.items()} == {
            key: given.get("default") for key, given in declared[0].items()
        }


def test_a_request_offers_what_configure_knows() -> None:
    from dataclasses import fields

    from ci.plan.inputs import Inputs

    known = {one.name for one in fields(Inputs)}
    for name in ("ci.yml", "release_portable_linux_pytorch_wheels.yml", "release_windows_pytorch_wheels.yml"):
        assert set(workflows()[name].inputs) <= known, name


def test_every_output_of_the_plan_that_is_read_is_one_that_it_has() -> None:
    plan = planned(["--event=schedule", "--torch-ref=nightly"], Target())
    known = {"configure": set(outputs(plan)), "rocm": set(outputs(plan)), "resolve": set(resolved(plan, {}))}
    setup = workflows()["setup.yml"]
    read = [path for path in references(setup.tree, "steps") if path[1] == "outputs"]
    assert len(read) > 30
    for step, _, output in read:
        assert output in known[step], output


def test_every_step_of_a_run_knows_where_the_run_is_kept() -> None:
    """Where that is decides which folder of the store, or of this machine, is the run's."""
    checked = 0
    for where, one, job, step in steps():
        if "--run-id=" in step.get("run", ""):
            env = {**one.tree.get("env", {}), **job.get("env", {}), **step.get("env", {})}
            assert env["RUN_STORE"].endswith(".store }}"), where
            checked += 1
    assert checked > 30


def test_a_report_is_written_of_each_platform_that_a_workflow_has() -> None:
    for name in ("ci.yml", *(one for one in workflows() if one.startswith("release_"))):
        steps_of = workflows()[name].jobs["summary"]["steps"]
        found = {
            word.partition("=")[2]
            for step in steps_of
            for word in step.get("run", "").split()
            if word.startswith("--platform=") and " report " in step["run"]
        }
        jobs = {"linux", "windows"} if name == "ci.yml" else {"windows" if "windows" in name else "linux"}
        assert found == jobs, name


def test_a_run_cannot_cancel_that_of_another_fork() -> None:
    for name, one in workflows().items():
        group = one.tree.get("concurrency")
        if "pull_request" in one.on:
            assert group, name
        if group:
            assert "head_ref" not in group["group"], name
            if group["cancel-in-progress"]:
                assert "github.event.pull_request.number || github.run_id" in group["group"], name


def test_pushes_and_labels_are_those_of_the_data() -> None:
    ci = workflows()["ci.yml"]
    assert tuple(ci.on["push"]["branches"]) == data.load().triggers.long_lived_branches
    text = ci.tree["concurrency"]["group"]
    setup = ci.jobs["setup"]["if"]
    for written in (text, setup):
        found = re.findall(r"startsWith\(github\.event\.label\.name, '([^']+)'\)", written)
        assert sorted(found) == sorted(inputs._PREFIXES)


def test_the_path_filter_names_workflows_that_exist() -> None:
    import fnmatch

    for pattern in data.load().triggers.paths.workflows:
        assert fnmatch.filter(workflows(), pattern), pattern


def test_linux_and_windows_differ_only_where_they_must() -> None:
    for linux, windows in (
        ("ci_linux.yml", "ci_windows.yml"),
        ("build_portable_linux_python_packages.yml", "build_windows_python_packages.yml"),
        ("build_portable_linux_pytorch_wheels.yml", "build_windows_pytorch_wheels.yml"),
        ("release_portable_linux_pytorch_wheels.yml", "release_windows_pytorch_wheels.yml"),
    ):
        one, other = workflows()[linux], workflows()[windows]
        assert list(one.jobs) == list(other.jobs)
        missing = {name.replace("linux", "windows") for name in one.inputs} - set(other.inputs)
        assert missing <= {"container_image", "build_image", "test_image"}
        assert {job: value.get("needs") for job, value in one.jobs.items()} == {
            job: value.get("needs") for job, value in other.jobs.items()
        }
    default = workflows()["build_windows_pytorch_wheels.yml"].inputs["sessions"]["default"]
    assert "triton" not in default


# invoke's flows and the workflows' graphs

CI_JOBS = {
    "build_rocm": "build_portable_linux_python_packages.yml",
    "test_rocm": "test_rocm_wheels.yml",
    "build_pytorch": "build_portable_linux_pytorch_wheels.yml",
    "test_pytorch": "test_pytorch_wheels.yml",
    "test_torch": "test_pytorch_wheels.yml",
}
RELEASE_JOBS = {
    "rocm": "build_rocm",
    "test_rocm": "test_rocm",
    "build": "build_pytorch",
    "test": "test_pytorch",
    "test_torch": "test_torch",
    "test_report": "test_report",
}
OPTIONAL = {"fetch_artifacts"}  # only where another run has the artifacts


def chain(job: Mapping[str, Any]) -> list[str]:
    """List the sessions that a job runs where all goes well; the plan's list is one word."""
    found: list[str] = []
    for step in job["steps"]:
        condition = str(step.get("if", ""))
        if "run" not in step or "failure()" in condition:
            continue
        words = shlex.split(step["run"])[2:]
        end = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
        found += words[:end]
    return [word for word in found if word not in OPTIONAL]


def flow(event: list[str]) -> dict[str, Any]:
    plan = planned(event, Target())
    first = setup_job(plan, Target())
    made = plan_jobs(unresolved(plan), "linux", Target())
    return {"first": first, "nodes": made, "cells": {cell.sessions for cell in plan.cells}}


def sessions_of(node: Any, cells: set[tuple[str, ...]]) -> list[str]:
    return [
        word
        for call in node.calls
        for word in (
            ["$SESSIONS"]
            if call.sessions in cells and len(call.posargs) > 2 and call.python
            else call.sessions
        )
    ]


SAMPLE = ["--torch-ref=sample", "--gpu-family=gfx94X-dcgpu"]


def test_a_run_of_ci_is_the_same_chain_on_one_machine() -> None:
    made = flow(
        ["--event=pull_request", "--label=build:pytorch", "--label=test_filter:comprehensive", *SAMPLE]
    )
    for stage, file in CI_JOBS.items():
        jobs = workflows()[file].jobs.values()
        job = next(job for job in jobs if "steps" in job and "windows" not in job.get("if", ""))
        found = [one for one in made["nodes"] if one.stage == stage]
        assert len(found) == (2 if stage == "test_torch" else 1)
        # on one machine a test writes into the store itself
        published = chain(workflows()["publish.yml"].jobs["publish"]) if "build" in stage else []
        for node in found:
            assert sessions_of(node, made["cells"]) == [*chain(job), *published], stage
    last = [
        word
        for step in workflows()["ci.yml"].jobs["summary"]["steps"]
        for word in step.get("run", "").split()
    ]
    assert [word for word in last if word in {"test_report", "report"}] == ["test_report", "report"] * 2
    assert [one.stage for one in made["nodes"]][-2:] == ["test_report", "summary"]
    expected = ["configure", *made["first"].calls[0].sessions]
    assert chain(workflows()["setup.yml"].jobs["setup"])[:2] == expected


@pytest.mark.parametrize("name", ["ci_linux.yml", "release_portable_linux_pytorch_wheels.yml"])
def test_jobs_wait_for_the_same_jobs_on_one_machine(name: str) -> None:
    words = release_words("nightly", "gfx94X-dcgpu", "release/2.14", "3.12")
    asked = ["--event=pull_request", "--label=build:pytorch", "--label=test_filter:comprehensive", *SAMPLE]
    made = flow(list(words) if "release" in name else asked)
    stages = {node.name: node.stage for node in made["nodes"]}
    edges = {
        (node.stage, stages[one]) for node in made["nodes"] for one in node.needs if node.stage != "summary"
    }
    if "release" not in name:  # there it is a step of the last job
        edges = {edge for edge in edges if edge[0] != "test_report"}
    jobs = workflows()[name].jobs
    names = RELEASE_JOBS if "release" in name else {job: job for job in jobs}
    known = {**names, "promote": "promote"}
    written = {
        (known[job], known[need])
        for job, value in jobs.items()
        for need in ([value["needs"]] if isinstance(value.get("needs"), str) else value.get("needs", []))
        if job in known and need in known
    }
    assert {edge for edge in edges if edge != ("promote", "build_rocm")} == written


def test_a_nightly_is_the_same_chain_on_one_machine() -> None:
    jobs = workflows()["therock-nightly.yml"].jobs
    for node in nightly_jobs("nightly", "gfx94X-dcgpu", "3.11", ""):
        assert [word for call in node.calls for word in call.sessions] == [
            "test_smoke" if word == "$SESSIONS" else word for word in chain(jobs[node.stage])
        ]
        assert jobs[node.stage]["needs"]


@pytest.mark.processes
def test_sessions_are_read_as_nox_reads_them_in_the_order_of_the_pipeline() -> None:
    said = process.capture([sys.executable, "-m", "nox", "-l"], cwd=ROOT, env=process.inherited(MATRIX=None))
    found = re.findall(r"^[*-] ([a-z_]+)", said.stdout, re.MULTILINE)
    assert found == [one.name for one in all_sessions()]
    assert [one for one in found if one in SESSIONS] == [*SESSIONS]
