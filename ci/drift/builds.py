"""What of PyTorch is built, with which Pythons, preloads and sources, and which tests are skipped."""

from __future__ import annotations

import ast
import json
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from ci.drift.comparing import Subject
from ci.drift.tree import Python, found, strings
from ci.plan.data import TRIGGERS_FILE, load
from core.cli.options import ROOT
from core.data import read_text, read_toml
from pytorch_build.platforms import linux, windows
from pytorch_build.refs.torch_refs import load_refs
from pytorch_build.test import skip_rules
from pytorch_build.test.skip_review import entries
from pytorch_build.test.upstream_tests import DATA as CONFIGURATIONS_FILE
from pytorch_build.toolchain.pins import FILE as TOOLCHAIN_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ci.drift.comparing import Facts
    from ci.drift.tree import Tree
    from core.run.outputs import Platform
    from pytorch_build.test.skip_rules import Rule

_MATRIX = "build_tools/github_actions/configure_pytorch_release_matrix.py"
_BUILDER = "external-builds/pytorch/build_prod_wheels.py"
_TESTS = "external-builds/pytorch/run_pytorch_tests_full.py"
_SKIPS = "external-builds/pytorch/skip_tests"
_TRITON = "external-builds/pytorch/ci_commit_pins/triton-windows.txt"
_WINDOWS = ".github/workflows/multi_arch_build_windows_pytorch_wheels.yml"
_LOCK = "requirements/target-windows-3.12.txt"
_PLATFORMS: tuple[Platform, ...] = ("linux", "windows")


def _matrix(checkout: Tree) -> tuple[Facts, Facts]:
    python = Python(checkout, _MATRIX)
    stable, ci_refs = python.constant("RELEASE_STABLE_PYTORCH_REFS"), python.constant("CI_PYTORCH_REFS")
    nightly = strings(python.assigned("RELEASE_PYTORCH_REFS"))
    released, unsupported = python.constant("RELEASE_PYTHON_VERSIONS"), _unsupported(python)
    theirs: dict[str, Sequence[str]] = {"untested": ["-".join(one) for one in _untested(python)]}
    ours: dict[str, Sequence[str]] = {}
    data = load().matrix
    for platform in _PLATFORMS:
        theirs[f"pythons on {platform}"] = released
        theirs[f"pythons in CI on {platform}"] = python.constant("CI_PYTHON_VERSIONS")[platform]
        theirs[f"refs on {platform}"] = [*stable[platform], *nightly]
        theirs[f"refs in CI on {platform}"] = ci_refs[platform]
        theirs[f"not built on {platform}"] = unsupported[platform]
        refs = load_refs(None, ROOT, platform=platform)
        ours[f"pythons on {platform}"] = data.release.pythons
        ours[f"pythons in CI on {platform}"] = data.ci.pythons
        ours[f"refs on {platform}"] = data.release.torch_refs
        ours[f"refs in CI on {platform}"] = data.ci.torch_refs
        ours[f"not built on {platform}"] = [
            f"{ref}: {family}"
            for row in data.release.exclude
            for ref in row.torch_refs
            for family in row.gpu_families
            if row.platform == platform and not row.pythons
        ]
        for ref in data.release.torch_refs:
            theirs[f"pythons of {ref} on {platform}"] = released
            ours[f"pythons of {ref} on {platform}"] = refs[ref].pythons
    return _tuples(theirs), _tuples(ours)


def _unsupported(python: Python) -> dict[str, list[str]]:
    """Read the families that a ref is not built for; an empty set is written ``{}`` there."""
    return {
        platform: [f"{ref}: {family}" for ref, families in refs.items() for family in families]
        for platform, refs in python.constant("UNSUPPORTED_AMDGPU_FAMILIES").items()
    }


def _untested(python: Python) -> list[list[str]]:
    """Find the cells whose wheels upstream builds and does not test: compared as whole tuples."""
    function = python.function("generate_pytorch_matrix_for_release_type")
    right = [node.comparators[0] for node in ast.walk(function) if isinstance(node, ast.Compare)]
    return [list(strings(one)) for one in right if isinstance(one, ast.Tuple)]


def _preloads(checkout: Tree) -> tuple[Facts, Facts]:
    python = Python(checkout, _BUILDER)
    theirs = {str(one): python.constant(f"{one.upper()}_LIBRARY_PRELOADS") for one in _PLATFORMS}
    return _tuples(theirs), {"linux": linux.PRELOADS, "windows": windows.PRELOADS}


