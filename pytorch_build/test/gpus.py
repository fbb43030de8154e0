"""Which GPUs this machine has: what the kernel and the vendors' programs say, read into one form.

Sources: the kernel's topology (``/sys/class/kfd/kfd/topology/nodes``), else ``rocminfo``, else
``rocm_agent_enumerator``, else ``amd-smi static --asic --json``; ``nvidia-smi`` on NVIDIA's machines; where
there is no such driver, as on Windows, ``rocminfo``, ``offload-arch`` or ``amdgpu-arch``.
They are asked without the variables that hide GPUs, so that what a person hides is known by name.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from core import process
from core.errors import CheckError, UsageError
from core.families import KFD_NODES, target_of_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


Vendor = Literal["amd", "nvidia"]

# what hides GPUs, from the runtime's lowest layer up
HIDING = (
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
)
NODES = KFD_NODES
KFD = Path("/dev/kfd")
RENDER_NODES = Path("/dev/dri")
NVIDIA = Path("/dev/nvidiactl")
_LISTING = ("offload-arch", "amdgpu-arch")
_SECONDS = 60.0
_TARGET = re.compile(r"gfx[0-9a-f]{3,}")
_AGENTS = re.compile(r"^\*+\s*\nAgent \d+\s*\n\*+\s*\n", re.MULTILINE)
_FIELD = re.compile(r"^  ([A-Z][\w ]*?):[ \t]+(.*?)[ \t]*$", re.MULTILINE)
_PROPERTY = re.compile(r"^(\w+) (\d+)$", re.MULTILINE)
_NVIDIA_QUERY = ("--query-gpu=uuid,compute_cap,name", "--format=csv,noheader")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU."""

    target: str
    uuid: str = ""
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a machine has."""

    gpus: tuple[Gpu, ...] = ()
    vendor: Vendor | Literal[""] = ""


def this_machine() -> Machine:
    """Ask the kernel and the vendors' programs."""
    if KFD.exists():
        return Machine(gpus=_amd(), vendor="amd")
    if NVIDIA.exists() or process.which("nvidia-smi"):
        said = _said("nvidia-smi", *_NVIDIA_QUERY)
        gpus = nvidia_gpus(said)
        return Machine(gpus=gpus, vendor="nvidia" if gpus or NVIDIA.exists() else "")
    # Windows, and Linux within it, have no /dev/kfd
    found = rocminfo_gpus(_said("rocminfo"))
    for program in _LISTING:
        found = found or enumerated_gpus(_said(program))
    return Machine(gpus=found, vendor="amd" if found else "")


def _amd() -> tuple[Gpu, ...]:
    found = kernel_gpus(_properties(NODES), usable=_usable)
    found = found or rocminfo_gpus(_said("rocminfo"))
    found = found or enumerated_gpus(_said("rocm_agent_enumerator"))
    return found or amd_smi_gpus(_said("amd-smi", "static", "--asic", "--json"))


def _said(program: str, *arguments: str) -> str:
    """Ask a program; one that is not there or fails knows of no GPU."""
    path = process.which(program)
    if path is None:
        return ""
    env = process.inherited(**dict.fromkeys(HIDING))
    said = process.capture([path, *arguments], env=env, check=False, timeout=_SECONDS)
    return said.stdout if said.returncode == 0 else ""


def _properties(nodes: Path) -> Iterator[str]:
    for file in sorted(nodes.glob("*/properties"), key=lambda one: (len(one.parent.name), one.parent.name)):
        try:
            yield file.read_text(encoding="utf-8")
        except OSError:  # of a GPU that belongs to another container
            continue


def _usable(minor: int) -> bool:
    node = RENDER_NODES / f"renderD{minor}"
    return not RENDER_NODES.is_dir() or os.access(node, os.R_OK | os.W_OK)


def kernel_gpus(properties: Iterable[str], *, usable: Callable[[int], bool] | None = None) -> tuple[Gpu, ...]:
    """Read the kernel's topology: one text a node, in the order of the nodes' numbers."""
    found = []
    for text in properties:
        facts = {name: int(value) for name, value in _PROPERTY.findall(text)}
        version = facts.get("gfx_target_version", 0)
        minor = facts.get("drm_render_minor", 0)
        if version and (usable is None or not minor or usable(minor)):
            unique = facts.get("unique_id", 0)
            found.append(Gpu(target=target_of_version(version), uuid=f"GPU-{unique:016x}" if unique else ""))
    return tuple(found)


def rocminfo_gpus(text: str) -> tuple[Gpu, ...]:
    """Read what ``rocminfo`` prints: the GPUs among its agents."""
    found = []
    for agent in _AGENTS.split(text)[1:]:
        # an ISA has a name, too, further down and further in
        facts: dict[str, str] = {}
        for name, value in _FIELD.findall(agent):
            facts.setdefault(name, value)
        if facts.get("Device Type") == "GPU" and _TARGET.fullmatch(facts.get("Name", "")):
            uuid = facts.get("Uuid", "")
            known = re.fullmatch(r"GPU-[0-9a-fA-F]{2,}", uuid) is not None
            found.append(
                Gpu(
                    target=facts["Name"],
                    uuid=uuid if known else "",
                    name=facts.get("Marketing Name", ""),
                )
            )
    return tuple(found)


def enumerated_gpus(text: str) -> tuple[Gpu, ...]:
    """Read what ``rocm_agent_enumerator`` or ``offload-arch`` prints: a target a line; ``gfx000`` is none."""
    words = [line.strip().partition(":")[0] for line in text.splitlines()]
    return tuple(Gpu(target=word) for word in words if _TARGET.fullmatch(word) and word != "gfx000")


