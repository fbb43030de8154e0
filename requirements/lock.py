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
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PLATFORMS = {"linux": "x86_64-manylinux_2_28", "windows": "x86_64-pc-windows-msvc"}

HASHES_WITHOUT_SOURCES = ("--generate-hashes", "--no-emit-index-url", "--no-emit-find-links")

# No such distribution exists, so an installer of an older Python ends by its name, not at a package's hash.
PYTHON_GUARD = 'needs-python-3.11-or-newer==0 ; python_version < "3.11"'
NO_HASH = "--hash=sha256:" + 64 * "0"


def main(arguments: list[str]) -> int:
    """Compile every lock, or compare every lock with what its source compiles to."""
    if "--check" in arguments:
        return exit_code(check)
    return exit_code(lambda: compile_all(FOLDER))


def compile_all(folder: Path) -> None:
    """Compile every lock of `folder`; pins that still hold stay as they are."""
    environment = lock_environment(process.inherited())
    for source, lock in TOOL_LOCKS.items():
        _compile_tool_lock(folder, source, lock, environment)
    _write_guard(folder.parent / "requirements.txt")

    for platform in PLATFORMS:
        for python in PYTHONS:
            for name in TARGET_LOCKS:
                _compile_target_lock(folder, name, platform, python, environment)
    prove_windows(folder)


def _compile_tool_lock(folder: Path, source: str, lock: str, environment: Mapping[str, str]) -> None:
    command = [
        sys.executable,
        "-m",
        "piptools",
        "compile",
        "--quiet",
        "--strip-extras",
        "--allow-unsafe",
        *HASHES_WITHOUT_SOURCES,
        "--output-file",
        lock,
        source,
    ]
    process.run(command, cwd=folder, env=environment)


def _compile_target_lock(
    folder: Path, name: str, platform: str, python: str, environment: Mapping[str, str]
) -> None:
    # uv writes these options into the lock in this order
    command = [
        installer.uv_program(),
        "pip",
        "compile",
        "--quiet",
        *HASHES_WITHOUT_SOURCES,
        "--no-config",
        "--python-version",
        python,
        "--python-platform",
        PLATFORMS[platform],
        "-o",
        f"{name}-{platform}-{python}.txt",
        f"{name}.in",
    ]
    process.run(command, cwd=folder, env=environment)


def _write_guard(lock: Path) -> None:
    """Put the line that an older Python stops at before all others."""
    guard = f"{PYTHON_GUARD} \\\n    {NO_HASH}\n"
    text = lock.read_text(encoding="utf-8")
    if not text.startswith(guard):
        lock.write_text(guard + text, encoding="utf-8", newline="\n")


def lock_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a compilation.

    No index, find-links or constraint of this machine may enter a lock: of pip's and uv's variables, only the
    path of the certificates stays.
    """
    environment = {
        name: value
        for name, value in inherited.items()
        if name == "PIP_CERT" or not name.startswith(("PIP_", "UV_"))
    }
    environment["PIP_CONFIG_FILE"] = os.devnull
    environment["CUSTOM_COMPILE_COMMAND"] = "nox -s lock"
    return environment


def prove_windows(folder: Path) -> None:
    """Show that the tool's lock resolves on Windows: every file it needs there is hashed in it."""
    with tempfile.TemporaryDirectory() as target:
        command = [
            installer.uv_program(),
            "pip",
            "install",
            "--quiet",
            "--no-config",
            "--dry-run",
            "--require-hashes",
            "--python-platform",
            "windows",
            "--python-version",
            "3.11",
            "--target",
            target,
            "-r",
            TOOL_LOCKS["run.in"],
        ]
        process.run(command, cwd=folder)


def check() -> None:
    """Compile into a copy and compare.

    Raises:
        CheckError: A lock is not what its source compiles to.
    """
    root = FOLDER.parent
    with tempfile.TemporaryDirectory() as temporary:
        copied_root = Path(temporary)
        copied_folder = copied_root / FOLDER.name
        shutil.copytree(FOLDER, copied_folder, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(root / "requirements.txt", copied_root)
        compile_all(copied_folder)

        stale_locks: list[str] = []
        for lock in (*FOLDER.glob("*.txt"), root / "requirements.txt"):
            compiled_lock = copied_root / lock.relative_to(root)
            if compiled_lock.read_bytes() != lock.read_bytes():
                stale_locks.append(lock.name)

    if stale_locks:
        names = ", ".join(sorted(stale_locks))
        raise CheckError(f"Not current: {names}.", hint="Compile them: nox -s lock.")
    console.done("locks: current")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
