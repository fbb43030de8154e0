"""Flows: which sessions a run takes, in the pipeline's order, and running them through nox.

`tasks.py` gives them to people; CI's workflows call the same sessions a job each.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from ci.verbs.cells import BUILDS
from core import console, process
from core.cli.options import DEFAULT_STORE
from core.errors import FatalError, ProcessError, UsageError
from pytorch_build.context import context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.cli.options import Common
    from pytorch_build.context import Context


@dataclass(frozen=True, kw_only=True)
class Step:
    """One session of a flow."""

    session: str
    left_out: str = ""
    options: tuple[str, ...] = ()


def ci_steps(context: Context, rocm_layout: str = "") -> Sequence[Step]:
    """List the sessions of `invoke ci`: refs to wheels that are installed from their index and tested."""
    rocm = ""
    if not context.gpu:
        rocm = "family cpu has no ROCm"
    elif not context.ref.rocm_version:
        rocm = f"ROCm comes from the release index of {context.gpu_family}"
    layout = (f"--rocm-layout={rocm_layout}",) if rocm_layout else ()
    if rocm and layout:
        raise UsageError(
            f"--rocm-layout is for build_rocm, which is left out: {rocm}.", hint="Leave the option out."
        )
    builds = [
        Step(
            session=session,
            left_out="" if name in context.ref.components else f"not built for {context.ref.name}",
        )
        for name, session in BUILDS.items()
    ]
    return (
        Step(session="resolve"),
        Step(session="build_rocm", left_out=rocm, options=layout),
        Step(session="checkout"),
        *builds,
        *(Step(session=session) for session in ("check_wheels", "upload", "provenance", "test_smoke")),
        Step(session="test_torch", left_out=_without_upstream(context)),
        Step(session="report"),
    )


def _without_upstream(context: Context) -> str:
    """Say why upstream's own tests are no part of the flow; "" for those of the sample, a minute's work."""
    if "torch" not in context.ref.components:
        return f"torch is not built for {context.ref.name}"
    return "" if context.ref.local_label else "upstream's tests take hours: run it by itself"


def run_ci(common: Common, *, python: str = "", rocm_layout: str = "") -> None:
    """Run the CI flow's sessions, and stop at the first that fails."""
    chosen = context(common)
    steps = ci_steps(chosen, rocm_layout)
    for step in steps:
        if step.left_out:
            console.say(f"{step.session}: left out, {step.left_out}")
    nox = [sys.executable, "-m", "nox", "--no-error-on-external-run", "-s"]
    rest = [*(["-P", python] if python else []), "--", *posargs(common, chosen)]
    # with a matrix in the environment the noxfile has cells in the place of these sessions
    env = process.inherited(MATRIX=None)
    try:
        # what follows -- goes to every session of a call
        for options, alike in groupby((one for one in steps if not one.left_out), lambda one: one.options):
            sessions = [one.session for one in alike]
            process.run([*nox, *sessions, *rest, *options], cwd=common.root, env=env)
    except ProcessError as problem:
        _report(common, chosen)
        raise ProcessError(
            "invoke ci: a session failed; what it said stands above.", returncode=1
        ) from problem


def _report(common: Common, chosen: Context) -> None:
    """Write the page of a run that a session ended early; what it has to say was said before."""
    report = [sys.executable, "-m", "ci", "report", *posargs(common, chosen)]
    try:
        process.run(report, cwd=common.root, env=process.inherited(MATRIX=None))
    except FatalError as problem:
        console.say(f"The run's page was not written: {problem.message}")


def posargs(common: Common, chosen: Context) -> list[str]:
    """Write the common options out, with what was chosen by default named."""
    return posargs_of(replace(common, torch_ref=chosen.ref.name, gpu_family=chosen.gpu_family))


def posargs_of(common: Common) -> list[str]:
    """Write out the common options that were given."""
    words = [f"--torch-ref={common.torch_ref}"] if common.torch_ref else []
    words += [f"--gpu-family={common.gpu_family}"] if common.gpu_family else []
    words += [f"--run-id={common.run_id}", f"--release-type={common.release_type}"]
    # a store that is named is the only one that is read
    words += [f"--store={common.store}"] if common.store != DEFAULT_STORE else []
    if common.refs_file is not None:
        words.append(f"--refs-file={common.refs_file.resolve()}")
    words += ["--force"] if common.force else []
    return [*words, "--dry-run"] if common.dry_run else words
