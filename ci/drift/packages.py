"""ROCm: GPU targets, packages and their artifacts, versions, indexes, buckets and machines."""

import ast
import json
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from ci.drift.tree import Facts, Python, Subject, Tree, keyword, moved, strings
from ci.plan.data import FAMILIES_FILE, Families, runners, triggers
from ci.publish.buckets import buckets
from core.data import load_toml
from core.families import families
from rocm_packaging.origin import release_indexes
from rocm_packaging.packages.layouts import packages

_TARGETS = "cmake/therock_amdgpu_targets.cmake"
_BUILDER = "build_tools/build_python_packages.py"
_SCRIPTS = "build_tools/packaging/python/templates/rocm-{}/setup.py"
_OWNERS = "build_tools/packaging/python/rocm_whl_next_ownership.yaml"
_TOPOLOGY = "BUILD_TOPOLOGY.toml"
_VENV = "build_tools/setup_venv.py"
_RELEASES = "RELEASES.md"
_BUCKETS = "build_tools/_therock_utils/s3_buckets.py"
_PATHS = "build_tools/_therock_utils/python_package_paths.py"
_FAMILIES = "build_tools/github_actions/amdgpu_family_matrix.py"
_PACKAGES = "rocm_packaging/packages/packages.toml"
_INDEXES = "rocm_packaging/rocm_indexes.toml"
_OWN_BUCKETS = "ci/buckets.toml"
# upstream's names for a package while it is made
_VARIABLES = {"core": "core", "profiler": "profiler", "lib": "libraries", "dev": "device"}


def _targets(checkout: Tree) -> tuple[Facts, Facts]:
    theirs = defaultdict[str, list[str]](list)
    pattern = r"^therock_add_amdgpu_target\((gfx\w+)\s+\"[^\"]*\"([^)#]*)"
    for target, rest in checkout.find(pattern, _TARGETS):
        named = rest.partition("FAMILY")[2].partition("EXCLUDE_TARGET_PROJECTS")[0].split()
        for family in (target, *named):
            theirs[family].append(target)
    return theirs, {name: family.targets for name, family in families().items() if family.targets}


def _artifacts(checkout: Tree) -> tuple[Facts, Facts]:
    builder = Python(checkout, _BUILDER)
    split = builder.function("_run_kpack_split")
    devel = builder.calls(split, "populate_devel_files")[0]
    runtime, only_lib, with_headers = builder.tests("core_artifact_filter", "name")
    theirs: dict[str, Sequence[str]] = {}
    for package in _VARIABLES.values():
        theirs[f"{package}.artifacts"] = builder.tests(f"{package}_artifact_filter", "name")[0]
        theirs[f"{package}.components"] = builder.tests(f"{package}_artifact_filter", "component")[0]
    theirs |= {
        "profiler.include": builder.constant("PROFILER_WHEEL_INCLUDES"),
        "core.artifacts": [*runtime, *only_lib],
        "core.only_lib": only_lib,
        "core.with_headers": with_headers,
    }
    listed, left = keyword(devel, "addl_artifact_names"), keyword(devel, "exclude_components")
    if listed is None or left is None:
        raise moved(_BUILDER, "the artifacts of the development tree")
    theirs |= {"devel.artifacts": strings(listed), "devel.without": strings(left)}
    for variable, package in _VARIABLES.items():
        within = builder.function("run") if package in {"core", "profiler"} else split
        theirs[f"{package}.rpath_core"] = [
            strings(call)[0]
            for call in builder.calls(within, "rpath_dep")
            if getattr(getattr(call.func, "value", None), "id", "") == variable
        ]
    return theirs, _own_artifacts()


def _own_artifacts() -> dict[str, Sequence[str]]:
    data = packages()
    known = ("lib", "run", "dbg", "dev", "doc", "test")
    names, facts = _VARIABLES.values(), ("artifacts", "components", "rpath_core")
    return {
        **{f"{name}.{fact}": getattr(getattr(data, name), fact) for name in names for fact in facts},
        "core.only_lib": data.core.only_lib,
        "core.with_headers": data.core.with_headers,
        "profiler.include": data.profiler.include,
        "devel.artifacts": data.devel.artifacts,
        "devel.without": [one for one in known if one not in data.devel.components],
    }


