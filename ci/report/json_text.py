"""The page as JSON, for programs: every value of the model, nothing cut."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ci.report.model import Page


def write(page: Page) -> str:
    """Write the page's model; `ci.report.model` says what each name means."""
    return json.dumps(asdict(page), indent=1)
