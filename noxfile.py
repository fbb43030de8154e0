"""Every stage as a session, in the order of the pipeline.

Options of a stage follow two dashes: nox -s build_torch -- --help. With MATRIX=ci, MATRIX=release or
MATRIX=<plan file>, the sessions that build and test become cells: one a Python, torch ref and GPU family.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import os
import subprocess
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import nox
from nox.command import CommandFailed

try:
    import tomllib
except ModuleNotFoundError:
    sys.exit(f"error: This is Python {sys.version.split()[0]}. The tool needs 3.11, 3.12 or 3.13: README.md.")

nox.needs_version = ">=2026.4"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = True
nox.options.stop_on_first_error = True

if importlib.util.find_spec("pydantic") is None:
    sys.exit(f"{sys.executable} runs nox without the tool's lock: pip install -r requirements.txt")


def cells_of(matrix: str) -> dict[str, Any]:
    """Query a matrix's cells; the front door has printed why where it fails."""
    command = [sys.executable, "-m", "ci", "cells", matrix]
    answer = subprocess.run(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, check=False)
    return sys.exit(answer.returncode) if answer.returncode else dict(json.loads(answer.stdout))


VERBOSE = bool(os.environ.get("VERBOSE_OUTPUT") or {"-v", "--verbose"} & {*sys.argv})


def tells(record: logging.LogRecord) -> bool:
    """Leave out of nox's lines those that say what the next or the last one says, too."""
    said = record.getMessage()
    # a flow's table has the result of its job
    again = (": success", "was successful") if "FAILURE_FILE" in os.environ else (": success",)
    passed = said.startswith(("* ", "Session ")) and any(one in said for one in again)
    told = ("Creating ", "Reusing ", "Ran ", f"Command {sys.executable} -m")
    return not passed and not said.startswith(told)


if not VERBOSE:
    logging.getLogger("nox").addFilter(tells)

SESSIONS = Path(__file__).with_name("sessions.toml")  # those that make one call to a front door
PARAMETERS = ("torch_ref", "gpu_family", "config", "shard")
MATRIX = os.environ.get("MATRIX", "")
CELLS = cells_of(MATRIX) if MATRIX else {}
if MATRIX:
    nox.options.tags = ["cell"]  # so that `nox -l --json` gives the cells and nothing else
else:
    nox.options.sessions = ["lint", "typecheck", "tests"]


def stage(name: str, row: dict[str, Any]) -> None:
    """Register a stage: one plain session, or with MATRIX a session a Python over its other parameters."""

    def function(session: nox.Session, **cell: str) -> None:
        """Call a front door: package, verb, the cell's options, the session's Python, the posargs."""
        options = [f"--{name.replace('_', '-')}={value}" for name, value in cell.items()]
        own = session.virtualenv.venv_backend != "none"
        chosen = Path(session.bin, "python") if own else session.python if row.get("python") else None
        python = [f"--python={chosen}"] if chosen else []
        words = (sys.executable, "-m", *row["call"].split(), *options, *python, *session.posargs)
        env = {"VERBOSE_OUTPUT": "1"} if VERBOSE else {}
        # the streams stay apart, so that what a stage answers can be piped
        more: dict[str, Any] = {"stderr": None, "interrupt_timeout": 30, "terminate_timeout": 10}
        try:
            session.run(*words, env=env, external=True, log=VERBOSE, **more)
        except CommandFailed as problem:  # it has said why, so its words are not repeated
            session.error(f"{name} ended with status {problem.return_code}")

    function.__doc__ = row["about"]
    cells = row.get("cells", False)
    tags = [*(["pipeline"] if row.get("pipeline", True) else []), *([name] if cells else [])]
    if not (cells and MATRIX):
        backend = None if cells or row.get("environment", False) else "none"
        nox.session(name=name, tags=tags, venv_backend=backend)(function)
        return
    found = CELLS.get(name, [])  # a stage that the matrix has no cells of
    for python in dict.fromkeys(one[0] for one in found):
        values = [one[1:] for one in found if one[0] == python]
        # a function of its own, because parametrize leaves its mark on the one it gets
        copy = functools.wraps(function)(functools.partial(function))
        expanded = nox.parametrize(PARAMETERS[: len(values[0])], values)(copy)
        nox.session(name=f"{name}-{python}", python=python, tags=["cell", *tags])(expanded)


