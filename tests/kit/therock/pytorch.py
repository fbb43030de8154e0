"""PyTorch: what is built of which repositories, what torch loads first, which of its tests are skipped."""

import re
import types
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from packaging.specifiers import SpecifierSet

from ci.plan.data import load
from core.cli.options import ROOT
from core.data import read_text, read_toml
from core.run import PLATFORMS
from core.run.locations import CompilerCaches, run_buckets
from pytorch_build.build.container import load_container
from pytorch_build.build.toolchain import FILE as TOOLCHAIN_FILE
from pytorch_build.components import COMPONENTS
from pytorch_build.components.torch import rocm_init_text
from pytorch_build.lock.versions import parse_related_commits
from pytorch_build.refs.torch_refs import load_refs
from pytorch_build.test import skip_rules
from pytorch_build.test.upstream_tests import DATA as CONFIGURATIONS_FILE
from tests.kit.platforms import LINUX, WINDOWS
from tests.kit.therock.checkout import TheRock
from tests.kit.therock.comparison import Comparison, Facts, Rule, Values

MATRIX = "build_tools/github_actions/configure_pytorch_release_matrix.py"
SOURCES = "build_tools/github_actions/generate_pytorch_source_manifest.py"
BUILDER = "external-builds/pytorch/build_prod_wheels.py"
TESTS = "external-builds/pytorch/run_pytorch_tests_full.py"
SKIPS = "external-builds/pytorch/skip_tests"
TRITON = "external-builds/pytorch/ci_commit_pins/triton-windows.txt"
BUILD = ".github/workflows/multi_arch_build_portable_linux_pytorch_wheels.yml"
TEST = ".github/workflows/test_pytorch_wheels.yml"
WINDOWS_BUILD = ".github/workflows/multi_arch_build_windows_pytorch_wheels.yml"
SETUP = ".github/workflows/setup.yml"
WINDOWS_LOCK = "requirements/target-windows-3.12.txt"

IMAGE = r"ghcr\.io/rocm/(therock_build_manylinux_x86_64|no_rocm_image_ubuntu24_04)@(sha256:[0-9a-f]{64})"
SHARED_CACHE = r"inputs\.release_type == '([\w-]+)' && 'therock-pytorch-sccache-(\w+)'"

ROCM_VERSION = "10.1.0a20260822"
STABLE_REF = "release/2.14"
PROJECTS = {
    "pytorch": "torch",
    "pytorch_audio": "audio",
    "pytorch_vision": "vision",
    "triton": "triton",
    "apex": "apex",
}

COMMIT = "f689a8ea40232f3f6be1ec958354b108349023ff"
OTHER_COMMIT = "d134b78a4cf2b1a2e0a3e6d4a3a3f0d8a2b3c4d5"
RELATED_COMMITS = f"""\
# system, source, project, branch, commit, origin
ubuntu|pytorch|apex|release/1.12.0|{COMMIT}|https://github.com/ROCm/apex
centos|pytorch|apex|release/1.12.0|{COMMIT}|https://github.com/ROCm/apex

ubuntu|pytorch|torchvision|release/0.27|{OTHER_COMMIT}|https://github.com/pytorch/vision
"""


def compare_cells(therock: TheRock) -> Comparison:
    """Compare the cells of releases and of CI."""
    families: set[str] = set()
    for platform in PLATFORMS:
        families |= load().families.on(platform).keys()
    cells = therock.ask("pytorch_cells", families=";".join(sorted(families)))

    upstream: dict[str, Values] = {"untested": untested_cells(cells)}
    downstream: dict[str, Values] = {}
    for platform in PLATFORMS:
        upstream |= upstream_cells(platform, cells, families)
        downstream |= our_cells(platform)
    return Comparison(upstream=upstream, downstream=downstream)


