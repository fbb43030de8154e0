"""One upload: what a listing shows to be there is left, what may not be replaced refused, the rest sent."""

from __future__ import annotations

import hashlib
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ci.publish.digests import pack
from core import console, files
from core.console import transfer
from core.errors import StoreError
from core.parallel import JOBS, each
from core.stores import refuse_other_bytes
from core.stores.directory import DirectoryStore
from core.stores.location import DryRunStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from core.stores import Store, Stored

_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Item:
    """A file that is to be in a store."""

    key: str
    path: Path
    size: int
    sha256: str
    replace: bool
    packed: bool = False
    owned: bool = False
    changed: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an upload will do."""

    send: tuple[Item, ...]
    same: tuple[Item, ...]


def listing(store: Store, prefixes: Iterable[str]) -> dict[str, Stored]:
    """List folders of a store."""
    found = each(store.list, sorted(set(prefixes)))
    return {stored.key: stored for folder in found for stored in folder}


def plan(
    store: Store,
    items: Sequence[Item],
    listed: Mapping[str, Stored],
    known: Mapping[str, AbstractSet[str]],
) -> Plan:
    """Hold what is to be in a store against what is.

    Sizes come from the listing, digests from what records say; the store is asked, one request a
    file, only for those that no record names.
    """

    def same_size(item: Item) -> bool:
        return item.key in listed and listed[item.key].size == item.size

    unclear = [one for one in items if same_size(one) and one.sha256 not in known.get(one.key, ())]
    found = each(store.digest, [one.key for one in unclear])
    asked = {one.key: digest for one, digest in zip(unclear, found, strict=True)}
    same = {one.key for one in items if same_size(one) and asked.get(one.key, one.sha256) == one.sha256}
    refused = [one.key for one in items if one.key in listed and one.key not in same and not one.replace]
    if refused:
        raise _refusal(store, refused)
    return Plan(
        send=tuple(one for one in items if one.key not in same),
        same=tuple(one for one in items if one.key in same),
    )


def _refusal(store: Store, keys: Sequence[str]) -> StoreError:
    if len(keys) == 1:
        return refuse_other_bytes(keys[0], store.url)
    named = "".join(f"\n  {key}" for key in keys[:_NAMED])
    more = f"\n  and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return StoreError(
        f"{len(keys)} keys exist in {store.url} with other bytes; nothing was uploaded:{named}{more}",
        hint="A run other than 'local' is immutable: use a run id of its own.",
    )


def send(store: Store, items: Sequence[Item], listed: Mapping[str, Stored], *, title: str) -> None:
    """Put files into a store, side by side, the largest first."""
    if not items:
        return
    total = sum(one.size for one in items)
    shown_title = f"Uploading {title}: {len(items)} files, {console.size(total)}, to {store.url}"
    with transfer(shown_title, files=len(items), size=total) as shown:

        def put(item: Item) -> None:
            started = time.monotonic()
            with _source(store, item) as path:
                store.put_file(
                    item.key, path, sha256=item.sha256, replace=item.replace, absent=item.key not in listed
                )
            shown.advance(item.size)
            shown.finish(PurePosixPath(item.key).name, item.size, time.monotonic() - started)

        each(put, sorted(items, key=lambda one: (-one.size, one.key)), jobs=jobs_for(store))


def send_small(
    store: Store, items: Mapping[str, bytes], listed: Mapping[str, Stored], *, replace: bool
) -> None:
    """Put small objects into a store, side by side."""
    each(
        lambda one: store.put_bytes(one[0], one[1], replace=replace, absent=one[0] not in listed),
        sorted(items.items()),
        jobs=jobs_for(store),
    )


def absent(sidecars: Mapping[str, bytes], listed: Mapping[str, Stored]) -> dict[str, bytes]:
    """Leave out the sidecars that are there: they follow from their wheels, and so from their size."""
    return {key: data for key, data in sidecars.items() if key not in listed or listed[key].size != len(data)}


def changed(store: Store, documents: Mapping[str, bytes], listed: Mapping[str, Stored]) -> dict[str, bytes]:
    """Leave out the small objects that are there as they are: one request for each of the right size."""
    likely = [key for key, data in documents.items() if key in listed and listed[key].size == len(data)]
    digests = dict(zip(likely, each(store.digest, likely), strict=True))
    return {
        key: data for key, data in documents.items() if digests.get(key) != hashlib.sha256(data).hexdigest()
    }


def jobs_for(store: Store) -> int:
    """Choose how many go at once; a plan is printed in order."""
    return 1 if isinstance(store, DryRunStore) else JOBS


@contextmanager
def _source(store: Store, item: Item) -> Iterator[Path]:
    """Give the file to put: a copy where the store would link a file that somebody may write to."""
    linking = isinstance(store, DirectoryStore)
    if not item.packed and (item.owned or not linking):
        yield item.path
        return
    beside = files.made(store.root) if isinstance(store, DirectoryStore) else None
    with tempfile.TemporaryDirectory(dir=beside, prefix=".upload.") as folder:
        mine = Path(folder) / PurePosixPath(item.key).name
        if item.packed:
            pack(item.path, mine)
        else:
            files.copy(item.path, mine)
        if (mine.stat().st_size, item.path.stat().st_mtime_ns) != (item.size, item.changed):
            raise StoreError(f"{item.path} was written to meanwhile.", hint="Upload it when it is whole.")
        yield mine
