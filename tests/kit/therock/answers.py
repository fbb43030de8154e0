"""Answers questions about a work tree of TheRock by its own code: ROOT QUESTION QUESTION_FILE ANSWER_FILE.

It runs in a process of its own, under an environment of TheRock's, and imports nothing of this project.
"""

import contextlib
import datetime as dt
import importlib
import importlib.util
import io
import json
import os
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(sys.argv[1])
BUILD_TOOLS = ROOT / "build_tools"
PYTORCH = ROOT / "external-builds" / "pytorch"
TEMPLATES = BUILD_TOOLS / "packaging" / "python" / "templates"


def module(name: str, folder: Path = BUILD_TOOLS) -> Any:
    """Import a module of the tree, from one of its folders of scripts."""
    sys.path.insert(0, str(folder))
    return importlib.import_module(name)


# Versions


def rocm_versions(day: str, base: str, commit: str, cases: Mapping[str, str | None]) -> dict[str, str]:
    """Return the version of ROCm by release type, on a day; `cases` has the candidate's number of each."""
    script = module("compute_rocm_package_version")

    class FixedDay(dt.datetime):
        @classmethod
        def today(cls) -> "FixedDay":
            return cls.fromisoformat(day)

    script.datetime = FixedDay
    versions: dict[str, str] = {}
    for release_type, candidate in cases.items():
        versions[release_type] = script.compute_version(
            release_type=release_type,
            prerelease_version=candidate,
            override_base_version=base,
            override_git_sha=commit,
            version_data={"release-metadata": {"base-date": "20260811"}},
        )
    return versions


def base_version() -> str:
    """Return the version of ROCm that the tree builds."""
    version: str = module("compute_rocm_package_version").load_version_file()["rocm-version"]
    return version


def pytorch_suffixes(versions: Sequence[str]) -> dict[str, str]:
    """Return the end of PyTorch's local versions by ROCm's version."""
    derive = module("github_actions.determine_version").derive_version_suffix
    return {version: derive(version) for version in versions}


# Where outputs lie


def run_outputs(cases: Mapping[str, Mapping[str, Any]], artifact: str) -> dict[str, Mapping[str, str]]:
    """Return where the outputs of runs lie, by a name for each run."""
    root_type = module("_therock_utils.workflow_outputs").WorkflowOutputRoot
    places: dict[str, Mapping[str, str]] = {}
    for name, case in cases.items():
        head = "somebody/fork" if case["fork"] else case["repository"]
        root = root_type.from_workflow_run(
            run_id=case["run_id"],
            platform=case["platform"],
            github_repository=case["repository"],
            release_type=case["release_type"],
            workflow_run={"id": case["run_id"], "head_repository": {"full_name": head}},
        )
        places[name] = {
            "run": root.root().s3_uri,
            "artifact": root.artifact(artifact).s3_uri,
            "logs": root.log_dir(case["group"]).s3_uri,
            "manifest": root.manifest(case["group"]).s3_uri,
            "packages": root.python_packages(case["group"]).s3_uri,
            "address": root.python_packages(case["group"]).https_url,
        }
    return places


def run_roles(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, str]]:
    """Return the region of runs' buckets and the role that writes to them, by a name for each run."""
    buckets = module("_therock_utils.s3_buckets")
    rights: dict[str, Mapping[str, str]] = {}
    for name, case in cases.items():
        head = "somebody/fork" if case["fork"] else case["repository"]
        config = buckets.get_artifacts_bucket_config_for_workflow_run(
            github_repository=case["repository"],
            release_type=case["release_type"],
            workflow_run={"id": case["run_id"], "head_repository": {"full_name": head}},
        )
        role = f"arn:aws:iam::{config.iam_account}:role/{config.iam_role}" if config.iam_role else ""
        rights[name] = {"role": role, "region": config.region}
    return rights


def products(release_types: Sequence[str], packages: Mapping[str, str]) -> dict[str, Any]:
    """Return where releases are distributed: buckets, roles, indexes, and the keys of files of packages."""
    buckets = module("_therock_utils.s3_buckets")
    paths = module("_therock_utils.python_package_paths")
    places: dict[str, Any] = {"products": sorted(buckets._ALLOWED_RELEASE_PRODUCTS)}
    for release_type in release_types:
        places[f"index of {release_type}"] = buckets.get_release_package_index_url(release_type)
        for product in places["products"]:
            config = buckets.get_product_release_bucket_config(release_type, product)
            places[f"bucket of {product} in {release_type}"] = config.name
            role = f"arn:aws:iam::{config.iam_account}:role/{config.iam_role}"
            places[f"role of {product} in {release_type}"] = role
    for filename, product in packages.items():
        places[f"key of {filename}"] = paths.structured_key(product, "whl-next", filename)
    return places


