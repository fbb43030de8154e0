"""Device code in packages of its own: which of them tests need, and what fails without them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from core import process
from core.errors import CheckError
from core.families import detect
from rocm_packaging.packages.layouts import LIBRARIES, device_target, layout_of, sdk_target, tested_targets

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from core.env import Interpreter
    from pytorch_build.context import Context
    from pytorch_build.test.gpu_selection import Assignment

# distributions whose device code may lie in packages of its own, and the names of these
PREFIXES = {
    LIBRARIES: "rocm-sdk-device-",
    "torch": "amd-torch-device-",
    "torchvision": "amd-torchvision-device-",
}
_INSTALLED = """
import importlib.metadata, json, re, sys
found = {}
for one in importlib.metadata.distributions():
    name = re.sub("[-_.]+", "-", one.name).lower()
    found[name] = [one.version, one.metadata.get_all("Provides-Extra") or []]
json.dump(found, sys.stdout)
"""


def targets_of(context: Context, names: Collection[str] = ()) -> tuple[str, ...]:
    """Return the gfx targets whose device packages are tested: this machine's, else those there are."""
    if not context.gpu:
        return ()
    here = detect()
    wanted = tested_targets(context.gpu_family, here)
    built = {device_target(one) for one in names if one.startswith(PREFIXES["torch"])}
    return wanted if set(wanted) & set(here) else tuple(one for one in wanted if one in built) or wanted


def amd_targets(assigned: Sequence[Assignment]) -> tuple[str, ...]:
    """Return the gfx targets of the GPUs that tests run on; none without a GPU, or on others' GPUs."""
    return tuple(dict.fromkeys(one.target for one in assigned if one.target.startswith("gfx")))


def told_to_sdist(names: Collection[str], gpu_family: str) -> str:
    """Return what the sdist of `rocm` is told: the family, or a target of split packages; "" without ROCm."""
    layout = layout_of(names, where="The installation")
    devices = sorted(device_target(one) for one in names if one.startswith(PREFIXES[LIBRARIES]))
    return sdk_target(layout, gpu_family, devices) if layout else ""


def require_device_code(target: Interpreter, targets: Sequence[str]) -> None:
    """Require device packages for whatever is installed without device code of its own.

    Such a torch imports, and fails at its first kernel.

    Args:
        target: The environment.
        targets: The gfx targets that are tested; none on processors.

    Raises:
        CheckError: A device package is missing, or of another version.
    """
    if not targets:
        return
    held = json.loads(process.capture([target.executable, "-c", _INSTALLED]).stdout)
    for name, prefix in PREFIXES.items():
        version, extras = held.get(name, ("", ()))
        if name != LIBRARIES and not any(one.startswith("device-gfx") for one in extras):
            continue
        for gpu in targets if version else ():
            package = f"{prefix}{gpu}"
            said = f'Install it: pip install "{package}=={version}", from where {name} came.'
            if package not in held:
                raise CheckError(
                    f"{name} {version} in {target.prefix} holds no device code, and {package} is not "
                    f"installed: the first kernel on {gpu} would fail.",
                    hint=said,
                )
            if held[package][0] != version:
                raise CheckError(
                    f"{package} {held[package][0]} in {target.prefix} does not fit {name} {version}.",
                    hint=said,
                )
