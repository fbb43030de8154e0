"""invoke's tasks: what a shell gives them, and how they end."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task

import tasks
from ci import flow, interpreters
from core.cli.options import ROOT
from core.errors import (
    CheckError,
    EnvironmentSetupError,
    InterruptedStageError,
    MissingInputError,
    ProcessError,
    UsageError,
)
from pytorch_build.components import COMPONENTS
from tests.kit import machines
from tests.kit.machines import Answer

TASKS = {name: value for name, value in vars(tasks).items() if isinstance(value, Task)}
FIND_PYTHON = interpreters.starts
SAMPLE = {"torch_ref": "sample", "gpu_family": "cpu"}


@pytest.fixture(autouse=True)
def _every_python_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "starts", bool)


def call_task(task: str, *, remainder: str = "", **options: Any) -> None:
    TASKS[task].body(Context(remainder=remainder), **options)


def exit_code_of(task: str, *, remainder: str = "", **options: Any) -> int:
    with pytest.raises(Exit) as raised:
        call_task(task, remainder=remainder, **options)
    assert raised.value.code is not None
    return raised.value.code


# The command line


@pytest.mark.parametrize("module", ["pydantic", "zlib_ng"])
def test_names_a_package_that_the_tools_environment_lacks(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_to_import(*_arguments: object, **_options: object) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(flow, "run_ref", fail_to_import)

    assert exit_code_of("ci", **SAMPLE) == EnvironmentSetupError.exit_code
    printed = capsys.readouterr().err
    assert module in printed
    assert "requirements.txt" in printed


def test_there_are_six_flows() -> None:
    assert sorted(TASKS) == ["change", "ci", "event", "nightly", "promote", "release"]


@pytest.mark.parametrize("name", TASKS)
def test_no_flow_takes_help_for_a_value(name: str) -> None:
    # A copy, because a task forgets its help once it has been asked for its arguments.
    arguments = copy.deepcopy(TASKS[name]).get_arguments()

    assert [argument.name for argument in arguments if argument.positional] == []


@pytest.mark.parametrize("name", TASKS)
def test_every_option_is_explained(name: str) -> None:
    for argument in copy.deepcopy(TASKS[name]).get_arguments():
        assert argument.help, argument.name


def test_a_change_has_the_options_of_builds_for_trees() -> None:
    names = {
        f"--{argument.name.replace('_', '-')}" for argument in copy.deepcopy(tasks.change).get_arguments()
    }

    for component in COMPONENTS.values():
        assert component.tree_option in names


@pytest.mark.parametrize("name", TASKS)
def test_refuses_what_follows_two_dashes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(name, remainder="--torch-ref sample") == UsageError.exit_code
    assert "--torch-ref sample" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        pytest.param("change", {}, "--pytorch-dir", id="no tree"),
        pytest.param("event", {}, "--name", id="no event"),
        pytest.param("promote", {}, "--run-id", id="no run"),
        pytest.param("release", {"type": "nigthly"}, "'nightly'", id="release type"),
        pytest.param("ci", {**SAMPLE, "release_type": "nigthly"}, "'nightly'", id="release type of a ref"),
        pytest.param("release", {"jobs": "many"}, "'many'", id="number of jobs"),
        pytest.param("event", {"name": "push", "jobs": "0"}, "'0'", id="no jobs"),
        pytest.param("ci", {**SAMPLE, "python": "3,12"}, "'3,12'", id="Python"),
        pytest.param("ci", {**SAMPLE, "rocm_layout": "spilt"}, "'split'", id="layout"),
        pytest.param("promote", {"run_id": "17"}, "nightly", id="no type of a promotion"),
        pytest.param("promote", {"run_id": "17", "type": "nigthly"}, "'nightly'", id="type of a promotion"),
        pytest.param("nightly", {"gpu_family": "gfx94X-dgcpu"}, "'gfx94X-dcgpu'", id="family of an image"),
        pytest.param("nightly", {"torch_ref": "nigthly"}, "'nightly'", id="ref of an image"),
    ],
)
def test_names_what_is_wrong_and_what_to_give(
    name: str, options: dict[str, Any], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(name, **options) == UsageError.exit_code
    assert named in capsys.readouterr().err


def test_names_a_policy_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "absent.toml"

    assert exit_code_of("ci", policy=str(policy), **SAMPLE) == MissingInputError.exit_code
    assert str(policy) in capsys.readouterr().err


def test_a_promotion_may_be_of_another_platform(capsys: pytest.CaptureFixture[str]) -> None:
    call_task("promote", run_id="17", type="nightly", platform="windows", dry_run=True)

    assert "--platform=windows" in capsys.readouterr().out


# Dry runs


def first_printed_sessions(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the first session of each call of nox that was printed, and nothing else was."""
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("nox -s ") for line in lines)
    return [line.split()[2] for line in lines]


def test_a_dry_release_prints_its_chain(capsys: pytest.CaptureFixture[str]) -> None:
    call_task("release", gpu_family="gfx94X-dcgpu", torch_ref="release/2.14", python="3.12", dry_run=True)

    sessions = first_printed_sessions(capsys)
    assert sessions[:4] == ["configure", "resolve", "fetch_artifacts", "build_rocm"]
    assert sessions.index("stage") < sessions.index("test_smoke")
    assert sessions[-3:] == ["test_report", "promote", "report"]


@pytest.mark.parametrize(
    ("options", "run_id"),
    [({}, "local-rehearsal"), ({"run_id": "local-mine"}, "local-mine")],
    ids=["by default", "named"],
)
def test_a_rehearsal_has_a_run_of_its_own(
    capsys: pytest.CaptureFixture[str], options: dict[str, str], run_id: str
) -> None:
    call_task("release", type="rehearsal", dry_run=True, **options)

    lines = capsys.readouterr().out.splitlines()
    assert all(f"--run-id={run_id} " in f"{line} " for line in lines)


