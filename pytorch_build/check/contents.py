"""The wheel as an archive: names, versions and tags that agree, what does not belong in it, and its size.

And what the run's records promise of it, compared with what it says of itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name
from packaging.version import Version

from core.run import records
from pytorch_build.check import Expectation, Finding, Policy, Severity, WheelView, matches, required_name
from pytorch_build.components import COMPONENTS
from rocm_packaging.packages.layouts import device_target, is_rocm

if TYPE_CHECKING:
    from pytorch_build.context import Context

CHECK = "contents"
_LIBRARY = re.compile(r"\.(so(\.\d+)*|dll|pyd|exe|dylib)$")


def check(view: WheelView, expectation: Expectation | None, policy: Policy) -> Iterator[Finding]:
    """Judge member names and sizes; say whose policy it is, where it is a user's."""
    if policy.source:
        yield view.finding("note", "policy", f"Checked by {policy.source}, over the project's policy.")
    for rule in policy.forbidden:
        # one finding a rule: a wheel with 300 byte code files has one problem
        meant = matches(view.name.distribution, rule.distributions)
        hits = [member.name for member in view.members if meant and rule.pattern.search(member.name)]
        if hits:
            more = f" ({len(hits)} such files)" if len(hits) > 1 else ""
            yield view.finding(rule.severity, CHECK, f"{hits[0]} is {rule.message}{more}.", hits[0])
    yield from _members(view, policy)
    for name, folder in view.mentions:
        message = f"{name} mentions {folder}, a folder of the build machine."
        yield view.finding("warning", CHECK, message, name)
    yield from _size(view, expectation, policy)


def _members(view: WheelView, policy: Policy) -> Iterator[Finding]:
    if all(".dist-info/" in member.name for member in view.members):
        yield view.finding("warning", CHECK, "The wheel holds nothing but its metadata.")
    code = {binary.member.name for binary in view.binaries}
    for member in view.members:
        name = member.name
        if _LIBRARY.search(name) and member.size == 0:
            yield view.finding("error", CHECK, f"{name} is an empty file.", name)
            continue
        promise = None if name in code else policy.promise(name)
        if promise and not promise.text.fullmatch(view.texts.get(name, "")):
            yield view.finding("error", CHECK, f"{name} is no {promise.what}, whatever its name.", name)


def _size(view: WheelView, expectation: Expectation | None, policy: Policy) -> Iterator[Finding]:
    limit = policy.sizes.get(view.name.distribution)
    if limit is None:
        return
    size, labels = view.size, {*(view.name.version.local or "").split(".")}
    labels |= {expectation.local_label} if expectation else set()
    if size < limit.minimum and not labels & {*policy.exempt_labels}:
        message = f"The wheel has {size} bytes; one that works has at least {limit.minimum}."
        yield view.finding("error", "size", message)
    if limit.error_above and size > limit.error_above:
        yield view.finding("error", "size", f"The wheel has {size} bytes, more than {limit.error_above}.")
    elif limit.warn_above and size > limit.warn_above:
        yield view.finding("warning", "size", f"The wheel has {size} bytes, more than {limit.warn_above}.")


def check_archive(view: WheelView, expectation: Expectation | None) -> Iterator[Finding]:
    """Compare file name, METADATA, WHEEL, extension modules, and what is expected of these."""
    unexpected = _unexpected(view, expectation) if expectation else ()
    for subject, wrong in (("expected", unexpected), ("metadata", _metadata(view)), ("tags", _tags(view))):
        yield from (view.finding("error", subject, message) for message in wrong)
    if view.metadata and not view.metadata.license:
        message = "METADATA names no licence: neither License-Expression nor License, and no classifier."
        yield view.finding("warning", "metadata", message)
    yield from _root(view)
    yield from _extensions(view)


def _metadata(view: WheelView) -> Iterator[str]:
    metadata, name = view.metadata, view.name
    if metadata is None:
        return
    if canonicalize_name(metadata.name) != name.distribution:
        yield f"METADATA is that of {metadata.name}, the file name that of {name.distribution}."
    if metadata.version != name.version:
        yield f"METADATA says version {metadata.version}, the file name {name.version}."
    for text in metadata.requires_dist:
        try:
            if Requirement(text).url:
                yield f"Requires-Dist {text!r} is a direct reference, which indexes refuse."
        except InvalidRequirement as problem:
            yield f"Requires-Dist {text!r} cannot be read: {problem}."


def _tags(view: WheelView) -> Iterator[str]:
    if view.info is None:
        return
    named = {str(tag) for tag in view.name.tags}
    if named != view.info.tags:
        listed, expected = ", ".join(sorted(view.info.tags)) or "none", ", ".join(sorted(named))
        yield f"WHEEL lists tags {listed}; the file name says {expected}."
    if view.info.wheel_version.split(".")[0] != "1":
        yield f"WHEEL has format version {view.info.wheel_version}; installers read 1.x."
    build = "".join(str(part) for part in view.name.build_tag)
    if view.info.build != build:
        yield f"WHEEL has build tag {view.info.build!r}; the file name {build!r}."


