"""Checks of built wheels: what an installer, a loader or a GPU would stumble over, found before.

`run.check_wheels` is the way in. Each module has one subject and its rules: a rule is a function that takes
the view of a wheel and yields an `error`, a `warning` or a `note`, each with its text. Here are the values
that they share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from core import console
from core.errors import CheckError
from rocm_packaging.packages.layouts import device_target

if TYPE_CHECKING:
    from core.binaries.elf import ElfFacts
    from core.binaries.pe import PeFacts
    from core.wheel import WheelInfo, WheelMetadata, WheelName
    from pytorch_build.check.bundles import Bundle
    from pytorch_build.check.policy import CheckOptions

Severity = Literal["error", "warning", "note"]
_WORST_FIRST: tuple[Severity, ...] = ("error", "warning", "note")
_MOST_ERRORS = 5
_MOST_NAMES = 3
_MOST_ALIKE = 3


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one rule found wrong, or worth knowing, of a wheel; `where` is the member, if it is one.

    A rule leaves `check` and `wheel` to what runs it.
    """

    severity: Severity
    check: str = ""
    wheel: str = ""
    where: str = ""
    message: str


def error(message: str, where: str = "") -> Finding:
    """Return a finding that makes a wheel unfit; `where` is the wheel's member."""
    return Finding(
        severity="error",
        where=where,
        message=message,
    )


def warning(message: str, where: str = "") -> Finding:
    """Return a finding on what may be wrong with a wheel; `where` is the wheel's member."""
    return Finding(
        severity="warning",
        where=where,
        message=message,
    )


def note(message: str, where: str = "") -> Finding:
    """Return a finding that is worth knowing and fails nothing; `where` is the wheel's member."""
    return Finding(
        severity="note",
        where=where,
        message=message,
    )


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What a wheel has to be, by the source lock and the build's options.

    `python_tag` is such as ``cp312`` or ``cp313-cp313t``, "" where any will do; `requires` is what METADATA
    must state; of `gpu_targets`, None means that nothing is known of them; `left_out_targets` are those that
    its GPU family has besides; no least size applies to what is not of `has_full_size`, such as the sample.
    """

    distribution: str
    version: str
    python_tag: str = ""
    requires: tuple[str, ...] = ()
    gpu_targets: tuple[str, ...] | None = None
    left_out_targets: tuple[str, ...] = ()
    has_full_size: bool = True

    def for_distribution(self, name: str) -> Expectation:
        """Return what is expected of this wheel's device wheel of that name; of any other name, itself."""
        target = device_target(name)
        if not target:
            return self
        return replace(
            self,
            distribution=name,
            gpu_targets=(target,),
            left_out_targets=(),
            requires=(),
        )


def path_in_site_packages(member: str) -> str:
    """Return where a member is installed below site-packages; "" where it goes elsewhere (scripts, data)."""
    folder, _slash, path = member.partition("/")
    if not path or not folder.endswith(".data"):
        return member
    scheme, _slash, installed_path = path.partition("/")
    return installed_path if scheme in {"purelib", "platlib"} else ""


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """The device code of one file: its bundles and GPU targets, or that it was moved out.

    `registered_count` is how many bundles its wrappers name, None where it has none.
    `is_split` says that the code was moved out of the file, `archived_binaries` are those that an archive has
    code of.
    """

    bundles: tuple[Bundle, ...] = ()
    targets: frozenset[str] = frozenset()
    registered_count: int | None = None
    is_split: bool = False
    archived_binaries: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Binary:
    """The headers and the device code of one compiled member of a wheel; `name` is the member's."""

    name: str
    elf: ElfFacts | None = None
    pe: PeFacts | None = None
    device: DeviceFacts | None = None
    problems: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Where the member is installed below site-packages; "" where it goes elsewhere."""
        return path_in_site_packages(self.name)


@dataclass(frozen=True, kw_only=True)
class WheelView:
    """All that is known of one wheel when it is checked, with the options and what is expected of it.

    Attributes:
        name: Its file's name.
        size: Its file's size.
        members: The sizes of its files, by their names.
        metadata: What METADATA says; None where it cannot be read.
        info: What WHEEL says; None where it cannot be read.
        entry_points: The text of entry_points.txt.
        binaries: The members that are compiled code.
        build_folder_mentions: Members with a folder of the build machine in them, and that folder.
        texts: The beginnings of members whose names promise compiled code.
        options: What is allowed, and what is around the wheel.
        expectation: What it must be; None where nothing is known of it.
    """

    name: WheelName
    size: int
    members: Mapping[str, int]
    metadata: WheelMetadata | None = None
    info: WheelInfo | None = None
    entry_points: str = ""
    binaries: tuple[Binary, ...] = ()
    build_folder_mentions: tuple[tuple[str, str], ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    options: CheckOptions
    expectation: Expectation | None = None

    @property
    def platforms(self) -> frozenset[str]:
        """The platform tags in the wheel's file name."""
        return frozenset(tag.platform for tag in self.name.tags)


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings by wheel and then by severity, the worst first, each once."""
    return tuple(sorted(set(findings), key=_sort_key))


def _sort_key(finding: Finding) -> tuple[str, int, str, str, str]:
    """Return what findings are sorted by: wheel, severity, check, member and message."""
    rank = _WORST_FIRST.index(finding.severity)
    return finding.wheel, rank, finding.check, finding.where, finding.message


def collapse_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with one in the place of several that say the same of different members."""
    groups: defaultdict[Finding, list[Finding]] = defaultdict(list)
    for finding in sort_findings(findings):
        groups[replace(finding, where="")].append(finding)

    collapsed: list[Finding] = []
    for alike in groups.values():
        if len(alike) <= _MOST_ALIKE:
            collapsed += alike
        else:
            first = alike[0]
            message = f"{first.message} The same is true of {len(alike) - 1} more files."
            collapsed.append(replace(first, message=message))
    return sort_findings(collapsed)


def findings_table(findings: Iterable[Finding]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return column names and rows of a table of findings; notes only in verbose output."""
    shown_findings = [finding for finding in findings if finding.severity != "note" or console.echoes()]
    rows = tuple(tuple(row.values()) for row in findings_json(shown_findings))
    return ("severity", "check", "wheel", "where", "message"), rows


def findings_json(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Return findings as a sorted list of plain dictionaries."""
    return [asdict(finding) for finding in sort_findings(findings)]


def require_no_errors(findings: Iterable[Finding]) -> None:
    """Fail if any finding is an error, and name the first ones."""
    errors = [finding for finding in sort_findings(findings) if finding.severity == "error"]
    if not errors:
        return

    lines = [f"The checks found {console.counted(len(errors), 'error')}:"]
    for error in errors[:_MOST_ERRORS]:
        wheel_and_member = f"{error.wheel}: {error.where}" if error.where else error.wheel
        lines.append(f"  {wheel_and_member}: {error.message}")
    if len(errors) > _MOST_ERRORS:
        lines.append(f"  … and {len(errors) - _MOST_ERRORS} more")
    raise CheckError(
        "\n".join(lines),
        hint="Each error names the wheel and its member. Notes and warnings fail nothing.",
    )


def name_first_few(names: Iterable[str]) -> str:
    """Return the first few of many names as text, and how many more there are."""
    every_name = list(names)
    first_names = ", ".join(every_name[:_MOST_NAMES])
    if len(every_name) <= _MOST_NAMES:
        return first_names
    return f"{first_names} and {len(every_name) - _MOST_NAMES} more"
