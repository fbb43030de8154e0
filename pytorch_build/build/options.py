"""What a person may choose about a build, declared once."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core import process
from core.cli.options import environment
from core.errors import EnvironmentSetupError, UsageError, nearest
from pytorch_build.build.cache import KINDS, CompilerCache, asked_storage
from pytorch_build.rocm import RocmOptions, add_rocm_options, rocm_options_from
from pytorch_build.verbs.shared import add_source_options, mirrors_from

if TYPE_CHECKING:
    from collections.abc import Mapping

# the options that name a developer's own tree of each project
OWN_TREE_OPTIONS = {
    "triton": "--triton-dir",
    "torch": "--pytorch-dir",
    "audio": "--pytorch-audio-dir",
    "vision": "--pytorch-vision-dir",
    "apex": "--apex-dir",
}


@dataclass(frozen=True, kw_only=True)
class BuildChoices:
    """What was chosen."""

    rocm: RocmOptions
    own_trees: Mapping[str, Path]
    gpu_targets: str = ""
    flash_attention: bool | None = None
    split: bool = True
    compiler_cache: CompilerCache | None = None
    compiler_cache_store: str = ""
    compiler_cache_read_only: bool = False
    max_jobs: str = ""
    clean: bool = False
    update: bool = False
    depth: int = 1
    output_dir: Path | None = None
    mirrors: Mapping[str, str]


def add_build_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    trees = parser.add_argument_group("a developer's own trees, built as they are and never changed")
    for project, option in OWN_TREE_OPTIONS.items():
        trees.add_argument(option, type=Path, metavar="DIR", dest=f"own_{project}", help=f"tree of {project}")
    group = parser.add_argument_group("how to build")
    group.add_argument("--update", action="store_true", help="resolve the ref anew, to its newest commits")
    group.add_argument("--output-dir", type=Path, metavar="DIR", help="also put the wheel there")
    group.add_argument("--clean", action="store_true", help="remove the build folder first")
    env = environment()
    group.add_argument(
        "--compiler-cache",
        choices=KINDS,
        default=env.get("COMPILER_CACHE") or None,
        help="send compilations through a cache (default: COMPILER_CACHE, else none)",
    )
    group.add_argument(
        "--compiler-cache-store",
        default=env.get("COMPILER_CACHE_STORE", ""),
        metavar="STORE",
        help="where its entries lie: a folder, s3://BUCKET (sccache), http://… (ccache), or 'local' "
        "(default: COMPILER_CACHE_STORE, else the run's bucket, for sccache)",
    )
    group.add_argument(
        "--compiler-cache-read-only", action="store_true", help="take entries from there, leave none"
    )
    group.add_argument(
        "--pytorch-rocm-arch", default="", metavar="A;B", help="gfx targets (default: the family's)"
    )
    group.add_argument(
        "--max-jobs", default="", metavar="N", help="compilers at a time (default: MAX_JOBS, else by memory)"
    )
    for platform in ("linux", "windows"):
        group.add_argument(
            f"--enable-pytorch-flash-attention-{platform}",
            action=argparse.BooleanOptionalAction,
            default=None,
            dest=f"flash_{platform}",
            help="flash attention (default: where triton and a target allow it)",
        )
    group.add_argument(
        "--depth", type=int, default=1, metavar="N", help="history to fetch (default: 1; 0 for all)"
    )
    group.add_argument(
        "--no-split", action="store_true", help="keep device code in the wheel (default: as ROCm's packages)"
    )
    add_source_options(parser)
    add_rocm_options(parser)


def build_choices_from(arguments: argparse.Namespace, *, platform: str) -> BuildChoices:
    """Turn parsed arguments into the value that the build gets."""
    if arguments.max_jobs and not (arguments.max_jobs.isascii() and arguments.max_jobs.isdecimal()):
        raise UsageError(f"--max-jobs {arguments.max_jobs!r} is no number of compilers.")
    own = {project: getattr(arguments, f"own_{project}") for project in OWN_TREE_OPTIONS}
    flash: bool | None = arguments.flash_windows if platform == "windows" else arguments.flash_linux
    return BuildChoices(
        rocm=rocm_options_from(arguments, environment()),
        own_trees={project: tree.resolve() for project, tree in own.items() if tree is not None},
        gpu_targets=arguments.pytorch_rocm_arch,
        flash_attention=flash,
        split=not arguments.no_split,
        compiler_cache=_cache(arguments),
        compiler_cache_store=arguments.compiler_cache_store,
        compiler_cache_read_only=arguments.compiler_cache_read_only,
        max_jobs=arguments.max_jobs,
        clean=arguments.clean,
        update=arguments.update,
        depth=arguments.depth,
        output_dir=arguments.output_dir,
        mirrors=mirrors_from(arguments),
    )


def _cache(arguments: argparse.Namespace) -> CompilerCache | None:
    kind: str | None = arguments.compiler_cache
    if kind is None:
        if arguments.compiler_cache_store or arguments.compiler_cache_read_only:
            raise UsageError(
                "--compiler-cache-store and --compiler-cache-read-only say how a compiler cache is used.",
                hint="Name it: --compiler-cache sccache, or COMPILER_CACHE.",
            )
        return None
    if kind not in KINDS:  # argparse does not look at what a variable says
        raise UsageError(f"COMPILER_CACHE={kind!r} is no compiler cache.", hint=nearest(kind, KINDS))
    if arguments.compiler_cache_store:
        asked_storage(kind, arguments.compiler_cache_store)
    program = process.which(kind)
    if program is None:
        raise EnvironmentSetupError(
            f"{kind} is not on the PATH.", hint=f"Install {kind}, or leave --compiler-cache out."
        )
    return CompilerCache(kind=kind, program=program.absolute())