def _tests(checkout: Tree) -> tuple[Facts, Facts]:
    python = Python(checkout, _TESTS)
    theirs = {
        "inductor, operators": python.constant("INDUCTOR_GENERIC_TESTS"),
        "inductor, its own": python.constant("INDUCTOR_UNIT_TESTS"),
        "left out": python.constant("EXCLUDED_TEST_MODULES"),
        "seconds of a test": [str(python.constant("PYTEST_TIMEOUT_SECONDS"))],
    }
    data = read_toml(CONFIGURATIONS_FILE)
    generic, own = data["configurations"]["inductor"]["steps"]
    ours = {
        "inductor, operators": generic["files"],
        "inductor, its own": own["files"],
        "seconds of a test": [str(data["limits"]["test_seconds"])],
    }
    return _tuples(theirs), _tuples(ours)


def _skips(checkout: Tree) -> tuple[Facts, Facts]:
    theirs: dict[str, tuple[str, ...]] = {}
    ours: dict[str, tuple[str, ...]] = {}
    rules = skip_rules.load()
    for name in checkout.names(_SKIPS):
        torch = name.removeprefix("pytorch_").removesuffix(".py") if name.startswith("pytorch_") else ""
        if not (torch or name == "generic.py"):
            continue
        for where, files in Python(checkout, f"{_SKIPS}/{name}").constant("skip_tests").items():
            known = [entry for rule in rules if _holds(rule, where, torch) for entry in entries(rule)]
            for file, tests in files.items():
                key = f"{name.removesuffix('.py')}, {where}: {file}"
                theirs[key] = tuple(tests)
                ours[key] = tuple(one for one in tests if _named(one, known))
    return theirs, ours


def _holds(rule: Rule, where: str, torch: str) -> bool:
    """Say whether a rule can hold where upstream's list does: on a platform, a GPU, or everywhere."""
    table = rule.table
    platform = "windows" if where == "windows" else "linux"
    return (not table.os or platform in table.os) and (
        not (torch and table.torch) or SpecifierSet(table.torch).contains(f"{torch}.0")
    )


def _named(test: str, patterns: Iterable[str]) -> bool:
    """Say whether one of our entries takes a test of this name; upstream's hold in any class of any file."""
    lasts = (pattern.rpartition("::")[2] for pattern in patterns)
    return any(fnmatchcase(test, last) or last.startswith(f"{test}*") for last in lasts)


def _versions(checkout: Tree) -> tuple[Facts, Facts]:
    theirs = {"rocm": _said(json.loads(checkout.text("version.json"))["rocm-version"])}
    return theirs, {"rocm": (read_toml(TRIGGERS_FILE)["rocm_base_version"],)}


def _triton(checkout: Tree) -> tuple[Facts, Facts]:
    ref = load_refs(None, ROOT, platform="windows")["nightly"]
    return {"commit": _said(checkout.text(_TRITON).strip())}, {"commit": (ref.projects["triton"].ref,)}


def _windows(checkout: Tree) -> tuple[Facts, Facts]:
    theirs = {
        "libuv": tuple(found(r"libuv\.git -b v(\S+)", checkout, _WINDOWS)),
        "ninja": tuple(found(r"ninja --version (\S+)", checkout, _WINDOWS)),
    }
    libuv, lock = read_toml(TOOLCHAIN_FILE)["libuv"]["version"], read_text(ROOT / _LOCK)
    return theirs, {"libuv": (libuv,), "ninja": tuple(re.findall(r"^ninja==(\S+)", lock, re.MULTILINE))}


def _said(value: str) -> tuple[str, ...]:
    return (value,) if value else ()


def _tuples(facts: dict[str, Sequence[str]]) -> Facts:
    return {key: tuple(values) for key, values in facts.items()}


SUBJECTS = (
    Subject(name="matrix", upstream=_MATRIX, here="ci/matrix.toml, refs.toml", facts=_matrix),
    Subject(name="preloads", upstream=_BUILDER, here="pytorch_build/platforms/", facts=_preloads),
    Subject(name="tests", upstream=_TESTS, here="pytorch_build/test/configurations.toml", facts=_tests),
    Subject(name="skips", upstream=_SKIPS, here="pytorch_build/test/skips/", facts=_skips),
    Subject(name="ROCm's version", upstream="version.json", here="ci/triggers.toml", facts=_versions),
    Subject(name="Windows tools", upstream=_WINDOWS, here=f"toolchain.toml, {_LOCK}", facts=_windows),
    Subject(name="triton on Windows", upstream=_TRITON, here="pytorch_build/refs/refs.toml", facts=_triton),
)
