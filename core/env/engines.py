"""Container engines: the command lines of docker, podman and buildah, and what their failures mean."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from core import process
from core.errors import FatalError, MissingInputError, ProcessError, UsageError

Engine = Literal["docker", "podman", "buildah"]
# In the order in which they are looked for: the command by which each says that it and its daemon work.
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
RUNNERS: tuple[Engine, ...] = ("docker", "podman")  # buildah builds, and runs nothing
_ANSWER_SECONDS = 60.0

_DISK_IS_FULL = re.compile(r"(?i)no space left on device|disk quota exceeded")
_HAS_NO_BASE = re.compile(
    r"(?i)pull access denied|manifest unknown|failed to resolve source metadata|no such image"
    r"|image not known|did not resolve to an alias|unable to pull|unable to copy from source"
    r"|initializing source docker://|reading manifest|unauthorized: "
)


@dataclass(frozen=True, kw_only=True)
class ImageBuild:
    """What an engine is to make.

    Attributes:
        dockerfile: The instructions.
        context: The folder that they take files from.
        arguments: The build arguments.
        names: ``NAME:TAG`` of the image here.
        pushed: References of registries that it is pushed to.
        archive: The file that it is saved to; None for none.
        no_cache: Whether each step is run again.
    """

    dockerfile: Path
    context: Path
    arguments: Mapping[str, str]
    names: tuple[str, ...]
    pushed: tuple[str, ...] = ()
    archive: Path | None = None
    no_cache: bool = False


def build_command(engine: Engine, build: ImageBuild) -> tuple[str, ...]:
    """Return the command that builds; it is the same for the three engines."""
    command = [engine, "build", "--file", str(build.dockerfile)]
    for name in (*build.names, *build.pushed):
        command += ["--tag", name]
    for variable, value in build.arguments.items():
        command += ["--build-arg", f"{variable}={value}"]
    if build.no_cache:
        command.append("--no-cache")
    return (*command, str(build.context))


def save_command(
    engine: Engine,
    build: ImageBuild,
    file: Path,
) -> tuple[str, ...]:
    """Return the command that saves the image to a file which `docker load` and `podman load` read.

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
            name = build.names[0]
            archive = f"docker-archive:{file}:{name}"
            return ("buildah", "push", name, archive)


def login_command(
    engine: Engine,
    reference: str,
    user: str,
) -> tuple[str, ...]:
    """Return the command that logs in to the registry of an image's reference; it reads the password.

    A reference without a registry is one of Docker Hub, as docker reads it.
    """
    host = reference.partition("/")[0]
    is_registry = "." in host or ":" in host or host == "localhost"
    registry = "docker.io"
    if is_registry:
        registry = host
    return (engine, "login", "--username", user, "--password-stdin", registry)


def find_engine(*names: Engine, otherwise: str = "") -> Engine:
    """Return an engine that answers: the first of those named, else of docker, podman and buildah.

    `otherwise` is a sentence for the hint of the error: what can be done without an engine.
    """
    engines = names or tuple(ENGINES)
    faults: list[str] = []
    for engine in engines:
        fault = _engine_fault(ENGINES[engine])
        if fault is None:
            return engine
        faults.append(f"{engine} {fault}")

    choices = " or ".join(engines)
    last_engine = engines[-1]
    hint = (
        f"Install {choices} (on Debian and Ubuntu: apt-get install {last_engine}), or start docker's daemon."
    )
    if "buildah" in engines:
        hint += " Inside a container, buildah wants BUILDAH_ISOLATION=chroot."
    if otherwise:
        hint += f" {otherwise}"
    listing = "; ".join(faults)
    raise MissingInputError(f"No container engine works here: {listing}.", hint=hint)


def _engine_fault(command: Sequence[str]) -> str | None:
    """Return why an engine cannot be used, by the command that asks it; None for one that answers."""
    if process.which(command[0]) is None:
        return "is not installed"
    try:
        completed = process.capture(
            command,
            env=process.inherited(),
            check=False,
            timeout=_ANSWER_SECONDS,
        )
    except ProcessError as problem:
        return f"does not answer ({problem.message})"

    if completed.returncode == 0:
        return None
    output = completed.stderr or completed.stdout
    lines = output.strip().splitlines()
    if not lines:
        return f"does not answer (status {completed.returncode})"
    last_line = lines[-1].strip()
    return f"does not answer ({last_line})"


def explain_failure(
    engine: Engine,
    problem: ProcessError,
    *,
    base: str,
) -> FatalError:
    """Return what an engine's failure means, from the last lines that it printed."""
    lines = problem.output.splitlines()
    for line in lines:
        if _DISK_IS_FULL.search(line):
            return FatalError(
                f"The disk is full: {line.strip()}",
                hint=f"Free some: {_PRUNE[engine]}. An image with ROCm takes tens of gigabytes.",
            )
    for line in reversed(lines):
        if _HAS_NO_BASE.search(line):
            return MissingInputError(
                f"Could not pull the base image {base}: {line.strip()}",
                hint=f"Name an existing one (--base IMAGE), or log in to its registry: {engine} login.",
            )
    return problem
