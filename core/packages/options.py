"""The options that say where packages come from: one group of words for every stage.

A stage whose packages are one thing takes ``--find-links`` and so on; one that takes ROCm apart from torch
takes the same words with a prefix, too (``--rocm-find-links``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

_ROCM = "rocm-"
_INPUTS = {
    "index_urls": "ROCM_PACKAGE_INDEX_URL",
    "find_links": "ROCM_PACKAGE_FIND_LINKS_URL",
    "version": "ROCM_PACKAGE_VERSION",
}
_NO_INSTALL = "ROCM_PACKAGE_NO_INSTALL"


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Where packages come from, as a command line says it.

    Attributes:
        version: The exact version; "" for the one that another document says, or the newest.
        run_id: A run other than the stage's own; "" for none.
        store: Where that run lives; "" for where runs of CI do.
        artifact_group: The run's group; "" for the GPU family.
        index_name: A release index by name.
        index_urls: Indexes.
        index_subdir: A folder below each index.
        find_links: Folders, absolute, and flat pages.
        no_install: They are installed already, in the Python that the environment is made from.
        prefix: How the options begin: ``--``, or ``--rocm-``.
    """

    version: str = ""
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
        places = (
            self.run_id,
            self.store,
            self.index_name,
            self.index_urls,
            self.index_subdir,
            self.find_links,
        )
        return any(places)


def add_package_source(
    parser: argparse.ArgumentParser, title: str, *prefixes: str
) -> argparse._ArgumentGroup:
    """Declare the group.

    Args:
        parser: The verb's parser.
        title: What comes from there, and what the default is.
        prefixes: ``""`` and ``rocm-``: each option is spelled with each of them; the first one names it.
    """
    group, first = parser.add_argument_group(title), prefixes[0]

    def add(name: str, **settings: object) -> None:
        spelled = [f"--{prefix}{name}" for prefix in prefixes]
        if name == "index-name" and _ROCM in prefixes:
            spelled.append("--rocm-index")
        if name == "version":
            spelled = ["--rocm-version", *([] if first else ["--version"])]
        dest = f"{first}{name}".replace("-", "_")
        group.add_argument(*spelled, dest=dest, **settings)  # type: ignore[arg-type]

    add(
        "find-links", action="append", default=[], metavar="URL|DIR", help="a folder or flat page; repeatable"
    )
    add("index-url", action="append", default=[], metavar="URL", help="an index; repeatable")
    add("index-name", default="", metavar="NAME", help="a release index by name: nightly, dev, …")
    add(
        "index-subdir",
        default="",
        metavar="DIR",
        help="folder below each index, such as gfx110X-all (without --index-url: of the release index)",
    )
    if _ROCM in prefixes:
        add("version", default="", metavar="V", help="exact version of the rocm packages")
    if first == _ROCM:
        group.add_argument(
            "--rocm-no-install",
            action="store_true",
            help="take what the Python has installed that the environment is made from: an image's ROCm",
        )
        for name, metavar, about in (
            ("run-id", "ID", "another run that has them"),
            ("store", "STORE", "where that run lives"),
            ("artifact-group", "GROUP", "that run's group (default: the GPU family)"),
        ):
            group.add_argument(f"--{first}{name}", default="", metavar=metavar, help=about)

    return group


def source_options(
    arguments: argparse.Namespace, prefix: str = "", env: Mapping[str, str] = MappingProxyType({})
) -> SourceOptions:
    """Turn parsed arguments into the value that stages get.

    Args:
        arguments: The options; an empty one was not given.
        prefix: The prefix that names them.
        env: Where a workflow's inputs say it for several sessions at once, unless options do.
    """
    key = prefix.replace("-", "_")

    def given(name: str) -> str:
        return str(getattr(arguments, f"{key}{name}", "") or "")

    found = SourceOptions(
        version=given("version") or env.get(_INPUTS["version"], ""),
        run_id=given("run_id") if prefix else "",
        store=given("store") if prefix else "",
        artifact_group=given("artifact_group") if prefix else "",
        index_name=given("index_name"),
        index_urls=tuple(filter(None, getattr(arguments, f"{key}index_url"))),
        index_subdir=given("index_subdir").strip("/"),
        find_links=absolute(getattr(arguments, f"{key}find_links")),
        no_install=prefix == _ROCM and arguments.rocm_no_install,
        prefix=f"--{prefix}",
    )
    if found.named or found.no_install:
        return found
    if prefix == _ROCM and env.get(_NO_INSTALL):
        return replace(found, no_install=True)
    urls, links = (tuple(filter(None, [env.get(_INPUTS[name])])) for name in ("index_urls", "find_links"))
    return replace(found, index_urls=urls, find_links=links)


def absolute(links: list[str]) -> tuple[str, ...]:
    """Make paths among find-links absolute: a stage runs in the checkout's root, and an installer may not."""
    return tuple(link if "://" in link else str(Path(link).resolve()) for link in links if link)


def below(url: str, folder: str) -> str:
    """Give the address of a folder below an index; without a folder the index's own, as it was given."""
    inner = folder.strip("/")
    return f"{url.rstrip('/')}/{inner}/" if inner else url
