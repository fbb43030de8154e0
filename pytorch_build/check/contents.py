"""Members that do not belong in a wheel, files that are not what their names promise, and its size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytorch_build.check.policy import Forbidden, Policy, matches, required_name
from pytorch_build.components import component_of
from pytorch_build.components.torch import ROCM_INIT, TORCH

if TYPE_CHECKING:
    from pytorch_build.check import Expectation, Finding, WheelView

CHECK = "contents"
SIZE_CHECK = "size"
POLICY_CHECK = "policy"
_LIBRARY = re.compile(r"\.(so(\.\d+)*|dll|pyd|exe|dylib)$")


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Names that promise a library or program, and the whole of a text that may take its place."""

    names: re.Pattern[str]
    kind: Literal["library", "program"]
    text: re.Pattern[str]


# A linker takes a script in the place of a library (ld's manual, "Implicit Linker Scripts").
_LINKER_SCRIPT = r"""(?x)
(\s | /\*([^*]|\*(?!/))*\*/ | (OUTPUT_FORMAT|SEARCH_DIR)\s*\([^()]*\))*
((INPUT|GROUP)\s*\(([^()]|AS_NEEDED\s*\([^()]*\))*\) (\s | /\*([^*]|\*(?!/))*\*/)*)+
"""
_PROMISES = (
    Promise(names=re.compile(r"\.so(\.\d+)*$"), kind="library", text=re.compile(_LINKER_SCRIPT)),
    Promise(
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


def find_promise(name: str) -> Promise | None:
    """Return what a member's name promises to be compiled; None for nothing."""
    for promise in _PROMISES:
        if promise.names.search(name):
            return promise
    return None


def check(
    view: WheelView,
    expectation: Expectation | None,
    policy: Policy,
) -> Iterator[Finding]:
    """Judge member names and sizes; say whose policy it is, where it is a user's."""
    if policy.source:
        message = f"Checked by {policy.source}, over the project's policy."
        yield view.finding("note", POLICY_CHECK, message)
    yield from _find_forbidden(view, policy)
    yield from _find_false_code(view)
    for name, folder in view.mentions:
        message = f"It mentions {folder}, a folder of the build machine."
        yield view.finding("warning", CHECK, message, name)
    yield from _find_missing_loader(view)
    yield from _compare_size(view, expectation, policy)


def _find_forbidden(view: WheelView, policy: Policy) -> Iterator[Finding]:
    """Find forbidden members: one finding a rule, as a wheel with 300 byte code files has one problem."""
    for rule in _rules_for(view.name.distribution, policy):
        names = [member.name for member in view.members if rule.pattern.search(member.name)]
        if len(names) == 1:
            yield view.finding(
                rule.severity,
                CHECK,
                f"This is {rule.message}.",
                names[0],
            )
        elif names:
            yield view.finding(
                rule.severity,
                CHECK,
                f"This is {rule.message}; there are {len(names)} such files.",
                names[0],
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
    if all(".dist-info/" in member.name for member in view.members):
        yield view.finding("warning", CHECK, "The wheel holds nothing but its metadata.")

    names_of_code = {binary.member.name for binary in view.binaries}
    for member in view.members:
        if _LIBRARY.search(member.name) and member.size == 0:
            yield view.finding(
                "error",
                CHECK,
                "The file is empty.",
                member.name,
            )
            continue
        promise = find_promise(member.name)
        if promise is None or member.name in names_of_code:
            continue
        text = view.texts.get(member.name, "")
        if not promise.text.fullmatch(text):
            yield view.finding(
                "error",
                CHECK,
                f"It is named like a {promise.kind}, but holds no code.",
                member.name,
            )


def _find_missing_loader(view: WheelView) -> Iterator[Finding]:
    """Find a torch that requires ROCm's packages and does not load them: then nothing does."""
    requires_dist = view.metadata.requires_dist if view.metadata else ()
    if view.name.distribution != TORCH.distribution or "rocm" not in map(required_name, requires_dist):
        return
    if ROCM_INIT not in {member.name for member in view.members}:
        message = f"It requires rocm and has no {ROCM_INIT}, which loads ROCm's libraries."
        yield view.finding("error", CHECK, message)


def _compare_size(
    view: WheelView,
    expectation: Expectation | None,
    policy: Policy,
) -> Iterator[Finding]:
    limit = policy.sizes.get(view.name.distribution)
    if limit is None:
        return

    labels = set((view.name.version.local or "").split("."))
    is_miniature = not labels.isdisjoint(policy.exempt_labels)
    if expectation is not None and not expectation.has_full_size:
        is_miniature = True

    size = view.size
    if size < limit.minimum and not is_miniature:
        message = f"The wheel has {size} bytes; one that works has at least {limit.minimum}."
        yield view.finding("error", SIZE_CHECK, message)
    if limit.error_above and size > limit.error_above:
        message = f"The wheel has {size} bytes, more than {limit.error_above}."
        yield view.finding("error", SIZE_CHECK, message)
    elif limit.warn_above and size > limit.warn_above:
        message = f"The wheel has {size} bytes, more than {limit.warn_above}."
        yield view.finding("warning", SIZE_CHECK, message)
