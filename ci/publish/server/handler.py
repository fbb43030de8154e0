"""What AWS Lambda calls: `handler`. The settings are the function's environment variables."""

from __future__ import annotations

import functools
import logging
import re
from typing import TYPE_CHECKING, Any

from ci.publish.server import pages
from core.cli.options import environment
from core.stores.s3 import open_bucket

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.stores import Store

FOLDERS_VARIABLE = "PAGES_FOLDERS"

logging.getLogger("ci").setLevel(logging.INFO)


def handler(event: Mapping[str, Any], _context: object) -> Mapping[str, Sequence[Mapping[str, str]]]:
    """Bring the pages up to date with what an event tells of."""
    return pages.handle(event, open_bucket=_store, folders=_folders())


@functools.cache
def _folders() -> re.Pattern[str]:
    return re.compile(environment().get(FOLDERS_VARIABLE) or pages.RUN_FOLDERS)


def _store(bucket: str) -> Store:
    return open_bucket(f"s3://{bucket}")
