"""What the source lock promised of a wheel, compared with what the wheel says of itself."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from core.errors import DataError, MissingInputError
from core.wheel import distributions
from pytorch_build.check import Expectation
from pytorch_build.lock.stored import stored_lock
from pytorch_build.refs.torch_refs import DISTRIBUTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from packaging.tags import Tag

    from pytorch_build.check import Finding, WheelView
    from pytorch_build.context import Context
    from pytorch_build.lock.source_lock import SourceLock

CHECK = "expected"
_CPYTHON = re.compile(r"cp3(\d+)t?")


def check(view: WheelView, expectation: Expectation) -> Iterator[Finding]:
    """Compare distribution, version, Python tag and requirements."""
    if canonicalize_name(expectation.distribution) != view.name.distribution:
        message = f"This is {view.name.distribution}; {expectation.distribution} is expected."
        yield view.finding("error", CHECK, message)
    try:
        version = Version(expectation.version)
        requires = [Requirement(text) for text in expectation.requires]
    except (InvalidVersion, InvalidRequirement) as problem:
        raise DataError(
            f"What is expected of {expectation.distribution} is malformed: {problem}."
        ) from problem
    if version != view.name.version:
        message = f"The version is {view.name.version}; {expectation.version} is expected."
        yield view.finding("error", CHECK, message)
    wanted = expectation.python_tag
    if wanted and not any(fits(tag, wanted) for tag in view.name.tags):
        found = ", ".join(sorted({f"{tag.interpreter}-{tag.abi}" for tag in view.name.tags}))
        yield view.finding("error", CHECK, f"The wheel is for {found}; {wanted} is expected.")
    if view.metadata is None:
        return
    every = list(_stated(view.metadata.requires_dist))
    for one in requires:
        stated = [found for found in every if canonicalize_name(found.name) == canonicalize_name(one.name)]
        if not stated:
            yield view.finding("error", CHECK, f"METADATA does not require {one}.")
        elif not any(_same(found, one) for found in stated):
            listed = ", ".join(sorted(map(str, stated)))
            yield view.finding("error", CHECK, f"METADATA requires {listed}; {one} is expected.")


def fits(tag: Tag, wanted: str) -> bool:
    """Return whether a wheel's tag is right for a Python tag."""
    interpreter, _, abi = wanted.partition("-")
    abi = abi or interpreter
    if tag.interpreter in {"py3", f"py{interpreter[2:3]}"}:
        return tag.abi == "none"
    if tag.abi == "abi3":
        # The stable ABI holds for this and later versions, not for free-threaded ones (PEP 703).
        return not abi.endswith("t") and _minor(tag.interpreter) <= _minor(interpreter)
    return tag.interpreter == interpreter and tag.abi in {abi, "none"}


def _minor(interpreter: str) -> int:
    found = _CPYTHON.fullmatch(interpreter)
    return int(found[1]) if found else 1000


def _stated(requires_dist: Iterable[str]) -> Iterator[Requirement]:
    for text in requires_dist:
        with suppress(InvalidRequirement):  # `contents.check_archive` reports it
            yield Requirement(text)


def _same(stated: Requirement, wanted: Requirement) -> bool:
    """Return whether METADATA requires what is wanted: with more extras at most, never under a condition."""
    if stated.marker is not None and wanted.marker is None and not stated.marker.evaluate():
        return False
    extras, needed = ({canonicalize_name(extra) for extra in one.extras} for one in (stated, wanted))
    return stated.specifier == wanted.specifier and extras >= needed


def run_lock(context: Context) -> SourceLock:
    """Read the run's lock, which a stage after the builds must find."""
    lock = stored_lock(context)
    if lock is None:
        raise MissingInputError(
            f"Run {context.common.run_id} has no source lock of {context.ref.name}.",
            hint=f"Resolve and build first: nox -s build_torch -- --torch-ref {context.ref.name}",
        )
    return lock


def expectation(context: Context, lock: SourceLock, project: str, *, with_triton: bool = True) -> Expectation:
    """Return what one project's wheel must be."""
    requires = []
    if project == "torch" and context.gpu:
        requires.append(f"rocm[libraries]=={lock.rocm_version}")
        if with_triton and "triton" in lock.projects and "triton" in context.ref.components:
            requires.append(f"triton=={lock.version('triton', gpu=True)}")
    torch = lock.projects.get("torch")
    if project in {"audio", "vision"} and torch is not None and not torch.prebuilt:
        requires.append(f"torch=={lock.version('torch', gpu=context.gpu)}")
    return Expectation(
        distribution=DISTRIBUTIONS[project],
        version=lock.version(project, gpu=context.gpu),
        requires=tuple(requires),
        gpu_targets=context.gpu_targets,
        local_label=context.ref.local_label,
    )


def expectations(context: Context) -> Mapping[str, Expectation]:
    """Return what every wheel of the run must be, by distribution name."""
    lock = run_lock(context)
    found = distributions.in_run(
        context.common.open_for_reading(), context.common.outputs, context.artifact_group
    )
    with_triton = any(one.name == DISTRIBUTIONS["triton"] for one in found)
    return {
        DISTRIBUTIONS[project]: expectation(context, lock, project, with_triton=with_triton)
        for project, locked in lock.projects.items()
        if not locked.prebuilt and project in context.ref.components
    }
