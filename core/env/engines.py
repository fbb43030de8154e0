"""Container engines: the command lines of docker, podman and buildah, and what their failures mean."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from core import process
from core.errors import FatalError, MissingInputError, ProcessError, UsageError

Engine = Literal["docker", "podman", "buildah"]
# in the order in which they are looked for; the command that tells whether each works, its daemon included
ENGINES: dict[Engine, tuple[str, ...]] = {
    "docker": ("docker", "version", "--format", "{{.Server.Version}}"),
    "podman": ("podman", "info", "--format", "{{.Version.Version}}"),
    "buildah": ("buildah", "info"),
}
_PRUNE: dict[Engine, str] = {
    "docker": "docker system prune",
    "podman": "podman system prune",
    "buildah": "buildah rm --all, then buildah rmi --prune",
}
RUNNERS: tuple[Engine, ...] = ("docker", "podman")  # buildah only builds
_PATIENCE = 60.0

_FULL = re.compile(r"(?i)no space left on device|disk quota exceeded")
_NO_BASE = re.compile(
    r"(?i)pull access denied|manifest unknown|failed to resolve source metadata|no such image"
    r"|image not known|did not resolve to an alias|unable to pull|unable to copy from source"
    r"|initializing source docker://|reading manifest|unauthorized: "
)


@dataclass(frozen=True, kw_only=True)
class Build:
    """What an engine is to make: `names` are ``NAME:TAG``, `pushed` references of a registry besides."""

    dockerfile: Path
    context: Path
    arguments: Mapping[str, str]
    names: tuple[str, ...]
    pushed: tuple[str, ...] = ()
    archive: Path | None = None
    no_cache: bool = False


def build_command(engine: Engine, build: Build) -> tuple[str, ...]:
    """Write the command that builds; it is the same for the three engines."""
    return (
        *(engine, "build", "--file", str(build.dockerfile)),
        *(word for name in (*build.names, *build.pushed) for word in ("--tag", name)),
        *(word for pair in build.arguments.items() for word in ("--build-arg", "=".join(pair))),
        *(("--no-cache",) if build.no_cache else ()),
        str(build.context),
    )


def save_command(engine: Engine, build: Build, file: Path) -> tuple[str, ...]:
    """Write the command that saves the image to a file which `docker load` and `podman load` read.

    buildah's archives hold one name, the first.
    """
    match engine:
        case "docker":
            return ("docker", "save", "--output", str(file), *build.names)
        case "podman":
            return ("podman", "save", "--format", "docker-archive", "--output", str(file), *build.names)
        case "buildah":
            if ":" in str(file):
                raise UsageError(f"buildah cannot save to {file}: the path has a colon.")
            return ("buildah", "push", build.names[0], f"docker-archive:{file}:{build.names[0]}")


def login_command(engine: Engine, reference: str, user: str) -> tuple[str, ...]:
    """Write the command that logs in to the registry of an image's reference; it reads the password.

    A reference without a registry is one of Docker Hub, as docker reads it.
    """
    host = reference.partition("/")[0]
    is_registry = "." in host or ":" in host or host == "localhost"
    registry = host if is_registry else "docker.io"
    return (engine, "login", "--username", user, "--password-stdin", registry)


def find_engine(*names: Engine, otherwise: str = "") -> Engine:
    """Find an engine that answers: the first of those named, else of docker, podman and buildah."""
    wanted = names or tuple(ENGINES)
    reasons = []
    for engine in wanted:
        reason = _silence(ENGINES[engine])
        if not reason:
            return engine
        reasons.append(f"{engine} {reason}")
    there = (
        f"Install {' or '.join(wanted)} (on Debian and Ubuntu: apt-get install {wanted[-1]}), "
        "or start docker's daemon."
    )
    chroot = "Inside a container, buildah wants BUILDAH_ISOLATION=chroot." if "buildah" in wanted else ""
    raise MissingInputError(
        f"No container engine works here: {'; '.join(reasons)}.",
        hint=" ".join(one for one in (there, chroot, otherwise) if one),
    )


def _silence(question: Sequence[str]) -> str:
    """Return why an engine does not answer; "" for one that does."""
    if process.which(question[0]) is None:
        return "is not installed"
    try:
        said = process.capture(question, env=process.inherited(), check=False, timeout=_PATIENCE)
    except ProcessError as problem:
        return f"does not answer ({problem.message})"
    if said.returncode == 0:
        return ""
    lines = (said.stderr or said.stdout).strip().splitlines()
    return f"does not answer ({lines[-1].strip() if lines else f'status {said.returncode}'})"


def explained(engine: Engine, problem: ProcessError, *, base: str) -> FatalError:
    """Return what an engine's failure means, from the last lines that it printed."""
    lines = problem.output.splitlines()
    full = next((line for line in lines if _FULL.search(line)), "")
    if full:
        return FatalError(
            f"The disk is full: {full.strip()}",
            hint=f"Free some: {_PRUNE[engine]}. An image with ROCm takes tens of gigabytes.",
        )
    missing = next((line for line in reversed(lines) if _NO_BASE.search(line)), "")
    if missing:
        return MissingInputError(
            f"Could not pull the base image {base}: {missing.strip()}",
            hint=f"Name an existing one (--base IMAGE), or log in to its registry: {engine} login.",
        )
    return problem
