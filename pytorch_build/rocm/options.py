"""The options that say where a build's ROCm comes from, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from core.errors import MissingInputError
from core.named_sources import absolute, add_find_links, add_index_urls
from rocm_packaging.sources import RocmSource, in_run, newest, release_index_url, with_layout

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from core.installer import Backend
    from pytorch_build.context import Context


@dataclass(frozen=True, kw_only=True)
class RocmOptions:
    """Where ROCm comes from, as the command line says it.

    Attributes:
        version: The exact version; "" for that of the source lock, or the newest there is.
        index: Name of a release index; "" for the default one.
        index_urls: Indexes.
        find_links: Folders and flat pages.
        extras: More extras of ``rocm``.
        installer: ``uv`` or ``pip``.
        pip_cache_dir: The installer's cache; None for its own default.
    """

    version: str = ""
    index: str = ""
    index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    installer: Backend = "uv"
    pip_cache_dir: Path | None = None


def add_rocm_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group(
        "where ROCm comes from (default: this run, else the family's release index)"
    )
    group.add_argument("--rocm-version", default="", metavar="V", help="exact version of the rocm packages")
    group.add_argument(
        "--rocm-index", default="", metavar="NAME", help="a release index by name: nightly, dev, …"
    )
    add_index_urls(group, "--rocm-index-url", "--index-url")
    add_find_links(group, "--rocm-find-links", "--find-links")
    group.add_argument(
        "--rocm-extras", default="", metavar="A,B", help="more extras of rocm, such as device-gfx942"
    )
    group.add_argument("--installer", choices=("uv", "pip"), default="uv", help="what installs (default: uv)")
    group.add_argument("--pip-cache-dir", type=Path, metavar="DIR", help="the installer's cache")


def rocm_options_from(
    arguments: argparse.Namespace, env: Mapping[str, str] = MappingProxyType({})
) -> RocmOptions:
    """Turn parsed arguments into the value that stages get.

    Args:
        arguments: The options; an empty one was not given.
        env: Where a workflow's inputs say it for several sessions at once, unless options do:
            ``ROCM_PACKAGE_INDEX_URL``, ``ROCM_PACKAGE_FIND_LINKS_URL``, ``ROCM_PACKAGE_VERSION``.
    """
    installer: Literal["uv", "pip"] = arguments.installer
    urls = tuple(filter(None, arguments.rocm_index_url))
    links = tuple(filter(None, arguments.rocm_find_links))
    if not (urls or links or arguments.rocm_index):
        urls = tuple(filter(None, [env.get("ROCM_PACKAGE_INDEX_URL")]))
        links = tuple(filter(None, [env.get("ROCM_PACKAGE_FIND_LINKS_URL")]))
    return RocmOptions(
        version=arguments.rocm_version or env.get("ROCM_PACKAGE_VERSION", ""),
        index=arguments.rocm_index,
        index_urls=urls,
        find_links=links,
        extras=tuple(extra for extra in arguments.rocm_extras.split(",") if extra),
        installer=installer,
        pip_cache_dir=arguments.pip_cache_dir,
    )


def find_version(context: Context, options: RocmOptions) -> str:
    """Find the ROCm version that wheels are built against: "" for family ``cpu``.

    The one given, the ref's own, the run's outputs, the newest of the named sources or of
    the family's release index.

    Raises:
        RocmError: No source answers with a version.
    """
    if not context.gpu:
        return ""
    if options.version or context.ref.rocm_version:
        return options.version or context.ref.rocm_version
    source = _named(context, options, version="")
    if source is None:
        own = in_run(context.common, context.artifact_group)
        if own is not None:
            return own.version
        source = _release_index(context, options, version="")
    return newest(source)


def find_source(context: Context, options: RocmOptions, version: str) -> RocmSource:
    """Find where ROCm of this version comes from, and which layout its packages have there.

    Raises:
        MissingInputError: The run's outputs hold another version, or the sample's are not built.
        RocmError: The source has no libraries of that version, or both layouts.
    """
    named = _named(context, options, version=version)
    if named is not None:
        return with_layout(named, context.gpu_family)
    own = in_run(context.common, context.artifact_group, options.extras)
    if own is not None:
        if own.version != version:
            raise MissingInputError(
                f"The source lock says ROCm {version}; {own.origin} holds {own.version}.",
                hint="Resolve again (nox -s resolve), or build that version: nox -s build_rocm.",
            )
        return own
    if context.ref.rocm_version == version:
        # the sample's ROCm is on no index
        raise MissingInputError(
            f"ROCm {version} for {context.gpu_family} is not among the run's outputs.",
            hint=f"Build it first: nox -s build_rocm -- --torch-ref {context.ref.name} "
            f"--gpu-family {context.gpu_family}",
        )
    return with_layout(_release_index(context, options, version=version), context.gpu_family)


def _named(context: Context, options: RocmOptions, *, version: str) -> RocmSource | None:
    urls = options.index_urls
    if options.index:
        urls = (release_index_url(options.index, context.gpu_family), *urls)
    if not (urls or options.find_links):
        return None
    links = absolute(options.find_links)
    return RocmSource(version=version, index_urls=urls, find_links=links, origin=", ".join((*urls, *links)))


def _release_index(context: Context, options: RocmOptions, *, version: str) -> RocmSource:
    url = release_index_url(options.index, context.gpu_family)
    return RocmSource(version=version, index_urls=(url,), origin=url)