def untested_cells(cells: Mapping[str, Sequence[Mapping[str, str]]]) -> Sequence[str]:
    """Return the cells whose wheels upstream builds and does not test."""
    untested: list[str] = []
    for platform in PLATFORMS:
        untested += [
            f"{platform}-{row['pytorch_git_ref']}-{row['python_version']}"
            for row in cells[f"{platform} nightly"]
            if row["test_amdgpu_families"] == "none"
        ]
    return untested


def upstream_cells(
    platform: str, cells: Mapping[str, Sequence[Mapping[str, str]]], families: Collection[str]
) -> dict[str, Values]:
    """Return Pythons, refs and families that upstream leaves out, on a platform."""
    released = cells[f"{platform} nightly"]
    in_ci = cells[f"{platform} ci"]
    left_out: set[str] = set()
    for row in released:
        for family in {*families} - {*row["amdgpu_families"].split(";")}:
            left_out.add(f"{row['pytorch_git_ref']}: {family}")

    facts: dict[str, Values] = {
        f"pythons on {platform}": column(released, "python_version"),
        f"pythons in CI on {platform}": column(in_ci, "python_version"),
        f"refs on {platform}": column(released, "pytorch_git_ref"),
        f"refs in CI on {platform}": column(in_ci, "pytorch_git_ref"),
        f"not built on {platform}": left_out,
    }
    for ref in load().matrix.release.torch_refs:
        rows = [row for row in released if row["pytorch_git_ref"] == ref]
        facts[f"pythons of {ref} on {platform}"] = column(rows, "python_version")
    return facts


def column(rows: Sequence[Mapping[str, str]], name: str) -> Collection[str]:
    """Return what rows have under a name, each value once."""
    return {row[name] for row in rows}


def our_cells(platform: str) -> dict[str, Values]:
    """Return the same of our data."""
    matrix = load().matrix
    refs = load_refs(platform=platform)
    left_out: list[str] = []
    for row in matrix.release.exclude:
        if row.platform == platform and not row.pythons:
            left_out += [f"{ref}: {family}" for ref in row.torch_refs for family in row.gpu_families]

    facts: dict[str, Values] = {
        f"pythons on {platform}": matrix.release.pythons,
        f"pythons in CI on {platform}": matrix.ci.pythons,
        f"refs on {platform}": matrix.release.torch_refs,
        f"refs in CI on {platform}": matrix.ci.torch_refs,
        f"not built on {platform}": left_out,
    }
    for ref in matrix.release.torch_refs:
        facts[f"pythons of {ref} on {platform}"] = refs[ref].pythons
    return facts


def compare_preloads(therock: TheRock) -> Comparison:
    """Compare what torch loads before its own libraries, and which ROCm it asks for."""
    texts = therock.ask("preloads", version=ROCM_VERSION)
    upstream: dict[str, Values] = {}
    downstream: dict[str, Values] = {}
    for name, platform in (("linux", LINUX), ("windows", WINDOWS)):
        upstream[name] = initialized(texts[name])
        downstream[name] = initialized(rocm_init_text(platform.preloads, rocm_version=ROCM_VERSION))
    return Comparison(upstream=upstream, downstream=downstream)


def initialized(text: str) -> Sequence[str]:
    """Return what a `_rocm_init.py` asks of `rocm_sdk`."""
    asked: list[str] = []

    def initialize_process(*, preload_shortnames: Sequence[str], check_version: str) -> None:
        asked.extend([*preload_shortnames, f"version {check_version}"])

    rocm_sdk = types.SimpleNamespace(initialize_process=initialize_process)
    names: dict[str, Any] = {}
    exec(text.replace("import rocm_sdk", "pass"), {"rocm_sdk": rocm_sdk}, names)  # noqa: S102 - upstream's text is a function of one call
    names["initialize"]()
    return asked


