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
WINDOWS_WHEELS = ("torch==2.14.1", "torchvision==0.29.1", "torchaudio==2.11.0", "numpy==2.5.5")
LINUX_WHEELS = (
    *("torchvision==0.29.1", "torchaudio==2.11.0", "triton==3.9.0", "numpy==2.5.5", "pip==26.3"),
    *("setuptools==84.2.1", "uv==0.13.9", "wheel==0.48.0", "virtualenv==21.15.11", "coverage==7.17.5"),
    *("cryptography==50.0.2", "jinja2==3.1.6", "matplotlib==3.11.2", "pandas==3.1.1", "pillow==13.0.0"),
    *("pytest==9.2.0", "requests==2.34.2", "scipy==1.18.1"),
)


@pytest.mark.parametrize(
    ("requirement", "platform"),
    [
        *((requirement, WINDOWS) for requirement in WINDOWS_WHEELS),
        *((requirement, LINUX) for requirement in LINUX_WHEELS),
    ],
)
def test_finds_nothing_false_in_a_wheel_of_the_index(
    tmp_path: Path, requirement: str, platform: tuple[str, ...]
) -> None:
    options = ("--no-deps", "--only-binary=:all:", "--python-version=3.12", f"--dest={tmp_path}", *platform)
    try:
        process.capture([sys.executable, "-m", "pip", "download", "--quiet", *options, requirement])
    except FatalError as problem:
        pytest.skip(f"{requirement} cannot be downloaded: {problem.message.splitlines()[0]}")
    (wheel,) = tmp_path.glob("*.whl")
    project = requirement.partition("==")[0]

    errors = errors_among(check_wheel(wheel))

    assert {error.check for error in errors} <= FINDINGS_THAT_ARE_TRUE.get(project, set())
