"""PyTorch wheels for ROCm, built and tested. `nox -s build_torch -- --help` lists its options."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2026.4"
nox.options.default_venv_backend = "uv|virtualenv"
# Each stage is a call of `python -m PACKAGE VERB`, a front door, and refills an environment
# whose digest has changed.
nox.options.reuse_venv = "yes"
# A cell that is skipped because an interpreter is missing would look like one that passed.
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = True
# Sessions that are named together follow each other in the pipeline.
nox.options.stop_on_first_error = True

ROOT = Path(__file__).parent

# The front doors run in the interpreter that runs nox, so their packages have to be there.
if importlib.util.find_spec("pydantic") is None:
    sys.exit(f"{sys.executable} runs nox without the tool's packages: pip install -r requirements.txt")

# Packages are imported from the checkout and the tool's environment, also where a person keeps `python -m`
# from looking there, or has packages of other Pythons in front.
IMPORT_VARIABLES = {"PYTHONSAFEPATH": None, "PYTHONPATH": None}

# MATRIX is ci, release, rehearsal, or a plan that `nox -s configure -- --output FILE` wrote. With it, the
# sessions that build and test PyTorch are cells: one for each Python, torch ref and GPU family.
MATRIX = os.environ.get("MATRIX")

SessionFunction = Callable[..., None]


def read_matrix(name: str) -> dict[str, Any]:
    """Return the cells of a matrix by session, and the Pythons that the project's own tests run on."""
    # A process of its own, so that the noxfile imports nothing of the project and `nox -l` stays fast.
    command = [sys.executable, "-m", "ci", "cells", name]
    variables = {name: value for name, value in os.environ.items() if name not in IMPORT_VARIABLES}
    completed = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, check=False)

    # The front door has said what is wrong with the matrix.
    if completed.returncode != 0:
        sys.exit(completed.returncode)

    matrix: dict[str, Any] = json.loads(completed.stdout)
    return matrix


if MATRIX:
    matrix = read_matrix(MATRIX)
    CELLS: dict[str, Any] = matrix["cells"]
    TEST_PYTHONS: list[str] | None = matrix["test_pythons"]
    # `nox -l --json` lists the selected sessions, and CI makes its jobs of them.
    nox.options.sessions = list(CELLS)
else:
    CELLS = {}
    TEST_PYTHONS = None
    nox.options.sessions = ["lint", "typecheck", "tests"]


def cells(function: SessionFunction) -> SessionFunction:
    """Make a session of each cell. Without MATRIX there is one, and its options say what it builds."""
    session_cells = CELLS.get(function.__name__)
    if session_cells is None:
        return function

    # nox takes the parameter `python` for the interpreter, and gives the others to the function.
    names = list(session_cells[0]["parameters"])
    parameters = []
    for cell in session_cells:
        values = cell["parameters"].values()
        parameters.append(nox.param(*values, id=cell["name"], tags=cell["keywords"]))

    parametrized_function: SessionFunction = nox.parametrize(names, parameters)(function)
    return parametrized_function


# The plan of a run, and ROCm's packages


@nox.session(venv_backend="none")
def configure(session: nox.Session) -> None:
    """Decide what a run builds and tests, or find the ROCm of its plan: -- --plan FILE."""
    front_door(session, "ci", "configure")


@nox.session(venv_backend="none")
def resolve(session: nox.Session) -> None:
    """Fix the commit of every repository and the version of every wheel of a torch ref."""
    front_door(session, "pytorch_build", "resolve")


@nox.session(venv_backend="none")
def plan_job(session: nox.Session) -> None:
    """Set the variables of a workflow's job, from the plan of its run."""
    front_door(session, "ci", "plan-job")


@nox.session(venv_backend="none")
def fetch_artifacts(session: nox.Session) -> None:
    """Fetch the ROCm artifacts of a GPU family from a CI run."""
    front_door(session, "ci", "fetch-artifacts")


@nox.session(venv_backend="none")
def build_rocm(session: nox.Session) -> None:
    """Package ROCm artifacts: the rocm sdist and the rocm-sdk-* wheels."""
    front_door(session, "rocm_packaging", "build")


@nox.session
def install_rocm(session: nox.Session) -> None:
    """Install rocm[libraries,devel] into the session's environment and show its version."""
    front_door(session, "pytorch_build", "install-rocm")


# PyTorch's wheels


@nox.session(venv_backend="none")
def checkout(session: nox.Session) -> None:
    """Check out the sources of a torch ref into src/, tagged and hipified."""
    front_door(session, "pytorch_build", "checkout")


@nox.session
@cells
def build_triton(session: nox.Session, **cell: str) -> None:
    """Build the triton wheel."""
    cell_front_door(session, "build", "triton", cell=cell)


