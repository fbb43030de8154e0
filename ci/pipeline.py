"""The pipeline's order: every job of a run, with its sessions, from an event to released wheels.

The plan's cells, `MATRIX`, invoke's flows, the order of `nox -l` and the tests of the workflows follow it.
"""

from __future__ import annotations

from pytorch_build.refs.torch_refs import PROJECTS

BUILDS = {name: f"build_{name}" for name in PROJECTS}
JOBS = {
    "setup": ("configure", "find_rocm", "resolve"),
    "build_rocm": ("fetch_artifacts", "build_rocm"),
    "test_rocm": ("test_rocm",),
    "build_pytorch": ("checkout", *BUILDS.values(), "check_wheels"),
    "upload": ("upload", "provenance"),  # the last steps of both builds
    "test_pytorch": ("test_smoke",),
    "test_torch": ("test_torch",),
    "test_report": ("test_report",),
    "promote": ("stage", "promote"),
    "summary": ("report",),
}
SESSIONS = tuple(session for sessions in JOBS.values() for session in sessions)
# one for each Python, torch ref and GPU family, which `MATRIX` makes cells of
MATRIX_SESSIONS = (*BUILDS.values(), *JOBS["test_pytorch"], *JOBS["test_torch"])
