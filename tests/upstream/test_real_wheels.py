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


WINDOWS_PROJECTS = ("torch", "torchvision", "torchaudio", "numpy")
LINUX_PROJECTS = (
    *("torchvision", "torchaudio", "triton", "numpy", "pip", "setuptools", "uv", "wheel", "virtualenv"),
    *("coverage", "cryptography", "jinja2", "matplotlib", "pandas", "pillow", "pytest", "requests", "scipy"),
)


@pytest.mark.parametrize(
    ("project", "platform"),
    [
        *((project, WINDOWS) for project in WINDOWS_PROJECTS),
        *((project, LINUX) for project in LINUX_PROJECTS),
    ],
)
def test_finds_nothing_false_in_a_wheel_of_the_index(
    tmp_path: Path, project: str, platform: tuple[str, ...]
) -> None:
    options = ("--no-deps", "--only-binary=:all:", "--python-version=3.12", f"--dest={tmp_path}", *platform)
    try:
        process.capture([sys.executable, "-m", "pip", "download", "--quiet", *options, project])
    except FatalError as problem:
        pytest.skip(f"{project} cannot be downloaded: {problem.message.splitlines()[0]}")
    (wheel,) = tmp_path.glob("*.whl")

    errors = errors_among(check_wheel(wheel))

    assert {error.check for error in errors} <= FINDINGS_THAT_ARE_TRUE.get(project, set())
