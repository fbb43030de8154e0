"""Checks of built wheels: what an installer, a loader or a GPU would stumble over, found before.

`run.check_wheels` is the way in; here is what it reads of a wheel, and what checks find.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from core.errors import CheckError
from rocm_packaging.packages.layouts import device_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from core.binaries.elf import ElfFacts
    from core.binaries.pe import PeFacts
    from core.wheel import WheelInfo, WheelMetadata, WheelName
    from pytorch_build.check.bundles import Bundle


Severity = Literal["error", "warning", "note"]
_ORDER: tuple[Severity, ...] = ("error", "warning", "note")
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check found."""

    severity: Severity
    check: str
    wheel: str
    where: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What the source lock and the build's options promise of a wheel.

    `python_tag` is such as ``cp312`` or ``cp313-cp313t``, "" where any will do; `requires` is what METADATA
    must state; some limits do not apply to the `local_label` of a ref, such as ``sample``.
    """

    distribution: str
    version: str
    python_tag: str = ""
    requires: tuple[str, ...] = ()
    gpu_targets: tuple[str, ...] = ()
    local_label: str = ""

    def of_part(self, name: str) -> Expectation:
        """Return what is promised of a wheel with this one's device code, by its name; else this."""
        gpu = device_target(name)
        return replace(self, distribution=name, gpu_targets=(gpu,), requires=()) if gpu else self


@dataclass(frozen=True, kw_only=True)
class WheelMember:
    """One file of a wheel."""

    name: str
    size: int

    @property
    def installed(self) -> str:
        """Path below site-packages; empty for files that go elsewhere (scripts, data)."""
        parts = PurePosixPath(self.name).parts
        if len(parts) > 1 and parts[0].endswith(".data"):
            return "/".join(parts[2:]) if parts[1] in {"purelib", "platlib"} else ""
        return self.name


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """Device code of one file."""

    bundles: tuple[Bundle, ...] = ()
    targets: frozenset[str] = frozenset()
    registered: int = -1
    split: bool = False
    archived: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Binary:
    """One member that is compiled code."""

    member: WheelMember
    elf: ElfFacts | None = None
    pe: PeFacts | None = None
    device: DeviceFacts | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WheelView:
    """Everything that the checks judge; `texts` are those whose names promise compiled code."""

    name: WheelName
    size: int
    members: tuple[WheelMember, ...]
    metadata: WheelMetadata | None = None
    info: WheelInfo | None = None
    binaries: tuple[Binary, ...] = ()
    mentions: tuple[tuple[str, str], ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Sequence[str]] | None = None

    def finding(self, severity: Severity, check: str, message: str, where: str = "") -> Finding:
        """Make a finding about this wheel."""
        return Finding(severity=severity, check=check, wheel=self.name.filename, where=where, message=message)

    @property
    def platforms(self) -> frozenset[str]:
        """Platform tags of the file name."""
        return frozenset(tag.platform for tag in self.name.tags)


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort by wheel, then the worst first; each finding once."""
    return tuple(
        sorted(
            set(findings),
            key=lambda one: (one.wheel, _ORDER.index(one.severity), one.check, one.where, one.message),
        )
    )


def collapsed(findings: Iterable[Finding], *, limit: int = 3) -> tuple[Finding, ...]:
    """Let one finding stand for many members of a wheel with the same problem."""
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
    """Return the columns and rows for `core.console.table`."""
    rows = tuple(tuple(one.values()) for one in findings_json(findings))
    return ("severity", "check", "wheel", "where", "message"), rows


def findings_json(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Return findings as plain data for a record."""
    return [asdict(found) for found in ordered(findings)]


def require_no_errors(findings: Iterable[Finding]) -> None:
    """Fail the stage if any finding is an error."""
    errors = [found for found in ordered(findings) if found.severity == "error"]
    if not errors:
        return
    shown = [f"  {found.wheel}: {found.message}" for found in errors[:_SHOWN]]
    more = [f"  … and {len(errors) - _SHOWN} more"] if len(errors) > _SHOWN else []
    raise CheckError(
        "\n".join([f"The checks found {len(errors)} errors:", *shown, *more]),
        hint="Each finding names the wheel and its member; notes and warnings do not fail the stage.",
    )
