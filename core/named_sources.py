"""Sources of packages that a person names on a command line: their options, and what is meant by them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from core.installer import Sources

if TYPE_CHECKING:
    from argparse import _ArgumentGroup
    from collections.abc import Sequence


def add_find_links(group: _ArgumentGroup, *names: str) -> None:
    """Declare the option that names folders and flat pages, under one or more names."""
    group.add_argument(
        *names, action="append", default=[], metavar="URL|DIR", help="a folder or flat page; repeatable"
    )


def add_index_urls(group: _ArgumentGroup, *names: str) -> None:
    """Declare the option that names indexes, under one or more names."""
    group.add_argument(*names, action="append", default=[], metavar="URL", help="an index; repeatable")


def add_index_subdir(group: _ArgumentGroup) -> None:
    """Declare the option that names a folder below each index."""
    group.add_argument(
        "--index-subdir",
        default="",
        metavar="DIR",
        help="folder below each index, such as gfx110X-all (without --index-url: of the release index)",
    )


def below(url: str, folder: str) -> str:
    """Give the address of a folder below an index; without a folder the index's own, as it was given."""
    inner = folder.strip("/")
    return f"{url.rstrip('/')}/{inner}/" if inner else url


def absolute(links: Sequence[str]) -> tuple[str, ...]:
    """Make paths among find-links absolute: a stage runs in the checkout's root, and an installer may not."""
    return tuple(link if "://" in link else str(Path(link).resolve()) for link in links)


def alone(index_urls: Sequence[str], find_links: Sequence[str], *, cert: str) -> Sources:
    """Give these sources as the only ones: nothing may come from the person's own indexes.

    Args:
        index_urls: Indexes, the first in the place of the public one.
        find_links: Folders and flat pages.
        cert: A CA bundle for the indexes; "" for none.
    """
    return Sources(
        index_url=index_urls[0] if index_urls else "",
        extra_index_urls=tuple(index_urls[1:]),
        find_links=tuple(find_links),
        no_index=not index_urls,
        cert=cert,
    )
