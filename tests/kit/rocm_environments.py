"""Environments with ROCm packages that a test built."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import pytest

from core import process
from rocm_packaging.packages.build import BuiltPackages
from tests.kit.environments import UV, Venv, install_locked


@dataclass(frozen=True, kw_only=True)
class RocmEnvironment(Venv):
    """A virtual environment for ROCm packages from one folder, whose sdist is built for a GPU family.

    The setting's name keeps cached wheels of that sdist apart from other packages'.
    """

    packages: Path
    family: ClassVar[str]
    setting: ClassVar[str]

    @classmethod
    def create(cls, root: Path, built: BuiltPackages, setuptools: Path) -> Self:
        """Create one that sees setuptools, which that sdist is built with."""
        process.capture([UV, "venv", "--python", sys.executable, root], env=process.inherited())
        environment = cls(root=root, packages=built.files[0].path.parent)
        (environment.site / "setuptools.pth").write_text(f"{setuptools}\n", encoding="utf-8")
        return environment

    def install(self, *requirements: str, family: str = "") -> None:
        """Install from the folder of packages alone, for a family."""
        chosen_family = family or self.family
        arguments: list[str | Path] = ["--no-index", "--no-build-isolation", "--find-links", self.packages]
        arguments += ["--config-settings-package", f"rocm:{self.setting}={chosen_family}"]
        env = process.inherited(ROCM_SDK_TARGET_FAMILY=chosen_family)
        process.capture([UV, "pip", "install", "--python", self.python, *arguments, *requirements], env=env)

    def uninstall(self, *names: str) -> None:
        """Uninstall distributions."""
        command: list[str | Path] = [UV, "pip", "uninstall", "--python", self.python, *names]
        process.capture(command, env=process.inherited())

    def run(self, *arguments: str, check: bool = True, **variables: str) -> process.Completed:
        """Run the environment's Python, which leaves no byte code there."""
        settings = {"ROCM_SDK_TARGET_FAMILY": None, "PYTHONDONTWRITEBYTECODE": "1", **variables}
        return process.capture([self.python, *arguments], env=process.inherited(**settings), check=check)

    def rocm_sdk(self, *arguments: str, check: bool = True, **variables: str) -> process.Completed:
        """Run ROCm's own command line."""
        return self.run("-m", "rocm_sdk", *arguments, check=check, **variables)

    def devel_root(self) -> Path:
        """Return where the development files lie."""
        return Path(self.rocm_sdk("path", "--root").stdout.strip())

    def rocm_files(self) -> list[Path]:
        """Return what is installed of ROCm."""
        return [path for path in self.site.rglob("*") if "rocm" in path.name.lower()]


@pytest.fixture(scope="session")
def setuptools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with setuptools, for any environment: what the sdist builds with."""
    folder = tmp_path_factory.mktemp("setuptools")
    install_locked(["--target", folder / "site"], folder, "setuptools")
    return folder / "site"