def owners() -> dict[str, str]:
    """Return the product that distributes each package."""
    yaml = importlib.import_module("yaml")
    path = BUILD_TOOLS / "packaging" / "python" / "rocm_whl_next_ownership.yaml"
    products_by_package: dict[str, str] = {}
    for index in yaml.safe_load(path.read_text(encoding="utf-8"))["python_indexes"]:
        for name, row in index["packages"].items():
            products_by_package[name] = row["owner_path"].partition("/")[0]
    return products_by_package


def content_types(names: Sequence[str]) -> dict[str, str]:
    """Return the type that files are uploaded as."""
    infer = module("_therock_utils.storage_backend").infer_content_type
    return {name: infer(Path(name)) for name in names}


def index_addresses() -> dict[str, str]:
    """Return the indexes that an environment can be made from, by name."""
    addresses: dict[str, str] = module("setup_venv").ROCM_INDEX_URLS_MAP
    return addresses


# ROCm's packages


def artifact_names(folder: str) -> dict[str, str]:
    """Return what the names of a folder's artifacts say: name, component, target without its features."""
    catalog = module("_therock_utils.artifacts").ArtifactCatalog(Path(folder))
    parts: dict[str, str] = {}
    for name in catalog.artifact_names:
        target = name.target_family.split(":")[0]
        folder_name = f"{name.name}_{name.component}_{name.target_family}"
        parts[folder_name] = f"{name.name} {name.component} {target}"
    return parts


def topology() -> dict[str, bool]:
    """Return the names of all artifacts, and whether they are built for each target."""
    table = tomllib.loads((ROOT / "BUILD_TOPOLOGY.toml").read_text(encoding="utf-8"))["artifacts"]
    return {name: row.get("type") == "target-specific" for name, row in table.items()}


def build_packages(artifacts: str, output: str, version: str, linux: str, windows: str) -> None:
    """Build ROCm's packages of a folder of artifacts."""
    builder = module("build_python_packages")
    builder.main(
        [
            *("--artifact-dir", artifacts),
            *("--dest-dir", output),
            *("--version", version),
            *("--linux-amdgpu-families", linux),
            *("--windows-amdgpu-families", windows),
        ]
    )


def sdist_requirements(folder: str, target: str) -> str:
    """Return what an unpacked sdist of `rocm` requires on a machine with a GPU, as setuptools writes it."""
    os.environ["ROCM_SDK_TARGET_FAMILY"] = target
    subprocess.run([sys.executable, "setup.py", "-q", "egg_info", "--egg-base", "."], cwd=folder, check=True)
    return (Path(folder) / "rocm.egg-info" / "requires.txt").read_text(encoding="utf-8")


def libraries() -> dict[str, Mapping[str, Any]]:
    """Return the libraries that programs ask for by a short name."""
    info = module("rocm_sdk._dist_info", TEMPLATES / "rocm" / "src")
    return {
        name: {
            "package": library.package.logical_name,
            "folder": library.posix_relpath,
            "linux": library.so_pattern,
            "windows": library.dll_pattern,
            "optional": library.optional,
        }
        for name, library in info.ALL_LIBRARIES.items()
    }


def build_manifest(repository: str, version: str, flags: str) -> Any:
    """Return the manifest of a build of a repository, in its environment of CI."""
    script = module("generate_therock_manifest")
    script.source_root = lambda: Path(repository)
    output = Path(repository).with_name("therock_manifest.json")
    words = ["--output", str(output), "--rocm-package-version", version, "--flag-settings", flags]
    sys.argv = ["generate_therock_manifest.py", *words]
    script.main()
    return json.loads(output.read_text(encoding="utf-8"))


def promote(folder: str, targets: Sequence[str]) -> None:
    """Write the release candidates of a folder again as releases, beside them."""
    script = module("promote_packages", BUILD_TOOLS / "packaging")
    script.main(Path(folder), delete=True, multi_arch_targets=list(targets) or None)


# GPU families


