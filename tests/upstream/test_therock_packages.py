"""ROCm packages that TheRock's own builder makes of the sample's artifacts: built against, and tested."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from ci.promote.candidates import rewrite_set
from ci.promote.version_change import RocmChange
from core import process
from pytorch_build.test.junit.document import Document
from pytorch_build.test.junit.reader import read_junit_file
from rocm_packaging.sample import FAMILIES, ROCM_VERSION, ensure_artifacts
from rocm_packaging.sample.facts import FAMILY_TARGETS, TARGETS
from tests.kit.clones import Clone
from tests.kit.therock.checkout import TheRock
from tests.kit.upstream_inputs import distributions_of

FAMILY = FAMILIES[0]
BUILDS = ("build_triton", "build_torch", "build_audio", "build_vision", "build_apex")


@dataclass(frozen=True, kw_only=True)
class Checkout(Clone):
    """A clone of this repository, and a folder of TheRock's packages."""

    packages: Path
    is_split: bool

    @property
    def libraries(self) -> str:
        """The package with libraries, as its files are named."""
        return "rocm_sdk_libraries" if self.is_split else "rocm_sdk_libraries_gfx94x_dcgpu"

    @property
    def device_distribution(self) -> str:
        """The distribution that brings the code of the target."""
        return "rocm-sdk-device-gfx942" if self.is_split else "rocm-sdk-libraries-gfx94x-dcgpu"

    def run_sessions(self, *arguments: str | Path) -> None:
        """Run sessions for the family."""
        self.run_checked("nox", "-s", *arguments, "--gpu-family", FAMILY)

    def run_rocm_tests(self, folder: Path, *options: str | Path) -> Document:
        """Test the packages in a folder; return the report."""
        junit = self.path.with_name("junit.xml")
        self.run_sessions("test_rocm", "--", "--find-links", folder, "--junit", junit, *options)
        return read_junit_file(junit)


def build_packages(therock: TheRock, folder: Path, *, split: bool) -> Path:
    """Return a folder with the packages that TheRock's builder makes of the sample's artifacts."""
    output = folder / "output"
    therock.ask(
        "build_packages",
        artifacts=ensure_artifacts(folder / "artifacts", split=split),
        output=output,
        version=ROCM_VERSION,
        linux="",
        windows="",
    )

    # Where families differ, each has an sdist and a devel wheel in a folder of its own.
    packages = folder / "packages"
    packages.mkdir()
    for path in (*output.glob("dist/rocm*"), *output.glob(f"dist/{FAMILY}/rocm*")):
        shutil.copy2(path, packages)
    return packages


@pytest.fixture(scope="module", params=["unsplit", "split"])
def checkout(
    request: pytest.FixtureRequest, therock: TheRock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Checkout]:
    """Return a clone, and TheRock's packages of a layout."""
    is_split = request.param == "split"
    folder = tmp_path_factory.mktemp(request.param)
    packages = build_packages(therock, folder, split=is_split)
    Clone.create(folder / "checkout")
    yield Checkout(path=folder / "checkout", packages=packages, is_split=is_split)
    shutil.rmtree(folder)


def test_its_own_tests_pass_in_our_stage(checkout: Checkout) -> None:
    assert list(checkout.packages.glob(f"{checkout.libraries}-*"))

    report = checkout.run_rocm_tests(checkout.packages)

    assert report.failing == ()
    assert report.properties["rocm"] == ROCM_VERSION
    assert checkout.device_distribution in report.properties["packages"].split(";")
    passed = {case.test.split("::")[0] for case in report.cases if case.outcome == "passed"}
    assert passed >= {"rocm_sdk.base", "rocm_sdk.core", "rocm_sdk.libraries", "rocm_sdk.devel"}


def targets_in_sdist(sdist: Path, scratch: Path) -> set[str]:
    """Return the GPU targets that an sdist's extras and lists name."""
    process.capture(["tar", "xf", sdist, "-C", scratch])
    folder = scratch / sdist.name.removesuffix(".tar.gz")
    text = "\n".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    return {target for target in TARGETS if f"device-{target}" in text or f"append('{target}')" in text}


def distribution_of(package: Path) -> str:
    """Return the distribution that a file is of."""
    return canonicalize_name(package.name.partition("-")[0])


def test_a_release_of_one_target_passes_its_own_tests(checkout: Checkout, tmp_path: Path) -> None:
    """Of TheRock's packages of a candidate one target's are kept: the extras and lists of the others go."""
    if not checkout.is_split:
        pytest.skip("unsplit packages have no device packages to leave out")
    new_version = ROCM_VERSION.replace("7.99.0", "7.99.1")
    change = RocmChange(old=ROCM_VERSION, new=new_version, targets=FAMILY_TARGETS[FAMILY])
    packages = sorted(checkout.packages.iterdir())
    kept_packages = [package for package in packages if change.keeps_package(distribution_of(package))]
    assert len(kept_packages) < len(packages)

    release = tmp_path / "release"
    rewrite_set(kept_packages, release, change)

    (sdist,) = release.glob("*.tar.gz")
    assert targets_in_sdist(sdist, tmp_path) == set(change.targets)
    report = checkout.run_rocm_tests(release, "--version", new_version)
    assert report.failing == ()
    assert report.properties["rocm"] == new_version


def test_every_wheel_is_built_against_them_and_computes(checkout: Checkout) -> None:
    options = ("--torch-ref", "sample")
    find_links = ("--rocm-find-links", checkout.packages)

    checkout.run_sessions("resolve", "checkout", "--", *options)
    checkout.run_sessions("install_rocm", *BUILDS, "--", *options, *find_links)
    checkout.run_sessions("check_wheels", "index", "--", *options)
    checkout.run_sessions("test_smoke", "--", *options, *find_links)

    wheels = checkout.path.glob(f"out/local-linux/python/{FAMILY}/*.whl")
    assert {"torch", "triton", "torchaudio", "apex"}.issubset(distributions_of(wheels))
