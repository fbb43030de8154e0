"""The noxfile's sessions, called with a session that records what it is asked to run."""

import inspect
import json
import logging
import sys
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import nox
import pytest

import noxfile
from ci.pipeline import STEPS, Step
from ci.verbs.cells import describe
from core import process
from core.cell import Cell

SESSIONS = nox.registry.get()
CELL = Cell(gpu_family="gfx94X-dcgpu", torch_ref="release/2.12", python="3.12")

ENVIRONMENT = Path("environment", "bin")


class SessionError(Exception):
    """What nox raises where a session ends with an error."""


@dataclass(kw_only=True)
class RecordingSession:
    """A session of nox that records the command of each run."""

    name: str = "build_torch"
    posargs: list[str] = field(default_factory=list)
    python: str | None = None
    backend: str = "uv"
    invoked_from: str = "folder-of-the-user"
    bin: str = str(ENVIRONMENT)
    commands: list[list[str]] = field(default_factory=list)
    environments: list[dict[str, str]] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    answer: str = ""

    @property
    def _runner(self) -> SimpleNamespace:
        """The part of nox's runner that says which sessions of the call have not begun."""
        runners = []
        for name, function in SESSIONS.items():
            runner = SimpleNamespace(name=name, func=function, posargs=self.posargs)
            runners.append((runner, name in self.waiting))
        manifest = SimpleNamespace(list_all_sessions=lambda: runners)
        return SimpleNamespace(name=self.name, manifest=manifest)

    @property
    def virtualenv(self) -> SimpleNamespace:
        return SimpleNamespace(venv_backend=self.backend)

    def install(self, *_words: str, silent: bool) -> None:
        assert silent

    def run(self, *command: str, **options: Any) -> str:
        self.commands.append(list(command))
        self.environments.append(options["env"])
        return self.answer

    def error(self, message: str) -> NoReturn:
        raise SessionError(message)


def call_session(name: str, session: RecordingSession, **cell: str) -> list[str]:
    """Call a session's function; return the words of its one command."""
    SESSIONS[name].func(session, **cell)
    (command,) = session.commands
    return command


def make_session(name: str, *posargs: str, **facts: Any) -> RecordingSession:
    backend = SESSIONS[name].venv_backend or "uv"
    return RecordingSession(name=name, backend=backend, posargs=list(posargs), **facts)


# The pipeline and the sessions agree


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_the_session_of_a_step_calls_its_front_door(step: Step) -> None:
    command = call_session(step.session, make_session(step.session, *step.options))

    assert command[: 2 + len(step.front_door)] == [sys.executable, "-m", *step.front_door]
    assert command[len(command) - len(step.options) :] == list(step.options)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_the_session_of_a_step_has_an_environment_where_the_step_has(step: Step) -> None:
    has_environment = SESSIONS[step.session].venv_backend != "none"

    assert has_environment == step.has_environment


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_the_session_of_a_step_takes_a_cell_where_the_step_has_cells(step: Step) -> None:
    parameters = inspect.signature(SESSIONS[step.session].func).parameters

    assert ("cell" in parameters) == step.has_cells


def test_sessions_stand_in_the_order_of_the_pipeline() -> None:
    step_names = [step.name for step in STEPS if step.session == step.name]

    assert [name for name in SESSIONS if name in step_names] == step_names


# What every session has in common


@pytest.mark.parametrize("name", SESSIONS)
def test_every_session_says_in_one_line_what_it_does(name: str) -> None:
    docstring = inspect.getdoc(SESSIONS[name].func) or ""

    assert docstring
    assert "\n" not in docstring
    assert len(f"* {name} -> {docstring}") <= 100, "too wide for the list of sessions"


@pytest.mark.parametrize("name", SESSIONS)
def test_every_front_door_has_the_verb_that_a_session_calls(name: str) -> None:
    command = call_session(name, make_session(name))
    if command[0] != sys.executable:
        return  # one of the project's own tools

    package, verb = command[2:4]
    verbs = import_module(f"{package}.__main__").VERBS
    assert verb in [known_verb.name for known_verb in verbs]


# Options


def test_passes_the_options_after_the_dashes_on_last() -> None:
    session = make_session("build_torch", "--torch-ref", "sample")

    command = call_session("build_torch", session)

    assert command[-3:] == [f"--python={ENVIRONMENT / 'python'}", "--torch-ref", "sample"]


def test_a_session_without_an_environment_names_no_python() -> None:
    command = call_session("checkout", make_session("checkout", python="3.12"))

    assert command == [sys.executable, "-m", "pytorch_build", "checkout"]


def test_setup_venv_makes_an_environment_for_the_chosen_python() -> None:
    command = call_session("setup_venv", make_session("setup_venv", python="3.12"))

    assert command[-1] == "--python=3.12"


