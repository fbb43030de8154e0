"""Every stage as a session, in the order of the pipeline; `nox -l` lists them.

A session makes one call to a front door. With `MATRIX=ci`, `MATRIX=release` or `MATRIX=<plan file>`, those
that build and test become cells, from what `python -m ci cells` prints.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nox

if TYPE_CHECKING:
    from collections.abc import Callable

nox.needs_version = ">=2026.4"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = True
nox.options.stop_on_first_error = True

if importlib.util.find_spec("pydantic") is None:
    sys.exit(f"{sys.executable} runs nox without the tool's lock: pip install -r requirements.txt")


def asked(matrix: str) -> dict[str, Any]:
    """Ask for a matrix's cells; a matrix that is none has been told so by the front door."""
    command = [sys.executable, "-m", "ci", "cells", matrix]
    answer = subprocess.run(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, check=False)
    return sys.exit(answer.returncode) if answer.returncode else dict(json.loads(answer.stdout))


PARAMETERS = ("torch_ref", "gpu_family", "config", "shard")
MATRIX = os.environ.get("MATRIX", "")
CELLS = asked(MATRIX) if MATRIX else {}
if MATRIX:
    nox.options.tags = ["cell"]  # so that `nox -l --json` gives the cells and nothing else
else:
    nox.options.sessions = ["lint", "typecheck", "tests"]


def cells(function: Callable[..., None]) -> Callable[..., object]:
    """Register a stage: one plain session, or with MATRIX a session a Python over its other parameters."""
    name = function.__name__
    if not MATRIX:
        return nox.session(tags=["pipeline", name])(function)
    rows = CELLS.get(name, [])  # a stage that the matrix has no cells of
    for python in dict.fromkeys(row[0] for row in rows):
        values = [row[1:] for row in rows if row[0] == python]
        # a function of its own, because parametrize leaves its mark on the one it gets
        copy = functools.wraps(function)(functools.partial(function))
        expanded = nox.parametrize(PARAMETERS[: len(values[0])], values)(copy)
        nox.session(name=f"{name}-{python}", python=python, tags=["cell", "pipeline", name])(expanded)
    return function


def stage(session: nox.Session, package: str, *words: str, **cell: str | None) -> None:
    """Call a front door: package, verb, the cell's options, the session's Python, the posargs."""
    chosen = [f"--{name.replace('_', '-')}={value}" for name, value in cell.items() if value is not None]
    python = [f"--python={Path(session.bin, 'python')}"] if session.virtualenv.venv_backend != "none" else []
    command = (sys.executable, "-m", package, *words, *chosen, *python, *session.posargs)
    session.run(*command, external=True, interrupt_timeout=30, terminate_timeout=10)


def tool(session: nox.Session, lock: str, *command: str) -> None:
    """Run one of the project's own tools in its locked environment."""
    session.install("--require-hashes", "-r", lock, silent=True)
    session.run(*command)


@nox.session(venv_backend="none", tags=["pipeline"])
def configure(session: nox.Session) -> None:
    """Event -> the plan of the run; -- --event pull_request --label build:pytorch tries one out."""
    stage(session, "ci", "configure")


@nox.session(venv_backend="none", tags=["pipeline"])
def find_rocm(session: nox.Session) -> None:
    """Find where a plan's ROCm comes from, and pin it: -- --plan FILE."""
    stage(session, "ci", "find-rocm")


@nox.session(venv_backend="none", tags=["pipeline"])
def resolve(session: nox.Session) -> None:
    """Torch ref -> source lock: every repository at a commit, every wheel's version."""
    stage(session, "pytorch_build", "resolve")


@nox.session(venv_backend="none", tags=["pipeline"])
def fetch_artifacts(session: nox.Session) -> None:
    """Fetch a CI run's ROCm artifacts of a GPU family, for build_rocm."""
    stage(session, "ci", "fetch-artifacts")


@nox.session(venv_backend="none", tags=["pipeline"])
def build_rocm(session: nox.Session) -> None:
    """ROCm artifacts -> rocm sdist and rocm-sdk-* wheels."""
    stage(session, "rocm_packaging", "build")


@nox.session(tags=["pipeline"])
def test_rocm(session: nox.Session) -> None:
    """Install ROCm's packages into a clean environment and run rocm-sdk test."""
    stage(session, "rocm_packaging", "test")


@nox.session
def install_rocm(session: nox.Session) -> None:
    """Install rocm[libraries,devel] into the session's environment, and ask it what it is."""
    stage(session, "pytorch_build", "install-rocm")


