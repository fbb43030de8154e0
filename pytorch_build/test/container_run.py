"""Upstream's tests in the image that GPU machines test in.

The image has no ROCm, so that all of it comes from the wheels. What the machine's driver needs is passed on:
/dev/kfd and /dev/dri, the groups that may open them, and the machine's shared memory.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core import files, process
from core.env import engines
from pytorch_build.build import container
from pytorch_build.test.gpus import HIDING_VARIABLES

if TYPE_CHECKING:
    from pytorch_build.build.container import ContainerSession

IMAGE = "ghcr.io/rocm/no_rocm_image_ubuntu24_04:latest"
_DEVICES = (Path("/dev/kfd"), Path("/dev/dri"))
# 110 is render's number on machines whose image does not know it.
_GROUPS = ("video", "render", "110")
_HOME = "/tmp/home"  # noqa: S108 - the container's own
_ENVIRONMENTS = "/tmp/nox"  # noqa: S108 - the container's own

# What users set for the tool, and what chooses among GPUs; none that names a file of the machine.
_PASSED_VARIABLES = re.compile(
    r"AWS_(?!\w*(?:_FILE|CA_BUNDLE)$)\w+|(?:PIP|UV)_(?:\w*INDEX\w*|FIND_LINKS|NO_\w+)|\w+_(?:proxy|PROXY)"
    r"|SOURCE_LOCK|RELEASE_TYPE|CI|GITHUB_(?:ACTIONS|REPOSITORY|RUN_ID|RUN_ATTEMPT|SHA|REF|SERVER_URL)"
)


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What a container gets of the machine: devices, and the numbers of the groups that may open them."""

    paths: tuple[Path, ...] = ()
    groups: tuple[int, ...] = ()


def run_in_container(
    session: ContainerSession,
    *,
    image: str,
    devices: Devices,
) -> None:
    """Run a session of this project in a container."""
    for folder in _cache_variables(session.root).values():
        files.ensure_folder(Path(folder))
    process.run(
        container_command(
            engines.find_engine(*engines.RUNNERS, otherwise="Or leave --container out."),
            session,
            image=image,
            devices=devices,
        ),
        env=process.inherited(),
    )


def find_devices(paths: Sequence[Path] = _DEVICES) -> Devices:
    """Return what a container gets of this machine.

    An engine refuses to start with a device that does not exist; inside, the stage reports what is missing.
    """
    present_paths = [path for path in paths if path.exists()]
    groups: dict[int, None] = {}
    for path in present_paths:
        for node in (path, *sorted(path.glob("render*"))):
            if not node.is_dir():
                groups[node.stat().st_gid] = None
    return Devices(
        paths=tuple(present_paths),
        groups=tuple(groups),
    )


def container_command(
    engine: engines.Engine,
    session: ContainerSession,
    *,
    image: str,
    devices: Devices,
) -> tuple[str, ...]:
    """Return the command line that runs a session of this project in a container."""
    variables = {
        # A number that the image does not know has no home and no name.
        "HOME": _HOME,
        "USER": "tests",
        **_cache_variables(session.root),
    }
    passed_names = filter(_is_passed_on, session.machine_variables)
    options = _device_options(engine, session, devices)
    engine_command = container.engine_command(
        engine,
        session,
        variables,
        list(passed_names),
        *options,
    )
    return (
        *engine_command,
        image,
        "bash",
        "-euc",
        _script(session),
    )


def _is_passed_on(variable: str) -> bool:
    """Return whether a container gets a variable of the machine."""
    return variable in HIDING_VARIABLES or _PASSED_VARIABLES.fullmatch(variable) is not None


def _device_options(
    engine: engines.Engine,
    session: ContainerSession,
    devices: Devices,
) -> Sequence[str]:
    """Return the engine's options with which a container may use devices."""
    options = ["--ipc=host"]
    if not devices.paths:
        return options

    options += [f"--device={path}" for path in devices.paths]
    if session.keeps_user(engine):
        # The engine takes no other group beside these.
        options.append("--group-add=keep-groups")
    else:
        groups = dict.fromkeys([*_GROUPS, *map(str, devices.groups)])
        options += [f"--group-add={group}" for group in groups]
    return [*options, "--security-opt=seccomp=unconfined"]


def _script(session: ContainerSession) -> str:
    """Return the shell script that runs a session of this project inside the container."""
    # The machine's own environments are made for its own libraries.
    nox = [
        "nox",
        "--envdir",
        _ENVIRONMENTS,
        "-s",
        session.name,
    ]
    if session.python:
        nox += ["-P", session.python]
    nox += ["--", *session.arguments]
    lines = (
        f"mkdir -p {_HOME}",
        # The tool's environment, outside of the checkout.
        "python3 -m venv /tmp/tool",
        ". /tmp/tool/bin/activate",
        "pip install --quiet --require-hashes -r requirements.txt",
        f"exec {shlex.join(nox)}",
    )
    return "; ".join(lines)


def _cache_variables(root: Path) -> Mapping[str, str]:
    """Return the caches that outlive the container: wheels of ROCm are gigabytes."""
    folder = root / container.CACHE
    return {"PIP_CACHE_DIR": str(folder / "pip"), "UV_CACHE_DIR": str(folder / "uv")}
