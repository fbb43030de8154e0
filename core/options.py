"""The options that every stage has, declared once; and the variables that a front door reads.

`docs/commands.md` lists them for people.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core import stores
from core.outputs import LOCAL_RUN, RunOutputs, this_platform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.stores import Store

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_STORE = "out"


@dataclass(frozen=True, kw_only=True)
class Common:
    """What one stage is asked to run on, as the command line says it.

    Attributes:
        torch_ref: Name in the refs data; "" for the default ref.
        refs_file: A file of the user's own that adds or overrides refs.
        gpu_family: GPU family; "" for this machine's (or the ref's default).
        run_id: The run whose outputs are read and written.
        store: Where run outputs live: a folder or an ``s3://`` URI.
        release_type: ``ci``, ``dev``, ``nightly``, ``prerelease`` or ``release``.
        python: The target environment's interpreter; None for a stage without one.
        force: Do the work again although its inputs have not changed.
        dry_run: Say what would be written instead of writing it.
    """

    torch_ref: str = ""
    refs_file: Path | None = None
    gpu_family: str = ""
    run_id: str = LOCAL_RUN
    store: str = DEFAULT_STORE
    release_type: str = "ci"
    python: Path | None = None
    force: bool = False
    dry_run: bool = False
    root: Path = ROOT

    @property
    def outputs(self) -> RunOutputs:
        """The paths of the run."""
        return RunOutputs(run_id=self.run_id, platform=this_platform())

    def open_store(self) -> Store:
        """Open the store that is written to, and read from first."""
        return stores.open_store(self.store, root=self.root, dry_run=self.dry_run)

    @property
    def sources(self) -> Path:
        """Folder of the managed source trees: ``src/{ref}/{project}``."""
        return self.root / "src"

    @property
    def cache(self) -> Path:
        """Folder of what can be made again: the sample's repositories and artifacts, fetched wheels."""
        return self.root / ".cache"


class Once(argparse.Action):
    """An option that may be repeated but not contradicted: posargs cannot change a matrix cell."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Keep the value; refuse another one for the same option."""
        given = namespace.__dict__.setdefault("_given", {})
        if given.setdefault(self.dest, values) != values:
            parser.error(f"{option_string} is {given[self.dest]!r} here and cannot be {values!r} too")
        setattr(namespace, self.dest, values)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Declare the common options."""
    group = parser.add_argument_group("what to run on")
    group.add_argument(
        "--torch-ref",
        action=Once,
        default="",
        metavar="REF",
        help="a name in the refs data (default: nightly)",
    )
    group.add_argument(
        "--refs-file", type=Path, metavar="FILE", help="refs of your own (default: ./pytorch-build.toml)"
    )
    group.add_argument(
        "--gpu-family",
        "--amdgpu-family",
        action=Once,
        default="",
        metavar="FAMILY",
        help="GPU family, or 'cpu' (default: the ref's own, else this machine's)",
    )
    group.add_argument(
        "--run-id", default=LOCAL_RUN, metavar="ID", help="run whose outputs are used (default: local)"
    )
    group.add_argument(
        "--store", default=DEFAULT_STORE, metavar="DIR", help="where run outputs live (default: out)"
    )
    group.add_argument(
        "--release-type",
        default="ci",
        choices=("ci", "dev", "nightly", "prerelease", "release"),
        help="whose policy and version form apply (default: ci)",
    )
    group.add_argument(
        "--python", type=Path, metavar="PATH", help="interpreter of the target environment (nox gives it)"
    )
    group.add_argument("--force", action="store_true", help="do the work although nothing has changed")
    group.add_argument(
        "--dry-run", action="store_true", help="say what would be written instead of writing it"
    )
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")


def common_from(arguments: argparse.Namespace) -> Common:
    """Turn parsed arguments into the value that stages get."""
    return Common(
        torch_ref=arguments.torch_ref,
        refs_file=arguments.refs_file,
        gpu_family=arguments.gpu_family,
        run_id=arguments.run_id,
        store=arguments.store,
        release_type=arguments.release_type,
        python=arguments.python,
        force=arguments.force,
        dry_run=arguments.dry_run,
    )


def environment() -> Mapping[str, str]:
    """Give this process's environment, for front doors to pass on as a value."""
    return dict(os.environ)
