"""Files that carry what an index says of them: their digest, and a sidecar beside them.

Every upload of ours puts the SHA-256 into an object's metadata and a wheel's metadata beside the
wheel, so that nothing else has to be read to list it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from email.parser import BytesParser
from typing import TYPE_CHECKING, ClassVar

from ci.publish.indexing.names import SIDECAR
from ci.publish.indexing.sources import Promise
from core import parallel
from core.errors import MissingInputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.stores import Store, Stored


@dataclass(frozen=True, kw_only=True)
class Carried:
    """Says what new files are, each by two requests; a wheel without a sidecar is not listed."""

    store: Store
    names_files: ClassVar[bool] = False
    refuses_absent: ClassVar[bool] = False

    def documents(self) -> Mapping[str, str]:
        """There are none."""
        return {}

    def read(self, names: Sequence[str]) -> Sequence[Sequence[Promise]]:  # noqa: ARG002 - none are listed
        """There are none."""
        return ()

    def ask(self, found: Sequence[Stored]) -> Sequence[Promise]:
        """Say what these files are, those that are whole."""
        return [promise for promise in parallel.each(self._ask, found) if promise is not None]

    def _ask(self, stored: Stored) -> Promise | None:
        try:
            sha256 = self.store.digest(stored.key)
            metadata = self.store.read(f"{stored.key}{SIDECAR}") if stored.key.endswith(".whl") else b""
        except MissingInputError:
            return None  # its sidecar is yet to come, or it went meanwhile
        fields = BytesParser().parsebytes(metadata, headersonly=True)
        return Promise(
            key=stored.key,
            size=stored.size,
            sha256=sha256,
            requires_python=" ".join(str(fields.get("Requires-Python", "")).split()),
            metadata_sha256=hashlib.sha256(metadata).hexdigest() if metadata else "",
        )
