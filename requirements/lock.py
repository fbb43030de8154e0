"""Compile the locks: `nox -s lock`; with ``--check`` only say whether they are current.

The tool's own locks come from pip-tools on Python 3.11 and hold for every supported
Python and platform. Target locks differ by Python and platform, which pip-tools cannot
compile for from elsewhere, so uv's compiler makes them in the same format.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from core import console, process
from core.cli import exit_code
from core.env import installer
from core.errors import CheckError

FOLDER = Path(__file__).parent
TOOL_LOCKS = {
    "run.in": "../requirements.txt",
    "test.in": "test.txt",
    "mutants.in": "mutants.txt",
    "lint.in": "lint.txt",
    "baselines.in": "baselines.txt",
}
# for target environments: what builds need, what upstream's tests need
TARGET_LOCKS = ("target", "torch-tests")
# no such thing exists: an installer of an older Python ends by its name, and not at some package's hash
_GUARD = f'needs-python-3.11-or-newer==0 ; python_version < "3.11" \\\n    --hash=sha256:{"0" * 64}\n'
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PLATFORMS = {"linux": "x86_64-manylinux_2_28", "windows": "x86_64-pc-windows-msvc"}


def main(words: list[str]) -> int:
    """Compile every lock, in place or beside for a comparison."""
    return exit_code(check if "--check" in words else lambda: compile_all(FOLDER))


def compile_all(folder: Path) -> None:
    """Compile every lock of `folder`; pins that still hold stay as they are."""
    env = lock_environment(process.inherited())
    for source, target in TOOL_LOCKS.items():
        options = ["--generate-hashes", "--allow-unsafe", "--no-emit-index-url", "--no-emit-find-links"]
        argv = [sys.executable, "-m", "piptools", "compile", "--quiet", "--strip-extras", *options]
        process.run([*argv, "--output-file", target, source], cwd=folder, env=env)
    tools = folder.parent / "requirements.txt"
    if not (said := tools.read_text("utf-8")).startswith(_GUARD):
        tools.write_text(_GUARD + said, encoding="utf-8", newline="\n")
    for platform, triple in PLATFORMS.items():
        for python in PYTHONS:
            options = ["--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--no-config"]
            where = ["--python-version", python, "--python-platform", triple]
            argv = [installer.uv_program(), "pip", "compile", "--quiet", *options, *where]
            for name in TARGET_LOCKS:
                process.run(
                    [*argv, "-o", f"{name}-{platform}-{python}.txt", f"{name}.in"], cwd=folder, env=env
                )
    prove_windows(folder)


def lock_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a compilation.

    No index, find-links or constraint of this machine may enter a lock: of pip's and uv's variables, only the
    path of the certificates stays.
    """
    env = {name: value for name, value in inherited.items() if not name.startswith(("PIP_", "UV_"))}
    if "PIP_CERT" in inherited:
        env["PIP_CERT"] = inherited["PIP_CERT"]
    return env | {"PIP_CONFIG_FILE": os.devnull, "CUSTOM_COMPILE_COMMAND": "nox -s lock"}


def prove_windows(folder: Path) -> None:
    """Show that the tool's lock resolves on Windows: every file it needs there is hashed in it."""
    argv = [
        installer.uv_program(),
        "pip",
        "install",
        "--no-config",
        "--dry-run",
        "--quiet",
        "--require-hashes",
    ]
    with tempfile.TemporaryDirectory() as temporary:
        where = ["--python-platform", "windows", "--python-version", "3.11", "--target", temporary]
        process.run([*argv, *where, "-r", TOOL_LOCKS["run.in"]], cwd=folder)


def check() -> None:
    """Compile into a copy and compare.

    Raises:
        CheckError: A lock is not what its source compiles to.
    """
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / FOLDER.name
        shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(FOLDER.parent / "requirements.txt", copy.parent)
        compile_all(copy)
        locks = [*FOLDER.glob("*.txt"), FOLDER.parent / "requirements.txt"]
        stale = [
            lock.name
            for lock in locks
            if (
                copy / lock.relative_to(FOLDER.parent).name
                if lock.parent == FOLDER
                else copy.parent / lock.name
            ).read_bytes()
            != lock.read_bytes()
        ]
    if stale:
        raise CheckError(f"Not current: {', '.join(sorted(stale))}.", hint="Compile them: nox -s lock.")
    console.done("locks: current")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