def _topology(checkout: Tree) -> tuple[Facts, Facts]:
    there = tomllib.loads(checkout.text(_TOPOLOGY))["artifacts"]
    named = {name for key, values in _own_artifacts().items() if key.endswith("artifacts") for name in values}
    return {"artifacts": sorted(named & there.keys())}, {"artifacts": sorted(named)}


def _programs(checkout: Tree) -> tuple[Facts, Facts]:
    ours = {"sdk-core": [*packages().programs], "profiler": [*packages().profiler_programs]}
    pattern = r"^\s+\"([\w+.-]+)=rocm_\w+\._cli:"
    return {name: checkout.find(pattern, _SCRIPTS.format(name)) for name in ours}, ours


def _distributions(checkout: Tree) -> tuple[Facts, Facts]:
    owned, ours = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name, product in checkout.find(r"^ {6}([\w.-]+):\n {8}owner_path: (\w+)/", _OWNERS):
        owned[product].append(name)
        for own, patterns in buckets().products.distributions.items():
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                ours[own].append(name)
    return owned, ours


def _version(checkout: Tree) -> tuple[Facts, Facts]:
    theirs = json.loads(checkout.text("version.json"))["rocm-version"]
    return {"rocm": theirs}, {"rocm": triggers().rocm_base_version}


def _indexes(checkout: Tree) -> tuple[Facts, Facts]:
    data = release_indexes().indexes
    theirs = Python(checkout, _VENV).constant("ROCM_INDEX_URLS_MAP")
    return theirs, {name: data[name].url for name in theirs if name in data}


def _documented(checkout: Tree) -> tuple[Facts, Facts]:
    every = set(checkout.find(r"--index-url[= ](https://\S+)", _RELEASES))
    known = {index.url for index in release_indexes().indexes.values()}
    return {"indexes": sorted(every)}, {"indexes": sorted(every & known)}


def _buckets(checkout: Tree) -> tuple[Facts, Facts]:
    python = Python(checkout, _BUCKETS)
    region, account = (strings(python.assigned(name)) for name in ("region", "iam_account"))
    if not (region and account):
        raise moved(_BUCKETS, "a region and an account")
    theirs: dict[str, str] = {"region": region[0]}
    for call in python.calls(python.assigned("s3_bucket_configs"), "S3BucketConfig"):
        name, role = ast.literal_eval(call.args[0]), keyword(call, "iam_role")
        named = ast.literal_eval(role) if role else None
        if name.endswith(("-artifacts", "-artifacts-external")):
            theirs[name] = f"arn:aws:iam::{account[0]}:role/{named}" if named else ""
    data = buckets()
    ours = {"region": data.region, **{one.bucket: one.role for one in data.release_types.values()}}
    ours |= {one.external_bucket: one.external_role for one in data.release_types.values()}
    return theirs, {bucket: role for bucket, role in ours.items() if bucket}


def _products(checkout: Tree) -> tuple[Facts, Facts]:
    python, paths = Python(checkout, _BUCKETS), Python(checkout, _PATHS)
    (config,) = python.calls(python.function("get_product_release_bucket_config"), "S3BucketConfig")
    parts = {name: keyword(config, name) for name in ("name", "iam_account", "iam_role")}
    written = {name: python.template(node) for name, node in parts.items() if node is not None}
    if written.keys() < parts.keys():
        raise moved(_BUCKETS, "the buckets of products")
    every = [paths.template(node) for node in ast.walk(paths.module) if isinstance(node, ast.JoinedStr)]
    folders = [one.partition("/{package}")[0] for one in every if one.startswith("v5/")]
    if not folders:
        raise moved(_PATHS, "the folder of a package")
    index = python.function("get_release_package_index_url")
    returned = (one.value for one in ast.walk(index) if isinstance(one, ast.Return))
    (url,) = (python.template(one) for one in returned if isinstance(one, ast.JoinedStr))
    streams = python.constant("_RELEASE_STREAM_BY_TYPE")
    theirs = {
        "bucket": written["name"],
        "role": f"arn:aws:iam::{written['iam_account']}:role/{written['iam_role']}",
        "index": url,
        "products": python.constant("_ALLOWED_RELEASE_PRODUCTS"),
        "folder": [one.replace("{index}", "whl-next") for one in folders],
        **{f"stream of {name}": stream for name, stream in streams.items()},
    }
    data = buckets().products
    return theirs, {
        **{name: getattr(data, name) for name in ("bucket", "role", "index", "folder")},
        **{f"stream of {name}": stream for name, stream in data.streams.items()},
        "products": [*data.distributions],
    }


