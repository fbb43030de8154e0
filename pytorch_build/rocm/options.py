"""The options of a build's ROCm, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from core.env import interpreter, require
from core.errors import MissingInputError
from core.packages.sources import PackageSource, SourceOptions, add_package_source, source_options
from pytorch_build.rocm.sdk import installed
from rocm_packaging.rocm_sources import for_build, has_rocm, named_source, newest, own_run, release_index_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from core.env.installer import Backend
    from pytorch_build.context import Context
    from rocm_packaging.rocm_sources import RocmSource

PREFIX = "rocm-"


@dataclass(frozen=True, kw_only=True)
class RocmOptions:
    """Where ROCm comes from and how it is installed, as the command line says it."""

    source: SourceOptions = field(default_factory=lambda: SourceOptions(prefix=f"--{PREFIX}"))
    extras: tuple[str, ...] = ()
    installer: Backend = "uv"
    pip_cache_dir: Path | None = None

    @property
    def version(self) -> str:
        """The version that is asked for; "" for that of the source lock, or the newest there is."""
        return self.source.version


def add_rocm_options(parser: argparse.ArgumentParser, *, alone: bool = True) -> None:
    """Declare the options."""
    title = "where ROCm comes from (default: this run, else the family's release index)"
    if not alone:
        title = "where a ROCm comes from that is no part of the run (default: the family's release index)"
    add_package_source(parser, title, PREFIX, *([""] if alone else []))
    group = parser.add_argument_group("how ROCm is installed")
    group.add_argument(
        "--rocm-extras", default="", metavar="A,B", help="more extras of rocm, such as device-gfx942"
    )
    group.add_argument("--installer", choices=("uv", "pip"), default="uv", help="what installs (default: uv)")
    group.add_argument("--pip-cache-dir", type=Path, metavar="DIR", help="the installer's cache")


def rocm_options_from(
    arguments: argparse.Namespace, env: Mapping[str, str] = MappingProxyType({})
) -> RocmOptions:
    """Turn parsed arguments into the value that stages get."""
    installer: Literal["uv", "pip"] = arguments.installer
    return RocmOptions(
        source=source_options(arguments, PREFIX, env),
        extras=tuple(extra for extra in arguments.rocm_extras.split(",") if extra),
        installer=installer,
        pip_cache_dir=arguments.pip_cache_dir,
    )


def find_version(context: Context, options: RocmOptions) -> str:
    """Find the ROCm version that wheels are built against: "" for family ``cpu``.

    The one given, the ref's own, the newest of the named sources, of the run's outputs, or of the
    family's release index.
    """
    if not context.gpu:
        return ""
    if options.source.no_install:
        return _installed(context).version
    return options.version or context.ref.rocm_version or newest(packages_of(context, options))


def _installed(context: Context) -> RocmSource:
    return installed(interpreter(require(context.common.python).base_executable))


def packages_of(context: Context, options: RocmOptions) -> PackageSource:
    """Find where ROCm comes from: the sources that are named, the run's outputs, the release index."""
    named = named_source(options.source, context.common, context.gpu_family)
    if named is not None:
        return named
    own = own_run(context.common, context.artifact_group)
    if has_rocm(own):
        return own
    return PackageSource(index_urls=(release_index_url("", context.gpu_family),), prefix=f"--{PREFIX}")


def find_source(context: Context, options: RocmOptions, version: str) -> RocmSource:
    """Find where ROCm of this version comes from, and the files of it that builds need."""
    if options.source.no_install:
        here = _installed(context)
        if here.version != version:
            raise MissingInputError(
                f"The source lock says ROCm {version}; {here.origin} is {here.version}.",
                hint="Build the image with that version (--therock-nightly-version), or resolve again.",
            )
        return here
    packages = packages_of(context, options)
    own = packages.group is not None and not options.source.named
    if own and version not in packages.versions("rocm"):
        raise MissingInputError(
            f"The source lock says ROCm {version}; {packages.words} holds {packages.versions('rocm')[0]}.",
            hint="Resolve again (nox -s resolve), or build that version: nox -s build_rocm.",
        )
    if not own and not options.source.named and context.ref.rocm_version == version:
        # the sample's ROCm is on no index
        raise MissingInputError(
            f"ROCm {version} for {context.gpu_family} is not among the run's outputs.",
            hint=f"Build it first: nox -s build_rocm -- --torch-ref {context.ref.name} "
            f"--gpu-family {context.gpu_family}",
        )
    return for_build(packages, version, context.gpu_family, options.extras, context.common.outputs.platform)