@nox.session
def prepare(session: nox.Session) -> None:
    """Provide what a platform's builds need besides ROCm: libuv and an OpenMP runtime on Windows."""
    stage(session, "pytorch_build", "prepare")


@nox.session(venv_backend="none", tags=["pipeline"])
def checkout(session: nox.Session) -> None:
    """Source lock -> source trees at src/{ref}/{project}: tagged, hipified."""
    stage(session, "pytorch_build", "checkout")


@cells
def build_triton(session: nox.Session, torch_ref: str | None = None, gpu_family: str | None = None) -> None:
    """Build the triton wheel."""
    stage(session, "pytorch_build", "build", "triton", torch_ref=torch_ref, gpu_family=gpu_family)


@cells
def build_torch(session: nox.Session, torch_ref: str | None = None, gpu_family: str | None = None) -> None:
    """Build the torch wheel, against ROCm and triton."""
    stage(session, "pytorch_build", "build", "torch", torch_ref=torch_ref, gpu_family=gpu_family)


@cells
def build_audio(session: nox.Session, torch_ref: str | None = None, gpu_family: str | None = None) -> None:
    """Build the torchaudio wheel, against the run's torch."""
    stage(session, "pytorch_build", "build", "audio", torch_ref=torch_ref, gpu_family=gpu_family)


@cells
def build_vision(session: nox.Session, torch_ref: str | None = None, gpu_family: str | None = None) -> None:
    """Build the torchvision wheel, against the run's torch."""
    stage(session, "pytorch_build", "build", "vision", torch_ref=torch_ref, gpu_family=gpu_family)


@cells
def build_apex(session: nox.Session, torch_ref: str | None = None, gpu_family: str | None = None) -> None:
    """Build the apex wheel, against the run's torch."""
    stage(session, "pytorch_build", "build", "apex", torch_ref=torch_ref, gpu_family=gpu_family)


@nox.session(venv_backend="none", tags=["pipeline"])
def check_wheels(session: nox.Session) -> None:
    """Check wheels: RECORD, metadata, versions, libraries, device code, contents."""
    stage(session, "pytorch_build", "check-wheels")


@nox.session(venv_backend="none")
def repair_wheel(session: nox.Session) -> None:
    """Tag wheels with the manylinux policy that they satisfy; -- --graft puts missing libraries in."""
    stage(session, "pytorch_build", "repair-wheel")


@nox.session(venv_backend="none")
def split_wheel(session: nox.Session) -> None:
    """Split fat wheels into a host wheel and wheels of device code: -- WHEEL… [--output-dir DIR]."""
    stage(session, "pytorch_build", "split-wheel")


@nox.session(venv_backend="none")
def fat_wheel(session: nox.Session) -> None:
    """Put the part of ROCm that a torch wheel needs into it: -- WHEEL --rocm PATH."""
    stage(session, "pytorch_build", "fat-wheel")


@nox.session(venv_backend="none", tags=["pipeline"])
def upload(session: nox.Session) -> None:
    """Publish the run: wheels, sidecars, records and pages into a store."""
    stage(session, "ci", "upload")


@nox.session(venv_backend="none", tags=["pipeline"])
def index(session: nox.Session) -> None:
    """Write the index pages of the run's wheels again, or those of a folder."""
    stage(session, "ci", "index")


@nox.session(venv_backend="none", tags=["pipeline"])
def provenance(session: nox.Session) -> None:
    """Say how each wheel was made (in-toto, SLSA), and what the run holds (CycloneDX)."""
    stage(session, "ci", "provenance")


@nox.session(venv_backend="none")
def verify(session: nox.Session) -> None:
    """Say whether a wheel is what its record and statement say, and its commits: -- WHEEL."""
    stage(session, "ci", "verify")


@nox.session(venv_backend="none", tags=["pipeline"])
def setup_venv(session: nox.Session) -> None:
    """Make a virtual environment with our packages, from a run, an index or a page."""
    stage(session, "ci", "setup-venv")


@nox.session(venv_backend="none", tags=["pipeline"])
def fetch_wheels(session: nox.Session) -> None:
    """Fetch a run's wheels into a folder, for --find-links DIR --no-index."""
    stage(session, "ci", "fetch-wheels")


@nox.session(venv_backend="none", tags=["pipeline"])
def mirror_deps(session: nox.Session) -> None:
    """Mirror what our wheels require of others into an index of its own, without a name of ours."""
    stage(session, "ci", "mirror-deps")


@cells
def test_smoke(session: nox.Session, torch_ref: str | None = None, gpu_family: str | None = None) -> None:
    """Install the run's wheels from their index into a clean environment; import and compute."""
    stage(session, "pytorch_build", "test-smoke", torch_ref=torch_ref, gpu_family=gpu_family)


