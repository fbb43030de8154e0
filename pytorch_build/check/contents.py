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
from pytorch_build.check.policy import Forbidden, Policy, matches, required_name
from pytorch_build.check.site_packages import installed_path
from pytorch_build.components import component_of
from pytorch_build.components.torch import ROCM_INIT, TORCH

if TYPE_CHECKING:
    from pytorch_build.check import Severity, WheelView

_LIBRARY = re.compile(r"\.(so(\.\d+)*|dll|pyd|exe|dylib)$")


@dataclass(frozen=True, kw_only=True)
class PromisedCode:
    """Names that promise a library or program, and the whole of a text that may take its place."""

    names: re.Pattern[str]
    kind: Literal["library", "program"]
    text: re.Pattern[str]


# A linker takes a script in the place of a library (ld's manual, "Implicit Linker Scripts").
_LINKER_SCRIPT = r"""(?x)
(\s | /\*([^*]|\*(?!/))*\*/ | (OUTPUT_FORMAT|SEARCH_DIR)\s*\([^()]*\))*
((INPUT|GROUP)\s*\(([^()]|AS_NEEDED\s*\([^()]*\))*\) (\s | /\*([^*]|\*(?!/))*\*/)*)+
"""
_PROMISED_CODE = (
    PromisedCode(names=re.compile(r"\.so(\.\d+)*$"), kind="library", text=re.compile(_LINKER_SCRIPT)),
    PromisedCode(
        names=re.compile(r"(^|/)(bin|libexec)/[^/.]+$"),
        kind="program",
        text=re.compile(r"(?s)#!\s*/.*"),
    ),
)


# What is forbidden in the wheels of components alone.
_ROCM_PACKAGES = Forbidden(
    # Stand-alone wheels have it in torch/lib/rocm.
    pattern=re.compile(r"^(?!torch/lib/rocm/)(.*/)?_?rocm_sdk(_[^/]*)?/"),
    message="part of the ROCm packages, which are wheels of their own",
)
_HIPIFIED_SOURCES = Forbidden(
    # Headers stay, as extensions compile against them.
    pattern=re.compile(r"(^|/)hip/[^/]*\.(hip|cu|cpp|cc)$|_hip\.cpp$"),
    severity="warning",
    message="a source that hipify made",
)
_STATIC_LIBRARIES = Forbidden(
    pattern=re.compile(r"\.a$"),
    severity="warning",
    message="a static library",
)


def find_promised_code(name: str) -> PromisedCode | None:
    """Return what a member's name promises to be compiled; None for nothing."""
    for promised_code in _PROMISED_CODE:
        if promised_code.names.search(name):
            return promised_code
    return None


def check(view: WheelView) -> Iterator[Finding]:
    """Judge the members of a wheel."""
    yield from _find_forbidden(view)
    yield from _find_false_code(view)
    yield from _find_refused_names(view)
    yield from _find_case_twins(view)
    for name, folder in view.mentions:
        yield warning(f"It mentions {folder}, a folder of the build machine.", name)

    # Nothing else loads ROCm's libraries for torch.
    requires_dist = view.metadata.requires_dist if view.metadata else ()
    requires_rocm = "rocm" in map(required_name, requires_dist)
    if view.name.distribution == TORCH.distribution and requires_rocm and ROCM_INIT not in view.members:
        yield error(f"It requires rocm and has no {ROCM_INIT}, which loads ROCm's libraries.")


def _find_forbidden(view: WheelView) -> Iterator[Finding]:
    """Find forbidden members: one finding a rule, as a wheel with 300 byte code files has one problem."""
    for rule in _rules_for(view.name.distribution, view.options.policy):
        names = list(filter(rule.pattern.search, view.members))
        if names:
            count = f"; there are {len(names)} such files" if len(names) > 1 else ""
            message = f"This is {rule.message}{count}."
            yield Finding(
                severity=rule.severity,
                where=names[0],
                message=message,
            )


def _rules_for(distribution: str, policy: Policy) -> Iterator[Forbidden]:
    """Yield what wheels of a distribution may not hold."""
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


def _find_false_code(view: WheelView) -> Iterator[Finding]:
    """Find members whose names promise code that they do not hold."""
    if all(".dist-info/" in name for name in view.members):
        yield warning("The wheel holds nothing but its metadata.")

    names_of_code = {binary.name for binary in view.binaries}
    for name, size in view.members.items():
        promised_code = find_promised_code(name)
        if _LIBRARY.search(name) and size == 0:
            yield error("The file is empty.", name)
        elif promised_code is not None and name not in names_of_code:
            text = view.texts.get(name, "")
            if not promised_code.text.fullmatch(text):
                yield error(f"It is named like a {promised_code.kind}, but holds no code.", name)


def _find_refused_names(view: WheelView) -> Iterator[Finding]:
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
    if any(platform.startswith("win") for platform in view.platforms):
        return "error"
    if "any" in view.platforms:
        return "warning"
    return None


def _find_case_twins(view: WheelView) -> Iterator[Finding]:
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


def name_policy(view: WheelView) -> Iterator[Finding]:
    """Say whose policy it is that a wheel was checked by, where it is a user's."""
    source = view.options.policy.source
    if source:
        yield note(f"Checked by {source}, over the project's policy.")


def compare_size(view: WheelView) -> Iterator[Finding]:
    """Compare the size of a wheel with that of others of its distribution."""
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
