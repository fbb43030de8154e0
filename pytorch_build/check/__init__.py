"""Checks of built wheels: what an installer, a loader or a GPU would stumble over, found before.

`run.check_wheels` is the way in; here is what it reads of a wheel, what checks find, and their data: limits,
forbidden contents, and which libraries come from where.
"""

from __future__ import annotations

import functools
import re  # noqa: TC003 - pydantic reads it
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import Field, field_validator

from core import console, files
from core.data import Model, merged, read_toml, validated
from core.errors import CheckError
from pytorch_build.components import COMPONENTS
from rocm_packaging.packages.layouts import device_target

if TYPE_CHECKING:
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
    """Return the columns and rows for `core.console.table`; notes where all is told."""
    shown = [one for one in findings if one.severity != "note" or console.echoes()]
    rows = tuple(tuple(one.values()) for one in findings_json(shown))
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


_FILE = Path(__file__).with_name("policy.toml")
_NAMED = 3


class SizeLimit(Model):
    """Limits of a wheel file, in bytes; 0 is none."""

    minimum: int = 0
    warn_above: int = 0
    error_above: int = 0


class Compiled(Model):
    """Names that promise a library or program, and the text that may take its place, whole."""

    pattern: re.Pattern[str]
    what: Literal["library", "program"]
    text: re.Pattern[str]


class Forbidden(Model):
    """Contents that do not belong into a wheel."""

    pattern: re.Pattern[str]
    severity: Literal["error", "warning", "note"] = "error"
    message: str
    distributions: tuple[str, ...] = ("*",)


class Provider(Model):
    """Libraries of another distribution, loaded or on the search path at run time."""

    distributions: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    folders: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    includes: tuple[str, ...] = ()
    assumed_by: tuple[str, ...] = ()

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns of all its libraries."""
        return (*self.libraries, *(name for names in self.folders.values() for name in names))


class Windows(Model):
    """DLLs that a wheel for Windows need not hold. Names are shell patterns in small letters."""

    libraries: tuple[str, ...] = ()
    redistributable: tuple[str, ...] = ()
    debug: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


class Message(Model):
    """What is said of a DLL, with {names}, {provider} and {tags}."""

    severity: Literal["error", "warning", "note"]
    words: str


class Policy(Model):
    """What the checks allow; the `source` is a user's file over the project's, with its digest."""

    source: str = ""
    exempt_labels: tuple[str, ...] = ()
    device_code: tuple[str, ...] = ()
    system_libraries: tuple[str, ...] = ()
    machine_libraries: tuple[str, ...] = ()
    windows: Windows = Windows()
    preloaded: tuple[str, ...] = ()
    sizes: dict[str, SizeLimit] = Field(default_factory=dict)
    compiled: tuple[Compiled, ...] = ()
    forbidden: tuple[Forbidden, ...] = ()
    providers: dict[str, Provider] = Field(default_factory=dict)
    generic: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    messages: dict[str, Message] = Field(default_factory=dict)

    @field_validator("providers")
    @classmethod
    def _includes_exist(cls, value: dict[str, Provider]) -> dict[str, Provider]:
        for name, provider in value.items():
            for other in provider.includes:
                if other not in value:
                    raise ValueError(f"{name} includes {other!r}, which is not a provider")
        return value

    def promise(self, name: str) -> Compiled | None:
        """Return what a member's name promises to be compiled; None for nothing."""
        return next((one for one in self.compiled if one.pattern.search(name)), None)


@functools.cache
def load_policy() -> Policy:
    """Return the project's policy."""
    return validated(_policy_tables(), Policy, where=_FILE)


def _policy_tables() -> dict[str, Any]:
    """Return the tables of the project's policy, with what components say of their wheels."""
    device_code: list[str] = []
    sizes: dict[str, Any] = {}
    for component in COMPONENTS.values():
        if component.has_split_device_code:
            device_code.append(component.distribution)
        limits = asdict(component.sizes)
        sizes[component.distribution] = {name: size for name, size in limits.items() if size is not None}
    return merged({"device_code": device_code, "sizes": sizes}, read_toml(_FILE))


def own_policy(file: Path) -> Policy:
    """Lay a user's file over the project's policy: lists add to what is there, other values replace it."""
    over = merged(_policy_tables(), read_toml(file), adding=True)
    return validated(over | {"source": f"{file} (sha256 {files.sha256(file)})"}, Policy, where=file)


class Providers:
    """Libraries that a wheel may expect of the distributions it requires, and those of all others."""

    def __init__(self, view: WheelView, policy: Policy) -> None:
        own = view.name.distribution
        required = {required_name(text) for text in (view.metadata.requires_dist if view.metadata else ())}
        there: list[str] = []
        queue = [
            name
            for name, provider in policy.providers.items()
            if any(matches(one, provider.distributions) for one in required)
            or own in provider.assumed_by
            # ROCm's wheels load each other's libraries without requiring one another.
            or (matches(own, provider.distributions) and own != name)
        ]
        while queue:
            name = queue.pop(0)
            if name not in there:
                there.append(name)
                queue += policy.providers[name].includes
        known = [policy.providers[name] for name in there]
        self.libraries = tuple(pattern for provider in known for pattern in provider.patterns)
        # ROCm's own wheels are laid out by `rocm_packaging`, and are not judged by this
        self.folders = {
            folder: libraries
            for provider in known
            if not matches(own, provider.distributions)
            for folder, libraries in provider.folders.items()
        }
        self._others = {
            name: provider.patterns
            for name, provider in policy.providers.items()
            if name not in there and own not in provider.distributions
        }

    def undeclared(self, library: str) -> str:
        """Return the distribution that has a library and is not required; "" for none."""
        return next((name for name, patterns in self._others.items() if matches(library, patterns)), "")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name is among shell patterns, in any letter case."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)


def some(items: Iterable[str]) -> str:
    """Name the first few of many, and how many more there are."""
    every = list(items)
    shown = ", ".join(every[:_NAMED])
    return shown if len(every) <= _NAMED else f"{shown} and {len(every) - _NAMED} more"


def required_name(requirement: str) -> str:
    """Return which distribution a requirement is on; "" for one that cannot be read."""
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:
        return ""
