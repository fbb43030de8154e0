"""What the checks see of a wheel: facts gathered in one pass, then judged by pure functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pytorch_build.check.findings import Finding
from rocm_packaging.packages.layouts import device_target

if TYPE_CHECKING:
    from core.binaries.pe import PeFacts
    from core.wheel.wheels import WheelInfo, WheelMetadata, WheelName
    from pytorch_build.check.bundles import Bundle
    from pytorch_build.check.findings import Severity


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What the source lock and the build's options promise of a wheel.

    Attributes:
        distribution: Distribution name.
        version: Full version.
        python_tag: ``cp312`` or ``cp313-cp313t``; empty where any will do.
        requires: Requirements that METADATA must state (``rocm[libraries]==7.1``).
        gpu_targets: gfx targets that device code must cover; empty for family ``cpu``.
        local_label: Label of the ref (``sample``), which some limits do not apply to.
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
class Member:
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
class ElfFacts:
    """What an ELF file says about itself."""

    machine: str
    kind: str
    program: bool = False
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    stack: str = ""
    debug_bytes: int = 0
    glibc: tuple[int, int] = (0, 0)


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

    member: Member
    elf: ElfFacts | None = None
    pe: PeFacts | None = None
    device: DeviceFacts | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WheelView:
    """Everything that the checks judge."""

    name: WheelName
    size: int
    members: tuple[Member, ...]
    metadata: WheelMetadata | None = None
    info: WheelInfo | None = None
    binaries: tuple[Binary, ...] = ()
    mentions: tuple[tuple[str, str], ...] = ()

    def finding(self, severity: Severity, check: str, message: str, where: str = "") -> Finding:
        """Make a finding about this wheel."""
        return Finding(severity=severity, check=check, wheel=self.name.filename, where=where, message=message)

    @property
    def platforms(self) -> frozenset[str]:
        """Platform tags of the file name."""
        return frozenset(tag.platform for tag in self.name.tags)
