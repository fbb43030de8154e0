"""PyTorch: Pythons, refs, preloads, tools, images and caches of its builds, and the tests it skips."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from ci.drift.tree import Facts, Python, Subject, Tree, strings
from ci.plan.data import load
from core.cli.options import ROOT
from core.data import read_text, read_toml
from core.run import Platform
from core.run.locations import run_buckets
from pytorch_build.build.container import load_container
from pytorch_build.build.toolchain import FILE as TOOLCHAIN_FILE
from pytorch_build.platforms import LINUX, WINDOWS
from pytorch_build.refs.torch_refs import load_refs
from pytorch_build.test import skip_rules
from pytorch_build.test.upstream_tests import DATA as CONFIGURATIONS_FILE

if TYPE_CHECKING:
    from pytorch_build.test.skip_rules import Rule

_MATRIX = "build_tools/github_actions/configure_pytorch_release_matrix.py"
_BUILDER = "external-builds/pytorch/build_prod_wheels.py"
_TESTS = "external-builds/pytorch/run_pytorch_tests_full.py"
_SKIPS = "external-builds/pytorch/skip_tests"
_TRITON = "external-builds/pytorch/ci_commit_pins/triton-windows.txt"
_BUILD = ".github/workflows/multi_arch_build_portable_linux_pytorch_wheels.yml"
_TEST = ".github/workflows/test_pytorch_wheels.yml"
_WINDOWS = ".github/workflows/multi_arch_build_windows_pytorch_wheels.yml"
_SETUP = ".github/workflows/setup.yml"
_LOCK = "requirements/target-windows-3.12.txt"
_CONTAINER = f"pytorch_build/build/container.toml, {_SETUP}"
_IMAGE = r"ghcr\.io/rocm/(therock_build_manylinux_x86_64|no_rocm_image_ubuntu24_04)@(sha256:[0-9a-f]{64})"
_SHARED = r"inputs\.release_type == '([\w-]+)' && 'therock-pytorch-sccache-(\w+)'"
_PLATFORMS: tuple[Platform, ...] = ("linux", "windows")


def _matrix(checkout: Tree) -> tuple[Facts, Facts]:
    python = Python(checkout, _MATRIX)
    stable, ci_refs = python.constant("RELEASE_STABLE_PYTORCH_REFS"), python.constant("CI_PYTORCH_REFS")
    nightly = strings(python.assigned("RELEASE_PYTORCH_REFS"))
    released = python.constant("RELEASE_PYTHON_VERSIONS")
    unsupported = python.constant("UNSUPPORTED_AMDGPU_FAMILIES")  # an empty set is written {} there
    theirs: dict[str, Sequence[str]] = {"untested": _untested(python)}
    ours: dict[str, Sequence[str]] = {}
    data = load().matrix
    for platform in _PLATFORMS:
        refs = load_refs(None, ROOT, platform=platform)
        rows = [row for row in data.release.exclude if row.platform == platform and not row.pythons]
        excluded = [f"{ref}: {one}" for row in rows for ref in row.torch_refs for one in row.gpu_families]
        left_out = unsupported[platform]
        theirs |= {
            f"pythons on {platform}": released,
            f"pythons in CI on {platform}": python.constant("CI_PYTHON_VERSIONS")[platform],
            f"refs on {platform}": [*stable[platform], *nightly],
            f"refs in CI on {platform}": ci_refs[platform],
            f"not built on {platform}": [f"{ref}: {one}" for ref, some in left_out.items() for one in some],
        }
        ours |= {
            f"pythons on {platform}": data.release.pythons,
            f"pythons in CI on {platform}": data.ci.pythons,
            f"refs on {platform}": data.release.torch_refs,
            f"refs in CI on {platform}": data.ci.torch_refs,
            f"not built on {platform}": excluded,
        }
        for ref in data.release.torch_refs:
            theirs[f"pythons of {ref} on {platform}"] = released
            ours[f"pythons of {ref} on {platform}"] = refs[ref].pythons
    return theirs, ours


def _untested(python: Python) -> Sequence[str]:
    """Find the cells whose wheels upstream builds and does not test: compared as whole tuples."""
    function = python.function("generate_pytorch_matrix_for_release_type")
    right = [node.comparators[0] for node in ast.walk(function) if isinstance(node, ast.Compare)]
    return ["-".join(strings(one)) for one in right if isinstance(one, ast.Tuple)]


def _preloads(checkout: Tree) -> tuple[Facts, Facts]:
    python = Python(checkout, _BUILDER)
    theirs = {str(one): python.constant(f"{one.upper()}_LIBRARY_PRELOADS") for one in _PLATFORMS}
    return theirs, {"linux": LINUX.preloads, "windows": WINDOWS.preloads}


def _tests(checkout: Tree) -> tuple[Facts, Facts]:
    python = Python(checkout, _TESTS)
    data = read_toml(CONFIGURATIONS_FILE)
    generic, own = data["configurations"]["inductor"]["steps"]
    return {
        "inductor, operators": python.constant("INDUCTOR_GENERIC_TESTS"),
        "inductor, its own": python.constant("INDUCTOR_UNIT_TESTS"),
        "left out": python.constant("EXCLUDED_TEST_MODULES"),
        "seconds of a test": str(python.constant("PYTEST_TIMEOUT_SECONDS")),
    }, {
        "inductor, operators": generic["files"],
        "inductor, its own": own["files"],
        "seconds of a test": str(data["limits"]["test_seconds"]),
    }


def _skips(checkout: Tree) -> tuple[Facts, Facts]:
    theirs: dict[str, Sequence[str]] = {}
    ours: dict[str, Sequence[str]] = {}
    rules = skip_rules.load()
    for name in checkout.names(_SKIPS):
        torch = name.removeprefix("pytorch_").removesuffix(".py") if name.startswith("pytorch_") else ""
        if not (torch or name == "generic.py"):
            continue
        for where, files in Python(checkout, f"{_SKIPS}/{name}").constant("skip_tests").items():
            known = [entry for rule in rules if _holds(rule, where, torch) for entry in rule.entries]
            lasts = [entry.rpartition("::")[2] for entry in known]
            for file, tests in files.items():
                key = f"{name.removesuffix('.py')}, {where}: {file}"
                theirs[key] = tests
                # upstream's names hold in any class of any file
                ours[key] = [
                    one
                    for one in tests
                    if any(fnmatchcase(one, last) or last.startswith(f"{one}*") for last in lasts)
                ]
    return theirs, ours


def _holds(rule: Rule, where: str, torch: str) -> bool:
    """Return whether a rule can hold where upstream's list does: on a platform, a GPU, or everywhere."""
    table = rule.table
    platform = "windows" if where == "windows" else "linux"
    return (not table.os or platform in table.os) and (
        not (torch and table.torch) or SpecifierSet(table.torch).contains(f"{torch}.0")
    )


