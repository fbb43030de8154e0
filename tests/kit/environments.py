"""Virtual environments that tests install into."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core import process
from tests.kit.windows import ON_WINDOWS, SCRIPTS, program_file


def installed(python: Path) -> dict[str, str]:
    """List the distributions of an environment with their versions, but for what environments come with."""
    code = "import importlib.metadata as m; print(*(d.name + '=' + d.version for d in m.distributions()))"
    lines = process.capture([python, "-I", "-c", code]).stdout.split()
    versions = dict(line.split("=") for line in lines)
    return {name: versions[name] for name in versions if name not in {"pip", "setuptools", "wheel"}}


@dataclass(frozen=True, kw_only=True)
class Venv:
    """A virtual environment."""

    root: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.root / SCRIPTS / program_file("python")

    @property
    def site(self) -> Path:
        """Where packages lie."""
        if ON_WINDOWS:
            return self.root / "Lib" / "site-packages"
        return next((self.root / "lib").glob("python*")) / "site-packages"


ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / program_file("uv")
SERIES = f"{sys.version_info.major}.{sys.version_info.minor}"

# Every package is in one of these, with the digests of its files: no test depends on what an index has today.
LOCKS = (ROOT / "requirements" / f"target-linux-{SERIES}.txt", ROOT / "requirements" / "test.txt")


def locked_requirement(name: str) -> str:
    """Return the lines of a lock that pin a package."""
    for lock in LOCKS:
        for lines in re.split(r"(?m)^(?=\S)", lock.read_text(encoding="utf-8")):
            if lines.startswith(f"{name}=="):
                return lines
    raise AssertionError(f"No lock has {name}.")


def write_locked_requirements(folder: Path, *names: str) -> Path:
    """Write a file of requirements with the pins of some packages; return its path."""
    path = folder / "locked.txt"
    path.write_text("".join(map(locked_requirement, names)), encoding="utf-8")
    return path


def download_locked_wheel(name: str, folder: Path) -> Path:
    """Download a package's wheel, of the version that a lock has; return its path."""
    options: list[str | Path] = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    options += ["--dest", folder, "--requirement", write_locked_requirements(folder, name)]
    process.capture([sys.executable, "-m", "pip", "download", *options], env=process.inherited())
    (wheel,) = folder.glob("*.whl")
    return wheel


def install_locked(target: Sequence[str | Path], folder: Path, *names: str) -> None:
    """Install packages that the locks have; `target` is uv's option for the place, `folder` for scratch."""
    requirements = write_locked_requirements(folder, *names)
    options: list[str | Path] = ["--quiet", "--no-deps", "--require-hashes", "--requirement", requirements]
    process.capture([UV, "pip", "install", *target, *options], env=process.inherited())


def create_environment(root: Path, *names: str) -> Venv:
    """Create an environment of this interpreter with packages that the locks have, and no others."""
    process.capture([UV, "venv", "--quiet", "--python", sys.executable, root], env=process.inherited())
    environment = Venv(root=root)
    if names:
        install_locked(["--python", environment.python], root, *names)
    return environment