def families(lists: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the targets of each family, and of lists of families."""
    script = module("_therock_utils.cmake_amdgpu_targets")
    targets_by_family: dict[str, Sequence[str]] = script.amdgpu_family_map()
    for names in lists:
        targets_by_family[names] = script.expand_families(names.split(";"), targets_by_family)
    return targets_by_family


def ci_machines() -> dict[str, Any]:
    """Return the machines that build and test, and when which family is built."""
    script = module("amdgpu_family_matrix", BUILD_TOOLS / "github_actions")
    tiers = ("presubmit", "postsubmit", "nightly")
    tables = {tier: getattr(script, f"amdgpu_family_info_matrix_{tier}") for tier in tiers}
    return {**tables, "builds": script.BUILD_RUNNER_LABELS}


# PyTorch


def pytorch_cells(families: str) -> dict[str, Sequence[Mapping[str, str]]]:
    """Return the cells that are built on each platform, by release type."""
    script = module("github_actions.configure_pytorch_release_matrix")
    cells: dict[str, Sequence[Mapping[str, str]]] = {}
    for platform in ("linux", "windows"):
        for release_type in ("ci", "nightly", "prerelease"):
            cells[f"{platform} {release_type}"] = script.generate_pytorch_matrix_for_release_type(
                release_type=release_type, amdgpu_families=families, platform=platform
            )
    return cells


def preloads(version: str) -> dict[str, Any]:
    """Return what torch is to load first, and with which ROCm, by platform."""
    script = module("build_prod_wheels", PYTORCH)
    script.get_rocm_sdk_version = lambda: version
    texts: dict[str, Any] = {}
    for platform in ("linux", "windows"):
        script.is_windows = platform == "windows"
        texts[platform] = script.get_rocm_init_contents(None)
    return texts


def pytorch_repositories(platforms: Sequence[str]) -> dict[str, Mapping[str, str]]:
    """Return the repositories and branches of PyTorch's components."""
    script = module("github_actions.generate_pytorch_source_manifest")
    rows: dict[str, Mapping[str, str]] = {}
    for name, config in script.REPOS.items():
        rows[name] = {
            "stable": config.stable_repo,
            "nightly": config.nightly_repo,
            "branch": config.nightly_branch or "",
            "pin": config.related_commits_key or "",
        }
        for platform in platforms:
            is_built = name in script.default_projects_for_pytorch_ref(platform, "nightly")
            rows[name] = {**rows[name], platform: "built" if is_built else ""}
    return rows


def related_commits(text: str) -> dict[str, Mapping[str, str]]:
    """Return what torch's file of related commits says of each project."""
    script = module("github_actions.generate_pytorch_source_manifest")
    pins: dict[str, Mapping[str, str]] = script._parse_related_commits(text)
    return pins


def cache_types(cases: Mapping[str, Mapping[str, Any]], event: str) -> dict[str, str]:
    """Return which compiler cache builds of repositories use; `event` is the file of a run's event."""
    script = module("compute_pytorch_cache_type", BUILD_TOOLS / "github_actions")
    os.environ["GITHUB_EVENT_PATH"] = event
    types: dict[str, str] = {}
    for name, case in cases.items():
        head = {"repo": {"fork": case["fork"]}}
        payload = {"pull_request": {"head": head}} if case["fork"] else {}
        Path(event).write_text(json.dumps(payload), encoding="utf-8")
        os.environ["GITHUB_EVENT_NAME"] = "pull_request" if case["fork"] else "push"
        types[name] = script.compute_cache_type("sccache", case["repository"])
    return types


def files_of_tests() -> dict[str, Any]:
    """Return which of upstream's test files are run, and how long one test may take."""
    script = module("run_pytorch_tests_full", PYTORCH)
    return {
        "inductor, operators": script.INDUCTOR_GENERIC_TESTS,
        "inductor, its own": script.INDUCTOR_UNIT_TESTS,
        "left out": script.EXCLUDED_TEST_MODULES,
        "seconds of a test": str(script.PYTEST_TIMEOUT_SECONDS),
    }


def skipped_tests() -> dict[str, Any]:
    """Return which tests are skipped, by file of rules, place and file of tests."""
    tables: dict[str, Any] = {}
    for path in sorted((PYTORCH / "skip_tests").glob("*.py")):
        if path.stem == "generic" or path.stem.startswith("pytorch_"):
            tables[path.stem] = runpy.run_path(str(path))["skip_tests"]
    return tables


def as_json(value: Any) -> Any:
    """Return a set as a list."""
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


def main() -> None:
    """Answer one question."""
    question, question_file, answer_file = sys.argv[2:]
    facts = json.loads(Path(question_file).read_text(encoding="utf-8"))

    # Its functions print what they do.
    with contextlib.redirect_stdout(io.StringIO()):
        answer = globals()[question](**facts)

    Path(answer_file).write_text(json.dumps(answer, default=as_json), encoding="utf-8")


if __name__ == "__main__":
    main()
