"""Indexes, buckets, images and machines."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from ci.drift.comparing import Subject
from ci.drift.tree import Python, found, keyword, moved
from ci.plan.data import FAMILIES_FILE, Families
from ci.plan.runners import runners
from ci.publish.buckets import buckets
from core.cli.options import ROOT
from core.data import load_toml, read_text
from core.run.locations import run_buckets
from pytorch_build.containers.running import load_container
from rocm_packaging.rocm_sources import release_indexes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ci.drift.comparing import Facts
    from ci.drift.tree import Tree

_VENV = "build_tools/setup_venv.py"
_RELEASES = "RELEASES.md"
_BUCKETS = "build_tools/_therock_utils/s3_buckets.py"
_PATHS = "build_tools/_therock_utils/python_package_paths.py"
_FAMILIES = "build_tools/github_actions/amdgpu_family_matrix.py"
_BUILD = ".github/workflows/multi_arch_build_portable_linux_pytorch_wheels.yml"
_TEST = ".github/workflows/test_pytorch_wheels.yml"
_SETUP = ".github/workflows/setup.yml"
_IMAGE = r"ghcr\.io/rocm/(therock_build_manylinux_x86_64|no_rocm_image_ubuntu24_04)@(sha256:[0-9a-f]{64})"
_SHARED = r"inputs\.release_type == '([\w-]+)' && 'therock-pytorch-sccache-(\w+)'"
_OURS = "ci/buckets.toml"
_INDEXES = "rocm_packaging/rocm_indexes.toml"
_CONTAINER = "pytorch_build/containers/container.toml, .github/workflows/setup.yml"


def _indexes(checkout: Tree) -> tuple[Facts, Facts]:
    data = release_indexes().indexes
    theirs = {name: (url,) for name, url in Python(checkout, _VENV).constant("ROCM_INDEX_URLS_MAP").items()}
    return theirs, {name: (data[name].url,) for name in theirs if name in data}


def _told(checkout: Tree) -> tuple[Facts, Facts]:
    every = set(found(r"--index-url[= ](https://\S+)", checkout, _RELEASES))
    known = {index.url for index in release_indexes().indexes.values()}
    return {"indexes": tuple(sorted(every))}, {"indexes": tuple(sorted(every & known))}


def _buckets(checkout: Tree) -> tuple[Facts, Facts]:
    python = Python(checkout, _BUCKETS)
    default = {
        node.target.id: str(ast.literal_eval(node.value.keywords[0].value))
        for node in ast.walk(python.module)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Call)
    }
    if not {"region", "iam_account"} <= default.keys():
        raise moved(_BUCKETS, "a region and an account")
    theirs: dict[str, tuple[str, ...]] = {"region": (default["region"],)}
    for call in python.calls(python.assigned("s3_bucket_configs"), "S3BucketConfig"):
        name, role = ast.literal_eval(call.args[0]), keyword(call, "iam_role")
        named = ast.literal_eval(role) if role else None
        if name.endswith(("-artifacts", "-artifacts-external")):
            theirs[name] = _some(named and f"arn:aws:iam::{default['iam_account']}:role/{named}")
    data = buckets()
    ours: dict[str, tuple[str, ...]] = {"region": (data.region,)}
    for one in data.release_types.values():
        ours[one.bucket] = _some(one.role)
        if one.external_bucket:
            ours[one.external_bucket] = _some(one.external_role)
    return theirs, ours


def _products(checkout: Tree) -> tuple[Facts, Facts]:
    python, paths = Python(checkout, _BUCKETS), Python(checkout, _PATHS)
    (config,) = python.calls(python.function("get_product_release_bucket_config"), "S3BucketConfig")
    parts = {name: keyword(config, name) for name in ("name", "iam_account", "iam_role")}
    if None in parts.values():
        raise moved(_BUCKETS, "the buckets of products")
    written = {name: python.template(node) for name, node in parts.items() if node is not None}
    (index,) = _returned(python, "get_release_package_index_url")
    folders = [paths.template(node) for node in ast.walk(paths.module) if isinstance(node, ast.JoinedStr)]
    folders = [one.partition("/{package}")[0] for one in folders if one.startswith("v5/")]
    if not folders:
        raise moved(_PATHS, "the folder of a package")
    data = buckets().products
    streams = python.constant("_RELEASE_STREAM_BY_TYPE")
    theirs = {
        "bucket": (written["name"],),
        "role": (f"arn:aws:iam::{written['iam_account']}:role/{written['iam_role']}",),
        "index": (index,),
        "products": tuple(python.constant("_ALLOWED_RELEASE_PRODUCTS")),
        "folder": tuple(one.replace("{index}", "whl-next") for one in folders),
        **{f"stream of {name}": (stream,) for name, stream in streams.items()},
    }
    ours = {name: (getattr(data, name),) for name in ("bucket", "role", "index", "folder")}
    ours |= {f"stream of {name}": (stream,) for name, stream in data.streams.items()}
    return theirs, {**ours, "products": tuple(data.distributions)}


def _returned(python: Python, function: str) -> list[str]:
    every = [one.value for one in ast.walk(python.function(function)) if isinstance(one, ast.Return)]
    return [python.template(one) for one in every if isinstance(one, ast.JoinedStr)]


def _caches(checkout: Tree) -> tuple[Facts, Facts]:
    data = run_buckets().compiler_caches
    theirs = {
        "region": found(r"SCCACHE_REGION: (\S+)", checkout, _BUILD),
        "role's region": found(r"aws-region: (\S+)", checkout, _BUILD)[:1],
        "session": found(r"role-duration-seconds: (\d+)", checkout, _BUILD),
        "bucket": found(r"format\('(therock-pytorch-sccache-\{0\})'", checkout, _BUILD),
        "role": found(r"format\('(arn:aws:iam::\d+:role/therock-\{0\})'", checkout, _BUILD),
        "other types": [f"{kind}: {shared}" for kind, shared in found(_SHARED, checkout, _BUILD)],
    }
    ours: dict[str, tuple[str, ...]] = {}
    if data is not None:
        ours = {
            "region": (data.region,),
            "role's region": (data.region,),
            "session": (str(data.session_seconds),),
            "bucket": (data.bucket.replace("{type}", "{0}"),),
            "role": (data.role.replace("{type}", "{0}"),),
            "other types": tuple(f"{kind}: {one}" for kind, one in data.types.items() if kind != one),
        }
    return {key: tuple(value) for key, value in theirs.items()}, ours


def _images(checkout: Tree) -> tuple[Facts, Facts]:
    said = [one for path in (_BUILD, _TEST) for one in found(_IMAGE, checkout, path)]
    ours = re.findall(_IMAGE, f"{read_text(ROOT / _SETUP)} {load_container().image}")
    return _digests(said), _digests(ours)


def _digests(said: Sequence[tuple[str, str]]) -> Facts:
    return {name: tuple({digest for one, digest in said if one == name}) for name, _ in said}


def _runners(checkout: Tree) -> tuple[Facts, Facts]:
    python = Python(checkout, _FAMILIES)
    theirs: dict[str, tuple[str, ...]] = {}
    for platform, kinds in python.constant("BUILD_RUNNER_LABELS").items():
        for kind, labels in kinds.items():
            theirs[f"{platform} builds, {kind}"] = tuple(one["label"] for one in labels)
    for tier in ("presubmit", "postsubmit", "nightly"):
        for platforms in python.constant(f"amdgpu_family_info_matrix_{tier}").values():
            for platform, row in platforms.items():
                theirs |= _their_family(f"{row['family']} on {platform}", tier, row)
    return theirs, _own_runners()


def _their_family(name: str, tier: str, row: dict[str, Any]) -> Facts:
    later = row.get("nightly_check_only_for_family") or row.get("submodule_bump_tests_only")
    return {
        f"{name}, tier": (tier,),
        f"{name}, tests": _some(row["test-runs-on"] and ("nightly" if later else "presubmit")),
        f"{name}, test_runner": _labels(row, "test-runs-on"),
        f"{name}, several_gpus": _labels(row, "test-runs-on-multi-gpu"),
        f"{name}, kernels": tuple(": ".join(one) for one in row.get("test-runs-on-kernel", {}).items()),
        f"{name}, sandbox": _labels(row, "test-runs-on-sandbox"),
        f"{name}, bypass": ("yes",) if row.get("bypass_tests_for_releases") else (),
        f"{name}, variants": tuple(row["build_variants"]),
    }


def _labels(row: dict[str, Any], key: str) -> tuple[str, ...]:
    """Read a label, and those that share its work."""
    return _some(row.get(key), *(one["label"] for one in row.get(f"{key}-labels", ())))


def _own_runners() -> Facts:
    data = runners()
    ours: dict[str, tuple[str, ...]] = {}
    for platform, machines in data.machines.items():
        ours[f"{platform} builds, default"] = (machines.build,)
        ours[f"{platform} builds, sanitizer"] = _some(machines.sanitizer)
    for family, platforms in load_toml(FAMILIES_FILE, Families).families.items():
        for platform, on in platforms.items() if family != "cpu" else ():
            name, row = f"{family} on {platform}", data.of(family, platform)
            ours |= {
                f"{name}, tier": (on.tier,),
                f"{name}, tests": (on.tests,) if row.test_runner else (),
                f"{name}, test_runner": _some(row.test_runner, *row.more_test_runners),
                f"{name}, several_gpus": _some(row.several_gpus),
                f"{name}, kernels": tuple(f"{kernel}: {label}" for kernel, label in row.kernels.items()),
                f"{name}, bypass": ("yes",) if row.bypass_tests_for_releases else (),
                f"{name}, variants": on.variants,
            }
    return ours


def _some(*labels: str | None) -> tuple[str, ...]:
    return tuple(sorted({label for label in labels if label}))


SUBJECTS = (
    Subject(name="indexes", upstream=_VENV, here=_INDEXES, facts=_indexes),
    Subject(name="documented indexes", upstream=_RELEASES, here=_INDEXES, facts=_told),
    Subject(name="buckets", upstream=_BUCKETS, here=_OURS, facts=_buckets),
    Subject(name="product buckets", upstream=_BUCKETS, here=_OURS, facts=_products),
    Subject(name="compiler caches", upstream=_BUILD, here=_OURS, facts=_caches),
    Subject(
        name="images",
        upstream=_BUILD,
        here=_CONTAINER,
        facts=_images,
    ),
    Subject(name="machines", upstream=_FAMILIES, here="ci/runners.toml, ci/families.toml", facts=_runners),
)