def test_a_dry_event_prints_its_chain(capsys: pytest.CaptureFixture[str]) -> None:
    call_task("event", name="pull_request", torch_ref="sample", gpu_family="gfx94X-dcgpu", dry_run=True)

    assert first_printed_sessions(capsys)[:3] == ["configure", "build_rocm", "check_wheels"]


def test_a_dry_nightly_prints_its_chain(capsys: pytest.CaptureFixture[str]) -> None:
    call_task("nightly", dry_run=True)

    assert first_printed_sessions(capsys) == ["build_image", "in_image", "report", "test_smoke"]


def test_a_dry_promotion_prints_its_chain(capsys: pytest.CaptureFixture[str]) -> None:
    call_task("promote", run_id="17", type="nightly", gpu_family="gfx1151", dry_run=True)

    assert capsys.readouterr().out.startswith("nox -s stage promote -- --gpu-family=gfx1151")


# How a flow ends


class Nox:
    """Stands for nox: its sessions all pass, or the first call fails and leaves a note of how."""

    def __init__(self) -> None:
        self.note: dict[str, Any] | None = None
        self.is_failing = False
        self.calls: list[machines.Call] = []

    def __call__(self, call: machines.Call) -> Answer:
        self.calls.append(call)
        if not self.is_failing or len(self.calls) > 1:
            return Answer(stderr="1 cell (1 passed)\npage     out/local-linux/reports/index.html\n")
        if self.note is not None:
            Path(call.variables["FAILURE_FILE"]).write_text(json.dumps(self.note), encoding="utf-8")
        return Answer(status=1)


@pytest.fixture(name="nox")
def nox_fixture(monkeypatch: pytest.MonkeyPatch) -> Nox:
    nox = Nox()
    machines.answer_processes(monkeypatch, nox)
    # Nothing is looked at in this process before nox is called.
    monkeypatch.setattr(flow, "can_look_at_steps", lambda _common: False)
    return nox


def test_calls_nox_where_the_noxfile_is(nox: Nox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATRIX", "ci")  # with it, the noxfile has cells in the place of sessions

    call_task("ci", **SAMPLE)

    first_call = nox.calls[0]
    assert first_call.words[:6] == (
        sys.executable,
        "-m",
        "nox",
        "--no-error-on-external-run",
        "-s",
        "resolve",
    )
    assert first_call.folder == ROOT
    assert "MATRIX" not in first_call.variables


def test_lets_nox_say_everything_where_the_user_has_asked_for_that(
    nox: Nox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERBOSE_OUTPUT", "1")

    call_task("ci", **SAMPLE)

    assert nox.calls[0].variables["VERBOSE_OUTPUT"] == "1"


FAILURE_NOTE = {"exit_code": CheckError.exit_code, "message": "a.cpp:3: error: x\nagain: nox -s build_torch"}


def test_ends_in_the_words_and_with_the_exit_code_of_the_failed_step(
    nox: Nox, capsys: pytest.CaptureFixture[str]
) -> None:
    nox.is_failing = True
    nox.note = FAILURE_NOTE

    assert exit_code_of("ci", **SAMPLE) == CheckError.exit_code

    output = capsys.readouterr().err
    cause = "a.cpp:3: error: x\nagain: nox -s build_torch"
    assert output.index(cause) < output.index("1 of 2 jobs failed: sample")


def test_writes_the_page_of_a_failed_run_and_prints_none_of_its_successes(
    nox: Nox, capsys: pytest.CaptureFixture[str]
) -> None:
    nox.is_failing = True
    nox.note = FAILURE_NOTE

    exit_code_of("ci", **SAMPLE)

    output = capsys.readouterr().err
    assert "page     out/local-linux" in output
    assert "passed" not in output


def test_leaves_the_words_of_a_failed_step_to_its_annotation_on_github(
    nox: Nox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    nox.is_failing = True
    nox.note = FAILURE_NOTE

    exit_code_of("ci", **SAMPLE)

    assert "a.cpp" not in capsys.readouterr().err


def test_names_the_call_of_a_session_that_failed_before_its_front_door(
    nox: Nox, capsys: pytest.CaptureFixture[str]
) -> None:
    nox.is_failing = True

    assert exit_code_of("ci", **SAMPLE) == ProcessError.exit_code
    assert "again: nox -s resolve" in capsys.readouterr().err


def test_tells_who_interrupts_a_flow_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(flow, "run_all", interrupt)

    assert exit_code_of("nightly") == InterruptedStageError.exit_code
    assert "again to continue" in capsys.readouterr().err


# Pythons


@pytest.fixture
def shims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the PATH have three Pythons, and a version manager's shim for one that is not installed."""
    for name in ("python3.9", "python3.13", "python3.14t", "python3.99", "python3.12-config", "python3"):
        status = 127 if name == "python3.99" else 0
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(interpreters, "starts", FIND_PYTHON)


@pytest.mark.processes
@pytest.mark.usefixtures("shims")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("ci", SAMPLE, id="ci"),
        pytest.param("change", {"torch_ref": "sample", "pytorch_dir": "."}, id="change"),
        pytest.param(
            "event", {"name": "push", "torch_ref": "sample", "gpu_family": "gfx110X-all"}, id="event"
        ),
    ],
)
def test_names_the_pythons_that_are_there_before_it_does_anything(
    name: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(name, python="3.99", **options) == EnvironmentSetupError.exit_code

    output = capsys.readouterr().err
    assert "python3.9, python3.13, python3.14t" in output
    assert "uv python install 3.99" in output
    assert "session" not in output
