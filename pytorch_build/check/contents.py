"""Contents and sizes: what does not belong into a wheel, and wheels that are too small to be real."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytorch_build.check.findings import Finding
    from pytorch_build.check.policy import Policy
    from pytorch_build.check.view import Expectation, WheelView

CHECK = "contents"
_LIBRARY = re.compile(r"\.(so(\.\d+)*|dll|pyd|dylib)$")


def check(view: WheelView, expectation: Expectation | None, policy: Policy) -> Iterator[Finding]:
    """Judge member names and sizes."""
    yield from _check_forbidden(view, policy)
    yield from _check_members(view)
    yield from _check_size(view, expectation, policy)


def _check_forbidden(view: WheelView, policy: Policy) -> Iterator[Finding]:
    """One finding a rule: a wheel with 300 byte code files has one problem."""
    for rule in policy.forbidden:
        if not rule.holds_for(view.name.distribution):
            continue
        pattern = re.compile(rule.pattern)
        hits = [member.name for member in view.members if pattern.search(member.name)]
        if hits:
            more = f" ({len(hits)} such files)" if len(hits) > 1 else ""
            yield view.finding(rule.severity, CHECK, f"{hits[0]} is {rule.message}{more}.", hits[0])


def _check_members(view: WheelView) -> Iterator[Finding]:
    if not any(".dist-info/" not in member.name for member in view.members):
        yield view.finding("warning", CHECK, "The wheel holds nothing but its metadata.")
    code = {binary.member.name for binary in view.binaries if binary.elf}
    for member in view.members:
        if _LIBRARY.search(member.name) and member.size == 0:
            yield view.finding("error", CHECK, f"{member.name} is an empty file.", member.name)
        elif re.search(r"\.so(\.\d+)*$", member.name) and member.name not in code:
            yield view.finding(
                "warning", CHECK, f"{member.name} is no library, whatever its name.", member.name
            )
    for member_name, folder in view.mentions:
        message = f"{member_name} mentions {folder}, a folder of the build machine."
        yield view.finding("warning", CHECK, message, member_name)


def _check_size(view: WheelView, expectation: Expectation | None, policy: Policy) -> Iterator[Finding]:
    limit = policy.sizes.get(view.name.distribution)
    if limit is None:
        return
    size = view.size
    if size < limit.minimum and not _is_exempt(view, expectation, policy):
        message = f"The wheel has {size} bytes; one that works has at least {limit.minimum}."
        yield view.finding("error", "size", message)
    if limit.error_above and size > limit.error_above:
        yield view.finding("error", "size", f"The wheel has {size} bytes, more than {limit.error_above}.")
    elif limit.warn_above and size > limit.warn_above:
        yield view.finding("warning", "size", f"The wheel has {size} bytes, more than {limit.warn_above}.")


def _is_exempt(view: WheelView, expectation: Expectation | None, policy: Policy) -> bool:
    labels = set((view.name.version.local or "").split("."))
    if expectation is not None:
        labels.add(expectation.local_label)
    return bool(labels & set(policy.exempt_labels))
