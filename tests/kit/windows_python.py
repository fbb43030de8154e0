"""A real Windows Python under Wine, which tests are given by the program that runs it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

import pytest

from core import process


@dataclass(frozen=True, kw_only=True)
class WindowsPython:
    """The folder of a Wine root, where ``win`` runs a program of Windows in the current folder.

    Windows sees the files of this machine on its drive Z:.
    """

    root: Path

    @property
    def drive(self) -> Path:
        """What Windows has as C:."""
        return self.root / "prefix" / "drive_c"

    def path(self, path: Path) -> str:
        """Return how Windows calls a path of this machine."""
        if path.is_relative_to(self.drive):
            return str(PureWindowsPath("C:/", path.relative_to(self.drive)))
        return str(PureWindowsPath("Z:", path))

    def run(
        self,
        *words: str | Path,
        cwd: Path,
        check: bool = True,
        variables: Mapping[str, str] | None = None,
    ) -> process.Completed:
        """Run a program of Windows; paths among the words are put into its form."""
        texts = [self.path(word) if isinstance(word, Path) else word for word in words]
        settings = [f"{name}={value}" for name, value in (variables or {}).items()]
        env = process.inherited(WENV=" ".join(settings))
        return process.capture([self.root / "win", *texts], cwd=cwd, check=check, env=env)

    def uv(
        self, *words: str | Path, cwd: Path, variables: Mapping[str, str] | None = None
    ) -> process.Completed:
        """Run Windows' uv."""
        return self.run(self.drive / "py" / "Scripts" / "uv.exe", *words, cwd=cwd, variables=variables)


@pytest.fixture(scope="session")
def windows_python(request: pytest.FixtureRequest) -> WindowsPython:
    """Return the Windows Python that the option names; skip where it names none."""
    program: Path | None = request.config.getoption("--windows-python")
    if program is None:
        pytest.skip("--windows-python names no Windows Python")
    return WindowsPython(root=program.resolve().parent)