def _triton(checkout: Tree) -> tuple[Facts, Facts]:
    ref = load_refs(None, ROOT, platform="windows")["nightly"]
    return {"commit": checkout.text(_TRITON).strip()}, {"commit": ref.projects["triton"].ref}


def _windows(checkout: Tree) -> tuple[Facts, Facts]:
    libuv, lock = read_toml(TOOLCHAIN_FILE)["libuv"]["version"], read_text(ROOT / _LOCK)
    return {
        "libuv": checkout.find(r"libuv\.git -b v(\S+)", _WINDOWS),
        "ninja": checkout.find(r"ninja --version (\S+)", _WINDOWS),
    }, {"libuv": libuv, "ninja": re.findall(r"^ninja==(\S+)", lock, re.MULTILINE)}


def _caches(checkout: Tree) -> tuple[Facts, Facts]:
    data = run_buckets().compiler_caches
    shared = checkout.find(_SHARED, _BUILD)
    theirs = {
        "region": checkout.find(r"SCCACHE_REGION: (\S+)", _BUILD),
        "role's region": checkout.find(r"aws-region: (\S+)", _BUILD)[:1],
        "session": checkout.find(r"role-duration-seconds: (\d+)", _BUILD),
        "bucket": checkout.find(r"format\('(therock-pytorch-sccache-\{0\})'", _BUILD),
        "role": checkout.find(r"format\('(arn:aws:iam::\d+:role/therock-\{0\})'", _BUILD),
        "other types": [f"{kind}: {one}" for kind, one in shared],
    }
    if data is None:
        return theirs, {}
    return theirs, {
        "region": data.region,
        "role's region": data.region,
        "session": str(data.session_seconds),
        "bucket": data.bucket.replace("{type}", "{0}"),
        "role": data.role.replace("{type}", "{0}"),
        "other types": [f"{kind}: {one}" for kind, one in data.types.items() if kind != one],
    }


def _images(checkout: Tree) -> tuple[Facts, Facts]:
    theirs = [one for path in (_BUILD, _TEST) for one in checkout.find(_IMAGE, path)]
    ours = re.findall(_IMAGE, f"{read_text(ROOT / _SETUP)} {load_container().image}")
    digests = (
        {name: [digest for one, digest in some if one == name] for name, _ in some} for some in (theirs, ours)
    )
    return next(digests), next(digests)


SUBJECTS = (
    Subject(name="matrix", upstream=_MATRIX, here="ci/matrix.toml, refs.toml", facts=_matrix),
    Subject(name="preloads", upstream=_BUILDER, here="pytorch_build/platforms.toml", facts=_preloads),
    Subject(name="tests", upstream=_TESTS, here="pytorch_build/test/configurations.toml", facts=_tests),
    Subject(name="skips", upstream=_SKIPS, here="pytorch_build/test/skips/", facts=_skips),
    Subject(name="Windows tools", upstream=_WINDOWS, here=f"toolchain.toml, {_LOCK}", facts=_windows),
    Subject(name="triton on Windows", upstream=_TRITON, here="pytorch_build/refs/refs.toml", facts=_triton),
    Subject(name="compiler caches", upstream=_BUILD, here="ci/buckets.toml", facts=_caches),
    Subject(name="images", upstream=_BUILD, here=_CONTAINER, facts=_images),
)
