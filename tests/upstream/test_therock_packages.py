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
from core.junit import read_file
from rocm_packaging.sample import FAMILIES, ROCM_VERSION, ensure_artifacts
from rocm_packaging.sample.facts import FAMILY_TARGETS, TARGETS
from tests.kit.clones import Clone
from tests.kit.therock.checkout import TheRock

FAMILY = FAMILIES[0]
BUILDS = ("build_triton", "build_torch", "build_audio", "build_vision", "build_apex")


@dataclass(frozen=True, kw_only=True)
class Checkout(Clone):
    """A clone of this repository, and a folder of TheRock's packages."""

    packages: Path
    libraries: str

    def stages(self, *words: str | Path, **env: str) -> None:
        self.run_checked("nox", "-s", *words, "--gpu-family", FAMILY, **env)


@pytest.fixture(scope="module", params=["unsplit", "split"])
def checkout(
    request: pytest.FixtureRequest, therock: TheRock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Checkout]:
    split = request.param == "split"
    folder = tmp_path_factory.mktemp(request.param)
    artifacts = ensure_artifacts(folder / "artifacts", split=split)
    therock.ask(
        "build_packages",
        artifacts=artifacts,
        output=folder / "made",
        version=ROCM_VERSION,
        linux="",
        windows="",
    )
    # where families differ, each has an sdist and a devel wheel in a folder of its own
    packages = folder / "packages"
    packages.mkdir()
    for place in (folder / "made/dist", folder / "made/dist" / FAMILY):
        for file in place.glob("rocm*") if place.is_dir() else ():
            shutil.copy2(file, packages)
    Clone.create(folder / "checkout")
    libraries = "rocm_sdk_libraries" if split else "rocm_sdk_libraries_gfx94x_dcgpu"
    yield Checkout(path=folder / "checkout", packages=packages, libraries=libraries)
    shutil.rmtree(folder)


def test_its_own_tests_pass_in_our_stage(checkout: Checkout, tmp_path: Path) -> None:
    assert [path for path in checkout.packages.iterdir() if path.name.startswith(f"{checkout.libraries}-")]
    junit = tmp_path / "junit.xml"
    checkout.stages("test_rocm", "--", "--find-links", checkout.packages, "--junit", junit)
    report = read_file(junit)
    assert (report.failing, report.properties["rocm"]) == ((), ROCM_VERSION)
    passed = {case.test.split("::")[0] for case in report.cases if case.outcome == "passed"}
    assert passed >= {f"rocm_sdk.{group}" for group in ("base", "core", "libraries", "devel")}
    device = (
        f"{checkout.libraries.replace('_', '-')}" if "gfx" in checkout.libraries else "rocm-sdk-device-gfx942"
    )
    assert device in report.properties["packages"].split(";")


def test_a_release_of_one_target_passes_its_own_tests(checkout: Checkout, tmp_path: Path) -> None:
    """Of TheRock's packages of a candidate one target's are kept: the extras and lists of the others go."""
    if "gfx" in checkout.libraries:
        pytest.skip("unsplit packages have no device packages to leave out")
    new = ROCM_VERSION.replace("7.99.0", "7.99.1")
    change = RocmChange(old=ROCM_VERSION, new=new, targets=FAMILY_TARGETS[FAMILY])
    files = sorted(checkout.packages.iterdir())
    taken = [path for path in files if change.keeps_package(canonicalize_name(path.name.partition("-")[0]))]
    assert len(taken) < len(files)
    rewrite_set(taken, tmp_path / "new", change)
    (sdist,) = (tmp_path / "new").glob("*.tar.gz")
    process.capture(["tar", "xf", sdist, "-C", tmp_path])
    texts = [
        path.read_text()
        for path in (tmp_path / sdist.name.removesuffix(".tar.gz")).rglob("*")
        if path.is_file()
    ]
    left = {
        gpu for gpu in TARGETS if any(f"device-{gpu}" in text or f"append('{gpu}')" in text for text in texts)
    }
    assert left == set(change.targets)
    junit = tmp_path / "junit.xml"
    words = ("--find-links", tmp_path / "new", "--version", new, "--junit", junit)
    checkout.stages("test_rocm", "--", *words)
    report = read_file(junit)
    assert (report.failing, report.properties["rocm"]) == ((), new)


def test_every_wheel_is_built_against_them_and_computes(checkout: Checkout) -> None:
    sample = ("--torch-ref", "sample")
    checkout.stages("resolve", "checkout", "--", *sample)
    checkout.stages("install_rocm", *BUILDS, "--", *sample, "--rocm-find-links", checkout.packages)
    checkout.stages("check_wheels", "index", "--", *sample)
    checkout.stages("test_smoke", "--", *sample, "--rocm-find-links", checkout.packages)
    wheels = list((checkout.path / f"out/local-linux/python/{FAMILY}").glob("*.whl"))
    assert {path.name.partition("-")[0] for path in wheels} >= {"torch", "triton", "torchaudio", "apex"}
