"""What is searched, by the options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ci import install

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from packaging.requirements import Requirement

    from core.cli.options import Common
    from core.env import Interpreter
    from core.packages.package_source import PackageSource


@dataclass(frozen=True, kw_only=True)
class BisectRequest:
    """What is searched, by the options.

    Attributes:
        folder: Where the search, its environment and its logs are.
        packages: What is installed of each revision.
        source: The packages among whose versions is searched, or where the ROCm of runs is.
        good: The name of a revision at which the command works.
        bad: The name of one at which it fails.
        command: The program that is run, and its arguments.
        command_folder: Where it runs.
        repeat: How often.
        timeout: The seconds after which it counts as failed.
    """

    common: Common
    folder: Path
    packages: tuple[Requirement, ...]
    source: PackageSource
    good: str
    bad: str
    command: Sequence[str]
    command_folder: Path
    repeat: int
    timeout: float

    @property
    def python(self) -> str | None:
        """The Python that the options name."""
        return None if self.common.python is None else str(self.common.python)

    def interpreter(self, python: str | None) -> Interpreter:
        """Return the Python that the environment will have."""
        return install.planned(self.folder / "venv", python=python, clean=True)

    def request_installation(
        self,
        source: PackageSource,
        *,
        versions: Mapping[str, str],
        family: str,
        python: str | None,
    ) -> install.InstallRequest:
        """Return what is to be installed of a source, some of it in exact versions."""
        requirements = install.parse_requirements([str(requirement) for requirement in self.packages])
        for requirement in requirements:
            version = versions.get(canonicalize_name(requirement.name))
            if version is not None and not requirement.specifier:
                requirement.specifier = SpecifierSet(f"=={version}")
        return install.request_packages(self.common, source, requirements, family, self.interpreter(python))
