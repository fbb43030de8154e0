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
    """One file of a wheel.

    Attributes:
        name: Path in the archive.
        size: Bytes, unpacked.
    """

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
    """What an ELF file says about itself.

    Attributes:
        machine: ``EM_X86_64``, ``EM_AMDGPU`` …
        kind: ``ET_DYN``, ``ET_EXEC``, ``ET_REL`` …
        program: Whether it names an interpreter (PT_INTERP), as programs do and libraries do not.
        soname: DT_SONAME, or an empty text.
        needed: DT_NEEDED, in order.
        rpath: DT_RUNPATH where present (it wins), else DT_RPATH, split at colons.
        stack: Flags of PT_GNU_STACK as readelf writes them (``RW``, ``RWE``); empty without the header.
        debug_bytes: Size of all debug sections.
        glibc: Newest glibc symbol version that it needs, such as ``(2, 28)``; (0, 0) for none.
    """

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
    """Device code of one file.

    Attributes:
        bundles: Offload bundles, in order.
        targets: GPU targets, of bundles or of a bare code object.
        registered: How many bundles the file registers when it is loaded; -1 where it does not say.
        split: Whether its code was moved to per-target archives (``.kpack``).
        archived: Of an archive of such code: the libraries that it is of.
    """

    bundles: tuple[Bundle, ...] = ()
    targets: frozenset[str] = frozenset()
    registered: int = -1
    split: bool = False
    archived: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Binary:
    """One member that is compiled code.

    Attributes:
        member: The member.
        elf: What its ELF headers say; nothing for a bare bundle.
        pe: What its PE headers say, if it is a 64-bit DLL or program of Windows.
        device: Its device code; nothing if it has none.
        problems: Why it could not be read.
    """

    member: Member
    elf: ElfFacts | None = None
    pe: PeFacts | None = None
    device: DeviceFacts | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WheelView:
    """Everything that the checks judge.

    Attributes:
        name: The file name's parts.
        size: Bytes of the wheel file.
        members: Files, sorted by name.
        metadata: METADATA, if it can be read.
        info: WHEEL, if it can be read.
        binaries: Compiled members, sorted by name.
        mentions: Text members that mention a build machine's folder: (member, folder).
    """

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
