"""`test`: ROCm's packages into a clean environment, and `rocm-sdk test` there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from core import console
from core.errors import UsageError
from core.families import CPU, default_family, detect, family
from core.named_sources import absolute, add_find_links, add_index_subdir, add_index_urls, below
from core.options import add_group, common_from
from rocm_packaging.layouts import tested_targets
from rocm_packaging.sources import RocmSource, newest, release_index_url, with_layout
from rocm_packaging.testing import TestRequest, run_tests

if TYPE_CHECKING:
    import argparse

    from core.options import Common

SAMPLE = "sample"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    group = parser.add_argument_group("where ROCm comes from (default: the run's outputs)")
    group.add_argument(
        "--rocm-version", "--version", default="", metavar="V", help="exact version (default: the newest)"
    )
    add_find_links(group, "--find-links", "--rocm-find-links")
    add_index_urls(group, "--index-url", "--rocm-index-url")
    add_index_subdir(group)
    group.add_argument("--rocm-index", default="", metavar="NAME", help="a release index by name")
    group.add_argument(
        "--rocm-extras",
        default="libraries,devel",
        metavar="A,B",
        help="extras of rocm that an index or --find-links gives (default: libraries,devel)",
    )
    add_group(parser, default="the GPU families")
    parser.add_argument("--no-install", action="store_true", help="test what the environment holds already")
    parser.add_argument(
        "--installer", choices=("uv", "pip"), default="uv", help="what installs (default: uv)"
    )
    parser.add_argument("--pip-cache-dir", type=Path, metavar="DIR", help="the installer's cache")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="also write the JUnit report there")


def run(arguments: argparse.Namespace) -> None:
    """Install and test."""
    common = common_from(arguments)
    families = _families(common)
    targets = tested_targets(";".join(families), detect())
    named = None if arguments.no_install else _named(arguments, families, targets)
    run_tests(
        TestRequest(
            common=common,
            families=families,
            targets=targets,
            named=named,
            version=arguments.rocm_version,
            extras=tuple(extra for extra in arguments.rocm_extras.split(",") if extra),
            install=not arguments.no_install,
            backend=arguments.installer,
            cache_dir=arguments.pip_cache_dir,
            junit=arguments.junit,
            group=arguments.artifact_group,
        )
    )


def _families(common: Common) -> tuple[str, ...]:
    """Choose the GPU families: the ones given, the sample's, or this machine's."""
    name = common.gpu_family
    if not name and common.torch_ref == SAMPLE:
        from rocm_packaging.sample import FAMILIES

        name = next(iter(FAMILIES))
    chosen = family(name or default_family(detect()))
    if chosen.name == CPU:
        raise UsageError("Family cpu has no ROCm to test.", hint="Give a GPU family with --gpu-family.")
    return tuple(chosen.name.split(";"))


def _named(
    arguments: argparse.Namespace, families: tuple[str, ...], targets: tuple[str, ...]
) -> RocmSource | None:
    """Gather the sources that were named; None for the run's outputs."""
    urls = [below(url, arguments.index_subdir) for url in arguments.index_url]
    if arguments.rocm_index or (arguments.index_subdir and not urls):
        url = release_index_url(arguments.rocm_index, arguments.index_subdir or families[0])
        if arguments.index_subdir not in url:
            raise UsageError(
                f"The release index {url} serves all families and has no folder {arguments.index_subdir}.",
                hint="Leave --index-subdir out, or name an index of one family: --rocm-index nightly-v2.",
            )
        urls.insert(0, url)
    links = absolute(arguments.find_links)
    if not (urls or links):
        return None
    source = RocmSource(
        version=arguments.rocm_version,
        index_urls=tuple(urls),
        find_links=links,
        origin=", ".join((*urls, *links)),
    )
    if not source.version:
        source = source.of_version(newest(source))
    console.say(f"ROCm {source.version} for {', '.join(families)} from {source.origin}")
    wanted = targets if "libraries" in arguments.rocm_extras.split(",") else ()
    return with_layout(source, ";".join(families), wanted)