def test_a_front_door_is_told_where_relative_paths_of_the_user_begin() -> None:
    session = make_session("check_wheels", "wheels")

    call_session("check_wheels", session)

    (environment,) = session.environments
    assert environment["INVOKED_FROM"] == "folder-of-the-user"


# Sessions that are named together


@pytest.fixture(autouse=True)
def _no_options_of_another_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noxfile, "POSARGS_OF_SESSIONS", {})


def test_each_of_several_sessions_gets_the_options_that_it_has() -> None:
    words = ("--torch-ref=sample", "--force")
    session = make_session("build_torch", *words, waiting=["check_wheels", "lint", "build_triton"])
    session.answer = json.dumps({"build_torch": [*words], "check_wheels": ["--torch-ref=sample"]})

    SESSIONS["build_torch"].func(session)
    last_session = make_session("check_wheels", *words)
    SESSIONS["check_wheels"].func(last_session)

    division, build = session.commands
    assert division[1:] == ["-m", "core.cli.shared_options"]
    assert json.loads(session.environments[0]["SHARED_OPTIONS"]) == {
        "front_doors": {
            "build_torch": ["pytorch_build", "build", "torch"],
            "build_triton": ["pytorch_build", "build", "triton"],
            "check_wheels": ["pytorch_build", "check-wheels"],
        },
        "options": [*words],
    }
    assert build[2:5] == ["pytorch_build", "build", "torch"]
    assert build[-2:] == [*words]
    (check,) = last_session.commands
    assert check[2:] == ["pytorch_build", "check-wheels", "--torch-ref=sample"]


@pytest.mark.parametrize("words", [[], ["--help"]], ids=["no-options", "help"])
def test_divides_no_options_where_there_are_none(words: list[str]) -> None:
    session = make_session("build_torch", *words, waiting=["check_wheels"])

    call_session("build_torch", session)


# Cells


def test_makes_a_session_of_each_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    def build_torch(session: nox.Session, **cell: str) -> None:
        """Stand for the session of that name."""

    monkeypatch.setattr(noxfile, "CELLS", {"build_torch": [describe(CELL)]})

    (parameter,) = noxfile.cells(build_torch).parametrize  # type: ignore[attr-defined] # nox sets it

    assert parameter.id == "gfx94X-dcgpu, release/2.12, Python 3.12"
    assert parameter.call_spec == CELL.to_json()
    assert parameter.tags == ["release_2_12", "gfx94X_dcgpu", "py312"]


def test_a_cell_becomes_options() -> None:
    session = make_session("build_torch")

    command = call_session("build_torch", session, torch_ref="nightly", gpu_family="gfx1151")

    assert command[5:7] == ["--torch-ref=nightly", "--gpu-family=gfx1151"]


def test_refuses_another_python_than_that_of_the_cell() -> None:
    session = make_session("build_torch", python="3.13")

    with pytest.raises(SessionError, match=r"built for Python 3\.12: choose cells with -p, not -P"):
        SESSIONS["build_torch"].func(session, **CELL.to_json())


def test_takes_the_python_of_the_cell_twice() -> None:
    session = make_session("build_torch", python="3.12")

    command = call_session("build_torch", session, **CELL.to_json())

    assert "--torch-ref=release/2.12" in command
    assert not [option for option in command if option.startswith("--python=3")]


def test_explains_a_session_that_the_matrix_has_no_cell_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noxfile, "MATRIX", "ci")

    command = call_session("test_torch", make_session("test_torch", "--help"))

    assert command[-1] == "--help"


def test_refuses_a_session_that_the_matrix_has_no_cell_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noxfile, "MATRIX", "ci")

    with pytest.raises(SessionError, match="MATRIX=ci has no cell of test_torch"):
        SESSIONS["test_torch"].func(make_session("test_torch"))


# nox's own lines


def test_masks_credentials_in_addresses_that_nox_prints() -> None:
    message = "Command %s failed with exit code 1"
    record = logging.LogRecord(
        "nox", logging.ERROR, "", 0, message, ("pip -i https://user:word@host/",), None
    )

    assert noxfile.CredentialFilter().filter(record)

    assert "word" not in record.getMessage()
    assert "https://***@host/" in record.getMessage()


# Stops


def test_a_session_has_time_to_record_that_it_was_stopped() -> None:
    longest_stop = noxfile.INTERRUPT_TIMEOUT + noxfile.TERMINATE_TIMEOUT

    assert process.COMMAND_GRACE_SECONDS < noxfile.INTERRUPT_TIMEOUT
    assert longest_stop < process.SESSION_GRACE_SECONDS <= 30
