"""A TheRock of a few files that says what our data says, in upstream's own syntax."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from ci.plan.data import FAMILIES_FILE, TRIGGERS_FILE, Families, load, runners
from ci.publish.buckets import buckets
from core.cli.options import ROOT
from core.data import load_toml, read_text, read_toml
from core.families import families
from core.run.locations import run_buckets
from pytorch_build.build.container import load_container
from pytorch_build.build.toolchain import FILE
from pytorch_build.platforms import LINUX, WINDOWS
from pytorch_build.refs.torch_refs import load_refs
from pytorch_build.test.upstream_tests import DATA
from rocm_packaging.origin import release_indexes
from rocm_packaging.packages.layouts import packages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from typing import Any


def write(root: Path) -> Path:
    """Write every file that is compared."""
    texts = {
        "BUILD_TOPOLOGY.toml": _topology(),
        "version.json": json.dumps({"rocm-version": read_toml(TRIGGERS_FILE)["rocm_base_version"]}),
        "RELEASES.md": "pip install --index-url "
        f"{release_indexes().indexes['nightly-multi-arch'].url} torch\n",
        "cmake/therock_amdgpu_targets.cmake": _targets(),
        "build_tools/build_python_packages.py": _builder(),
        "build_tools/packaging/python/templates/rocm-sdk-core/setup.py": _scripts(packages().programs),
        "build_tools/packaging/python/templates/rocm-profiler/setup.py": _scripts(
            packages().profiler_programs
        ),
        "build_tools/packaging/python/rocm_whl_next_ownership.yaml": _owners(),
        "build_tools/setup_venv.py": _constants(
            ROCM_INDEX_URLS_MAP={"nightly": release_indexes().indexes["nightly"].url}
        ),
        "build_tools/_therock_utils/s3_buckets.py": _buckets(),
        "build_tools/_therock_utils/python_package_paths.py": _paths(),
        "build_tools/github_actions/amdgpu_family_matrix.py": _machines(),
        "build_tools/github_actions/configure_pytorch_release_matrix.py": _matrix(),
        ".github/workflows/multi_arch_build_portable_linux_pytorch_wheels.yml": _workflow(),
        ".github/workflows/test_pytorch_wheels.yml": read_text(ROOT / ".github/workflows/setup.yml"),
        ".github/workflows/multi_arch_build_windows_pytorch_wheels.yml": _windows(),
        "external-builds/pytorch/build_prod_wheels.py": _constants(
            LINUX_LIBRARY_PRELOADS=list(LINUX.preloads), WINDOWS_LIBRARY_PRELOADS=list(WINDOWS.preloads)
        ),
        "external-builds/pytorch/run_pytorch_tests_full.py": _tests(),
        "external-builds/pytorch/skip_tests/generic.py": _constants(
            skip_tests={"common": {"nn": ["test_RNN_dropout_state"]}, "windows": {"nn": ["test_Conv"]}}
        ),
        "external-builds/pytorch/skip_tests/pytorch_2.13.py": _constants(
            skip_tests={"common": {"cuda": ["test_hip_device_count"]}}
        ),
        "external-builds/pytorch/skip_tests/README.md": "",
        "external-builds/pytorch/ci_commit_pins/triton-windows.txt": load_refs(
            None, ROOT, platform="windows"
        )["nightly"]
        .projects["triton"]
        .ref,
    }
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return root


def _constants(**values: object) -> str:
    return "".join(f"{name} = {value!r}\n" for name, value in values.items())


def _topology() -> str:
    data = packages()
    every = (data.core, data.profiler, data.libraries, data.device, data.devel)
    return "".join(f"[artifacts.{name}]\n" for name in {name for one in every for name in one.artifacts})


def _targets() -> str:
    rows = {name: one.targets for name, one in families().items()}
    named = {
        target: [name for name, targets in rows.items() if target in targets and name != target]
        for target in rows
    }
    return "".join(
        f'therock_add_amdgpu_target({target} "A GPU" FAMILY {" ".join(named[target])}\n'
        "  EXCLUDE_TARGET_PROJECTS\n    hipBLASLt # why\n)\n"
        for target, targets in rows.items()
        if targets == (target,)
    )


def _builder() -> str:
    data = packages()
    core, only = data.core, list(data.core.only_lib)
    runtime = [name for name in core.artifacts if name not in only]
    known = ("lib", "run", "dbg", "dev", "doc", "test")
    lines = [
        f"PROFILER_WHEEL_INCLUDES = {list(data.profiler.include)}",
        "def core_artifact_filter(an):",
        f"    core = an.name in {runtime} and an.component in {list(core.components)}",
        f"    hotswap = an.name == {only[0]!r} and an.component == 'lib'",
        f"    return core or hotswap or an.name in {list(core.with_headers)} and an.component in ['dev']",
    ]
    every = {"libraries": data.libraries, "profiler": data.profiler, "device": data.device}
    for name, one in every.items():
        lines.append(f"def {name}_artifact_filter(an):")
        lines.append(
            f"    return an.name in {list(one.artifacts)} and an.component in {list(one.components)}"
        )
    lines += ["def run():", *_rpaths("core", core.rpath_core), *_rpaths("profiler", data.profiler.rpath_core)]
    lines += ["def _run_kpack_split():", *_rpaths("lib", data.libraries.rpath_core)]
    lines += _rpaths("dev", data.device.rpath_core)
    without = [one for one in known if one not in data.devel.components]
    artifacts = list(data.devel.artifacts)
    lines.append(
        f"    devel.populate_devel_files(addl_artifact_names={artifacts}, exclude_components={without})"
    )
    return "\n".join(lines) + "\n"


def _rpaths(variable: str, folders: Iterable[str]) -> list[str]:
    return [f"    {variable}.rpath_dep(core, {folder!r})" for folder in folders]


def _scripts(programs: Iterable[str]) -> str:
    listed = "".join(f'    "{name}=rocm_sdk_core._cli:{name.replace("-", "_")}",\n' for name in programs)
    return f"SCRIPTS = [\n{listed}]\n"


def _owners() -> str:
    owned = {
        pattern.replace("*", "gfx942"): product
        for product, patterns in buckets().products.distributions.items()
        for pattern in patterns
    }
    return "".join(
        f"      {name}:\n        owner_path: {product}/whl-next\n" for name, product in owned.items()
    )


def _buckets() -> str:
    data = buckets()
    products = data.products
    account = data.release_types["ci"].role.split(":")[4]
    rows = {one.bucket: one.role for one in data.release_types.values()}
    rows[data.release_types["ci"].external_bucket] = data.release_types["ci"].external_role
    listed = "".join(
        f"    S3BucketConfig({name!r}, iam_role={role.rpartition('/')[2] or None!r}),\n"
        for name, role in rows.items()
    )
    return (
        "class S3BucketConfig:\n"
        f"    region: str = field(default={data.region!r})\n"
        f"    iam_account: str = field(default={account!r})\n"
        f"s3_bucket_configs = [\n{listed}]\n"
        f"_ALLOWED_RELEASE_PRODUCTS = {set(products.distributions)!r}\n"
        f"_RELEASE_STREAM_BY_TYPE = {products.streams!r}\n"
        "def get_product_release_bucket_config(stream, product):\n"
        f"    return S3BucketConfig(name=f{products.bucket!r}, iam_account={products.role.split(':')[4]!r},\n"
        f"        iam_role=f{products.role.rpartition('/')[2]!r})\n"
        f"def get_release_package_index_url(stream):\n    return f{products.index!r}\n"
    )


def _paths() -> str:
    folder = buckets().products.folder.replace("whl-next", "{index}")
    return f"def path(product, index, package, filename):\n    return f'{folder}/{{package}}/{{filename}}'\n"


def _machines() -> str:
    data, tiers = runners(), {"presubmit": {}, "postsubmit": {}, "nightly": {}}  # type: ignore[var-annotated]
    builds = {
        platform: {
            kind: [{"label": label}]
            for kind, label in (("default", one.build), ("sanitizer", one.sanitizer))
            if label
        }
        for platform, one in data.machines.items()
    }
    for family, platforms in load_toml(FAMILIES_FILE, Families).families.items():
        for platform, on in platforms.items() if family != "cpu" else ():
            row = data.of(family, platform)
            tiers[on.tier].setdefault(family, {})[platform] = {
                "family": family,
                "test-runs-on": row.test_runner,
                "test-runs-on-labels": [{"label": label} for label in row.more_test_runners],
                "test-runs-on-multi-gpu": row.several_gpus,
                "test-runs-on-kernel": row.kernels,
                "bypass_tests_for_releases": row.bypass_tests_for_releases,
                "nightly_check_only_for_family": on.tests == "nightly",
                "build_variants": list(on.variants),
            }
    named = {f"amdgpu_family_info_matrix_{tier}": rows for tier, rows in tiers.items()}
    return _constants(BUILD_RUNNER_LABELS=builds, **named)


def _matrix() -> str:
    data = load().matrix
    stable = [ref for ref in data.release.torch_refs if ref != "nightly"]
    unsupported: Mapping[str, Any] = {
        platform: {
            ref: {
                family
                for row in data.release.exclude
                if row.platform == platform and not row.pythons and ref in row.torch_refs
                for family in row.gpu_families
            }
            or {}
            for ref in data.release.torch_refs
        }
        for platform in ("linux", "windows")
    }
    both = ("linux", "windows")
    return (
        _constants(
            RELEASE_PYTHON_VERSIONS=list(data.release.pythons),
            CI_PYTHON_VERSIONS={platform: list(data.ci.pythons) for platform in both},
            RELEASE_STABLE_PYTORCH_REFS=dict.fromkeys(both, stable),
            CI_PYTORCH_REFS={platform: list(data.ci.torch_refs) for platform in both},
            UNSUPPORTED_AMDGPU_FAMILIES=unsupported,
        )
        + "RELEASE_PYTORCH_REFS = {p: [*refs, 'nightly'] for p, refs in STABLE.items()}\n"
        "def generate_pytorch_matrix_for_release_type():\n    return []\n"
    )


def _workflow() -> str:
    caches = run_buckets().compiler_caches
    assert caches is not None
    shared = "".join(
        f"          inputs.release_type == '{kind}' && 'therock-pytorch-sccache-{one}'\n"
        for kind, one in caches.types.items()
        if kind != one
    )
    return (
        f"      image: {load_container().image} # a day\n"
        f"      SCCACHE_BUCKET: >-\n{shared}          format('{caches.bucket.replace('{type}', '{0}')}', x)\n"
        f"      SCCACHE_REGION: {caches.region}\n          aws-region: {caches.region}\n"
        f"          format('{caches.role.replace('{type}', '{0}')}', x)\n"
        f"          role-duration-seconds: {caches.session_seconds}\n"
    )


def _windows() -> str:
    version = read_toml(FILE)["libuv"]["version"]
    ninja = re.findall(
        r"^ninja==(\S+)", read_text(ROOT / "requirements/target-windows-3.12.txt"), re.MULTILINE
    )
    return (
        f"          choco install ninja --version {ninja[0]}\n          git clone libuv.git -b v{version}\n"
    )


def _tests() -> str:
    data = read_toml(DATA)
    generic, own = data["configurations"]["inductor"]["steps"]
    return _constants(
        INDUCTOR_GENERIC_TESTS=generic["files"],
        INDUCTOR_UNIT_TESTS=own["files"],
        EXCLUDED_TEST_MODULES=[],
        PYTEST_TIMEOUT_SECONDS=data["limits"]["test_seconds"],
    )
