"""Environments with ROCm packages that a test built."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import pytest

from core import process
from rocm_packaging.packages.build import BuiltPackages
from tests.kit.environments import Venv

UV = Path(sys.executable).parent / "uv"


@dataclass(frozen=True, kw_only=True)
class RocmEnvironment(Venv):
    """A virtual environment for ROCm packages from one folder, whose sdist is built for a GPU family.

    The setting's name keeps cached wheels of that sdist apart from other packages'.
    """

    packages: Path
    family: ClassVar[str]
    setting: ClassVar[str]

    @classmethod
    def made(cls, root: Path, built: BuiltPackages, setuptools: Path) -> Self:
        """Make one that has setuptools, which that sdist is built with."""
        process.capture([UV, "venv", "--python", sys.executable, root])
        made = cls(root=root, packages=built.files[0].path.parent)
        (made.site / "setuptools.pth").write_text(f"{setuptools}\n", encoding="utf-8")
        return made

    def install(self, *requirements: str, family: str = "") -> None:
        chosen = family or self.family
        arguments: list[str | Path] = ["--no-index", "--no-build-isolation", "--find-links", self.packages]
        arguments += ["--config-settings-package", f"rocm:{self.setting}={chosen}"]
        env = process.inherited(ROCM_SDK_TARGET_FAMILY=chosen)
        process.capture([UV, "pip", "install", "--python", self.python, *arguments, *requirements], env=env)

    def uninstall(self, *names: str) -> None:
        process.capture([UV, "pip", "uninstall", "--python", self.python, *names])

    def run(self, *arguments: str, check: bool = True, **env: str) -> process.Completed:
        clean = {"ROCM_SDK_TARGET_FAMILY": None, "PYTHONDONTWRITEBYTECODE": "1"}
        full = process.inherited(**{**clean, **env})
        return process.capture([self.python, *arguments], env=full, check=check)

    def rocm_sdk(self, *arguments: str, check: bool = True, **env: str) -> process.Completed:
        return self.run("-m", "rocm_sdk", *arguments, check=check, **env)

    def devel_root(self) -> Path:
        return Path(self.rocm_sdk("path", "--root").stdout.strip())

    def left(self) -> list[Path]:
        return [path for path in self.site.rglob("*") if "rocm" in path.name.lower()]


@pytest.fixture(scope="session")
def setuptools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment's worth of setuptools, from the public index: what the sdist builds with."""
    folder = tmp_path_factory.mktemp("setuptools")
    process.capture([UV, "pip", "install", "--target", folder, "setuptools>=70.2"])
    return folder
