"""Virtual environments that tests install into, on Linux."""

from dataclasses import dataclass
from pathlib import Path

from core import process


def installed(python: Path) -> dict[str, str]:
    """List the distributions of an environment with their versions, but for what environments come with."""
    code = "import importlib.metadata as m; print(*(d.name + '=' + d.version for d in m.distributions()))"
    found = dict(one.split("=") for one in process.capture([python, "-I", "-c", code]).stdout.split())
    return {name: version for name, version in found.items() if name not in {"pip", "setuptools", "wheel"}}


@dataclass(frozen=True, kw_only=True)
class Venv:
    """A virtual environment."""

    root: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.root / "bin" / "python"

    @property
    def site(self) -> Path:
        """Where packages lie."""
        return next((self.root / "lib").glob("python*")) / "site-packages"