def _root(view: WheelView) -> Iterator[Finding]:
    compiled = [one.name for one in view.members if one.name.endswith((".pyd", ".dll", ".dylib"))]
    compiled += [one.member.name for one in view.binaries if one.elf and one.elf.machine != "EM_AMDGPU"]
    portable, name = "any" in view.platforms, view.name.distribution
    # upstream's ROCm wheels are made like this, and ours as they are
    known: Severity = "note" if is_rocm(name) else "warning"
    if compiled and portable:
        message = f"The tag promises any platform, but {len(compiled)} files are compiled."
        yield view.finding("error", "tags", message, compiled[0])
    elif compiled and view.info and view.info.root_is_purelib:
        message = f"Root-Is-Purelib is true, but {len(compiled)} files are compiled."
        yield view.finding(known, "tags", message, compiled[0])
    elif not compiled and not portable and not device_target(name):
        yield view.finding(known, "tags", "The tag names a platform, but nothing is compiled.")


def _extensions(view: WheelView) -> Iterator[Finding]:
    abis = {tag.abi for tag in view.name.tags}
    if {tag.interpreter for tag in view.name.tags} & {"py3", "py2"}:
        return  # a wheel for every Python may carry one extension for each
    for member in view.members:
        # name.cpython-312-x86_64-linux-gnu.so, name.cp312-win_amd64.pyd (PEP 3149 and CPython's build)
        found = re.search(r"\.(?:cpython-|cp)(\d+t?)[^/.]*\.(?:so|pyd)$", member.name)
        if found and f"cp{found[1]}" not in abis:
            message = f"It is for cp{found[1]}, the wheel for {', '.join(sorted(abis))}."
            yield view.finding("error", "tags", message, member.name)


def _unexpected(view: WheelView, expectation: Expectation) -> Iterator[str]:
    if canonicalize_name(expectation.distribution) != view.name.distribution:
        yield f"This is {view.name.distribution}; {expectation.distribution} is expected."
    if Version(expectation.version) != view.name.version:
        yield f"The version is {view.name.version}; {expectation.version} is expected."
    wanted = expectation.python_tag
    if wanted and not any(fits(tag, wanted) for tag in view.name.tags):
        found = ", ".join(sorted({f"{tag.interpreter}-{tag.abi}" for tag in view.name.tags}))
        yield f"The wheel is for {found}; {wanted} is expected."
    requires = view.metadata.requires_dist if view.metadata else ()
    every = [Requirement(text) for text in requires if required_name(text)]
    for one in map(Requirement, expectation.requires) if view.metadata else ():
        stated = [found for found in every if canonicalize_name(found.name) == canonicalize_name(one.name)]
        if not stated:
            yield f"METADATA does not require {one}."
        elif not any(_same(found, one) for found in stated):
            yield f"METADATA requires {', '.join(sorted(map(str, stated)))}; {one} is expected."


def fits(tag: Tag, wanted: str) -> bool:
    """Return whether a Python, by its tag, takes a wheel's tag."""
    abi = wanted.rpartition("-")[2]
    interpreter = abi.rstrip("t")
    version = (int(interpreter[2]), int(interpreter[3:]))
    known = cpython_tags(version, [abi], [tag.platform])
    return tag in known or tag in compatible_tags(version, interpreter, [tag.platform])


def _same(stated: Requirement, wanted: Requirement) -> bool:
    """Return whether METADATA requires what is wanted: with more extras at most, never under a condition."""
    if stated.marker is not None and wanted.marker is None and not stated.marker.evaluate():
        return False
    extras, needed = ({canonicalize_name(extra) for extra in one.extras} for one in (stated, wanted))
    return stated.specifier == wanted.specifier and extras >= needed


def expectations(context: Context, refused: records.Record | None = None) -> Mapping[str, Expectation]:
    """Return what the run's wheels must be, or what a build refused, by name, as the builds' records say."""
    made = [one for one in context.records if one.status == "ok" or one is refused]
    builds: dict[str, records.Record] = {}
    for record in sorted(made, key=lambda record: record.started):
        project = record.stage.removeprefix("build_")
        if project in COMPONENTS and record.cell.torch_ref == context.ref.name:
            builds[project] = record
    return {COMPONENTS[project].distribution: _expected(context, project, builds) for project in builds}


def machine_libraries(context: Context) -> frozenset[str]:
    """Return what the loaders of the machines that built the run's wheels found, as the records say."""
    return frozenset(name for one in context.records for name in one.details.get("machine_libraries", ()))


def _expected(context: Context, project: str, builds: Mapping[str, records.Record]) -> Expectation:
    """Return what a wheel must be, as the record of its build says."""
    component = COMPONENTS[project]
    inputs = builds[project].inputs
    requires: list[str] = []
    if component.requires_rocm and context.gpu:
        rocm_version = inputs["rocm"][0]
        requires.append(f"rocm[libraries]=={rocm_version}")
    for name in component.required_components:
        required = COMPONENTS[name]
        if name in builds and (context.gpu or not required.serves_gpus_only):
            requires.append(f"{required.distribution}=={builds[name].inputs['version']}")

    return Expectation(
        distribution=component.distribution,
        version=inputs["version"],
        requires=tuple(requires),
        gpu_targets=tuple(inputs["gpu_targets"]),
        local_label=context.ref.local_label,
    )
