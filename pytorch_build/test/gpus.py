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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from core import console, process
from core.errors import CheckError, UsageError
from core.families import KFD_NODES, kernel_nodes, target_of_version

if TYPE_CHECKING:
    from pytorch_build.context import Context

Vendor = Literal["amd", "nvidia"]
Policy = Literal["unique", "all"]

# what hides GPUs, from the runtime's lowest layer up
HIDING = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
NODES = KFD_NODES
KFD = Path("/dev/kfd")
RENDER_NODES = Path("/dev/dri")
NVIDIA = Path("/dev/nvidiactl")
_SECONDS = 60.0
_TARGET = re.compile(r"gfx[0-9a-f]{3,}")
_FIELD = re.compile(r"^  ([A-Z][\w ]*?):[ \t]+(.*?)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU."""

    target: str
    uuid: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.target} ({self.name})" if self.name else self.target


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine's GPUs; a vendor without GPUs is a driver that shows none."""

    gpus: tuple[Gpu, ...] = ()
    vendor: Vendor | Literal[""] = ""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU that a process would see, and the word that chooses it."""

    gpu: Gpu
    word: str


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The GPUs of one series of processes: all of one architecture."""

    target: str
    devices: tuple[Device, ...]
    env: Mapping[str, str | None]

    @property
    def words(self) -> str:
        """The GPUs in words: ``gfx942 (0, 1)``."""
        return f"{self.target} ({', '.join(one.word for one in self.devices)})" if self.devices else "no GPU"


def this_machine() -> Machine:
    """Query the kernel and the vendors' programs."""
    if KFD.exists():
        return Machine(gpus=kernel_gpus(NODES) or rocminfo_gpus(_output("rocminfo")), vendor="amd")
    if NVIDIA.exists() or process.which("nvidia-smi"):
        query = ("--query-gpu=uuid,compute_cap,name", "--format=csv,noheader")
        found = nvidia_gpus(_output("nvidia-smi", *query))
        return Machine(gpus=found, vendor="nvidia" if found or NVIDIA.exists() else "")
    # Windows, and Linux within it, have no /dev/kfd
    found = rocminfo_gpus(_output("rocminfo")) or enumerated_gpus(_output("offload-arch"))
    return Machine(gpus=found, vendor="amd" if found else "")


def _output(program: str, *arguments: str) -> str:
    """Run a program; one that is missing or fails knows no GPU."""
    path = process.which(program)
    if path is None:
        return ""
    env = process.handed_on(**dict.fromkeys(HIDING))
    done = process.capture([path, *arguments], env=env, check=False, timeout=_SECONDS)
    return done.stdout if done.returncode == 0 else ""


def kernel_gpus(nodes: Path) -> tuple[Gpu, ...]:
    """Read the kernel's topology: a folder per node."""
    found, mode = [], os.R_OK | os.W_OK
    for facts in kernel_nodes(nodes):
        version, minor = facts.get("gfx_target_version", 0), facts.get("drm_render_minor", 0)
        # one that this process may not open is not its own
        if version and (
            not minor or not RENDER_NODES.is_dir() or os.access(RENDER_NODES / f"renderD{minor}", mode)
        ):
            unique = facts.get("unique_id", 0)
            found.append(Gpu(target=target_of_version(version), uuid=f"GPU-{unique:016x}" if unique else ""))
    return tuple(found)


def rocminfo_gpus(text: str) -> tuple[Gpu, ...]:
    """Read what ``rocminfo`` prints: the GPUs among its agents."""
    _, *agents = re.split(r"(?m)^\*+\s*\nAgent \d+\s*\n\*+\s*\n", text)
    # the first of a name counts: an ISA has a name, too, further down
    found = (dict(reversed(_FIELD.findall(agent))) for agent in agents)
    return tuple(
        Gpu(
            target=facts["Name"],
            uuid=uuid if re.fullmatch(r"GPU-[0-9a-fA-F]{2,}", uuid := facts.get("Uuid", "")) else "",
            name=facts.get("Marketing Name", ""),
        )
        for facts in found
        if facts.get("Device Type") == "GPU" and _TARGET.fullmatch(facts.get("Name", ""))
    )


def enumerated_gpus(text: str) -> tuple[Gpu, ...]:
    """Read a target per line, as ``offload-arch`` prints them."""
    words = (line.strip().partition(":")[0] for line in text.splitlines())
    return tuple(Gpu(target=word) for word in words if _TARGET.fullmatch(word))


def nvidia_gpus(text: str) -> tuple[Gpu, ...]:
    """Read what ``nvidia-smi --query-gpu=uuid,compute_cap,name --format=csv,noheader`` prints."""
    rows = re.findall(r"(?m)^(GPU-[^,]*?)\s*,\s*(\d+)\.(\d+)\s*,\s*(.*?)\s*$", text)
    return tuple(Gpu(target=f"sm_{major}{minor}", uuid=uuid, name=name) for uuid, major, minor, name in rows)


