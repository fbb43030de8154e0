"""GPU targets, and what ROCm's packages are made of."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ci.drift.comparing import Subject
from ci.drift.tree import Python, found, keyword, moved, strings, toml
from ci.publish.buckets import buckets
from core.families import families
from rocm_packaging.packages.layouts import packages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ci.drift.comparing import Facts
    from ci.drift.tree import Tree

_TARGETS = "cmake/therock_amdgpu_targets.cmake"
_BUILDER = "build_tools/build_python_packages.py"
_SCRIPTS = "build_tools/packaging/python/templates/rocm-{}/setup.py"
_OWNERS = "build_tools/packaging/python/rocm_whl_next_ownership.yaml"
_TOPOLOGY = "BUILD_TOPOLOGY.toml"
_PACKAGES = "rocm_packaging/packages/packages.toml"
# upstream's names for a package while it is made
_VARIABLES = {"core": "core", "profiler": "profiler", "lib": "libraries", "dev": "device"}


def _targets(checkout: Tree) -> tuple[Facts, Facts]:
    theirs: dict[str, list[str]] = {}
    for target, rest in found(
        r"^therock_add_amdgpu_target\((gfx\w+)\s+\"[^\"]*\"([^)#]*)", checkout, _TARGETS
    ):
        named = rest.partition("FAMILY")[2].partition("EXCLUDE_TARGET_PROJECTS")[0].split()
        for family in (target, *named):
            theirs.setdefault(family, []).append(target)
    ours = {name: family.targets for name, family in families().items() if family.targets}
    return _tuples(theirs), ours


def _artifacts(checkout: Tree) -> tuple[Facts, Facts]:
    builder = Python(checkout, _BUILDER)
    split = builder.function("_run_kpack_split")
    devel = builder.calls(split, "populate_devel_files")[0]
    theirs: dict[str, Sequence[str]] = {"profiler.include": builder.constant("PROFILER_WHEEL_INCLUDES")}
    runtime, only_lib, with_headers = builder.tests("core_artifact_filter", "name")
    theirs["core.artifacts"] = [*runtime, *only_lib]
    theirs["core.only_lib"], theirs["core.with_headers"] = only_lib, with_headers
    theirs["core.components"] = builder.tests("core_artifact_filter", "component")[0]
    for package in ("libraries", "profiler", "device"):
        theirs[f"{package}.artifacts"] = builder.tests(f"{package}_artifact_filter", "name")[0]
        theirs[f"{package}.components"] = builder.tests(f"{package}_artifact_filter", "component")[0]
    listed, left = keyword(devel, "addl_artifact_names"), keyword(devel, "exclude_components")
    if listed is None or left is None:
        raise moved(_BUILDER, "the artifacts of the development tree")
    theirs["devel.artifacts"] = strings(listed)
    theirs["devel.without"] = strings(left)
    for variable, package in _VARIABLES.items():
        within = builder.function("run") if package in {"core", "profiler"} else split
        theirs[f"{package}.rpath_core"] = [
            str(strings(call)[0])
            for call in builder.calls(within, "rpath_dep")
            if getattr(getattr(call.func, "value", None), "id", "") == variable
        ]
    return _tuples(theirs), _own_artifacts()


def _own_artifacts() -> Facts:
    data = packages()
    every = {"core": data.core, "profiler": data.profiler}
    every |= {"libraries": data.split.libraries, "device": data.split.device}
    ours: dict[str, tuple[str, ...]] = {}
    for name, package in every.items():
        ours[f"{name}.artifacts"] = package.artifacts
        ours[f"{name}.components"] = package.components
        ours[f"{name}.rpath_core"] = package.rpath_core
    ours["core.only_lib"], ours["core.with_headers"] = data.core.only_lib, data.core.with_headers
    ours["profiler.include"] = data.profiler.include
    ours["devel.artifacts"] = data.devel.artifacts
    known = ("lib", "run", "dbg", "dev", "doc", "test")
    ours["devel.without"] = tuple(one for one in known if one not in data.devel.components)
    return ours


def _topology(checkout: Tree) -> tuple[Facts, Facts]:
    there = toml(checkout, _TOPOLOGY)["artifacts"]
    named = {name for key, values in _own_artifacts().items() if key.endswith("artifacts") for name in values}
    return {"artifacts": tuple(sorted(named & there.keys()))}, {"artifacts": tuple(sorted(named))}


def _programs(checkout: Tree) -> tuple[Facts, Facts]:
    data = packages()
    theirs = {}
    for package in ("sdk-core", "profiler"):
        named = found(r"^\s+\"([\w+.-]+)=rocm_\w+\._cli:", checkout, _SCRIPTS.format(package))
        theirs[package] = tuple(named)
    return theirs, {"sdk-core": tuple(data.programs), "profiler": tuple(data.profiler_programs)}


def _products(checkout: Tree) -> tuple[Facts, Facts]:
    owned: dict[str, list[str]] = {}
    for name, product in found(r"^ {6}([\w.-]+):\n {8}owner_path: (\w+)/", checkout, _OWNERS):
        owned.setdefault(product, []).append(name)
    ours: dict[str, list[str]] = {}
    for name in [name for names in owned.values() for name in names]:
        for product, patterns in buckets().products.distributions.items():
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                ours.setdefault(product, []).append(name)
    return _tuples(owned), _tuples(ours)


def _tuples(facts: Mapping[str, Sequence[str]]) -> Facts:
    return {key: tuple(values) for key, values in facts.items()}


SUBJECTS = (
    Subject(name="targets", upstream=_TARGETS, here="core/families.toml", facts=_targets),
    Subject(name="artifacts", upstream=_BUILDER, here=_PACKAGES, facts=_artifacts),
    Subject(name="topology", upstream=_TOPOLOGY, here=_PACKAGES, facts=_topology),
    Subject(name="programs", upstream=_SCRIPTS.format("*"), here=_PACKAGES, facts=_programs),
    Subject(name="products", upstream=_OWNERS, here="ci/buckets.toml", facts=_products),
)