def compare_repositories(therock: TheRock) -> Comparison:
    """Compare which repositories and branches PyTorch's components are of."""
    rows = therock.ask("pytorch_repositories", platforms=PLATFORMS)
    upstream: dict[str, Values] = {"projects": [PROJECTS.get(name, name) for name in rows]}
    downstream: dict[str, Values] = {"projects": [*PROJECTS.values()]}
    for name, project in PROJECTS.items():
        row = rows[name]
        upstream[f"{project} of releases"] = f"https://github.com/{row['stable']}.git"
        upstream[f"{project} of nightlies"] = (
            f"https://github.com/{row['nightly']}.git {row['branch']}".strip()
        )
        upstream[f"{project}'s pin"] = row["pin"]
        upstream[f"{project} is built on"] = [platform for platform in PLATFORMS if row[platform]]

        nightly = load_refs()["nightly"].projects[project]
        stable = load_refs()[STABLE_REF].projects[project]
        downstream[f"{project} of releases"] = stable.origin
        downstream[f"{project} of nightlies"] = f"{nightly.origin} {nightly.ref}".strip()
        downstream[f"{project}'s pin"] = (
            COMPONENTS[project].distribution if stable.pin == "related_commits" else ""
        )
        downstream[f"{project} is built on"] = [
            platform
            for platform in PLATFORMS
            if project in load_refs(platform=platform)["nightly"].components
        ]
    return Comparison(upstream=upstream, downstream=downstream)


def compare_related_commits(therock: TheRock) -> Comparison:
    """Compare what is read of torch's file of related commits."""
    pins = therock.ask("related_commits", text=RELATED_COMMITS)
    rows = parse_related_commits(RELATED_COMMITS, "related_commits")
    return Comparison(
        upstream={project: f"{pin['origin']} {pin['commit']}" for project, pin in pins.items()},
        downstream={project: f"{row.origin} {row.commit}" for project, row in rows.items()},
    )


def compare_test_files(therock: TheRock) -> Comparison:
    """Compare which of upstream's test files are run, and for how long."""
    data = read_toml(CONFIGURATIONS_FILE)
    generic, inductors = data["configurations"]["inductor"]["steps"]
    downstream = {
        "inductor, operators": generic["files"],
        "inductor, its own": inductors["files"],
        "seconds of a test": str(data["limits"]["test_seconds"]),
    }
    return Comparison(upstream=therock.ask("files_of_tests"), downstream=downstream)


def compare_skipped_tests(therock: TheRock) -> Comparison:
    """Compare which tests are skipped where; upstream's names hold in any class of any file."""
    rules = skip_rules.load_rules()
    upstream: dict[str, Values] = {}
    downstream: dict[str, Values] = {}
    for name, places in therock.ask("skipped_tests").items():
        torch = name.removeprefix("pytorch_") if name != "generic" else None
        for place, tests_by_file in places.items():
            known: list[str] = []
            for rule in rules:
                if holds_in(rule, place, torch):
                    known += [test.rpartition("::")[2] for test in rule.table.tests]
            for file, tests in tests_by_file.items():
                upstream[f"{name}, {place}: {file}"] = tests
                downstream[f"{name}, {place}: {file}"] = [test for test in tests if is_skipped(test, known)]
    return Comparison(upstream=upstream, downstream=downstream)


def is_skipped(test: str, known: Sequence[str]) -> bool:
    """Return whether one of our entries is for a test of upstream's list."""
    return any(fnmatchcase(test, entry) or entry.startswith(f"{test}*") for entry in known)


def holds_in(rule: skip_rules.Rule, place: str, torch: str | None) -> bool:
    """Return whether a rule can hold where upstream's list does: on a platform, a GPU, or everywhere."""
    platform = "windows" if place == "windows" else "linux"
    if rule.table.os and platform not in rule.table.os:
        return False
    if torch is None or not rule.table.torch:
        return True
    return SpecifierSet(rule.table.torch).contains(f"{torch}.0")