def without_gpu() -> Assignment:
    """Return an assignment of no GPU, whatever the machine has."""
    env: dict[str, str | None] = dict.fromkeys(HIDING)
    # empty hides every GPU from both vendors' runtimes
    return Assignment(
        target="", devices=(), env={**env, "HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}
    )


def assignments(
    context: Context,
    env: Mapping[str, str],
    *,
    policy: Policy = "unique",
    allow_no_gpu: bool = False,
    other_gpu: bool = False,
) -> Sequence[Assignment]:
    """Choose this machine's GPUs; one without any for family ``cpu``, and where that is allowed."""
    if not context.gpu and not other_gpu:
        return [without_gpu()]
    family, targets = context.gpu_family, context.gpu_targets
    try:
        return select(
            this_machine(), env, gpu_family=family, targets=targets, policy=policy, any_vendor=other_gpu
        )
    except CheckError as problem:
        if context.ref.has_gpu_code and not allow_no_gpu:
            raise
        console.say(f"{problem.message} Tests run without a GPU.")
        return [without_gpu()]


def visible(machine: Machine, env: Mapping[str, str]) -> Sequence[Device]:
    """List what a process with these variables would see."""
    if machine.vendor == "nvidia":
        if "CUDA_VISIBLE_DEVICES" not in env:
            # its runtime counts in another order than its programs by default
            return [Device(gpu=gpu, word=gpu.uuid) for gpu in machine.gpus]
        return _chosen(machine.gpus, "CUDA_VISIBLE_DEVICES", env)
    left = [one.gpu for one in _chosen(machine.gpus, "ROCR_VISIBLE_DEVICES", env)]
    topmost = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in env else "CUDA_VISIBLE_DEVICES"
    return _chosen(left, topmost, env)


def _chosen(gpus: Sequence[Gpu], variable: str, env: Mapping[str, str]) -> Sequence[Device]:
    if variable not in env:
        return [Device(gpu=gpu, word=str(index)) for index, gpu in enumerate(gpus)]
    devices: list[Device] = []
    for word in (part.strip() for part in env[variable].split(",")):
        if word in ("", "-1"):
            break
        device = Device(gpu=gpus[_index(word, gpus, variable, env[variable])], word=word)
        if any(device.gpu is one.gpu for one in devices):
            raise UsageError(f"{variable}={env[variable]} names a GPU twice.", hint=f"Correct {variable}.")
        devices.append(device)
    return devices


def _index(word: str, gpus: Sequence[Gpu], variable: str, value: str) -> int:
    if word.isascii() and word.isdigit():
        found = [int(word)] if int(word) < len(gpus) else []
    else:
        # as in the runtimes, a prefix that only one GPU has is enough
        found = [at for at, gpu in enumerate(gpus) if gpu.uuid and gpu.uuid.lower().startswith(word.lower())]
    if len(found) == 1:
        return found[0]
    known = ", ".join(gpu.uuid for gpu in gpus if gpu.uuid)
    what = f"are GPUs 0 to {len(gpus) - 1}" if gpus else "is no GPU"
    raise UsageError(
        f"{variable}={value} names {word}, and there {what}{f' ({known})' if known else ''}.",
        hint=f"Correct {variable}, or remove it.",
    )


def select(
    machine: Machine,
    env: Mapping[str, str],
    *,
    gpu_family: str,
    targets: Sequence[str],
    policy: Policy = "unique",
    any_vendor: bool = False,
) -> Sequence[Assignment]:
    """Choose the GPUs of a family among those that are visible, one assignment per architecture."""
    hint = "Run it on a machine with one, name its family with --gpu-family, or say --allow-no-gpu."
    if not machine.vendor:
        raise CheckError(
            f"Wheels for {gpu_family} are to be tested, and no GPU driver is loaded in this machine.",
            hint="There is no /dev/kfd, and neither rocminfo nor offload-arch names a GPU. In a container, "
            f"pass the devices on: --device /dev/kfd --device /dev/dri.\n{hint}",
        )
    if not machine.gpus:
        raise CheckError(
            f"Wheels for {gpu_family} are to be tested; the GPU driver is loaded and shows no GPU.",
            hint="See that this user may open /dev/dri/renderD* (groups video and render), and: rocminfo",
        )
    devices = visible(machine, env)
    if not devices:
        hiding = ", ".join(f"{name}={env[name]}" for name in HIDING if name in env)
        raise CheckError(
            f"This machine has {_listed(machine.gpus)}, and {hiding} hides every GPU.",
            hint="Remove the variable, or name the GPUs that tests may use.",
        )
    nvidia, by_target = machine.vendor == "nvidia", dict[str, list[Device]]()
    for one in devices:
        if (nvidia and any_vendor) or one.gpu.target in targets:
            by_target.setdefault(one.gpu.target, []).append(one)
    if not by_target:
        raise CheckError(
            f"No visible GPU is of {gpu_family} ({', '.join(targets)}): here is "
            f"{_listed(one.gpu for one in devices)}.",
            hint=hint,
        )
    # ROCm's runtime refuses to choose between two variables that differ
    hidden = [] if nvidia else [one for one in ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL") if one in env]
    chosen, found = "CUDA_VISIBLE_DEVICES" if nvidia else "HIP_VISIBLE_DEVICES", []
    for target, group in by_target.items():
        used = tuple(group if policy == "all" else group[:1])
        words = ",".join(one.word for one in used)
        found.append(Assignment(target=target, devices=used, env={**dict.fromkeys(hidden), chosen: words}))
    return found


def _listed(gpus: Iterable[Gpu]) -> str:
    counted = Counter(map(str, gpus))
    return ", ".join(f"{count} x {known}" if count > 1 else known for known, count in counted.items())
