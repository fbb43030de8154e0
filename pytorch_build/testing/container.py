"""The same tests in the image that GPU machines test in: its devices and groups, as a command line.

The image has no ROCm, so that all of it comes from the wheels. What the machine's driver needs is passed on:
``/dev/kfd`` and ``/dev/dri`` with the groups that may open them (110 is render's number on machines whose
image does not know it), and the machine's shared memory.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytorch_build.testing.gpu_facts import HIDING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from core.engines import Engine

IMAGE = "ghcr.io/rocm/no_rocm_image_ubuntu24_04:latest"
_RENDER_GROUP = "110"
# what people set for the tool, and what chooses among GPUs
_PASSED = re.compile(
    r"AWS_\w+|PIP_\w+|UV_\w+|\w+_proxy|\w+_PROXY|SOURCE_LOCK|RELEASE_TYPE|GITHUB_\w+|RUNNER_\w+"
)


@dataclass(frozen=True, kw_only=True)
class Container:
    """A container that runs a stage.

    Attributes:
        engine: What runs it.
        image: The image.
        root: The checkout, which has the same path inside.
        folders: Other folders that the stage reads, with the same paths inside.
        gpu: Pass AMD's devices on.
        variables: Names of variables that are passed on; their values never stand in a command line.
    """

    engine: Engine
    image: str = IMAGE
    root: Path
    folders: tuple[Path, ...] = ()
    gpu: bool = True
    variables: tuple[str, ...] = ()


def passed_on(env: Mapping[str, str]) -> tuple[str, ...]:
    """Choose the variables that the stage needs inside, by name."""
    return tuple(sorted(name for name in env if _PASSED.fullmatch(name) or name in HIDING))


def inside(words: Sequence[str], *, flags: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    """Take what is about this machine out of a stage's words.

    Args:
        words: The words.
        flags: Options without a value.
        options: Options with one, behind ``=`` or as the next word.
    """
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
    """Write the command line that runs a session of this project in the container.

    Args:
        container: The container.
        words: The session's own words, without what asks for the container.
        python: The Python series of the session; "" for the image's own.
    """
    argv = [container.engine, "run", "--rm", "--init", "--ipc=host"]
    if container.gpu:
        argv += ["--device=/dev/kfd", "--device=/dev/dri"]
        argv += [f"--group-add={group}" for group in ("video", "render", _RENDER_GROUP)]
        argv += ["--security-opt=seccomp=unconfined"]
    for folder in dict.fromkeys((container.root, *container.folders)):
        argv += ["--volume", f"{folder}:{folder}"]
    for name in container.variables:
        argv += ["--env", name]
    argv += ["--workdir", str(container.root), container.image]
    return (*argv, "bash", "-euc", script(words, python=python))


def script(words: Sequence[str], *, python: str = "") -> str:
    """Write what the container runs: the tool's environment, outside of the checkout, then the session."""
    session = ["nox", "-s", "test_torch", *(["-P", python] if python else []), "--", *words]
    return "; ".join(
        (
            "python3 -m venv /tmp/tool",
            ". /tmp/tool/bin/activate",
            "pip install --quiet --require-hashes -r requirements.txt",
            # the machine's own environments are made for its own libraries
            f"NOX_ENVDIR=/tmp/nox exec {shlex.join(session)}",
        )
    )
