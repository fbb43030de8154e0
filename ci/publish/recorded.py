"""What earlier uploads wrote down: digests by key, so that nothing is asked about a file that is there."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from core.errors import DataError
from core.parallel import each

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.stores import Store, Stored

UPLOAD = "upload-"
# files that are no distributions are named in a record's details: an index is of its `files`
OBJECTS = "objects"


def record_stage(keys: Sequence[str]) -> str:
    """Name an upload by what it uploads: another one has another record, the same one again the same."""
    return f"{UPLOAD}{hashlib.sha256(chr(10).join(sorted(keys)).encode()).hexdigest()[:16]}"


def recorded(store: Store, listed: Mapping[str, Stored], prefix: str) -> Mapping[str, frozenset[str]]:
    """Read the digests that uploads recorded, by key."""
    found: dict[str, frozenset[str]] = {}
    keys = [key for key in listed if key.startswith(prefix) and key.endswith(".json")]
    for pairs in each(lambda key: _digests(store.read(key), key), keys):
        for key, sha256 in pairs:
            found[key] = found.get(key, frozenset()) | {sha256}
    return found


def _digests(text: bytes, where: str) -> Sequence[tuple[str, str]]:
    """Read one record's; without its whole schema, as thousands of files are read in a moment so."""
    try:
        record = json.loads(text)
        named = [(str(one["key"]), str(one["sha256"])) for one in record["files"]]
        objects = record["details"].get(OBJECTS, {})
        return [*named, *((key, str(said["sha256"])) for key, said in objects.items())]
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DataError(
            f"{where} is no record of an upload.", hint="Remove it and upload again."
        ) from problem