@nox.session
@cells
def build_torch(session: nox.Session, **cell: str) -> None:
    """Build the torch wheel, against ROCm and the run's triton."""
    cell_front_door(session, "build", "torch", cell=cell)


@nox.session
@cells
def build_audio(session: nox.Session, **cell: str) -> None:
    """Build the torchaudio wheel, against the run's torch."""
    cell_front_door(session, "build", "audio", cell=cell)


@nox.session
@cells
def build_vision(session: nox.Session, **cell: str) -> None:
    """Build the torchvision wheel, against the run's torch."""
    cell_front_door(session, "build", "vision", cell=cell)


@nox.session
@cells
def build_apex(session: nox.Session, **cell: str) -> None:
    """Build the apex wheel, against the run's torch."""
    cell_front_door(session, "build", "apex", cell=cell)


@nox.session(venv_backend="none")
def check_wheels(session: nox.Session) -> None:
    """Check wheels: metadata, libraries, device code; ROCm's with -- --rocm."""
    front_door(session, "pytorch_build", "check-wheels")


@nox.session(venv_backend="none")
def fat_wheel(session: nox.Session) -> None:
    """Put the part of ROCm that a torch wheel needs into it: -- WHEEL --rocm DIR."""
    front_door(session, "pytorch_build", "fat-wheel")


@nox.session(venv_backend="none")
def split_wheel(session: nox.Session) -> None:
    """Split wheels into a host wheel and wheels of device code: -- WHEEL ..."""
    front_door(session, "pytorch_build", "split-wheel")


@nox.session(venv_backend="none")
def repair_wheel(session: nox.Session) -> None:
    """Tag wheels with the manylinux policy that they satisfy: -- WHEEL ..."""
    front_door(session, "pytorch_build", "repair-wheel")


# Run outputs, and the tests that install from them


@nox.session(venv_backend="none")
def upload(session: nox.Session) -> None:
    """Upload the wheels, records and pages of a run into a store."""
    front_door(session, "ci", "upload")


@nox.session(venv_backend="none")
def index(session: nox.Session) -> None:
    """Write a run's index pages, or check those that stay: -- --check [--yank|--remove]."""
    front_door(session, "ci", "index")


@nox.session(venv_backend="none")
def provenance(session: nox.Session) -> None:
    """Write how each wheel was made (SLSA), and what the run holds (CycloneDX)."""
    front_door(session, "ci", "provenance")


@nox.session(venv_backend="none")
def verify(session: nox.Session) -> None:
    """Verify a wheel against its record, its statement and their commits: -- WHEEL."""
    front_door(session, "ci", "verify")


@nox.session(venv_backend="none")
def setup_venv(session: nox.Session) -> None:
    """Make a virtual environment with our packages, or fetch a run's: -- --download DIR."""
    front_door(session, "ci", "setup-venv", *chosen_python(session))


@nox.session(venv_backend="none")
def stage(session: nox.Session) -> None:
    """Put a run's wheels up for testing, into v2-staging/{family}/."""
    front_door(session, "ci", "stage")


@nox.session
def test_rocm(session: nox.Session) -> None:
    """Install ROCm's packages into a clean environment and run rocm-sdk test."""
    front_door(session, "rocm_packaging", "test")


@nox.session
@cells
def test_smoke(session: nox.Session, **cell: str) -> None:
    """Install a run's wheels into a clean environment, import them and compute."""
    cell_front_door(session, "test-smoke", cell=cell)


@nox.session
@cells
def test_torch(session: nox.Session, **cell: str) -> None:
    """Run upstream's tests of torch, or list what they skip: -- --skip-rules list."""
    cell_front_door(session, "test-torch", cell=cell)


@nox.session(venv_backend="none")
def test_report(session: nox.Session) -> None:
    """Merge the test reports of all cells and shards, and fail if a test failed."""
    front_door(session, "pytorch_build", "test-report")


# Releases


@nox.session(venv_backend="none")
def promote(session: nox.Session) -> None:
    """Promote staged wheels whose tests passed into the release index, v2/{family}/."""
    front_door(session, "ci", "promote")


@nox.session(venv_backend="none")
def report(session: nox.Session) -> None:
    """Write a run's page, or one over the last runs of a store: -- --history."""
    front_door(session, "ci", "report")


@nox.session(venv_backend="none")
def notify(session: nox.Session) -> None:
    """Tell how a run ended: a summary, and Slack and e-mail where they are configured."""
    front_door(session, "ci", "notify")


# Upkeep, and work beside the pipeline


@nox.session(venv_backend="none")
def mirror_deps(session: nox.Session) -> None:
    """Mirror what our wheels require of others into an index of its own."""
    front_door(session, "ci", "mirror-deps")


@nox.session(venv_backend="none")
def retention(session: nox.Session) -> None:
    """Delete a store's old runs and staged versions, or list stores: -- --list-stores."""
    front_door(session, "ci", "retention")


