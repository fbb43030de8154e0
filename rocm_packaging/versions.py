"""ROCm versions: the forms that the project publishes, and nothing else.

=================  ===================================
release            ``10.1.0``
prerelease         ``10.1.0rc2``
nightly            ``10.1.0a20260822``
nightly-bkc        ``10.1.0a20260811+bkc.20260814``
ci, dev, dev-bkc   ``10.1.0.dev0+<git commit>``, ``10.1.0.dev0``
=================  ===================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import Literal

from core.errors import UsageError

Kind = Literal["release", "prerelease", "nightly", "nightly-bkc", "dev"]

_BASE = r"(?P<base>(?:0|[1-9][0-9]*)(?:\.(?:0|[1-9][0-9]*)){2})"
_FORMS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("release", re.compile(_BASE)),
    ("prerelease", re.compile(_BASE + r"rc(?:0|[1-9][0-9]*)")),
    ("nightly", re.compile(_BASE + r"a(?P<date>[0-9]{8})")),
    ("nightly-bkc", re.compile(_BASE + r"a(?P<date>[0-9]{8})\+bkc\.(?P<bkc>[0-9]{8})")),
    ("dev", re.compile(_BASE + r"\.dev0(?:\+(?P<local>[0-9a-z]+(?:\.[0-9a-z]+)*))?")),
)


@dataclass(frozen=True, kw_only=True)
class RocmVersion:
    """A ROCm version.

    Attributes:
        text: The version as packages carry it (normalised by PEP 440).
        base: Its three numbers, ``10.1.0``.
        kind: Which form it has.
        local: What follows the ``+`` of a dev version: a git commit, or ``sample``.
    """

    text: str
    base: str
    kind: Kind
    local: str = ""

    @property
    def is_sample(self) -> bool:
        """Whether this is the miniature ROCm, which is never published."""
        return self.local == "sample"


def parse(text: str) -> RocmVersion:
    """Read a ROCm version.

    Raises:
        UsageError: It has none of the forms that ROCm versions have, or a date in it is none.
    """
    for kind, form in _FORMS:
        match = form.fullmatch(text)
        if match is None:
            continue
        groups = match.groupdict()
        for key in ("date", "bkc"):
            if groups.get(key):
                _require_date(text, groups[key])
        return RocmVersion(text=text, base=groups["base"], kind=kind, local=groups.get("local") or "")
    raise UsageError(
        f"{text!r} is no ROCm version.",
        hint="Forms: 10.1.0, 10.1.0rc2, 10.1.0a20260822, 10.1.0a20260811+bkc.20260814, "
        "10.1.0.dev0, 10.1.0.dev0+<git commit in lower case>.",
    )


def _require_date(text: str, digits: str) -> None:
    try:
        date.fromisoformat(f"{digits[:4]}-{digits[4:6]}-{digits[6:]}")
    except ValueError:
        raise UsageError(
            f"{text!r} is no ROCm version: {digits} is no date.", hint="Dates are YYYYMMDD."
        ) from None