def _machines(checkout: Tree) -> tuple[Facts, Facts]:
    python = Python(checkout, _FAMILIES)
    theirs: dict[str, str | Sequence[str]] = {}
    for platform, kinds in python.constant("BUILD_RUNNER_LABELS").items():
        for kind, labels in kinds.items():
            theirs[f"{platform} builds, {kind}"] = [one["label"] for one in labels]
    for tier in ("presubmit", "postsubmit", "nightly"):
        for platforms in python.constant(f"amdgpu_family_info_matrix_{tier}").values():
            for platform, row in platforms.items():
                facts = {"tier": tier, **_their_machines(row)}
                theirs |= {f"{row['family']} on {platform}, {key}": value for key, value in facts.items()}
    return theirs, _own_machines()


def _their_machines(row: dict[str, Any]) -> Facts:
    later = row.get("nightly_check_only_for_family") or row.get("submodule_bump_tests_only")

    def labels(key: str) -> Sequence[str]:
        """A label, and those that share its work."""
        return [row.get(key) or "", *(one["label"] for one in row.get(f"{key}-labels", ()))]

    return {
        "tests": ("nightly" if later else "presubmit") if row["test-runs-on"] else "",
        "test_runner": labels("test-runs-on"),
        "several_gpus": labels("test-runs-on-multi-gpu"),
        "kernels": [": ".join(one) for one in row.get("test-runs-on-kernel", {}).items()],
        "sandbox": labels("test-runs-on-sandbox"),
        "bypass": "yes" if row.get("bypass_tests_for_releases") else "",
        "variants": row["build_variants"],
    }


def _own_machines() -> Facts:
    data = runners()
    ours: dict[str, str | Sequence[str]] = {}
    for platform, machines in data.machines.items():
        ours[f"{platform} builds, default"] = machines.build
        ours[f"{platform} builds, sanitizer"] = machines.sanitizer or ""
    for family, platforms in load_toml(FAMILIES_FILE, Families).families.items():
        for platform, on in platforms.items() if family != "cpu" else ():
            row = data.of(family, platform)
            facts = {
                "tier": on.tier,
                "tests": on.tests if row.test_runner else "",
                "test_runner": [row.test_runner or "", *row.more_test_runners],
                "several_gpus": row.several_gpus or "",
                "kernels": [f"{kernel}: {label}" for kernel, label in row.kernels.items()],
                "bypass": "yes" if row.bypass_tests_for_releases else "",
                "variants": on.variants,
            }
            ours |= {f"{family} on {platform}, {key}": value for key, value in facts.items()}
    return ours


SUBJECTS = (
    Subject(name="targets", upstream=_TARGETS, here="core/families.toml", facts=_targets),
    Subject(name="artifacts", upstream=_BUILDER, here=_PACKAGES, facts=_artifacts),
    Subject(name="topology", upstream=_TOPOLOGY, here=_PACKAGES, facts=_topology),
    Subject(name="programs", upstream=_SCRIPTS.format("*"), here=_PACKAGES, facts=_programs),
    Subject(name="products", upstream=_OWNERS, here=_OWN_BUCKETS, facts=_distributions),
    Subject(name="ROCm's version", upstream="version.json", here="ci/triggers.toml", facts=_version),
    Subject(name="indexes", upstream=_VENV, here=_INDEXES, facts=_indexes),
    Subject(name="documented indexes", upstream=_RELEASES, here=_INDEXES, facts=_documented),
    Subject(name="buckets", upstream=_BUCKETS, here=_OWN_BUCKETS, facts=_buckets),
    Subject(name="product buckets", upstream=_BUCKETS, here=_OWN_BUCKETS, facts=_products),
    Subject(name="machines", upstream=_FAMILIES, here="ci/runners.toml, ci/families.toml", facts=_machines),
)
