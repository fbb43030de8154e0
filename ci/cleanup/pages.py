"""Which objects the pages of an index list, so that none of them is deleted."""

import json
from collections.abc import Iterable, Sequence
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from ci.publish.index import is_page
from core import parallel
from core.errors import DataError
from core.links import links
from core.stores import Store

# Hosts of pages' own addresses: in the store that is looked at, or in another one.
_HERE = "store.invalid"
_ELSEWHERE = "other.invalid"


def listed_keys(
    store: Store,
    keys: Iterable[str],
    folder: str,
    *,
    bucket: str = "",
    is_own: bool = True,
) -> frozenset[str]:
    """Return the keys that a folder's pages list, of the pages among these keys of a store."""

    def read_page(key: str) -> frozenset[str]:
        return keys_on_page(
            key,
            store.read(key),
            bucket=bucket,
            is_own=is_own,
        )

    keys_in_folder = [key for key in keys if key.startswith(f"{folder}/")]
    page_keys = [key for key in keys_in_folder if is_page(key) and key.endswith((".html", ".json"))]
    return frozenset().union(*parallel.map_in_threads(read_page, page_keys))


def keys_on_page(
    page_key: str,
    page: bytes,
    *,
    bucket: str = "",
    is_own: bool = True,
) -> frozenset[str]:
    """Return the keys of a store that a page links to: its own, or another that links to this `bucket`."""
    try:
        addresses = _addresses_on_page(page_key, page.decode())
    except (UnicodeDecodeError, ValueError, TypeError, KeyError) as problem:
        raise DataError(
            f"{page_key} is not a page of an index: {problem}.",
            hint="Write the pages again with nox -s index, then run retention again.",
        ) from problem

    host = _HERE if is_own else _ELSEWHERE
    base = f"https://{host}/{quote(page_key)}"
    keys: set[str] = set()
    for address in addresses:
        keys.add(_key_of(urlsplit(urljoin(base, address)), bucket))
    return frozenset(filter(None, keys))


def _addresses_on_page(page_key: str, page: str) -> Sequence[str]:
    if not page_key.endswith(".json"):
        return list(links(page))

    document = json.loads(page)
    # The page of all projects lists no file.
    if "projects" in document:
        return []
    return [str(file["url"]) for file in document["files"]]


def _key_of(address: SplitResult, bucket: str) -> str:
    """Return the key in the store that an address names; "" for one elsewhere."""
    host = address.hostname or ""
    path = unquote(address.path).lstrip("/")
    if host == _HERE:
        return path
    if not bucket or not host.endswith(".amazonaws.com"):
        return ""

    # https://BUCKET.s3.REGION.amazonaws.com/KEY, https://s3.REGION.amazonaws.com/BUCKET/KEY
    if host.startswith(f"{bucket}.s3"):
        return path
    if host.startswith("s3") and path.startswith(f"{bucket}/"):
        return path.removeprefix(f"{bucket}/")
    return ""
