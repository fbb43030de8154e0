"""What checks give: findings, their order, and how they are shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

from core.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Iterable

Severity = Literal["error", "warning", "note"]
_ORDER: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check found."""

    severity: Severity
    check: str
    wheel: str
    where: str
    message: str


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort by wheel, then the worst first; each finding once."""
    return tuple(
        sorted(
            set(findings),
            key=lambda found: (
                found.wheel,
                _ORDER.index(found.severity),
                found.check,
                found.where,
                found.message,
            ),
        )
    )


def collapsed(findings: Iterable[Finding], *, limit: int = 3) -> tuple[Finding, ...]:
    """Let one finding stand for many members of a wheel of which the same is said."""
    groups: dict[Finding, list[Finding]] = {}
    for found in ordered(findings):
        groups.setdefault(replace(found, where=""), []).append(found)
    every: list[Finding] = []
    for members in groups.values():
        if len(members) <= limit:
            every += members
        else:
            message = f"{members[0].message} (The same for {len(members) - 1} more files.)"
            every.append(replace(members[0], message=message))
    return ordered(every)


def findings_table(findings: Iterable[Finding]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Lay findings out for `core.console.table`."""
    columns = ("severity", "check", "wheel", "where", "message")
    return columns, tuple(
        (found.severity, found.check, found.wheel, found.where, found.message) for found in ordered(findings)
    )


def findings_json(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Give findings as plain data for a record."""
    return [asdict(found) for found in ordered(findings)]


def require_no_errors(findings: Iterable[Finding]) -> None:
    """Fail the stage if any finding is an error.

    Raises:
        CheckError: There are error findings; the first ones are in the message.
    """
    errors = [found for found in ordered(findings) if found.severity == "error"]
    if not errors:
        return
    shown = [f"  {found.wheel}: {found.message}" for found in errors[:5]]
    more = [f"  … and {len(errors) - 5} more"] if len(errors) > len(shown) else []
    raise CheckError(
        "\n".join([f"The checks found {len(errors)} errors:", *shown, *more]),
        hint="Each finding names the wheel and its member; notes and warnings do not fail the stage.",
    )
