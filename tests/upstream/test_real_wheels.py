"""What check_wheels says of wheels that people install, from the package index that pip uses."""

import sys
from pathlib import Path

import pytest

from core import process
from core.errors import FatalError
from pytorch_build.check.run import check_wheel
from tests.kit.findings import errors_among

LINUX = (
    "--platform=manylinux_2_28_x86_64",
    "--platform=manylinux_2_27_x86_64",
    "--platform=manylinux_2_17_x86_64",
    "--platform=manylinux2014_x86_64",
    "--platform=any",
)
WINDOWS = ("--platform=win_amd64",)

# Their libraries look into folders of the machines that built them, and torchaudio requires no torch.
FINDINGS_THAT_ARE_TRUE = {
    "triton": {"elf"},
    "torchvision": {"elf"},
    "torchaudio": {"elf", "dll"},
}


# The versions that were looked at, so that a new release of any of them fails nothing.
QUICK_WHEELS = {
    "wheel==0.48.0": LINUX,
    "scipy==1.18.1": LINUX,
    "torchaudio==2.11.0": WINDOWS,
}
LINUX_WHEELS = (
    "coverage==7.17.5",
    "cryptography==50.0.2",
    "jinja2==3.1.6",
    "matplotlib==3.11.2",
    "numpy==2.5.5",
    "pandas==3.1.1",
    "pillow==13.0.0",
    "pip==26.3",
    "pytest==9.2.0",
    "requests==2.34.2",
    "setuptools==84.2.1",
    "torchaudio==2.11.0",
    "torchvision==0.29.1",
    "triton==3.9.0",
    "uv==0.13.9",
    "virtualenv==21.15.11",
)
WINDOWS_WHEELS = ("numpy==2.5.5", "torch==2.14.1", "torchvision==0.29.1")


def download_wheel(requirement: str, platform: tuple[str, ...], folder: Path) -> Path:
    """Download the wheel of a requirement; a test is skipped where it cannot be had."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version=3.12", f"--dest={folder}", *platform]
    try:
        process.capture([*command, requirement])
    except FatalError as problem:
        pytest.skip(f"{requirement} cannot be downloaded: {problem.message.splitlines()[0]}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def require_no_false_finding(requirement: str, platform: tuple[str, ...], folder: Path) -> None:
    """Hold that a wheel has none but the errors that are true of it."""
    wheel = download_wheel(requirement, platform, folder)
    project = requirement.partition("==")[0]

    errors = errors_among(check_wheel(wheel))

    assert {error.check for error in errors} <= FINDINGS_THAT_ARE_TRUE.get(project, set())


@pytest.mark.parametrize("requirement", QUICK_WHEELS)
def test_finds_nothing_false_in_a_wheel_of_the_index(tmp_path: Path, requirement: str) -> None:
    require_no_false_finding(requirement, QUICK_WHEELS[requirement], tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("requirement", LINUX_WHEELS)
def test_finds_nothing_false_in_a_wheel_for_linux(tmp_path: Path, requirement: str) -> None:
    require_no_false_finding(requirement, LINUX, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("requirement", WINDOWS_WHEELS)
def test_finds_nothing_false_in_a_wheel_for_windows(tmp_path: Path, requirement: str) -> None:
    require_no_false_finding(requirement, WINDOWS, tmp_path)
