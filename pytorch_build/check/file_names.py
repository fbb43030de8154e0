"""Names of members that a file system cannot hold, or holds once.

Windows and macOS do not tell upper from lower case, so of two names that differ in nothing else one takes the
place of the other.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from core.file_names import windows_fault
from pytorch_build.check.allowed import find_allowed
from pytorch_build.check.site_packages import installed_path

if TYPE_CHECKING:
    from pytorch_build.check import Finding, Severity, WheelView
    from pytorch_build.check.policy import Policy

CHECK = "contents"


def check(view: WheelView, policy: Policy) -> Iterator[Finding]:
    """Judge the names of a wheel's members by the file systems that it is for."""
    yield from _find_refused_names(view)
    yield from _find_case_twins(view, policy)


def _find_refused_names(view: WheelView) -> Iterator[Finding]:
    severity = _severity_on_windows(view)
    if severity is None:
        return
    for member in view.members:
        for name in member.name.split("/"):
            fault = windows_fault(name)
            if fault is not None:
                yield view.finding(
                    severity,
                    CHECK,
                    f"Windows cannot hold this file: {fault}.",
                    member.name,
                )
                break


def _severity_on_windows(view: WheelView) -> Severity | None:
    if any(platform.startswith("win") for platform in view.platforms):
        return "error"
    if "any" in view.platforms:
        return "warning"
    return None


def _find_case_twins(view: WheelView, policy: Policy) -> Iterator[Finding]:
    names_by_key: defaultdict[str, list[str]] = defaultdict(list)
    for member in view.members:
        path = installed_path(member.name) or member.name
        key = unicodedata.normalize("NFC", path).casefold()
        names_by_key[key].append(member.name)

    ignores_case = any(platform.startswith(("win", "macosx")) for platform in view.platforms)
    is_ours = find_allowed(view.name.distribution, policy.allowed) is not None
    severity: Severity = "error" if ignores_case or is_ours else "warning"
    for names in names_by_key.values():
        if len(names) > 1:
            first_name, *twins = names
            yield view.finding(
                severity,
                CHECK,
                f"Where case does not count, {twins[0]} takes its place.",
                first_name,
            )