@cells
def test_torch(session: nox.Session, **cell: str) -> None:
    """Run upstream's own unit tests of torch on the run's wheels: -- [-k EXPR] [--shard 2/6] …."""
    stage(session, "pytorch_build", "test-torch", **cell)


@nox.session(venv_backend="none")
def skips(session: nox.Session) -> None:
    """Say which of upstream's tests are skipped and why: -- list|explain|check|prune."""
    stage(session, "pytorch_build", "skips")


@nox.session(venv_backend="none", tags=["pipeline"])
def test_report(session: nox.Session) -> None:
    """JUnit reports of all shards and cells -> one summary and data; fails where anything did."""
    stage(session, "pytorch_build", "test-report")


@nox.session(venv_backend="none", tags=["pipeline"], name="stage")
def stage_wheels(session: nox.Session) -> None:
    """Put a run's wheels up for testing: v2-staging/{family}/ of the distribution bucket."""
    stage(session, "ci", "stage")


@nox.session(venv_backend="none", tags=["pipeline"])
def promote(session: nox.Session) -> None:
    """Promote a set of staged wheels, by its tests, into the release index: v2/{family}/."""
    stage(session, "ci", "promote")


@nox.session(venv_backend="none", tags=["pipeline"])
def retention(session: nox.Session) -> None:
    """Delete the runs and staged versions that the policy says may go: -- --dry-run only plans."""
    stage(session, "ci", "retention")


@nox.session(venv_backend="none")
def check_indexes(session: nox.Session) -> None:
    """Say whether the pages that stay list what is there: dependencies, staging, releases."""
    stage(session, "ci", "check-indexes")


@nox.session(venv_backend="none")
def maintenance(session: nox.Session) -> None:
    """Name the stores that are kept in order, and by which roles: the jobs of maintenance.yml."""
    stage(session, "ci", "maintenance")


@nox.session(venv_backend="none")
def lambda_zip(session: nox.Session) -> None:
    """Write the zip of the function that writes pages behind a bucket's events."""
    stage(session, "ci", "lambda-zip")


@nox.session(venv_backend="none")
def build_image(session: nox.Session) -> None:
    """Build a container image with docker, podman or buildah: the nightly one, with ROCm inside."""
    stage(session, "ci", "build-image")


@nox.session(venv_backend="none")
def in_image(session: nox.Session) -> None:
    """Run sessions inside a container image: -- --image NAME --sessions "build_torch check_wheels"."""
    stage(session, "ci", "in-image")


@nox.session(venv_backend="none", tags=["pipeline"])
def report(session: nox.Session) -> None:
    """A run's records -> one HTML page: matrix, times, wheels, builds, tests, sources."""
    stage(session, "ci", "report")


@nox.session(venv_backend="none")
def notify(session: nox.Session) -> None:
    """Tell how a run ended: its summary, and Slack and e-mail where they are configured."""
    stage(session, "ci", "notify")


@nox.session(venv_backend="none")
def drift(session: nox.Session) -> None:
    """Say what our data says otherwise than TheRock: -- --therock DIR [--json]."""
    stage(session, "ci", "drift")


@nox.session(tags=["tests"], python=CELLS.get("tests"))
def tests(session: nox.Session) -> None:
    """Run the unit tests."""
    tool(session, "requirements/test.txt", "pytest", "--numprocesses=auto", *session.posargs)


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
    """Run the tests of real parts on this machine: git, compilers, pip, uv, nox, invoke."""
    parallel = ("--numprocesses=auto", "--dist=loadfile", "--no-loadscope-reorder")
    tool(session, "requirements/test.txt", "pytest", "tests/integration", *parallel, *session.posargs)


@nox.session
def upstream(session: nox.Session) -> None:
    """Run the tests on real sources and a real ROCm: -- --sources|--rocm|--rocm7|--root|--therock DIR."""
    tool(session, "requirements/test.txt", "pytest", "tests/upstream", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure what docs/performance.md claims, as ratios in one run."""
    tool(session, "requirements/test.txt", "python", "-m", "tests.bench", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Write the generated parts of docs/ (support table, commands); -- --check only compares."""
    tool(session, "requirements/test.txt", "python", "-m", "docs.generate", *session.posargs)


@nox.session(python="3.11")
def lock(session: nox.Session) -> None:
    """Compile requirements/*.in to hashed locks; -- --check says whether they are current."""
    tool(session, "requirements/lint.txt", "python", "-m", "requirements.lock", *session.posargs)
