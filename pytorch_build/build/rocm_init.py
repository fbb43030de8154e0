"""Content of ``torch/_rocm_init.py``, which a torch wheel for ROCm carries.

torch's ``__init__`` calls its ``initialize()`` when the file is there. That loads ROCm's
libraries out of the ``rocm-sdk-*`` wheels with global symbols, so that torch's own
libraries, and anything that looks a library up by an unversioned name, find them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.errors import RocmError

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytorch_build.platforms import Platform

# Without these torch cannot work, so their absence is an error of the SDK.
REQUIRED = ("amdhip64", "hiprtc", "hipblas")
PATH = "torch/_rocm_init.py"


@dataclass(frozen=True, kw_only=True)
class Preloads:
    """Libraries that torch loads first."""

    names: tuple[str, ...]
    absent: tuple[str, ...]


def preload_names(platform: Platform, available: Collection[str]) -> Preloads:
    """Choose the libraries to load first, out of those that the SDK really has.

    One name in the list that the SDK cannot find breaks ``import torch`` for everybody,
    so the list follows the SDK, as long as it has what torch cannot do without.
    """
    lacking = [name for name in REQUIRED if name not in available]
    if lacking:
        raise RocmError(
            f"The ROCm SDK has no {', '.join(lacking)}, without which torch cannot be imported.",
            hint="Install rocm[libraries,devel] completely: nox -s install_rocm.",
        )
    names = tuple(name for name in platform.PRELOADS if name in available)
    return Preloads(names=names, absent=tuple(name for name in platform.PRELOADS if name not in names))


def rocm_init_text(preloads: Preloads, *, rocm_version: str) -> str:
    """Write the file for an SDK: what to load, and the version to compare with at run time."""
    if not preloads.names or not rocm_version:
        raise RocmError("A torch wheel for ROCm needs libraries to load first and a ROCm version.")
    listed = "".join(f"            {name!r},\n" for name in preloads.names)
    return (
        '"""Loads ROCm\'s libraries before torch\'s own. Written when this wheel was built."""\n'
        "\n\n"
        "def initialize():\n"
        "    import rocm_sdk\n"
        "\n"
        "    rocm_sdk.initialize_process(\n"
        "        preload_shortnames=[\n"
        f"{listed}"
        "        ],\n"
        f"        check_version={rocm_version!r},\n"
        "    )\n"
    )


def query_code(platform: Platform) -> str:
    """Give Python code for the target environment that prints which libraries its SDK has.

    It prints one short name a line; its lines are what `preload_names` takes. A name that the
    SDK does not know, has no file for, or skips on this platform is not printed; an SDK
    without its libraries' wheel fails in several ways, and each means the same here.
    """
    return (
        "import rocm_sdk\n"
        f"for name in {platform.PRELOADS!r}:\n"
        "    try:\n"
        "        found = rocm_sdk.find_libraries(name)\n"
        "    except Exception:\n"
        "        continue\n"
        "    if found:\n"
        "        print(name)\n"
    )
