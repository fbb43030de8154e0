"""What a run's records promise of its wheels, compared with what these say of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from core.run.records import LEFT_OUT_TARGETS
from pytorch_build.check import Expectation, Finding, WheelView, error, warning
from pytorch_build.check.policy import required_name
from pytorch_build.check.tags import accepts
from pytorch_build.components import COMPONENTS

if TYPE_CHECKING:
    from core.run import records
    from pytorch_build.context import Context


def check(view: WheelView) -> Iterator[Finding]:
    """Yield findings where a wheel is not what is expected: name, version, Python, requirements."""
    expectation = view.expectation
    if expectation is None:
        return

    name = view.name
    if canonicalize_name(expectation.distribution) != name.distribution:
        yield error(f"This is {name.distribution}; {expectation.distribution} is expected.")
    if Version(expectation.version) != name.version:
        yield error(f"The version is {name.version}; {expectation.version} is expected.")

    python_tag = expectation.python_tag
    if python_tag and not any(accepts(python_tag, tag) for tag in name.tags):
        pythons = {f"{tag.interpreter}-{tag.abi}" for tag in name.tags}
        yield error(f"The wheel is for {', '.join(sorted(pythons))}; {python_tag} is expected.")
    if expectation.left_out_targets:
        targets = ", ".join(expectation.left_out_targets)
        yield warning(f"It is for a part of its GPU family: the build was told to leave out {targets}.")
    if view.metadata is not None:
        yield from _compare_requirements(view.metadata.requires_dist, expectation.requires)


def _compare_requirements(
    requires_dist: Iterable[str], expected_requirements: Iterable[str]
) -> Iterator[Finding]:
    """Yield an error for each expected requirement that METADATA does not state so."""
    stated_requirements = [Requirement(text) for text in requires_dist if required_name(text)]
    for text in expected_requirements:
        expected = Requirement(text)
        name = canonicalize_name(expected.name)
        stated = [
            requirement for requirement in stated_requirements if canonicalize_name(requirement.name) == name
        ]
        if not stated:
            yield error(f"METADATA does not require {expected}.")
        elif not any(_is_met(expected, requirement) for requirement in stated):
            listed = ", ".join(sorted(str(requirement) for requirement in stated))
            yield error(f"METADATA requires {listed}; {expected} is expected.")


def _is_met(expected: Requirement, stated: Requirement) -> bool:
    """Return whether a stated requirement is the expected one; it may have more extras, and no condition."""
    if stated.marker is not None and expected.marker is None and not stated.marker.evaluate():
        return False
    stated_extras = {canonicalize_name(extra) for extra in stated.extras}
    expected_extras = {canonicalize_name(extra) for extra in expected.extras}
    return stated.specifier == expected.specifier and stated_extras >= expected_extras


def expectations(context: Context) -> Mapping[str, Expectation]:
    """Return what the run's wheels have to be, by distribution, as the builds' records say."""
    builds: dict[str, records.Record] = {}
    for record in sorted(context.records, key=lambda record: record.started):
        project = record.stage.removeprefix("build_")
        is_of_ref = project in COMPONENTS and record.cell.torch_ref == context.ref.name
        if is_of_ref and record.status == "ok":
            builds[project] = record
    return {
        COMPONENTS[project].distribution: _expectation_of_build(context, project, builds)
        for project in builds
    }


def machine_libraries(context: Context) -> frozenset[str]:
    """Return the libraries of the machines that the run's wheels need, as the builds' records say."""
    libraries: set[str] = set()
    for record in context.records:
        libraries.update(record.details.get("machine_libraries", ()))
    return frozenset(libraries)


def _expectation_of_build(
    context: Context, project: str, builds: Mapping[str, records.Record]
) -> Expectation:
    """Return what the wheel of a component's recorded build has to be, given the others it was built on."""
    component = COMPONENTS[project]
    build = builds[project]
    inputs = build.inputs
    requires: list[str] = []
    if component.requires_rocm and context.gpu:
        rocm_version = inputs["rocm"][0]
        requires.append(f"rocm[libraries]=={rocm_version}")
    for name in component.required_components:
        required = COMPONENTS[name]
        if name in builds and (context.gpu or not required.serves_gpus_only):
            version = builds[name].inputs["version"]
            requires.append(f"{required.distribution}=={version}")

    return Expectation(
        distribution=component.distribution,
        version=inputs["version"],
        requires=tuple(requires),
        gpu_targets=tuple(inputs["gpu_targets"]),
        left_out_targets=tuple(build.details.get(LEFT_OUT_TARGETS, ())),
        has_full_size=context.ref.has_full_size,
    )
