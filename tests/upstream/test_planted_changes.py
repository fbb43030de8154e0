"""A change of a rule in TheRock's own code is found: one of every rule, planted in a copy of its files."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.therock.checkout import TheRock
from tests.kit.therock.rules import RULES, unintended_differences

TOOLS = "build_tools"
GITHUB = f"{TOOLS}/github_actions"
TEMPLATES = f"{TOOLS}/packaging/python/templates"
SDK = f"{TEMPLATES}/rocm/src/rocm_sdk"
BUILDER = f"{TOOLS}/build_python_packages.py"
PROMOTION = f"{TOOLS}/packaging/promote_packages.py"
WORKFLOWS = ".github/workflows"
PYTORCH = "external-builds/pytorch"


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a file of TheRock's says, and what it might say one day."""

    rule: str
    path: str
    old: str
    new: str


CHANGES = (
    # Versions
    Change(
        rule="versions of ROCm",
        path=f"{TOOLS}/compute_rocm_package_version.py",
        old='f"rc{prerelease_version}"',
        new='f"b{prerelease_version}"',
    ),
    Change(
        rule="versions of ROCm",
        path=f"{TOOLS}/compute_rocm_package_version.py",
        old='f".dev0+{git_sha}"',
        new='f".dev0+g{git_sha}"',
    ),
    Change(
        rule="ROCm's next version",
        path="version.json",
        old='"rocm-version": "',
        new='"rocm-version": "9',
    ),
    Change(
        rule="versions of PyTorch",
        path=f"{GITHUB}/determine_version.py",
        old='"devrocm" if',
        new='"rocm" if',
    ),
    # Where outputs lie
    Change(
        rule="outputs of runs",
        path=f"{TOOLS}/_therock_utils/workflow_outputs.py",
        old="{self.run_id}-{self.platform}",
        new="{self.platform}/{self.run_id}",
    ),
    Change(
        rule="outputs of runs",
        path=f"{TOOLS}/_therock_utils/s3_buckets.py",
        old='is_pr_from_fork or repository != "ROCm/TheRock"',
        new="is_pr_from_fork",
    ),
    Change(
        rule="roles of runs",
        path=f"{TOOLS}/_therock_utils/s3_buckets.py",
        old='iam_role="therock-ci-external"',
        new='iam_role="therock-forks"',
    ),
    Change(
        rule="products",
        path=f"{TOOLS}/_therock_utils/python_package_paths.py",
        old='f"v5/rocm/',
        new='f"v6/rocm/',
    ),
    Change(
        rule="owners of packages",
        path=f"{TOOLS}/packaging/python/rocm_whl_next_ownership.yaml",
        old="torchaudio:\n        owner_path: pytorch",
        new="torchaudio:\n        owner_path: media",
    ),
    Change(
        rule="indexes",
        path=f"{TOOLS}/setup_venv.py",
        old='"https://nightly.',
        new='"https://nightlies.',
    ),
    Change(
        rule="types of files",
        path=f"{TOOLS}/_therock_utils/storage_backend.py",
        old='".whl": "application/zip"',
        new='".whl": "application/x-wheel"',
    ),
    Change(
        rule="use of compiler caches",
        path=f"{GITHUB}/compute_pytorch_cache_type.py",
        old='or github_repository != "ROCm/TheRock"',
        new="",
    ),
    # Packages
    Change(
        rule="files of packages",
        path=BUILDER,
        old='"rocjitsu",',
        new="",
    ),
    Change(
        rule="files of packages",
        path=BUILDER,
        old='link = target.with_suffix("")',
        new='link = target.with_suffix(".dev")',
    ),
    Change(
        rule="requirements of packages",
        path=f"{TEMPLATES}/rocm-sdk-device/setup.py",
        old='f"rocm-sdk-libraries==',
        new='f"rocm-sdk-libraries~=',
    ),
    Change(
        rule="search paths of libraries",
        path=BUILDER,
        old='lib.rpath_dep(core, "lib/host-math/lib")',
        new='lib.rpath_dep(core, "lib/math/lib")',
    ),
    Change(
        rule="links of device code",
        path=f"{TOOLS}/_therock_utils/py_packaging.py",
        old='devel_links.append({"relpath": relpath',
        new='devel_links.append({"relpath": "device/" + relpath',
    ),
    Change(
        rule="extras of rocm",
        path=f"{SDK}/_dist_info.py",
        old='extra_name = f"{pkg.logical_name}-{tf}"',
        new='extra_name = f"gpu-{tf}"',
    ),
    Change(
        rule="extras of rocm",
        path=f"{SDK}/_dist_info.py",
        old='f"=={__version__}"',
        new='f"~={__version__}"',
    ),
    Change(
        rule="post-releases",
        path=f"{SDK}/_devel.py",
        old=r'r"\.post\d+"',
        new=r'r"\.rev\d+"',
    ),
    Change(
        rule="names of artifacts",
        path=f"{TOOLS}/_therock_utils/artifacts.py",
        old="ArtifactName(m.group(1), m.group(2), m.group(3))",
        new="ArtifactName(m.group(2), m.group(1), m.group(3))",
    ),
    Change(
        rule="artifacts",
        path="BUILD_TOPOLOGY.toml",
        old="[artifacts.hipify]",
        new="[artifacts.hip-tools]",
    ),
    Change(
        rule="programs",
        path=f"{TEMPLATES}/rocm-sdk-core/setup.py",
        old='"hipcc=',
        new='"hip-compiler=',
    ),
    Change(
        rule="names of libraries",
        path=f"{SDK}/_dist_info.py",
        old='"libhipfile.so*"',
        new='"libhipfile-rocm.so*"',
    ),
    Change(
        rule="names of libraries",
        path=f"{SDK}/_dist_info.py",
        old='LibraryEntry("rccl", "libraries"',
        new='LibraryEntry("rccl", "core"',
    ),
    Change(
        rule="manifest of a build",
        path=f"{TOOLS}/generate_therock_manifest.py",
        old='"the_rock_commit": the_rock_commit',
        new='"commit": the_rock_commit',
    ),
    Change(
        rule="manifest of a build",
        path=f"{TOOLS}/generate_therock_manifest.py",
        old='"pin_sha": pin',
        new='"commit": pin',
    ),
    # Promotion
    Change(
        rule="promotion",
        path=PROMOTION,
        old='["torchaudio", "torchvision", "jaxlib"]',
        new='["torchvision", "jaxlib"]',
    ),
    Change(
        rule="promotion",
        path=PROMOTION,
        old='line.startswith("Requires-Dist") and "rocm" in line',
        new='line.startswith("Requires-Dist") and "triton" in line',
    ),
    Change(
        rule="promotion of some targets",
        path=PROMOTION,
        old="if provides_match.group(1) in keep_set:",
        new="if provides_match:",
    ),
    # GPU families
    Change(
        rule="targets of families",
        path="cmake/therock_amdgpu_targets.cmake",
        old="dcgpu-all gfx94X-all",
        new="gfx94X-all",
    ),
    Change(
        rule="machines",
        path=f"{GITHUB}/amdgpu_family_matrix.py",
        old='"test-runs-on": "windows-gfx1151-gpu-rocm"',
        new='"test-runs-on": "windows-gfx1151-strix-rocm"',
    ),
    # PyTorch
    Change(
        rule="cells",
        path=f"{GITHUB}/configure_pytorch_release_matrix.py",
        old='RELEASE_PYTHON_VERSIONS = ["3.10", ',
        new="RELEASE_PYTHON_VERSIONS = [",
    ),
    Change(
        rule="torch's start",
        path=f"{PYTORCH}/build_prod_wheels.py",
        old="check_version='{sdk_version}'",
        new="check_version='{sdk_version}.*'",
    ),
    Change(
        rule="torch's start",
        path=f"{PYTORCH}/build_prod_wheels.py",
        old='"hipfft",',
        new="",
    ),
    Change(
        rule="repositories",
        path=f"{GITHUB}/generate_pytorch_source_manifest.py",
        old='stable_repo="ROCm/pytorch"',
        new='stable_repo="pytorch/pytorch"',
    ),
    Change(
        rule="related commits",
        path=f"{GITHUB}/generate_pytorch_source_manifest.py",
        old="_branch, rec_commit, rec_origin = parts",
        new="rec_commit, _branch, rec_origin = parts",
    ),
    Change(
        rule="test files",
        path=f"{PYTORCH}/run_pytorch_tests_full.py",
        old="PYTEST_TIMEOUT_SECONDS = ",
        new="PYTEST_TIMEOUT_SECONDS = 2 * ",
    ),
    Change(
        rule="skipped tests",
        path=f"{PYTORCH}/skip_tests/generic.py",
        old='"test_side_stream_backward_overlap"',
        new='"test_that_nobody_skips"',
    ),
    Change(
        rule="tools on Windows",
        path=f"{WORKFLOWS}/multi_arch_build_windows_pytorch_wheels.yml",
        old="libuv.git -b v",
        new="libuv.git -b v9.",
    ),
    Change(
        rule="compiler caches",
        path=f"{WORKFLOWS}/multi_arch_build_portable_linux_pytorch_wheels.yml",
        old="role-duration-seconds: ",
        new="role-duration-seconds: 9",
    ),
    Change(
        rule="images",
        path=f"{WORKFLOWS}/test_pytorch_wheels.yml",
        old="no_rocm_image_ubuntu24_04",
        new="therock_build_manylinux_x86_64",
    ),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change.rule}: {change.old}")
def test_finds_a_change_of_upstreams_rule(therock: TheRock, tmp_path: Path, change: Change) -> None:
    changed = therock.with_change(tmp_path / "therock", change.path, change.old, change.new)
    (rule,) = [rule for rule in RULES if rule.name == change.rule]

    differences = unintended_differences(rule, changed)

    assert differences
    assert change.rule in str(differences[0])


def test_each_rule_has_a_change_that_is_found() -> None:
    assert {change.rule for change in CHANGES} == {rule.name for rule in RULES}
