"""Target environments: each holds just what its build or test needs, and is kept while that is the same."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from core import console, files, process
from core.env import installer
from core.errors import EnvironmentSetupError, ProcessError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from core.env.installer import Backend, Install
    from core.env.interpreters import Interpreter

MARKER = "build-environment.json"


def digest_of_calls(target: Interpreter, calls: Sequence[Install], *, salt: object = None) -> str:
    """Hash what an environment is made from: interpreter, requirements, files' contents, sources.

    Args:
        target: The environment's interpreter.
        calls: The installer calls, in order.
        salt: Anything else the contents depend on, such as digests of wheels given by path.
    """
    content = [
        {**asdict(call), "files": [files.sha256(path) for path in call.files], "env": dict(call.env)}
        for call in calls
    ]
    return files.digest_of(
        {"python": target.version, "base": str(target.base_executable), "calls": content, "salt": salt}
    )


@contextmanager
def prepared(
    target: Interpreter,
    calls: Sequence[Install],
    *,
    digest: str,
    backend: Backend = "uv",
    cache_dir: Path | None = None,
    force: bool = False,
) -> Iterator[None]:
    """Make an environment hold what `calls` install and nothing else, and hold its lock while it is used.

    Args:
        target: The environment's interpreter.
        calls: The installer calls, in order.
        digest: What the environment is known by (see `digest_of_calls`): the same digest is used as it
            is, another one is emptied first.
        backend: What installs.
        cache_dir: The installer's cache; None for its default.
        force: Make it anew in any case.

    Raises:
        EnvironmentSetupError: It cannot be made, or is no virtual environment.
    """
    if not target.virtual:
        raise EnvironmentSetupError(
            f"{target.executable} is no virtual environment; a bare interpreter is left alone.",
            hint="Run the stage through nox, or give --python a virtual environment's interpreter.",
        )
    # beside the environment, because emptying it would take a lock inside with it
    with files.locked(target.prefix.parent / f".{target.prefix.name}.lock", what=str(target.prefix)):
        marker = target.prefix / MARKER
        if (
            not force
            and marker.is_file()
            and json.loads(marker.read_text(encoding="utf-8"))["digest"] == digest
        ):
            console.detail(f"environment {target.prefix}: unchanged")
        else:
            with console.group(f"environment {target.prefix.name}"):
                marker.unlink(missing_ok=True)
                _empty(target, backend)
                for call in calls:
                    installer.install(target, call, backend=backend, cache_dir=cache_dir)
            files.write_json(marker, {"digest": digest})
        yield


def _empty(target: Interpreter, backend: Backend) -> None:
    """Make the environment anew, from the interpreter it was made from."""
    if backend == "uv":
        argv = [installer.uv_program(), "venv", "--no-config", "--quiet", "--clear"]
    else:
        import sys

        argv = [sys.executable, "-m", "virtualenv", "--quiet", "--clear"]
    try:
        process.run([*argv, "--python", target.base_executable, target.prefix])
    except ProcessError as problem:
        raise EnvironmentSetupError(f"The environment {target.prefix} could not be made anew.") from problem
