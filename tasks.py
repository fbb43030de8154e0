"""Flows of the pipeline, for people and for CI: `invoke --list`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from invoke.exceptions import Exit
from invoke.tasks import task

from ci import flows
from core import console
from core.errors import FatalError
from core.options import Common

if TYPE_CHECKING:
    from invoke.context import Context

_HELP = {
    "torch-ref": "a name in the refs data (default: nightly); 'sample' tries everything on a small sample",
    "gpu-family": "GPU family, or 'cpu' (default: the ref's own, or this machine's)",
    "refs-file": "refs of your own",
    "run-id": "run whose outputs are used (default: local)",
    "release-type": "whose policy and version form apply: ci, dev, nightly, prerelease, release",
    "store": "where run outputs live (default: out)",
    "python": "Python of the target environments, such as 3.12",
    "force": "do the work although nothing has changed",
    "dry-run": "say what would be done",
}


@task(help=_HELP)
def ci(
    _context: Context,
    torch_ref: str = "",
    gpu_family: str = "",
    refs_file: str = "",
    run_id: str = "local",
    store: str = "out",
    release_type: str = "ci",
    python: str = "",
    force: bool = False,
    dry_run: bool = False,
) -> None:
    """Build, check, index, install and test the wheels of one torch ref."""
    common = Common(
        torch_ref=torch_ref,
        gpu_family=gpu_family,
        refs_file=Path(refs_file) if refs_file else None,
        run_id=run_id,
        store=store,
        release_type=release_type,
        force=force,
        dry_run=dry_run,
    )
    try:
        flows.run_ci(common, python=python)
    except FatalError as problem:
        console.error(str(problem))
        raise Exit(code=problem.exit_code) from None