def tool(session: nox.Session, lock: str, *command: str) -> None:
    """Run one of the project's own tools in its locked environment."""
    session.install("--require-hashes", "-r", lock, silent=True)
    # Each test process imports all modules: without byte code, collection takes more than twice as long.
    session.run(*command, env={"PYTHONDONTWRITEBYTECODE": None})


for session_name, session_row in tomllib.loads(SESSIONS.read_text(encoding="utf-8")).items():
    stage(session_name, session_row)


@nox.session(tags=["tests"], python=CELLS.get("tests"))
def tests(session: nox.Session) -> None:
    """Run the unit tests, but for those that start processes."""
    chosen = ("-m", "not processes", "--numprocesses=auto")
    tool(session, "requirements/test.txt", "pytest", *chosen, *session.posargs)


@nox.session(tags=["checks"])
def lint(session: nox.Session) -> None:
    """Check style and workflows: ruff, cfn-lint, shellcheck, hadolint, zizmor and others."""
    tool(session, "requirements/lint.txt", "python", "-m", "requirements.lint", *session.posargs)


@nox.session(tags=["checks"])
def typecheck(session: nox.Session) -> None:
    """Check types (mypy, strict)."""
    tool(session, "requirements/lint.txt", "mypy", *session.posargs)


@nox.session
def integration(session: nox.Session) -> None:
    """Run the tests that start processes: git, compilers, pip, uv, nox, invoke, on this machine."""
    chosen = ("tests/integration", "tests/unit", "-m", "processes")
    parallel = ("--numprocesses=auto", "--dist=loadfile", "--no-loadscope-reorder")
    tool(session, "requirements/test.txt", "pytest", *chosen, *parallel, *session.posargs)


@nox.session
def upstream(session: nox.Session) -> None:
    """Test on real sources and a real ROCm: -- --sources|--rocm7|--root|--therock|--torch-root DIR."""
    tool(session, "requirements/test.txt", "pytest", "tests/upstream", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure speed against others' tools: -- [PART ...] [--rocm|--therock DIR] [--write]."""
    tool(session, "requirements/test.txt", "python", "-m", "tests.bench", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Measure what unit tests notice of changes in the modules that decide: -- [MODULE ...]."""
    tool(session, "requirements/mutants.txt", "python", "-m", "docs.mutants", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Write the generated parts of docs/; -- --check only compares, -- --screenshots takes pictures."""
    tool(session, "requirements/test.txt", "python", "-m", "docs.generate", *session.posargs)


@nox.session(python="3.11")
def lock(session: nox.Session) -> None:
    """Compile requirements/*.in to hashed locks; -- --check says whether they are current."""
    tool(session, "requirements/lint.txt", "python", "-m", "requirements.lock", *session.posargs)


def unknown(argv: list[str]) -> str:
    """Say what was meant where nox is asked for a session that does not exist; "" for any other call."""
    program, words = Path(argv[0]), argv[1 : argv.index("--") if "--" in argv else None]
    known, chosen = [*nox.registry.get()], False
    for word in words if "nox" in {program.stem, program.parent.name} and not MATRIX else ():
        name = word.partition("(")[0]
        if chosen and not word.startswith("-") and not {name, name.rpartition("-")[0]} & {*known}:
            close = get_close_matches(name, known, n=1)
            meant = f"Did you mean {close[0]!r}?" if close else "They are listed by nox -l."
            return f"error: There is no session {word!r}. {meant}"
        chosen = word in {"-s", "-e", "--session", "--sessions"} or (chosen and not word.startswith("-"))
    return ""


if said := unknown(sys.argv):
    sys.exit(said)