@nox.session(venv_backend="none")
def clean(session: nox.Session) -> None:
    """Show what can be deleted on this machine to free disk space: -- [--yes]."""
    front_door(session, "ci", "clean")


@nox.session(venv_backend="none")
def bisect(session: nox.Session) -> None:
    """Find the run that broke a command: -- --good RUN --bad RUN -- COMMAND ..."""
    front_door(session, "ci", "bisect", *chosen_python(session))


@nox.session(venv_backend="none")
def build_image(session: nox.Session) -> None:
    """Build a container image, such as the nightly one with ROCm: -- --image NAME."""
    front_door(session, "ci", "build-image")


@nox.session(venv_backend="none")
def in_image(session: nox.Session) -> None:
    """Run sessions in a container: -- --image NAME --sessions "build_torch check_wheels"."""
    front_door(session, "ci", "in-image")


# The project itself


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and workflows with ruff, actionlint, shellcheck, zizmor and others."""
    run_tool(session, "lint", "python", "-m", "requirements.lint")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check types with mypy."""
    run_tool(session, "lint", "mypy")


@nox.session(python=TEST_PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the unit tests that start no processes."""
    run_tool(session, "test", "pytest", "-m", "not processes", "--numprocesses=auto")


@nox.session
def integration(session: nox.Session) -> None:
    """Run the tests that start processes: git, compilers, pip, uv, nox, invoke."""
    selection = ("tests/integration", "tests/unit", "tests/field", "-m", "processes")
    distribution = ("--numprocesses=auto", "--dist=loadfile", "--no-loadscope-reorder")
    run_tool(session, "test", "pytest", *selection, *distribution)


@nox.session
def upstream(session: nox.Session) -> None:
    """Test with real sources and a real ROCm: -- --sources|--rocm7|--root|--therock DIR."""
    run_tool(session, "test", "pytest", "tests/upstream")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure speed against other tools: -- [PART ...] [--rocm|--therock DIR] [--write]."""
    run_tool(session, "test", "python", "-m", "tests.bench")


@nox.session
def mutants(session: nox.Session) -> None:
    """Mutation tests: list the mutants that unit tests do not kill: -- [MODULE ...]."""
    run_tool(session, "mutants", "python", "-m", "docs.mutants")


@nox.session
def docs(session: nox.Session) -> None:
    """Write the generated parts of docs/: -- [--check] [--screenshots]."""
    run_tool(session, "test", "python", "-m", "docs.generate")


@nox.session(python="3.11")
def lock(session: nox.Session) -> None:
    """Compile requirements/*.in to hashed locks: -- [--check]."""
    run_tool(session, "lint", "python", "-m", "requirements.lock")


# --- How a session runs: a stage by its front door, the project's own tools in their environment

# Seconds that a session has to stop its compilers and to record that it was interrupted, and then, at a
# second signal, to end. A flow waits longer before it ends nox (core.process.SESSION_GRACE_SECONDS).
INTERRUPT_TIMEOUT = 20
TERMINATE_TIMEOUT = 5

# Test processes import all modules, which takes twice as long without byte code. The commands that hints name
# must not depend on the session that runs the tests.
TOOL_VARIABLES = {**IMPORT_VARIABLES, "PYTHONDONTWRITEBYTECODE": None, "NOX_CURRENT_SESSION": None}


def cell_front_door(session: nox.Session, verb: str, *words: str, cell: dict[str, str]) -> None:
    """Run a verb of `pytorch_build` on a cell of the matrix, or on what the options name."""
    if MATRIX and not cell and "--help" not in session.posargs:
        session.error(f"MATRIX={MATRIX} has no cell of {session.name}")

    # nox gives a cell's Python to the function only where -P has named an interpreter.
    python = cell.pop("python", session.python)
    if python != session.python:
        session.error(f"The cell is built for Python {python}: choose cells with -p, not -P")
    front_door(session, "pytorch_build", verb, *words, cell=cell)


def chosen_python(session: nox.Session) -> list[str]:
    """Return the option for a session without an environment that makes one for the Python of -P."""
    return [f"--python={session.python}"] if session.python else []


def front_door(session: nox.Session, package: str, *words: str, cell: dict[str, str] | None = None) -> None:
    """Run `python -m PACKAGE VERB` with the cell as options, the session's Python, and the posargs."""
    refuse_to_go_on()
    options = []
    for name, value in (cell or {}).items():
        options.append(f"--{name.replace('_', '-')}={value}")

    front_door_words = [package, *words, *options]
    if isinstance(session, LaterSession):
        session.front_door = front_door_words
        return
    posargs = posargs_of_session(session, front_door_words)

    # The front door fills the session's environment; without one there is no Python to name.
    if session.virtualenv.venv_backend != "none":
        executable = "python.exe" if os.name == "nt" else "python"
        options.append(f"--python={Path(session.bin, executable)}")

    session.run(
        sys.executable,
        "-m",
        package,
        *words,
        *options,
        *posargs,
        # Where relative paths of users begin.
        env={**IMPORT_VARIABLES, "INVOKED_FROM": session.invoked_from},
        external=True,
        log=False,  # the front door says what it does
        stderr=None,  # not mixed with standard output, so that JSON can be piped
        interrupt_timeout=INTERRUPT_TIMEOUT,
        terminate_timeout=TERMINATE_TIMEOUT,
    )


def run_tool(session: nox.Session, lock: str, *command: str) -> None:
    """Run one of the project's own tools in its locked environment."""
    if isinstance(session, LaterSession):
        return
    session.install("--require-hashes", "-r", f"requirements/{lock}.txt", silent=True)
    session.run(
        *command,
        *session.posargs,
        env=TOOL_VARIABLES,
        interrupt_timeout=INTERRUPT_TIMEOUT,
        terminate_timeout=TERMINATE_TIMEOUT,
    )


# --- What follows the two dashes, divided among the sessions of a call

# The options of each session.
POSARGS_OF_SESSIONS: dict[str, list[str]] = {}


class LaterSession(nox.Session):
    """A session of the same call that has not begun: it keeps its front door's words, and runs nothing."""

    front_door: list[str] | None = None  # of one that runs a tool of the project's own


def posargs_of_session(session: nox.Session, front_door_words: list[str]) -> list[str]:
    """Return what follows the two dashes, for one session: without options that are for others of the call.

    nox gives it to every session. It is divided once, so that what a later session does not have is refused
    before the first one builds for hours.
    """
    if not session.posargs or "--help" in session.posargs:
        return session.posargs

    # nox has no public way to ask which sessions were named, nor for the name without the cell.
    runner = session._runner  # noqa: SLF001
    if not POSARGS_OF_SESSIONS:
        front_doors = {runner.name: front_door_words}
        for other_runner, is_waiting in runner.manifest.list_all_sessions():
            # Cells of one session have the same options.
            if is_waiting and other_runner.name not in front_doors:
                later_session = LaterSession(other_runner)
                other_runner.func(later_session)
                if later_session.front_door is not None:
                    front_doors[other_runner.name] = later_session.front_door
        POSARGS_OF_SESSIONS.update(divide_posargs(session, front_doors))
    return POSARGS_OF_SESSIONS[runner.name]


def divide_posargs(session: nox.Session, front_doors: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the posargs of each session of a call; one alone gets them as they are."""
    if len(front_doors) == 1:
        return dict.fromkeys(front_doors, session.posargs)

    call = {"front_doors": front_doors, "options": session.posargs}
    answer = session.run(
        sys.executable,
        "-m",
        "core.cli.shared_options",
        # Not as arguments: nox prints the words of a command that fails.
        env={**IMPORT_VARIABLES, "SHARED_OPTIONS": json.dumps(call)},
        external=True,
        log=False,
        silent=True,
        stderr=None,
    )
    posargs: dict[str, list[str]] = json.loads(str(answer))
    return posargs


# --- Stops: a signal ends nox and the process of its session

STOPPING = threading.Event()


def stop(_number: int, _frame: object) -> None:
    """Stop nox and the process of its session, also where the signal was sent to nox alone.

    Without this nox waits for its session at SIGINT, and leaves it running at SIGTERM and SIGHUP.
    """
    # A terminal sends SIGINT to a flow and to nox, and the flow hands it on.
    if STOPPING.is_set():
        return
    STOPPING.set()

    # Windows has no such list; there a session gets the same event as nox.
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if children.is_file():
        for process_id in children.read_text(encoding="ascii").split():
            with suppress(ProcessLookupError):
                os.kill(int(process_id), signal.SIGINT)
    raise KeyboardInterrupt


def refuse_to_go_on() -> None:
    """End nox where it was to stop while a process was about to succeed, which nox takes for a success."""
    if STOPPING.is_set():
        raise KeyboardInterrupt


# The name that nox loads this file by. Whoever else imports it has signals of its own.
if __name__ == "user_nox_module":
    for signal_name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):
        signal_number = getattr(signal, signal_name, None)
        if signal_number is not None and signal.getsignal(signal_number) is not signal.SIG_IGN:
            signal.signal(signal_number, stop)


# --- Credentials in what nox prints


class CredentialFilter(logging.Filter):
    """Masks the credentials in addresses: nox prints the whole command of a session that failed."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change a record before it is printed; none is left out."""
        record.msg = re.sub(r"(?<=://)[^/@\s]+@", "***@", record.getMessage())
        record.args = None
        return True


logging.getLogger("nox").addFilter(CredentialFilter())
