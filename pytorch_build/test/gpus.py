"""The GPUs that tests run on: what this machine has, and which of them a family's wheels are tested on.

Sources: the kernel's topology (``/sys/class/kfd/kfd/topology/nodes``), else ``rocminfo``; ``nvidia-smi`` on
NVIDIA's machines; where there is no such driver, as on Windows, ``rocminfo``, else ``offload-arch``. They run
without the variables that hide GPUs, so that hidden GPUs are known by name.

A GPU family becomes device variables, set before torch is imported. How the runtimes read them:
``ROCR_VISIBLE_DEVICES`` chooses among the machine's GPUs, ``HIP_VISIBLE_DEVICES`` among what that left (ROCm
takes ``CUDA_VISIBLE_DEVICES`` where it is not set), by index or UUID, in the order given. An index that does
not exist ends their list silently; here it is an error. ``-1`` ends it on purpose.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from core import console, process
from core.errors import CheckError, ProcessError, UsageError
from core.families import KFD_NODES, kernel_nodes, target_of_version

if TYPE_CHECKING:
    from pytorch_build.context import Context

Vendor = Literal["amd", "nvidia"]
Environment = Mapping[str, str | None]
Policy = Literal["unique", "all"]

# What hides GPUs, from the runtime's lowest layer up.
HIDING_VARIABLES = (
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
)
NODES = KFD_NODES
KFD = Path("/dev/kfd")
RENDER_NODES = Path("/dev/dri")
NVIDIA = Path("/dev/nvidiactl")
_SECONDS = 60.0
_TARGET = re.compile(r"gfx[0-9a-f]{3,}")
_FIELD = re.compile(r"^  ([A-Z][\w ]*?):[ \t]+(.*?)[ \t]*$", re.MULTILINE)
_NVIDIA_ROW = re.compile(r"^(GPU-[^,]*?)\s*,\s*(\d+)\.(\d+)\s*,\s*(.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU; the `selector` is the index or UUID that leads a process to it, where variables choose."""

    target: str
    uuid: str = ""
    name: str = ""
    selector: str = ""

    def __str__(self) -> str:
        if not self.name:
            return self.target
        return f"{self.target} ({self.name})"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine's GPUs; a vendor without GPUs is a driver that shows none."""

    gpus: tuple[Gpu, ...] = ()
    vendor: Vendor | Literal[""] = ""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The GPUs of one series of processes: all of one architecture."""

    target: str
    devices: tuple[Gpu, ...]
    env: Environment

    @property
    def description(self) -> str:
        """The GPUs in words: ``gfx942 (0, 1)``."""
        if not self.devices:
            return "no GPU"
        selectors = ", ".join(device.selector for device in self.devices)
        return f"{self.target} ({selectors})"


# What a machine has


def detect_machine() -> Machine:
    """Return this machine's GPUs, by its kernel or by the vendors' programs."""
    if KFD.exists():
        gpus = kernel_gpus(NODES) or rocminfo_gpus(_output_of("rocminfo"))
        return Machine(gpus=gpus, vendor="amd")

    if NVIDIA.exists() or process.which("nvidia-smi"):
        query = ("--query-gpu=uuid,compute_cap,name", "--format=csv,noheader")
        gpus = nvidia_gpus(_output_of("nvidia-smi", *query))
        has_driver = bool(gpus) or NVIDIA.exists()
        return Machine(gpus=gpus, vendor="nvidia" if has_driver else "")

    # Windows, and Linux within it, have no /dev/kfd.
    gpus = rocminfo_gpus(_output_of("rocminfo"))
    if not gpus:
        gpus = offload_arch_gpus(_output_of("offload-arch"))
    return Machine(gpus=gpus, vendor="amd" if gpus else "")


def _output_of(program: str, *arguments: str) -> str:
    """Return what a program prints; one that is missing, fails or hangs knows no GPU."""
    path = process.which(program)
    if path is None:
        return ""
    env = process.handed_on(**dict.fromkeys(HIDING_VARIABLES))
    try:
        completed = process.capture(
            [path, *arguments],
            env=env,
            check=False,
            timeout=_SECONDS,
        )
    except ProcessError as problem:
        # A driver that hangs hangs its programs: https://github.com/ROCm/TheRock/issues/2649
        console.warn(f"{program} names no GPU: {problem.message}")
        return ""
    if completed.returncode != 0:
        return ""
    return completed.stdout


def kernel_gpus(nodes: Path) -> tuple[Gpu, ...]:
    """Return the GPUs in the kernel's topology, which has a folder per node."""
    gpus: list[Gpu] = []
    for facts in kernel_nodes(nodes):
        version = facts.get("gfx_target_version", 0)
        # A processor is a node, too, and has no version.
        if not version:
            continue

        # A GPU is this process's own by its render node; where there are none, all are.
        render_minor = facts.get("drm_render_minor", 0)
        render_node = RENDER_NODES / f"renderD{render_minor}"
        has_render_nodes = bool(render_minor) and RENDER_NODES.is_dir()
        if has_render_nodes and not os.access(render_node, os.R_OK | os.W_OK):
            continue
        unique_id = facts.get("unique_id", 0)
        uuid = f"GPU-{unique_id:016x}" if unique_id else ""
        gpu = Gpu(target=target_of_version(version), uuid=uuid)
        gpus.append(gpu)
    return tuple(gpus)