def compare_windows_tools(therock: TheRock) -> Comparison:
    """Compare the versions of what builds on Windows take along."""
    triton = load_refs(platform="windows")["nightly"].projects["triton"]
    upstream = {
        "libuv": therock.find(r"libuv\.git -b v(\S+)", WINDOWS_BUILD),
        "ninja": therock.find(r"ninja --version (\S+)", WINDOWS_BUILD),
        "triton": therock.text(TRITON).strip(),
    }
    downstream = {
        "libuv": read_toml(TOOLCHAIN_FILE)["libuv"]["version"],
        "ninja": re.findall(r"^ninja==(\S+)", read_text(ROOT / WINDOWS_LOCK), re.MULTILINE),
        "triton": triton.ref,
    }
    return Comparison(upstream=upstream, downstream=downstream)


def compare_compiler_caches(therock: TheRock) -> Comparison:
    """Compare the buckets of compiler caches, and who writes to them."""
    data = run_buckets().compiler_caches
    assert data is not None
    upstream = {
        "region": therock.find(r"SCCACHE_REGION: (\S+)", BUILD),
        "role's region": therock.find(r"aws-region: (\S+)", BUILD)[:1],
        "session": therock.find(r"role-duration-seconds: (\d+)", BUILD),
        "bucket": therock.find(r"format\('(therock-pytorch-sccache-\{0\})'", BUILD),
        "role": therock.find(r"format\('(arn:aws:iam::\d+:role/therock-\{0\})'", BUILD),
        "other types": [": ".join(names) for names in therock.find(SHARED_CACHE, BUILD)],
    }
    return Comparison(upstream=upstream, downstream=our_compiler_caches(data))


def our_compiler_caches(data: CompilerCaches) -> Facts:
    """Return the same of our data."""
    return {
        "region": data.region,
        "role's region": data.region,
        "session": str(data.session_seconds),
        "bucket": data.bucket.replace("{type}", "{0}"),
        "role": data.role.replace("{type}", "{0}"),
        "other types": [f"{name}: {bucket}" for name, bucket in data.types.items() if name != bucket],
    }


def compare_images(therock: TheRock) -> Comparison:
    """Compare the container images that builds and tests run in."""
    upstream = [*therock.find(IMAGE, BUILD), *therock.find(IMAGE, TEST)]
    downstream = re.findall(IMAGE, f"{read_text(ROOT / SETUP)} {load_container().image}")
    return Comparison(upstream=digests_by_image(upstream), downstream=digests_by_image(downstream))


def digests_by_image(images: Sequence[tuple[str, str]]) -> Facts:
    """Return the digests of each image."""
    digests: dict[str, list[str]] = {}
    for name, digest in images:
        digests.setdefault(name, []).append(digest)
    return digests


RULES = (
    Rule(name="cells", upstream=MATRIX, downstream="ci/matrix.toml, refs.toml", compare=compare_cells),
    Rule(
        name="torch's start",
        upstream=BUILDER,
        downstream="pytorch_build/platforms.toml",
        compare=compare_preloads,
    ),
    Rule(
        name="repositories",
        upstream=SOURCES,
        downstream="pytorch_build/refs/refs.toml",
        compare=compare_repositories,
    ),
    Rule(
        name="related commits",
        upstream=SOURCES,
        downstream="pytorch_build/lock/versions.py",
        compare=compare_related_commits,
    ),
    Rule(
        name="test files",
        upstream=TESTS,
        downstream="pytorch_build/test/configurations.toml",
        compare=compare_test_files,
    ),
    Rule(
        name="skipped tests",
        upstream=SKIPS,
        downstream="pytorch_build/test/skips",
        compare=compare_skipped_tests,
    ),
    Rule(
        name="tools on Windows",
        upstream=WINDOWS_BUILD,
        downstream=f"pytorch_build/build/toolchain.toml, refs.toml, {WINDOWS_LOCK}",
        compare=compare_windows_tools,
    ),
    Rule(
        name="compiler caches",
        upstream=BUILD,
        downstream="ci/buckets.toml",
        compare=compare_compiler_caches,
    ),
    Rule(
        name="images",
        upstream=f"{BUILD}, {TEST}",
        downstream=f"pytorch_build/build/container.toml, {SETUP}",
        compare=compare_images,
    ),
)
