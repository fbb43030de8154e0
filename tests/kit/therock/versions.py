"""Versions: of ROCm by release type, and the end of PyTorch's."""

from datetime import date

from packaging.version import Version

from ci.plan.data import triggers
from pytorch_build.lock.versions import version_suffix
from rocm_packaging.packages import versions
from tests.kit.therock.checkout import TheRock
from tests.kit.therock.comparison import Comparison, Rule

DAY = date(2026, 8, 22)
BASE = "10.1.0"
COMMIT = "f689a8ea40232f3f6be1ec958354b108349023ff"

# Release type -> number of the candidate. A nightly-bkc has two dates, which whoever runs it says.
CANDIDATES = {"ci": None, "dev": None, "dev-bkc": None, "nightly": None, "prerelease": 2, "release": None}

ROCM_VERSIONS = (
    BASE,
    f"{BASE}rc2",
    f"{BASE}a20260822",
    f"{BASE}a20260811+bkc.20260814",
    f"{BASE}.dev0",
    f"{BASE}.dev0+{COMMIT}",
)


def compare_rocm_versions(therock: TheRock) -> Comparison:
    """Compare the version that each release type gives ROCm."""
    upstream = therock.ask("rocm_versions", day=DAY.isoformat(), base=BASE, commit=COMMIT, cases=CANDIDATES)

    downstream: dict[str, str] = {}
    for release_type, candidate in CANDIDATES.items():
        downstream[release_type] = versions.compute_version(
            BASE, release_type, commit=COMMIT, day=DAY, candidate=candidate
        )
    return Comparison(upstream=upstream, downstream=downstream)


def compare_base_version(therock: TheRock) -> Comparison:
    """Compare the version that runs build."""
    return Comparison(
        upstream={"rocm": therock.ask("base_version")}, downstream={"rocm": triggers().rocm_base_version}
    )


def compare_suffixes(therock: TheRock) -> Comparison:
    """Compare what PyTorch's versions end with, as a wheel's name has it."""
    suffixes = therock.ask("pytorch_suffixes", versions=ROCM_VERSIONS)
    upstream: dict[str, str] = {}
    downstream: dict[str, str] = {}
    for version in ROCM_VERSIONS:
        upstream[version] = str(Version(f"2.14.0{suffixes[version]}"))
        downstream[version] = str(Version(f"2.14.0{version_suffix(version)}"))
    return Comparison(upstream=upstream, downstream=downstream)


RULES = (
    Rule(
        name="versions of ROCm",
        upstream="build_tools/compute_rocm_package_version.py",
        downstream="rocm_packaging/packages/versions.py",
        compare=compare_rocm_versions,
    ),
    Rule(
        name="ROCm's next version",
        upstream="version.json",
        downstream="ci/triggers.toml",
        compare=compare_base_version,
    ),
    Rule(
        name="versions of PyTorch",
        upstream="build_tools/github_actions/determine_version.py",
        downstream="pytorch_build/lock/versions.py",
        compare=compare_suffixes,
    ),
)
