"""Contents and sizes: what does not belong into a wheel, and wheels that are too small to be real."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from rocm_packaging.packages.layouts import device_target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytorch_build.check import Expectation, Finding, WheelView
    from pytorch_build.check.policy import Policy


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


# name.cpython-312-x86_64-linux-gnu.so, name.cp312-win_amd64.pyd (PEP 3149 and CPython's build)
_EXTENSION = re.compile(r"\.(?:cpython-|cp)(\d+t?)[^/.]*\.(?:so|pyd)$")


def check_archive(view: WheelView) -> Iterator[Finding]:
    """Compare file name, METADATA, WHEEL and extension modules."""
    yield from _check_metadata(view)
    yield from _check_requirements(view)
    yield from _check_tags(view)
    yield from _check_root(view)
    yield from _check_extensions(view)


def _check_metadata(view: WheelView) -> Iterator[Finding]:
    metadata = view.metadata
    if metadata is None:
        return
    if canonicalize_name(metadata.name) != view.name.distribution:
        message = f"METADATA is that of {metadata.name}, the file name that of {view.name.distribution}."
        yield view.finding("error", "metadata", message)
    if metadata.version != view.name.version:
        message = f"METADATA says version {metadata.version}, the file name {view.name.version}."
        yield view.finding("error", "metadata", message)
    if not metadata.license:
        message = "METADATA names no licence: neither License-Expression nor License, and no classifier."
        yield view.finding("warning", "metadata", message)


def _check_requirements(view: WheelView) -> Iterator[Finding]:
    for text in view.metadata.requires_dist if view.metadata else ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement as problem:
            yield view.finding("error", "metadata", f"Requires-Dist {text!r} cannot be read: {problem}.")
            continue
        if requirement.url:
            message = f"Requires-Dist {text!r} is a direct reference, which indexes refuse."
            yield view.finding("error", "metadata", message)


def _check_tags(view: WheelView) -> Iterator[Finding]:
    if view.info is None:
        return
    named = {str(tag) for tag in view.name.tags}
    inside = view.info.tags
    if named != inside:
        listed, expected = ", ".join(sorted(inside)) or "none", ", ".join(sorted(named))
        yield view.finding("error", "tags", f"WHEEL lists tags {listed}; the file name says {expected}.")
    if view.info.wheel_version.split(".")[0] != "1":
        message = f"WHEEL has format version {view.info.wheel_version}; installers read 1.x."
        yield view.finding("error", "tags", message)
    build = "".join(str(part) for part in view.name.build_tag)
    if view.info.build != build:
        message = f"WHEEL has build tag {view.info.build!r}; the file name {build!r}."
        yield view.finding("error", "tags", message)


def _check_root(view: WheelView) -> Iterator[Finding]:
    compiled = [
        member.name for member in view.members if member.name.endswith((".pyd", ".dll", ".dylib"))
    ] + [binary.member.name for binary in view.binaries if binary.elf and binary.elf.machine != "EM_AMDGPU"]
    portable = "any" in view.platforms
    if compiled and portable:
        message = f"The tag promises any platform, but {len(compiled)} files are compiled."
        yield view.finding("error", "tags", message, compiled[0])
    elif compiled and view.info and view.info.root_is_purelib:
        message = f"Root-Is-Purelib is true, but {len(compiled)} files are compiled."
        yield view.finding("warning", "tags", message, compiled[0])
    elif not compiled and not portable and not device_target(view.name.distribution):
        yield view.finding("warning", "tags", "The tag names a platform, but nothing is compiled.")


def _check_extensions(view: WheelView) -> Iterator[Finding]:
    interpreters = {tag.interpreter for tag in view.name.tags}
    abis = {tag.abi for tag in view.name.tags}
    for member in view.members:
        found = _EXTENSION.search(member.name)
        if not found:
            continue
        abi = f"cp{found.group(1)}"
        # A wheel for every Python may carry one extension for each.
        if abi not in abis and not interpreters & {"py3", "py2"}:
            message = f"It is for {abi}, the wheel for {', '.join(sorted(abis))}."
            yield view.finding("error", "tags", message, member.name)
