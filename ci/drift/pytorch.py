"""PyTorch: Pythons, refs, preloads, tools, images and caches of its builds, and the tests it skips."""

import ast
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import cast

from packaging.specifiers import SpecifierSet

from ci.drift.tree import Facts, Python, Subject, Tree, Values, parted, strings
from ci.plan.data import load
from core.cli.options import ROOT
from core.data import read_text, read_toml
from core.run import PLATFORMS
from core.run.locations import CompilerCaches, run_buckets
from pytorch_build.build.container import load_container
from pytorch_build.build.toolchain import FILE as TOOLCHAIN_FILE
from pytorch_build.platforms import LINUX, WINDOWS
from pytorch_build.refs.torch_refs import load_refs
from pytorch_build.test import skip_rules
from pytorch_build.test.upstream_tests import DATA as CONFIGURATIONS_FILE

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


def _matrix(checkout: Tree) -> tuple[Facts, Facts]:
    python = Python(checkout, _MATRIX)
    stable, ci_refs = python.constant("RELEASE_STABLE_PYTORCH_REFS"), python.constant("CI_PYTORCH_REFS")
    nightly = strings(python.assigned("RELEASE_PYTORCH_REFS"))
    released = python.constant("RELEASE_PYTHON_VERSIONS")
    unsupported = python.constant("UNSUPPORTED_AMDGPU_FAMILIES")  # an empty set is written {} there
    both: dict[str, tuple[Values, Values]] = {"untested": (_untested(python), "")}
    data = load().matrix
    for platform in PLATFORMS:
        refs = load_refs(platform=platform)
        rows = [row for row in data.release.exclude if row.platform == platform and not row.pythons]
        excluded = [f"{ref}: {one}" for row in rows for ref in row.torch_refs for one in row.gpu_families]
        not_built = [f"{ref}: {one}" for ref, some in unsupported[platform].items() for one in some]
        in_ci = python.constant("CI_PYTHON_VERSIONS")[platform]
        both |= {
            f"pythons on {platform}": (released, data.release.pythons),
            f"pythons in CI on {platform}": (in_ci, data.ci.pythons),
            f"refs on {platform}": ([*stable[platform], *nightly], data.release.torch_refs),
            f"refs in CI on {platform}": (ci_refs[platform], data.ci.torch_refs),
            f"not built on {platform}": (not_built, excluded),
        }
        for ref in data.release.torch_refs:
            both[f"pythons of {ref} on {platform}"] = (released, refs[ref].pythons)
    return parted(both)


def _untested(python: Python) -> Sequence[str]:
    """Find the cells whose wheels upstream builds and does not test: compared as whole tuples."""
    function = python.function("generate_pytorch_matrix_for_release_type")
    right = [node.comparators[0] for node in ast.walk(function) if isinstance(node, ast.Compare)]
    return ["-".join(strings(one)) for one in right if isinstance(one, ast.Tuple)]


def _preloads(checkout: Tree) -> tuple[Facts, Facts]:
    python = Python(checkout, _BUILDER)
    ours = {"linux": LINUX.preloads, "windows": WINDOWS.preloads}
    return {one: python.constant(f"{one.upper()}_LIBRARY_PRELOADS") for one in ours}, ours


def _tests(checkout: Tree) -> tuple[Facts, Facts]:
    python = Python(checkout, _TESTS)
    data = read_toml(CONFIGURATIONS_FILE)
    generic, own = data["configurations"]["inductor"]["steps"]
    seconds = python.constant("PYTEST_TIMEOUT_SECONDS"), data["limits"]["test_seconds"]
    return parted(
        {
            "inductor, operators": (python.constant("INDUCTOR_GENERIC_TESTS"), generic["files"]),
            "inductor, its own": (python.constant("INDUCTOR_UNIT_TESTS"), own["files"]),
            "left out": (python.constant("EXCLUDED_TEST_MODULES"), ""),
            "seconds of a test": (str(seconds[0]), str(seconds[1])),
        }
    )


def _skips(checkout: Tree) -> tuple[Facts, Facts]:
    both: dict[str, tuple[Values, Values]] = {}
    rules = skip_rules.load()
    for name in checkout.names(_SKIPS):
        torch = name.removeprefix("pytorch_").removesuffix(".py") if name.startswith("pytorch_") else ""
        if not (torch or name == "generic.py"):
            continue
        for where, files in Python(checkout, f"{_SKIPS}/{name}").constant("skip_tests").items():
            holding = (rule for rule in rules if _holds(rule, where, torch))
            lasts = [entry.rpartition("::")[2] for rule in holding for entry in rule.entries]
            for file, tests in files.items():
                # upstream's names hold in any class of any file
                ours = [
                    one
                    for one in tests
                    if any(fnmatchcase(one, last) or last.startswith(f"{one}*") for last in lasts)
                ]
                both[f"{name.removesuffix('.py')}, {where}: {file}"] = (tests, ours)
    return parted(both)


def _holds(rule: skip_rules.Rule, where: str, torch: str) -> bool:
    """Return whether a rule can hold where upstream's list does: on a platform, a GPU, or everywhere."""
    table = rule.table
    platform = "windows" if where == "windows" else "linux"
    return (not table.os or platform in table.os) and (
        not (torch and table.torch) or SpecifierSet(table.torch).contains(f"{torch}.0")
    )


def _triton(checkout: Tree) -> tuple[Facts, Facts]:
    ref = load_refs(platform="windows")["nightly"]
    return {"commit": checkout.text(_TRITON).strip()}, {"commit": ref.projects["triton"].ref}


def _windows(checkout: Tree) -> tuple[Facts, Facts]:
    libuv, lock = read_toml(TOOLCHAIN_FILE)["libuv"]["version"], read_text(ROOT / _LOCK)
    return {
        "libuv": checkout.find(r"libuv\.git -b v(\S+)", _WINDOWS),
        "ninja": checkout.find(r"ninja --version (\S+)", _WINDOWS),
    }, {"libuv": libuv, "ninja": re.findall(r"^ninja==(\S+)", lock, re.MULTILINE)}


def _caches(checkout: Tree) -> tuple[Facts, Facts]:
    # the project's own data has one, whatever a user's file may do
    data = cast("CompilerCaches", run_buckets().compiler_caches)
    bucket, role = (one.replace("{type}", "{0}") for one in (data.bucket, data.role))
    types = [f"{kind}: {one}" for kind, one in data.types.items() if kind != one]
    return parted(
        {
            "region": (checkout.find(r"SCCACHE_REGION: (\S+)", _BUILD), data.region),
            "role's region": (checkout.find(r"aws-region: (\S+)", _BUILD)[:1], data.region),
            "session": (checkout.find(r"role-duration-seconds: (\d+)", _BUILD), str(data.session_seconds)),
            "bucket": (checkout.find(r"format\('(therock-pytorch-sccache-\{0\})'", _BUILD), bucket),
            "role": (checkout.find(r"format\('(arn:aws:iam::\d+:role/therock-\{0\})'", _BUILD), role),
            "other types": ([": ".join(one) for one in checkout.find(_SHARED, _BUILD)], types),
        }
    )


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
