"""The two layouts of ROCm's Python packages, and which packages an installation takes of each.

*unsplit*: ``rocm-sdk-libraries-{family}`` holds the libraries of one GPU family with their device code.
*split*: ``rocm-sdk-libraries`` serves all GPUs, and ``rocm-sdk-device-{target}`` adds the device code of one
gfx target. PyTorch's wheels follow: ``amd-torch-device-{target or bundle}`` lies over a split torch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from packaging.utils import canonicalize_name

from core.errors import RocmError, UsageError
from core.families import gpu_targets, parents

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Layout = Literal["split", "unsplit"]

LIBRARIES = "rocm-sdk-libraries"
# finds the device code of TheRock's host wheels; its version is its own
BOOTSTRAP = "rocm-bootstrap"
_DEVICE = re.compile(r"(?:rocm-sdk|amd-(?P<host>torch(?:vision)?))-device-(?P<gpu>gfx[0-9a-z-]+)")


def is_rocm(name: str) -> bool:
    """Return whether a normalized distribution name is one of ROCm's own packages."""
    return name in {"rocm", "rocm-profiler", BOOTSTRAP} or name.startswith("rocm-sdk-")


def libraries_package(layout: Layout, family: str) -> str:
    """Return the name of the distribution that holds the libraries."""
    if layout == "split":
        return LIBRARIES
    if ";" in family:
        raise UsageError(
            f"Unsplit ROCm packages serve one GPU family, and {family} are several.",
            hint="Choose one with --gpu-family, or take ROCm from a source with split packages.",
        )
    return f"{LIBRARIES}-{canonicalize_name(family)}"


def device_package(target: str) -> str:
    """Return the name of the distribution with ROCm's device code for a gfx target."""
    return f"rocm-sdk-device-{target}"


def layout_of(names: Iterable[str], *, where: str) -> Layout | None:
    """Tell the layout by the normalized names of one version's distributions; None without libraries.

    Raises:
        RocmError: They are of both layouts.
    """
    found = sorted(name for name in names if name == LIBRARIES or name.startswith(f"{LIBRARIES}-"))
    split = LIBRARIES in found
    if split and len(found) > 1:
        raise RocmError(
            f"{where} holds ROCm packages of both layouts: {', '.join(found)}.",
            hint="Remove one kind, or name a source that has only one.",
        )
    return ("split" if split else "unsplit") if found else None


def device_target(name: str) -> str:
    """Return the gfx target or bundle that a device package is for; "" for any other distribution."""
    found = _DEVICE.fullmatch(name)
    return found["gpu"] if found else ""


def device_host(name: str) -> str:
    """Return the distribution whose device code a package holds: ``torch``, ``torchvision``; or ""."""
    found = _DEVICE.fullmatch(name)
    return (found["host"] if found else "") or ""


def covers(gpu: str, targets: Iterable[str]) -> bool:
    """Return whether a device package's target or bundle (``gfx11``, ``gfx12-0``) is for any of targets."""
    normalized = gpu.replace("_", "-")  # as wheels' file names have it
    return any(normalized in (target, *parents(target)) for target in targets)


def serves(name: str, gpu_families: Sequence[str], targets: Sequence[str]) -> bool:
    """Return whether a distribution belongs into an environment for GPU families and gfx targets.

    Args:
        name: Normalized distribution name, of ROCm or of PyTorch.
        gpu_families: The families, which unsplit libraries are named for.
        targets: The targets, which device packages are named for.
    """
    if gpu := device_target(name):
        return covers(gpu, targets)
    if name.startswith(f"{LIBRARIES}-"):
        return name in {f"{LIBRARIES}-{canonicalize_name(family)}" for family in gpu_families}
    return True


def tested_targets(family: str, detected: Sequence[str]) -> tuple[str, ...]:
    """Return the targets whose device packages a test needs: this machine's of the family, else all of it.

    Args:
        family: The GPU family, or several joined by ``;``.
        detected: This machine's targets; empty without a GPU.
    """
    known = gpu_targets(family)
    return tuple(one for one in known if one in detected) or known


def sdk_target(layout: Layout, family: str, targets: Sequence[str] = ()) -> str:
    """Return the value of ROCM_SDK_TARGET_FAMILY; "" where it has to be unset.

    Of split packages every value but a gfx target is refused by upstream's ``rocm_sdk``.

    Args:
        layout: The layout.
        family: The GPU family.
        targets: The targets whose device packages are installed; none for builds.
    """
    if layout == "unsplit":
        return family
    return targets[0] if targets else ""