def amd_smi_gpus(text: str) -> tuple[Gpu, ...]:
    """Read what ``amd-smi static --asic --json`` prints: a list, since ROCm 7 ``{"gpu_data": […]}``."""
    try:
        said = json.loads(text)
    except ValueError:
        return ()
    rows = said.get("gpu_data", []) if isinstance(said, dict) else said
    chips = [row.get("asic", {}) for row in rows if isinstance(row, dict)]
    return tuple(_of_amd_smi(chip) for chip in chips if _TARGET.fullmatch(_graphics(chip)))


def _graphics(chip: Mapping[str, object]) -> str:
    return str(chip.get("target_graphics_version", ""))


def _of_amd_smi(chip: Mapping[str, object]) -> Gpu:
    serial = re.fullmatch(r"(?:0x)?([0-9a-fA-F]{1,16})", str(chip.get("asic_serial", "")))
    return Gpu(
        target=_graphics(chip),
        uuid=f"GPU-{serial[1].lower():0>16}" if serial else "",
        name=str(chip.get("market_name", "")),
    )


def nvidia_gpus(text: str) -> tuple[Gpu, ...]:
    """Read what ``nvidia-smi --query-gpu=uuid,compute_cap,name --format=csv,noheader`` prints."""
    found = []
    for line in text.splitlines():
        uuid, _, rest = (part.strip() for part in line.partition(","))
        version, _, name = (part.strip() for part in rest.partition(","))
        if uuid.startswith("GPU-") and re.fullmatch(r"\d+\.\d+", version):
            found.append(Gpu(target=f"sm_{version.replace('.', '')}", uuid=uuid, name=name))
    return tuple(found)


Policy = Literal["unique", "all"]


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU that a process would see."""

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
        """The GPUs in words, for people."""
        if not self.devices:
            return "no GPU"
        listed = ", ".join(one.word for one in self.devices)
        return f"{self.target} ({listed})"


def without_gpu() -> Assignment:
    """Give processes no GPU, whatever the machine has."""
    env: dict[str, str | None] = dict.fromkeys(HIDING)
    # empty hides every GPU from both vendors' runtimes
    return Assignment(
        target="", devices=(), env={**env, "HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}
    )


def visible(machine: Machine, env: Mapping[str, str]) -> Sequence[Device]:
    """List what a process with these variables would see, with the words that choose among it."""
    if machine.vendor == "nvidia":
        if "CUDA_VISIBLE_DEVICES" not in env:
            # its runtime counts in another order than its programs unless told otherwise
            return [Device(gpu=gpu, word=gpu.uuid) for gpu in machine.gpus]
        return _chosen(machine.gpus, "CUDA_VISIBLE_DEVICES", env)
    if "ROCR_VISIBLE_DEVICES" in env:
        gpus: Sequence[Gpu] = [one.gpu for one in _chosen(machine.gpus, "ROCR_VISIBLE_DEVICES", env)]
    else:
        gpus = machine.gpus
    topmost = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in env else "CUDA_VISIBLE_DEVICES"
    return _chosen(gpus, topmost, env)


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
        if int(word) < len(gpus):
            return int(word)
        found = []
    else:
        # as the runtimes do, a beginning that names one GPU alone is enough
        found = [at for at, gpu in enumerate(gpus) if gpu.uuid and gpu.uuid.lower().startswith(word.lower())]
    if len(found) == 1:
        return found[0]
    known = ", ".join(gpu.uuid for gpu in gpus if gpu.uuid)
    what = f"GPUs 0 to {len(gpus) - 1}" if gpus else "no GPU"
    raise UsageError(
        f"{variable}={value} names {word}, and there {'are' if gpus else 'is'} {what}"
        f"{f' ({known})' if known else ''}.",
        hint=f"Correct {variable}, or take it out.",
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
    """Choose the GPUs of a family among those that are visible, one assignment an architecture."""
    hint = "Run it on a machine with one, name its family with --gpu-family, or say --allow-no-gpu."
    if not machine.vendor:
        raise CheckError(
            f"Wheels for {gpu_family} are to be tested, and no GPU driver is loaded in this machine "
            "(no /dev/kfd, and neither rocminfo nor offload-arch names a GPU).",
            hint=f"In a container, pass the devices on: --device /dev/kfd --device /dev/dri.\n{hint}",
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
            hint="Take the variable out, or name the GPUs that tests may use.",
        )
    other = machine.vendor == "nvidia" and any_vendor
    found = [one for one in devices if other or one.gpu.target in targets]
    if not found:
        raise CheckError(
            f"No visible GPU is of {gpu_family} ({', '.join(targets)}): here is "
            f"{_listed([one.gpu for one in devices])}.",
            hint=hint,
        )
    by_target: dict[str, list[Device]] = {}
    for one in found:
        by_target.setdefault(one.gpu.target, []).append(one)
    return [
        _assigned(machine, target, group if policy == "all" else group[:1], env)
        for target, group in by_target.items()
    ]


def _assigned(machine: Machine, target: str, devices: Sequence[Device], env: Mapping[str, str]) -> Assignment:
    words = ",".join(one.word for one in devices)
    if machine.vendor == "nvidia":
        return Assignment(target=target, devices=tuple(devices), env={"CUDA_VISIBLE_DEVICES": words})
    # the runtime refuses to choose between two variables that say different things
    changes: dict[str, str | None] = {
        name: None for name in ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL") if name in env
    }
    return Assignment(target=target, devices=tuple(devices), env={**changes, "HIP_VISIBLE_DEVICES": words})


def _listed(gpus: Sequence[Gpu]) -> str:
    counted: dict[str, int] = {}
    for gpu in gpus:
        known = f"{gpu.target} ({gpu.name})" if gpu.name else gpu.target
        counted[known] = counted.get(known, 0) + 1
    return ", ".join(f"{count} x {known}" if count > 1 else known for known, count in counted.items())
