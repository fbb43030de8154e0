"""The same tests in the image that GPU machines test in: its devices and groups, as a command line.

The image has no ROCm, so that all of it comes from the wheels. What the machine's driver needs is passed on:
``/dev/kfd`` and ``/dev/dri`` with the groups that may open them (110 is render's number on machines whose
image does not know it; the machine's own numbers go along), and the machine's shared memory. Files that it
leaves belong to the person who started it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytorch_build.build.container import CACHE
from pytorch_build.test.gpu_facts import HIDING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.env.engines import Engine

IMAGE = "ghcr.io/rocm/no_rocm_image_ubuntu24_04:latest"
DEVICES = (Path("/dev/kfd"), Path("/dev/dri"))
_HOME = "/tmp/home"  # noqa: S108 - the container's own
_GROUPS = ("video", "render", "110")
# what people set for the tool, and what chooses among GPUs; none that names a file of the machine
_PASSED = re.compile(
    r"AWS_(?!\w*(?:_FILE|CA_BUNDLE)$)\w+|(?:PIP|UV)_(?:\w*INDEX\w*|FIND_LINKS|NO_\w+)|\w+_(?:proxy|PROXY)"
    r"|SOURCE_LOCK|RELEASE_TYPE|CI|GITHUB_(?:ACTIONS|REPOSITORY|RUN_ID|RUN_ATTEMPT|SHA|REF|SERVER_URL)"
)


@dataclass(frozen=True, kw_only=True)
class Container:
    """A container that runs a stage."""

    engine: Engine
    image: str = IMAGE
    root: Path
    folders: tuple[Path, ...] = ()
    user: tuple[int, int]
    devices: tuple[Path, ...] = DEVICES
    groups: tuple[int, ...] = ()
    variables: tuple[str, ...] = ()


def passed_on(env: Mapping[str, str]) -> tuple[str, ...]:
    """Choose the variables that the stage needs inside, by name."""
    return tuple(sorted(name for name in env if _PASSED.fullmatch(name) or name in HIDING))


def inside(words: Sequence[str], *, flags: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    """Take what is about this machine out of a stage's words."""
    kept: list[str] = []
    skip = False
    for at, word in enumerate(words):
        if skip or word in flags or word.partition("=")[0] in options:
            skip = not skip and word in options
            continue
        if word == "--":  # what follows is pytest's
            return (*kept, *words[at:])
        kept.append(word)
    return tuple(kept)


def command(container: Container, words: Sequence[str], *, python: str = "") -> tuple[str, ...]:
    """Write the command line that runs a session of this project in the container."""
    argv = [container.engine, "run", "--rm", "--init", "--ipc=host"]
    # podman without root has other numbers inside unless it is told to keep the person's and their groups'
    keeps = container.engine == "podman" and container.user[0] != 0
    argv += ["--userns=keep-id"] if keeps else []
    argv += [f"--user={container.user[0]}:{container.user[1]}"]
    if container.devices:
        argv += [f"--device={device}" for device in container.devices]
        groups = ("keep-groups",) if keeps else dict.fromkeys((*_GROUPS, *map(str, container.groups)))
        argv += [f"--group-add={group}" for group in groups]
        argv += ["--security-opt=seccomp=unconfined"]
    for folder in dict.fromkeys((container.root, *container.folders)):
        argv += ["--volume", f"{folder}:{folder}"]
    # a number that the image does not know has no home and no name
    own = {"HOME": _HOME, "USER": "tests", **caches(container.root)}
    for name, value in own.items():
        argv += ["--env", f"{name}={value}"]
    for name in container.variables:
        argv += ["--env", name]
    argv += ["--workdir", str(container.root), container.image]
    return (*argv, "bash", "-euc", script(words, python=python))


def caches(root: Path) -> Mapping[str, str]:
    """Give the caches that outlive the container: wheels of ROCm are gigabytes."""
    return {"PIP_CACHE_DIR": f"{root / CACHE}/pip", "UV_CACHE_DIR": f"{root / CACHE}/uv"}


def devices_here(devices: Sequence[Path] = DEVICES) -> tuple[tuple[Path, ...], tuple[int, ...]]:
    """Find which devices this machine has, and the numbers of the groups that may open them.

    An engine refuses to start with a device that is not there; inside, the stage says what is missing.
    """
    there = tuple(one for one in devices if one.exists())
    nodes = [
        node for one in there for node in ((one, *sorted(one.glob("render*"))) if one.is_dir() else (one,))
    ]
    return there, tuple(dict.fromkeys(node.stat().st_gid for node in nodes if not node.is_dir()))


def script(words: Sequence[str], *, python: str = "") -> str:
    """Write what the container runs: the tool's environment, outside of the checkout, then the session."""
    session = ["nox", "-s", "test_torch", *(["-P", python] if python else []), "--", *words]
    return "; ".join(
        (
            f"mkdir -p {_HOME}",
            "python3 -m venv /tmp/tool",
            ". /tmp/tool/bin/activate",
            "pip install --quiet --require-hashes -r requirements.txt",
            # the machine's own environments are made for its own libraries
            f"NOX_ENVDIR=/tmp/nox exec {shlex.join(session)}",
        )
    )
