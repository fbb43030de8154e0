"""Members that do not belong in a wheel, files that are not what their names promise, and its size.

Windows and macOS do not tell upper from lower case, so of two names that differ in nothing else one takes the
place of the other.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from core.file_names import windows_fault
from pytorch_build.check import Finding, error, note, warning
from pytorch_build.check.allowed import find_allowed
from pytorch_build.check.policy import ForbiddenMembers, Policy, matches, required_name
from pytorch_build.check.site_packages import installed_path
from pytorch_build.components import component_of
from pytorch_build.components.torch import ROCM_INIT, TORCH

if TYPE_CHECKING:
    from pytorch_build.check import Severity, WheelView

_LIBRARY = re.compile(r"\.(so(\.\d+)*|dll|pyd|exe|dylib)$")


@dataclass(frozen=True, kw_only=True)
class CompiledNameRule:
    """Names of members that must be compiled code of a kind, or the whole of a text such as a script."""

    names: re.Pattern[str]
    kind: Literal["library", "program"]
    text: re.Pattern[str]


# A linker takes a script in the place of a library (ld's manual, "Implicit Linker Scripts").
_LINKER_SCRIPT = r"""(?x)
(\s | /\*([^*]|\*(?!/))*\*/ | (OUTPUT_FORMAT|SEARCH_DIR)\s*\([^()]*\))*
((INPUT|GROUP)\s*\(([^()]|AS_NEEDED\s*\([^()]*\))*\) (\s | /\*([^*]|\*(?!/))*\*/)*)+
"""
_COMPILED_NAME_RULES = (
    CompiledNameRule(names=re.compile(r"\.so(\.\d+)*$"), kind="library", text=re.compile(_LINKER_SCRIPT)),
    CompiledNameRule(
        names=re.compile(r"(^|/)(bin|libexec)/[^/.]+$"),
        kind="program",
        text=re.compile(r"(?s)#!\s*/.*"),
    ),
)


# What is forbidden in the wheels of components alone.
_ROCM_PACKAGES = ForbiddenMembers(
    # Stand-alone wheels have it in torch/lib/rocm.
    pattern=re.compile(r"^(?!torch/lib/rocm/)(.*/)?_?rocm_sdk(_[^/]*)?/"),
    message="part of the ROCm packages, which are wheels of their own",
)
_HIPIFIED_SOURCES = ForbiddenMembers(
    # Headers stay, as extensions compile against them.
    pattern=re.compile(r"(^|/)hip/[^/]*\.(hip|cu|cpp|cc)$|_hip\.cpp$"),
    severity="warning",
    message="a source that hipify made",
)
_STATIC_LIBRARIES = ForbiddenMembers(
    pattern=re.compile(r"\.a$"),
    severity="warning",
    message="a static library",
)


def find_compiled_name_rule(name: str) -> CompiledNameRule | None:
    """Return the rule by which a member must be compiled code, by its name; None for other names."""
    for name_rule in _COMPILED_NAME_RULES:
        if name_rule.names.search(name):
            return name_rule
    return None


def check(view: WheelView) -> Iterator[Finding]:
    """Yield findings on members that are forbidden, misnamed, or not possible on Windows."""
    yield from _find_forbidden(view)
    yield from _find_misnamed_code(view)
    yield from _find_names_refused_by_windows(view)
    yield from _find_case_collisions(view)
    for name, folder in view.build_folder_mentions:
        yield warning(f"It build_folder_mentions {folder}, a folder of the build machine.", name)

    # Nothing else loads ROCm's libraries for torch.
    requires_dist = view.metadata.requires_dist if view.metadata else ()
    requires_rocm = "rocm" in map(required_name, requires_dist)
    if view.name.distribution == TORCH.distribution and requires_rocm and ROCM_INIT not in view.members:
        yield error(f"It requires rocm and has no {ROCM_INIT}, which loads ROCm's libraries.")


def _find_forbidden(view: WheelView) -> Iterator[Finding]:
    """Yield a finding for each rule that forbids members of the wheel: 300 such files are one problem."""
    for rule in _forbidden_members(view.name.distribution, view.options.policy):
        names = list(filter(rule.pattern.search, view.members))
        if names:
            count = f"; there are {len(names)} such files" if len(names) > 1 else ""
            message = f"This is {rule.message}{count}."
            yield Finding(
                severity=rule.severity,
                where=names[0],
                message=message,
            )


def _forbidden_members(distribution: str, policy: Policy) -> Iterator[ForbiddenMembers]:
    """Yield the rules on which members wheels of a distribution may not have."""
    for rule in policy.forbidden:
        if matches(distribution, rule.distributions):
            yield rule

    component = component_of(distribution)
    if component is None:
        return
    yield _ROCM_PACKAGES
    if not component.ships_sources:
        yield _HIPIFIED_SOURCES
    if not component.ships_static_libraries:
        yield _STATIC_LIBRARIES


def _find_misnamed_code(view: WheelView) -> Iterator[Finding]:
    """Yield findings on members that are named like libraries or programs and hold no code."""
    if all(".dist-info/" in name for name in view.members):
        yield warning("The wheel holds nothing but its metadata.")

    names_of_code = {binary.name for binary in view.binaries}
    for name, size in view.members.items():
        name_rule = find_compiled_name_rule(name)
        if _LIBRARY.search(name) and size == 0:
            yield error("The file is empty.", name)
        elif name_rule is not None and name not in names_of_code:
            text = view.texts.get(name, "")
            if not name_rule.text.fullmatch(text):
                yield error(f"It is named like a {name_rule.kind}, but holds no code.", name)


def _find_names_refused_by_windows(view: WheelView) -> Iterator[Finding]:
    """Yield a finding for each member with a name that Windows refuses."""
    severity = _severity_of_windows_faults(view)
    if severity is None:
        return
    for member in view.members:
        faults = [fault for name in member.split("/") if (fault := windows_fault(name)) is not None]
        if faults:
            message = f"Windows cannot hold this file: {faults[0]}."
            yield Finding(
                severity=severity,
                where=member,
                message=message,
            )


def _severity_of_windows_faults(view: WheelView) -> Severity | None:
    """Return how bad names are that Windows refuses: an error in its own wheels; None where no matter."""
    if any(platform.startswith("win") for platform in view.platforms):
        return "error"
    if "any" in view.platforms:
        return "warning"
    return None


def _find_case_collisions(view: WheelView) -> Iterator[Finding]:
    """Yield a finding for members whose names differ in letter case alone."""
    names_by_key: defaultdict[str, list[str]] = defaultdict(list)
    for member in view.members:
        path = installed_path(member) or member
        key = unicodedata.normalize("NFC", path).casefold()
        names_by_key[key].append(member)

    ignores_case = any(platform.startswith(("win", "macosx")) for platform in view.platforms)
    is_ours = find_allowed(view.name.distribution, view.options.policy.allowed) is not None
    severity: Severity = "error" if ignores_case or is_ours else "warning"
    for names in names_by_key.values():
        if len(names) > 1:
            first_name, *twins = names
            message = f"Where case does not count, {twins[0]} takes its place."
            yield Finding(
                severity=severity,
                where=first_name,
                message=message,
            )


def note_user_policy(view: WheelView) -> Iterator[Finding]:
    """Yield a note with the files of the user's policy, if a wheel was checked by one."""
    source = view.options.policy.source
    if source:
        yield note(f"Checked by {source}, over the project's policy.")


def check_size(view: WheelView) -> Iterator[Finding]:
    """Yield findings on a wheel that is smaller or larger than the policy allows its distribution."""
    limit = view.options.policy.sizes.get(view.name.distribution)
    if limit is None:
        return

    labels = set((view.name.version.local or "").split("."))
    is_miniature = not labels.isdisjoint(view.options.policy.exempt_labels)
    if view.expectation is not None and not view.expectation.has_full_size:
        is_miniature = True

    size = view.size
    if size < limit.minimum and not is_miniature:
        yield error(f"The wheel has {size} bytes; one that works has at least {limit.minimum}.")
    if limit.error_above and size > limit.error_above:
        yield error(f"The wheel has {size} bytes, more than {limit.error_above}.")
    elif limit.warn_above and size > limit.warn_above:
        yield warning(f"The wheel has {size} bytes, more than {limit.warn_above}.")