def rocminfo_gpus(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs among the agents that ``rocminfo`` prints."""
    gpus: list[Gpu] = []
    _preamble, *agents = re.split(r"(?m)^\*+\s*\nAgent \d+\s*\n\*+\s*\n", text)
    for agent in agents:
        facts: dict[str, str] = {}
        # The first of a name counts: an ISA has a name, too, further down.
        for name, value in _FIELD.findall(agent):
            facts.setdefault(name, value)
        target = facts.get("Name", "")
        is_gpu = facts.get("Device Type") == "GPU"
        if not is_gpu or not _TARGET.fullmatch(target):
            continue

        uuid = facts.get("Uuid", "")
        if not re.fullmatch(r"GPU-[0-9a-fA-F]{2,}", uuid):
            uuid = ""
        name = facts.get("Marketing Name", "")
        gpu = Gpu(target=target, uuid=uuid, name=name)
        gpus.append(gpu)
    return tuple(gpus)


def offload_arch_gpus(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs that ``offload-arch`` prints, a target a line."""
    gpus: list[Gpu] = []
    for line in text.splitlines():
        target = line.strip().partition(":")[0]
        if _TARGET.fullmatch(target):
            gpus.append(Gpu(target=target))
    return tuple(gpus)


def nvidia_gpus(text: str) -> tuple[Gpu, ...]:
    """Return what ``nvidia-smi --query-gpu=uuid,compute_cap,name --format=csv,noheader`` prints."""
    gpus: list[Gpu] = []
    for uuid, major, minor, name in _NVIDIA_ROW.findall(text):
        gpu = Gpu(target=f"sm_{major}{minor}", uuid=uuid, name=name)
        gpus.append(gpu)
    return tuple(gpus)


# Which GPUs are tested


def assignment_without_gpu() -> Assignment:
    """Return an assignment of no GPU, whatever the machine has."""
    env: dict[str, str | None] = dict.fromkeys(HIDING_VARIABLES)
    # An empty value hides every GPU from both vendors' runtimes.
    env |= {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}
    return Assignment(target="", devices=(), env=env)


def assign_gpus(
    context: Context,
    env: Mapping[str, str],
    *,
    policy: Policy = "unique",
    allow_no_gpu: bool = False,
    other_gpu: bool = False,
) -> Sequence[Assignment]:
    """Return which of this machine's GPUs are tested on, one assignment per architecture.

    It is one assignment without a GPU for family ``cpu``, and where that is allowed.
    """
    if not context.gpu and not other_gpu:
        return [assignment_without_gpu()]
    try:
        return select_gpus(
            detect_machine(),
            env,
            gpu_family=context.gpu_family,
            targets=context.gpu_targets,
            policy=policy,
            any_vendor=other_gpu,
        )
    except CheckError as problem:
        if context.ref.has_gpu_code and not allow_no_gpu:
            raise
        console.say(f"{problem.message} Tests run without a GPU.")
        return [assignment_without_gpu()]


def visible_gpus(machine: Machine, env: Mapping[str, str]) -> Sequence[Gpu]:
    """Return the GPUs that a process with these variables would see."""
    if machine.vendor == "nvidia":
        if "CUDA_VISIBLE_DEVICES" not in env:
            # By default, its runtime counts in another order than its programs.
            return [replace(gpu, selector=gpu.uuid) for gpu in machine.gpus]
        return _gpus_by_variable(machine.gpus, "CUDA_VISIBLE_DEVICES", env)

    runtime_gpus = _gpus_by_variable(machine.gpus, "ROCR_VISIBLE_DEVICES", env)
    topmost_variable = "HIP_VISIBLE_DEVICES"
    if topmost_variable not in env:
        topmost_variable = "CUDA_VISIBLE_DEVICES"
    return _gpus_by_variable(runtime_gpus, topmost_variable, env)


def _gpus_by_variable(
    gpus: Sequence[Gpu],
    variable: str,
    env: Mapping[str, str],
) -> Sequence[Gpu]:
    """Return the GPUs that a variable leaves, in its order; all where it is not set."""
    if variable not in env:
        return [replace(gpu, selector=str(index)) for index, gpu in enumerate(gpus)]

    devices: list[Gpu] = []
    indexes: set[int] = set()
    value = env[variable]
    for selector in _selectors_in(value):
        index = _index_of_gpu(selector, gpus)
        if index is None:
            raise UsageError(
                f"{variable}={value} names {selector}, and {_describe_range(gpus)}.",
                hint=f"Correct {variable}, or remove it.",
            )
        if index in indexes:
            raise UsageError(f"{variable}={value} names a GPU twice.", hint=f"Correct {variable}.")
        indexes.add(index)
        devices.append(replace(gpus[index], selector=selector))
    return devices


def _selectors_in(value: str) -> Iterator[str]:
    """Yield the indexes and UUIDs of a variable up to what ends the list for the runtimes."""
    for part in value.split(","):
        selector = part.strip()
        if selector in ("", "-1"):
            return
        yield selector


def _index_of_gpu(selector: str, gpus: Sequence[Gpu]) -> int | None:
    """Return the place of the GPU that an index or a UUID names; None where there is no such GPU."""
    if selector.isascii() and selector.isdigit():
        number = int(selector)
        return number if number < len(gpus) else None

    # As in the runtimes, a prefix that only one GPU has is enough.
    prefix = selector.lower()
    matching_indexes: list[int] = []
    for index, gpu in enumerate(gpus):
        uuid = gpu.uuid.lower()
        if uuid and uuid.startswith(prefix):
            matching_indexes.append(index)
    if len(matching_indexes) != 1:
        return None
    return matching_indexes[0]


def _describe_range(gpus: Sequence[Gpu]) -> str:
    """Return which GPUs a variable may name."""
    if not gpus:
        return "there is no GPU"
    sentence = f"there are GPUs 0 to {len(gpus) - 1}"
    uuids = [gpu.uuid for gpu in gpus if gpu.uuid]
    if uuids:
        sentence += f" ({', '.join(uuids)})"
    return sentence


def select_gpus(
    machine: Machine,
    env: Mapping[str, str],
    *,
    gpu_family: str,
    targets: Sequence[str],
    policy: Policy = "unique",
    any_vendor: bool = False,
) -> Sequence[Assignment]:
    """Return the visible GPUs of a family, one assignment per architecture."""
    _require_gpus(machine, gpu_family)
    devices = visible_gpus(machine, env)
    if not devices:
        hiding_variables = [f"{name}={env[name]}" for name in HIDING_VARIABLES if name in env]
        raise CheckError(
            f"This machine has {_describe_gpus(machine.gpus)}, "
            f"and {', '.join(hiding_variables)} hides every GPU.",
            hint="Remove the variable, or name the GPUs that tests may use.",
        )

    is_any_target = any_vendor and machine.vendor == "nvidia"
    devices_of_target: dict[str, list[Gpu]] = {}
    for device in devices:
        if is_any_target or device.target in targets:
            devices_of_target.setdefault(device.target, []).append(device)
    if not devices_of_target:
        raise CheckError(
            f"No visible GPU is of {gpu_family} ({', '.join(targets)}): here is {_describe_gpus(devices)}.",
            hint="Run it on a machine with one, give another --gpu-family, or say --allow-no-gpu.",
        )

    assignments: list[Assignment] = []
    for target, target_devices in devices_of_target.items():
        used_devices = target_devices if policy == "all" else target_devices[:1]
        variables = _selecting_variables(machine, used_devices, env)
        assignment = Assignment(target=target, devices=tuple(used_devices), env=variables)
        assignments.append(assignment)
    return assignments


def _selecting_variables(
    machine: Machine,
    devices: Sequence[Gpu],
    env: Mapping[str, str],
) -> Environment:
    """Return the variables with which a process sees these devices alone."""
    value = ",".join(device.selector for device in devices)
    if machine.vendor == "nvidia":
        return {"CUDA_VISIBLE_DEVICES": value}

    variables: dict[str, str | None] = {"HIP_VISIBLE_DEVICES": value}
    # ROCm's runtime refuses to choose between two variables that differ.
    for name in ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
        if name in env:
            variables[name] = None
    return variables


def _require_gpus(machine: Machine, gpu_family: str) -> None:
    """Refuse a machine without a driver, or whose driver shows no GPU."""
    if not machine.vendor:
        raise CheckError(
            f"Wheels for {gpu_family} are to be tested, and no GPU driver is loaded in this machine.",
            hint="There is no /dev/kfd, and neither rocminfo nor offload-arch names a GPU. In a container, "
            "pass the devices on: --device /dev/kfd --device /dev/dri.\n"
            "Run it on a machine with one, or say --allow-no-gpu.",
        )
    if not machine.gpus:
        raise CheckError(
            f"Wheels for {gpu_family} are to be tested; the GPU driver is loaded and shows no GPU.",
            hint="See that this user may open /dev/dri/renderD* (groups video and render), and: rocminfo",
        )


def _describe_gpus(gpus: Sequence[Gpu]) -> str:
    """Return GPUs in words: ``2 x gfx942 (AMD Instinct MI300X), gfx1100``."""
    parts: list[str] = []
    counts = Counter(map(str, gpus))
    for gpu, count in counts.items():
        if count == 1:
            parts.append(gpu)
        else:
            parts.append(f"{count} x {gpu}")
    return ", ".join(parts)
