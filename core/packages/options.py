"""The options that say where packages come from, the same words for every stage."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from core.cli.options import named_store
from core.errors import UsageError
from core.packages.sources import path_of

_ROCM = "rocm-"
# The inputs of a workflow, for all of its sessions.
_INDEX_VARIABLE = "ROCM_PACKAGE_INDEX_URL"
_LINKS_VARIABLE = "ROCM_PACKAGE_FIND_LINKS_URL"
_VERSION_VARIABLE = "ROCM_PACKAGE_VERSION"
_NO_INSTALL_VARIABLE = "ROCM_PACKAGE_NO_INSTALL"


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Where packages come from, as a command line says it; "" and () are options that are not given.

    Attributes:
        version: The exact version.
        staged: Whether they are those of the run that are up for testing.
        distribution_store: Where those are; "" for the release type's store.
        run_id: Another run that has them.
        store: Where that run lives.
        artifact_group: That run's group.
        index_name: A release index.
        index_urls: Indexes.
        index_subdir: The folder below each index.
        find_links: Folders and flat pages.
        no_install: Whether they are installed already, in the Python that the environment is made from.
        prefix: How the options begin: ``--``, or ``--rocm-``.
    """

    version: str = ""
    staged: bool = False
    distribution_store: str = ""
    run_id: str = ""
    store: str = ""
    artifact_group: str = ""
    index_name: str = ""
    index_urls: tuple[str, ...] = ()
    index_subdir: str = ""
    find_links: tuple[str, ...] = ()
    no_install: bool = False
    prefix: str = "--"

    @property
    def named(self) -> bool:
        """Whether a source is named at all, beside the stage's own run."""
        is_run_named = bool(self.run_id or self.store)
        is_index_named = bool(self.index_name or self.index_urls or self.index_subdir)
        return is_run_named or is_index_named or bool(self.find_links)


def add_package_source(
    parser: argparse.ArgumentParser,
    title: str,
    *prefixes: str,
) -> argparse._ArgumentGroup:
    """Declare the options of a source.

    Each option is spelled with each of `prefixes` (``""``, ``rocm-``); the first one names it.
    """
    group = parser.add_argument_group(title)
    first_prefix = prefixes[0]
    has_rocm = _ROCM in prefixes

    def spell(name: str) -> list[str]:
        return [f"--{prefix}{name}" for prefix in prefixes]

    def destination(name: str) -> str:
        return f"{first_prefix}{name}".replace("-", "_")

    group.add_argument(
        *spell("find-links"),
        dest=destination("find-links"),
        action="append",
        default=[],
        metavar="URL|DIR",
        help="a folder or flat page; repeatable",
    )
    group.add_argument(
        *spell("index-url"),
        dest=destination("index-url"),
        action="append",
        default=[],
        metavar="URL",
        help="an index; repeatable",
    )
    group.add_argument(
        *spell("index-name"),
        *(["--rocm-index"] if has_rocm else []),
        dest=destination("index-name"),
        default="",
        metavar="NAME",
        help="a release index by name: nightly, dev, …",
    )
    group.add_argument(
        *spell("index-subdir"),
        dest=destination("index-subdir"),
        default="",
        metavar="DIR",
        help="folder below each index, such as gfx110X-all (without --index-url: of the release index)",
    )
    if has_rocm:
        group.add_argument(
            "--rocm-version",
            *([] if first_prefix else ["--version"]),
            dest=destination("version"),
            default="",
            metavar="V",
            help="exact version of the rocm packages",
        )
    if first_prefix == _ROCM:
        _add_rocm_source(group)
    return group


def _add_rocm_source(group: argparse._ArgumentGroup) -> None:
    """Declare what only a ROCm beside the stage's own run has: that it is installed, or of another run."""
    group.add_argument(
        "--rocm-no-install",
        action="store_true",
        help="take the ROCm that is already installed for the base Python, as in an image",
    )
    group.add_argument("--rocm-run-id", default="", metavar="ID", help="another run that has it")
    group.add_argument(
        "--rocm-store", default="", type=named_store, metavar="STORE", help="where that run lives"
    )
    group.add_argument(
        "--rocm-artifact-group",
        default="",
        metavar="GROUP",
        help="that run's group (default: the GPU family)",
    )


def add_staged_source(group: argparse._ArgumentGroup) -> None:
    """Declare ``--staged``, by which a test takes what users will get from where it is up for testing."""
    group.add_argument(
        "--staged", action="store_true", help="the run's wheels as `stage` has put them up for testing"
    )
    group.add_argument(
        "--distribution-store",
        default="",
        type=named_store,
        metavar="STORE",
        help="where --staged takes them from: a folder or s3://bucket (default: the release type's bucket)",
    )


def options_of_tested_source(arguments: argparse.Namespace) -> SourceOptions:
    """Return the source of what a test tests, of its parsed arguments."""
    options = source_options(arguments)
    if not arguments.staged and arguments.distribution_store:
        raise UsageError(
            "--distribution-store says where staged wheels lie, and this test takes others.",
            hint="Give --staged, too, or leave it out.",
        )
    if not arguments.staged:
        return options

    if options.named or arguments.no_install:
        raise UsageError(
            "--staged takes the run's staged wheels, and another option names other packages.",
            hint="Leave --staged out, or --no-install and what names a source (--find-links, --index-url).",
        )
    return replace(options, staged=True, distribution_store=arguments.distribution_store)


def source_options(
    arguments: argparse.Namespace,
    prefix: str = "",
    env: Mapping[str, str] = MappingProxyType({}),
) -> SourceOptions:
    """Return the source that parsed arguments name.

    `env` is where a workflow's inputs say it for several sessions at once, unless options do.
    """
    key = prefix.replace("-", "_")

    def value_of(name: str) -> str:
        return str(getattr(arguments, f"{key}{name}", "") or "")

    options = SourceOptions(
        version=value_of("version") or env.get(_VERSION_VARIABLE, ""),
        index_name=value_of("index_name"),
        index_urls=tuple(filter(None, getattr(arguments, f"{key}index_url"))),
        index_subdir=value_of("index_subdir").strip("/"),
        find_links=absolute_links(getattr(arguments, f"{key}find_links")),
        no_install=prefix == _ROCM and arguments.rocm_no_install,
        prefix=f"--{prefix}",
    )
    if prefix:
        # Without a prefix these are the stage's own run.
        options = replace(
            options,
            run_id=value_of("run_id"),
            store=value_of("store"),
            artifact_group=value_of("artifact_group"),
        )
    if options.named or options.no_install:
        return options

    if prefix == _ROCM and env.get(_NO_INSTALL_VARIABLE):
        return replace(options, no_install=True)
    return replace(
        options,
        index_urls=tuple(filter(None, [env.get(_INDEX_VARIABLE)])),
        find_links=absolute_links([env.get(_LINKS_VARIABLE, "")]),
    )


def absolute_links(links: Sequence[str]) -> tuple[str, ...]:
    """Make paths among find-links absolute: a stage runs in the checkout's root, and an installer may not."""
    absolute: list[str] = []
    for link in links:
        if not link:
            continue
        place = path_of(link)
        absolute.append(place if "://" in place else str(Path(place).resolve()))
    return tuple(absolute)


def below(url: str, folder: str) -> str:
    """Return the address of a folder below an index; without a folder the index's own, as it was given."""
    inner_folder = folder.strip("/")
    return f"{url.rstrip('/')}/{inner_folder}/" if inner_folder else url
