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
from core.families import KFD_NODES, target_of_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

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
